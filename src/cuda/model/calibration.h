/* Calibration: the factors by which the times of a GPU differ from those that the built-in table predicts for it (enum
 * nh_factor). `nhood calibrate` fits them (calibrate.h). Each model of GPU has a file, beside the wisdom:
 *
 *     nhood-calibration 1
 *     device <its description, with _ for blanks>
 *     table <16 hexadecimal digits: nh_coefficients_version>
 *     <factor> <thousandths>     one line each: launch, memory, clocks, tensor, then kernels by name */
#ifndef NH_CALIBRATION_H
#define NH_CALIBRATION_H

#include "predict.h"
#include "os.h"

/* The range of factors in thousandths. Files hold them as whole numbers, which every locale writes alike. If a GPU
 * differs by more, its published rates are wrong. */
enum { NH_LEAST_FACTOR = 125, NH_MOST_FACTOR = 8000 };

/* Clamps factors to that range, and rounds them to thousandths as files have them. */
void nh_calibration_limit(double factor[NH_FACTORS]);

/* Sets the path of the device's file in a folder. Fails with ARGUMENT (too long). */
nhood_status nh_calibration_path(const struct nh_device *device, const char *folder,
                                 char path[NH_PATH_BYTES]);

/* Reads the factors. Fails with CACHE_MISS if there is no such file, ARGUMENT if anything in it is not as expected, or
 * MEMORY; `factor` is then left as it was. */
nhood_status nh_calibration_load(const struct nh_device *device, const char *path,
                                 double factor[NH_FACTORS]);

/* Replaces the file in one step: readers see the old one or the new one. Fails with ARGUMENT (cannot be written). */
nhood_status nh_calibration_save(const struct nh_device *device, const char *path,
                                 const double factor[NH_FACTORS]);

/* Makes a CUDA device's estimates use its calibration file in the folder, if there is one; "": no folder. A file that
 * cannot be used is logged and ignored. Fails with MEMORY. nh_calibration_detach comes before the device is closed. */
nhood_status nh_calibration_attach(struct nh_device *device, const char *folder);
void nh_calibration_detach(struct nh_device *device);

/* Says where the coefficients of a CUDA device's estimates come from. */
const char *nh_calibration_origin(const struct nh_device *device);

#endif
