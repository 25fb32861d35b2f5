#include "message.h"

#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int complain(int status, const char *format, ...) {
    va_list arguments;
    progress_hide();
    fflush(stdout);
    fputs("nhood: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return status;
}

int complain_library(nhood_status failure, const char *about) {
    complain(EXIT_FAILURE, "%s: %s", about, nhood_last_error());
    return failure == NHOOD_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILURE;
}
