/* The CUDA driver, found at run time: a table of function pointers that tests can replace. */
#ifndef NH_DRIVER_H
#define NH_DRIVER_H

#include "base.h"
#include "driver_abi.h"

struct nh_driver {
    void *library;
#define X(member, symbol, parameters) nh_cu_result(*member) parameters;
#include "driver.def"
#undef X
};

enum { NH_DRIVER_OLDEST = 12000 };

/* Loads libcuda and initialises it. Returns false if it is missing or too old, which is no error as CPU solvers remain.
 * In either case `note` says what was found. */
bool nh_driver_open(struct nh_driver *driver, char *note, size_t capacity);

/* Returns NHOOD_OK, or DEVICE with the driver's own name and text for the error: "launch: CUDA_ERROR_.. (..)". */
nhood_status nh_driver_check(const struct nh_driver *driver, nh_cu_result result, const char *what);

#endif
