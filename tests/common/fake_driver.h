/* A CUDA driver without a GPU: answers like one device, loads any machine code, and writes down what it is asked to
 * launch. Calls can be made to fail, to see what the library does then.
 *
 * With FAKE_LIBCUDA it is a libcuda of its own, by the environment: FAKE_VERSION (13000), FAKE_INIT (result of cuInit),
 * FAKE_DEVICES (1), FAKE_ARCH (90). */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "driver.h"
#include "kernel_abi.h"

enum { FAKE_DEVICES = 16, FAKE_LAUNCHES = 64, FAKE_MAPS = 16, FAKE_ERROR = 999 };

struct fake_launch {
    char kernel[64];
    unsigned grid[3], threads, shared_bytes;
    void *stream;
    bool overlaps;
    /* of the context that was current */
    int device;
    struct nh_cuda_args args;
    /* what follows those where kernels are told the region */
    struct nh_cuda_region region[3];
};

struct fake_state {
    int arch, devices;
    /* so many devices, from the first on, are of compute capability 7.5 */
    int old_devices;
    /* the call of this name fails from the n-th time on, that many times (0: for good); NULL: none */
    const char *failing;
    int fail_from, fail_times, calls_of_failing;
    int libraries_loaded, libraries_open, primary_references;
    int memory_open, streams_open, events_open;
    /* the caller has a context of the device current; the caller's thread captures a graph */
    bool context_current, capturing;
    /* what the library loaded last begins with, up to a zero */
    char code[64];
    int maps_encoded;
    void *map_address[FAKE_MAPS];
    int launch_count;
    struct fake_launch launch[FAKE_LAUNCHES];
};

extern struct fake_state fake;

/* Clears the state; arch 90 stands for compute capability 9.0. */
void fake_driver_reset(int arch);
void fake_driver_table(struct nh_driver *driver);

/* The calling thread's number of contexts pushed, and its capture mode (0 to begin with). */
int fake_context_depth(void);
int fake_capture_mode_now(void);

/* Path of an NVRTC on this machine: $NHOOD_NVRTC, the test environment's package, or NULL for none. */
const char *fake_driver_nvrtc(void);

#endif
