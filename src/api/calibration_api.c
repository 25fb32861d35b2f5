/* Public functions on calibrations. */
#include "calibrate.h"
#include "calibration.h"
#include "context.h"
#include "file_io.h"
#include "timings.h"

const char *nhood_device_estimates(const nhood_context *context, int32_t device) {
    NH_NOT_CANCELLED;
    const struct nh_device *found = NULL;
    if (nh_context_device(context, device, &found)) return "";
    return nh_registry_estimates(found);
}

static nhood_status compare(const struct nh_device *device, const struct nh_timings *timings,
                            nhood_calibration *result) {
    struct nh_comparison found;
    nhood_status status =
        nh_compare(device, timings->timing, timings->count, timings->problems, &found);
    if (status) return status;
    result->problems = timings->problems;
    result->timings = timings->count;
    result->within_before = found.before.within;
    result->within_after = found.after.within;
    result->worst_before = found.before.worst;
    result->worst_after = found.after.worst;
    result->lost_before = found.before.lost;
    result->lost_after = found.after.lost;
    result->better = found.better;
    return NHOOD_OK;
}

static nhood_status write_fit(const nhood_context *context, const struct nh_device *device,
                              const struct nh_timings *timings) {
    char path[NH_PATH_BYTES];
    double factor[NH_FACTORS];
    const struct nh_fold whole = {.of = 1};
    nhood_status status = nh_context_cache(context);
    if (!status) status = nh_calibration_path(device, context->cache, path);
    if (!status) status = nh_calibrate(device, timings->timing, timings->count, whole, factor);
    if (status) return status;
    nh_folder_make(context->cache); /* if this fails, so does writing the file */
    return nh_calibration_save(device, path, factor);
}

static nhood_status calibrate(const nhood_context *context, const struct nh_device *device,
                              bool dry_run, struct nh_timings *timings, nhood_calibration *result) {
    if (timings->problems < NHOOD_LEAST_CALIBRATION)
        return nh_error(NHOOD_ERR_CACHE_MISS,
                        "wisdom has timings of %lld problems on %s (%s), a calibration needs %d",
                        (long long)timings->problems, device->info.name, device->info.description,
                        (int)NHOOD_LEAST_CALIBRATION);
    nhood_status status = compare(device, timings, result);
    if (status || dry_run || !result->better) return status;
    status = write_fit(context, device, timings);
    result->written = !status;
    return status;
}

nhood_status nhood_device_calibrate(nhood_context *context, int32_t device, int32_t dry_run,
                                    nhood_calibration *calibration) {
    NH_NOT_CANCELLED;
    const struct nh_device *found = NULL;
    nhood_status status = nh_context_device(context, device, &found);
    if (status) return status;
    if (!calibration) return nh_error(NHOOD_ERR_ARGUMENT, "calibration is NULL");
    if (calibration->struct_size != sizeof *calibration)
        return nh_error(NHOOD_ERR_ARGUMENT, "calibration.struct_size = %zu, this library knows %zu",
                        calibration->struct_size, sizeof *calibration);
    if (found->info.kind != NHOOD_DEVICE_CUDA)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: only estimates of CUDA devices are calibrated",
                        found->info.name);
    *calibration = (nhood_calibration){.struct_size = sizeof *calibration};
    char *text = NULL;
    size_t length;
    struct nh_timings timings = {.host = &context->host};
    status = nh_wisdom_text(context->wisdom, &text, &length);
    if (!status) status = nh_timings_read(found, text, &timings);
    if (!status) status = calibrate(context, found, dry_run != 0, &timings, calibration);
    nh_timings_free(&timings);
    nh_release(&context->host, text);
    return status;
}
