/* Memory for many small things that are given back together: a heap takes a tenth of the time of a group's plan to allocate and
 * release its members' operations one by one. */
#ifndef NH_ARENA_H
#define NH_ARENA_H

#include "base.h"

#include <stdatomic.h>

struct nh_arena;

/* A place for an arena that nobody uses, whose memory the next one gets: back from the heap, and perhaps from the system, it would take
 * a quarter of the time of a group's plan. Threads may share it. */
struct nh_spare_arena {
    _Atomic(struct nh_arena *) arena; /* NULL: none */
};

/* MEMORY. */
nhood_status nh_arena_create(const struct nh_host *host, struct nh_arena **arena);
/* Gives back all its memory. Does nothing for NULL. */
void nh_arena_destroy(struct nh_arena *arena);

/* The spare one, or a new one. MEMORY. */
nhood_status nh_arena_take(struct nh_spare_arena *spare, const struct nh_host *host,
                           struct nh_arena **arena);
/* Releases all that was allocated, and leaves the arena as the spare one, with a part of its memory. Does nothing for NULL. */
void nh_arena_give_back(struct nh_spare_arena *spare, struct nh_arena *arena);

/* As nh_allocate_unset, but released with the arena alone. By one thread at a time. */
void *nh_arena_allocate_unset(struct nh_arena *arena, size_t bytes);
/* The same, but zeroed. */
void *nh_arena_allocate(struct nh_arena *arena, size_t bytes);

#endif
