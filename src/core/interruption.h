/* Calls that the application ends early: nhood_context_options.interrupted. */
#ifndef NH_INTERRUPTION_H
#define NH_INTERRUPTION_H

#include "base.h"

#include <stdatomic.h>

/* A call that may be interrupted. Lies on the stack of the thread that makes it. */
struct nh_interruption {
    const struct nh_host *host;
    atomic_bool came;
    double next_s;                    /* when to ask the application again; 0: not asked yet */
    struct nh_interruption *previous; /* of the same thread: a callback that calls the library */
};

/* From now on the loops of this thread's call look. Does nothing if the application gave no callback. */
void nh_interruption_begin(struct nh_interruption *call, const struct nh_host *host);
/* Returns `status` or, if the call was interrupted, INTERRUPTED. */
nhood_status nh_interruption_end(struct nh_interruption *call, nhood_status status);

/* This thread's call; NULL if it cannot be interrupted. Loops that several threads share take it along. */
struct nh_interruption *nh_interruption_current(void);

/* Whether the call is to end without more work. Its own thread asks the application, ten times a second; others are told. call may
 * be NULL. */
bool nh_interrupted(struct nh_interruption *call);

#endif
