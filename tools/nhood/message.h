/* The tool's messages on stderr, and its exit statuses. */
#ifndef MESSAGE_H
#define MESSAGE_H

#include "nhood.h"

/* EXIT_SUCCESS 0; EXIT_FAILURE 1: the work could not be done, or a check failed. */
enum { EXIT_USAGE = 2 /* wrong command line or problem */ };

#if defined(_WIN32) && defined(__GNUC__) /* printf is mingw-w64's own, not Microsoft's */
#define PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#elif defined(__GNUC__)
#define PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define PRINTF(text, first)
#endif

/* Prints "nhood: ..." and returns status, so that callers can `return complain(...)`. */
int complain(int status, const char *format, ...) PRINTF(2, 3);

/* The same with the library's error text for the call that has just failed. Returns the exit status for it. */
int complain_library(nhood_status failure, const char *about);

#endif
