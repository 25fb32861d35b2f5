/* Elements of the four storage types, as doubles. */
#ifndef STORAGE_H
#define STORAGE_H

#include <stddef.h>
#include <stdint.h>

size_t storage_bytes(int32_t dtype);
double storage_load(int32_t dtype, const void *data, int64_t index);
/* Rounds to nearest even. */
void storage_store(int32_t dtype, void *data, int64_t index, double value);

/* The largest relative error of rounding to the type, its largest number, and the spacing of its smallest numbers. */
double storage_roundoff(int32_t dtype);
double storage_largest(int32_t dtype);
double storage_smallest(int32_t dtype);

#endif
