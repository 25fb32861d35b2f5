/* How long a device takes for work: rates, residency, waves and their tail, what overlaps, launches. The same for all
 * families; docs/model.md has the formula. */
#ifndef NH_PREDICT_H
#define NH_PREDICT_H

#include "coefficients.h"

/* Nanoseconds. What the work rests on is added to *count, NULL for callers who do not ask. */
double nh_predict(const struct nh_cuda_device *device, const struct nh_work *work,
                  struct nh_count *count);

/* The same by these coefficients, whichever serve the device. */
double nh_predict_by(const struct nh_coefficients *coefficients,
                     const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks that the launches alone take, without memory, helpers and what launching costs. */
double nh_predict_clocks(const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks of a multiprocessor for a block's units among many others: what searches rank tiles by before they predict. */
double nh_predict_block_clocks(const struct nh_cuda_device *device,
                               const struct nh_launch_work *launch);

/* Clocks of all multiprocessors together: no launch takes less than the sum of its blocks' clocks over these. */
double nh_predict_clocks_per_ns(const struct nh_cuda_device *device);

/* `estimate` of every CUDA solver: of its work, or INFINITY. */
nh_estimate_fn nh_estimate;

#endif
