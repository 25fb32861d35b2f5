/* An NVRTC that compiles nothing. It is a library of its own, to be named in options.nvrtc. Its machine code is a text that
 * depends on the source and the options. It can be made to fail. */
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

#include <stdatomic.h>

enum fake_nvrtc_fault {
    FAKE_NVRTC_WORKS,
    FAKE_NVRTC_CREATE_FAILS,
    FAKE_NVRTC_COMPILE_FAILS,
    FAKE_NVRTC_NOTE,    /* compiles, with a note that the code is not to be used */
    FAKE_NVRTC_NO_CODE, /* succeeds, but gives no code */
    FAKE_NVRTC_CODE_FAILS,
};

/* Exported by the library as `fake_nvrtc`. */
struct fake_nvrtc {
    enum fake_nvrtc_fault fault;
    /* each compilation takes this long, so that other threads come second */
    int compile_us;
    atomic_int compiled, programs_open;
};

#endif
