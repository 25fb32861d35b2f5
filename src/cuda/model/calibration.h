/* Calibration: the factors by which the times of a GPU differ from those that the built-in table predicts for it (enum nh_factor). `nhood
 * calibrate` fits them (calibrate.h); they live in a file for each model of GPU, beside the wisdom:
 *
 *     nhood-calibration 1
 *     device <its description, with _ for blanks>
 *     table <16 hexadecimal digits: of the coefficients and rates that the factors multiply>
 *     <factor> <thousandths>          all of them, in their order: launch, memory, clocks, tensor, kernels by their names */
#ifndef NH_CALIBRATION_H
#define NH_CALIBRATION_H

#include "coefficients.h"
#include "os.h"

/* Limits of factors, in thousandths, of which files have whole numbers: every locale writes these alike. A GPU that differs by more is
 * described wrongly. */
enum { NH_LEAST_FACTOR = 125, NH_MOST_FACTOR = 8000 };

/* Brings factors into their limits, and to the thousandths that files have. */
void nh_calibration_limit(double factor[NH_FACTORS]);

/* Path of the device's file in a folder. ARGUMENT (too long). */
nhood_status nh_calibration_path(const struct nh_device *device, const char *folder,
                                 char path[NH_PATH_BYTES]);

/* Reads the factors. CACHE_MISS if there is no such file; ARGUMENT if anything in it is not as it should be; MEMORY. */
nhood_status nh_calibration_load(const struct nh_device *device, const char *path,
                                 double factor[NH_FACTORS]);

/* Replaces the file: readers see the old one or the new one, whole. ARGUMENT (cannot be written). */
nhood_status nh_calibration_save(const struct nh_device *device, const char *path,
                                 const double factor[NH_FACTORS]);

/* Lets the estimates of a CUDA device follow its file in the folder ("": none), if there is one. A file that cannot be used is
 * logged and left alone. MEMORY. To be detached before the device is closed. */
nhood_status nh_calibration_attach(struct nh_device *device, const char *folder);
void nh_calibration_detach(struct nh_device *device);

/* Where the coefficients of a CUDA device's estimates come from, in words. */
const char *nh_calibration_origin(const struct nh_device *device);

#endif
