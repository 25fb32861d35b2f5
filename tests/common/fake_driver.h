/* A CUDA driver without a GPU. It behaves like one with devices, loads any machine code, and records launches. Calls can be made
 * to fail, to test how the library handles that.
 *
 * Compiled with FAKE_LIBCUDA it is a libcuda of its own, which is set up by environment variables: FAKE_VERSION (default 13000),
 * FAKE_INIT (result of cuInit), FAKE_DEVICES (1), FAKE_ARCH (90). */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "driver.h"
#include "launch.h"
#include "members_abi.h"

enum { FAKE_DEVICES = 16, FAKE_LAUNCHES = 64, FAKE_MAPS = 16, FAKE_ERROR = 999 };
/* where all memory is that is allocated on a device */
enum { FAKE_MEMORY = 4096 };

struct fake_launch {
    char kernel[64];
    unsigned grid[3], threads, shared_bytes;
    void *stream;
    bool overlaps;
    int sends_open; /* copies from the host that nobody has waited for */
    /* the device of the context that was current */
    int device;
    struct nh_cuda_args args;
    /* the arguments that follow `args` if kernels get the region */
    struct nh_cuda_region region[3];
    /* what is handed to a kernel that works for several problems, instead of all these */
    struct nh_cuda_members members;
    /* the same of the kernel that writes their tensor maps */
    struct nh_cuda_member_maps maps;
    /* and of the one that reads their lengths */
    struct nh_cuda_lengths lengths;
    /* the axes of kernels with window tables, whose arguments `args` and `region` then misread from there on */
    struct nh_cuda_table_axis table_axis[3];
};

struct fake_state {
    int arch, devices;
    /* the first so many devices have compute capability 7.5 */
    int old_devices;
    /* the function of this name fails from its call number fail_from on, fail_times times (0: always); NULL: none fails */
    const char *failing;
    int fail_from, fail_times, calls_of_failing;
    int libraries_loaded, libraries_open, primary_references;
    int memory_open, streams_open, streams_made, events_open;
    /* copies from the host that nobody has waited for, and whether memory was freed while there were any */
    int sends_open;
    bool freed_early;
    /* what was copied from the host last, or its beginning */
    size_t sent_bytes;
    unsigned char sent[1 << 17];
    /* the application has a context of device 0 current, which is the device's primary one or, otherwise, its own; the application's
     * thread captures a graph */
    bool context_current, primary_current, capturing;
    /* launches are for the members of groups, and have other parameters: `members`, `maps` or `lengths` */
    bool for_members;
    /* the first bytes of the machine code that was loaded last, up to a zero */
    char code[64];
    int maps_encoded;
    void *map_address[FAKE_MAPS];
    int launch_count;
    struct fake_launch launch[FAKE_LAUNCHES];
};

extern struct fake_state fake;

/* Resets the state. `arch` 90 stands for compute capability 9.0. */
void fake_driver_reset(int arch);
void fake_driver_table(struct nh_driver *driver);

/* The number of contexts that the calling thread has pushed, and its capture mode, which is 0 at first. */
int fake_context_depth(void);
int fake_capture_mode_now(void);

/* The path of an NVRTC on this machine: $NHOOD_NVRTC, or that of the test environment's package; NULL if there is none. */
const char *fake_driver_nvrtc(void);

#endif
