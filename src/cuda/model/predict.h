/* Predicts how long a device takes for work, from rates, residency, waves and their tail, overlap and launches: one
 * formula for all families, in docs/model.md. */
#ifndef NH_PREDICT_H
#define NH_PREDICT_H

#include "coefficients.h"

/* Returns nanoseconds. Adds the tiles, operations and limits of the work to *count, unless that is NULL. */
double nh_predict(const struct nh_cuda_device *device, const struct nh_work *work,
                  struct nh_count *count);

/* The same with these coefficients instead of those that the device uses. */
double nh_predict_by(const struct nh_coefficients *coefficients,
                     const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks that the kernels alone take, without memory traffic, helpers and launch latency. */
double nh_predict_clocks(const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks that a block adds to the time of a multiprocessor with many others. Searches rank tiles by this before they
 * predict. */
double nh_predict_block_clocks(const struct nh_cuda_device *device,
                               const struct nh_launch_work *launch);

/* Clocks per nanosecond of all multiprocessors together: no launch takes less time than its blocks' clocks, added up,
 * over this. */
double nh_predict_clocks_per_ns(const struct nh_cuda_device *device);

/* `estimate` of every CUDA solver: the prediction for its work in nanoseconds, or INFINITY if it has none. */
nh_estimate_fn nh_estimate;

#endif
