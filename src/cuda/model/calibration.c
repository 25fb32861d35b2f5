#include "calibration.h"

#include "file_io.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char header[] = "nhood-calibration 1";

/* The GPU that the table was fitted on, as its driver names it. */
static const char fitted_on[] = "NVIDIA H200,";

enum { DEVICE_BYTES = sizeof((nhood_device_info *)0)->description };

static const char *const factor_names[NH_FACTORS] = {
    [NH_FACTOR_LAUNCH] = "launch",
    [NH_FACTOR_MEMORY] = "memory",
    [NH_FACTOR_CLOCKS] = "clocks",
    [NH_FACTOR_TENSOR] = "tensor",
#define NH_KERNEL(name, ...) [NH_FACTOR_KERNEL + NH_KERNEL_##name] = #name,
#define NH_PIPELINE(...)
#define NH_OPERATION(...)
#include "h200.def"
};

static long thousandths_of(double factor) {
    return lround(fmax(NH_LEAST_FACTOR, fmin(NH_MOST_FACTOR, 1000 * factor)));
}

void nh_calibration_limit(double factor[NH_FACTORS]) {
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = (double)thousandths_of(factor[i]) / 1000;
}

/* The device's description with '_' for every character that a word or, if `name`, a file name should not have. */
static void device_word(const struct nh_device *device, bool name, char word[DEVICE_BYTES]) {
    snprintf(word, DEVICE_BYTES, "%s", device->info.description);
    for (char *at = word; *at; at++)
        if (*at <= ' ' || *at > '~' || (name && !isalnum((unsigned char)*at) && !strchr(".-", *at)))
            *at = '_';
}

nhood_status nh_calibration_path(const struct nh_device *device, const char *folder,
                                 char path[NH_PATH_BYTES]) {
    char word[DEVICE_BYTES];
    device_word(device, true, word);
    int length = snprintf(path, NH_PATH_BYTES, "%s/calibration-%s", folder, word);
    if (length < NH_PATH_BYTES) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT,
                    "%s: the path of the calibration has %d bytes, at most %d "
                    "are legal",
                    folder, length, NH_PATH_BYTES - 1);
}

/* ---- reading ---- */

/* A text that is read line by line. */
struct lines {
    const char *path, *at;
    int number;
};

/* Reads the next line, which must be "name value" or "name", and sets `value` to what follows the name. */
static nhood_status next_value(struct lines *lines, const char *name, char *value,
                               size_t capacity) {
    size_t length = strcspn(lines->at, "\n"), named = strlen(name);
    const char *line = lines->at;
    lines->number++;
    if (line[length] != '\n')
        return nh_error(NHOOD_ERR_ARGUMENT, "%s ends at line %d, where '%s' should be", lines->path,
                        lines->number, name);
    if (strncmp(line, name, named) != 0 || (line[named] != ' ' && line[named] != '\n'))
        return nh_error(NHOOD_ERR_ARGUMENT, "%s, line %d: '%.*s' where '%s' should be", lines->path,
                        lines->number, (int)nh_min((int64_t)length, 100), line, name);
    lines->at += length + 1;
    size_t skipped = named + (line[named] == ' ');
    snprintf(value, capacity, "%.*s", (int)nh_min((int64_t)(length - skipped), (int64_t)capacity),
             line + skipped);
    return NHOOD_OK;
}

/* Reads a line that must be "name wanted"; `meaning` says in the message what `wanted` is. */
static nhood_status expect_value(struct lines *lines, const char *name, const char *wanted,
                                 const char *meaning) {
    char value[256];
    nhood_status status = next_value(lines, name, value, sizeof value);
    if (status || !strcmp(value, wanted)) return status;
    return nh_error(NHOOD_ERR_ARGUMENT, "%s, line %d: %s = '%s', %s is '%s'", lines->path,
                    lines->number, name, value, meaning, wanted);
}

static nhood_status next_factor(struct lines *lines, const char *name, double *factor) {
    char value[32], *end;
    nhood_status status = next_value(lines, name, value, sizeof value);
    if (status) return status;
    long thousandths = strtol(value, &end, 10);
    if (*end || !isdigit((unsigned char)*value) || thousandths < NH_LEAST_FACTOR ||
        thousandths > NH_MOST_FACTOR)
        return nh_error(NHOOD_ERR_ARGUMENT, "%s, line %d: %s = '%s' is not an integer in [%d, %d]",
                        lines->path, lines->number, name, value, (int)NH_LEAST_FACTOR,
                        (int)NH_MOST_FACTOR);
    *factor = (double)thousandths / 1000;
    return NHOOD_OK;
}

static void table_word(const struct nh_device *device, char word[17]) {
    snprintf(word, 17, "%016llx", (unsigned long long)nh_coefficients_version(device->backend));
}

nhood_status nh_calibration_load(const struct nh_device *device, const char *path,
                                 double factor[NH_FACTORS]) {
    char *text, word[DEVICE_BYTES], table[17];
    double read[NH_FACTORS];
    nhood_status status = nh_file_read(device->host, path, &text);
    if (status) return status;
    struct lines lines = {.path = path, .at = text};
    device_word(device, false, word);
    table_word(device, table);
    status = expect_value(&lines, "nhood-calibration", header + sizeof "nhood-calibration",
                          "what this library reads");
    if (!status) status = expect_value(&lines, "device", word, "the device");
    if (!status)
        status = expect_value(&lines, "table", table, "that of this library (calibrate again)");
    for (int i = 0; !status && i < NH_FACTORS; i++)
        status = next_factor(&lines, factor_names[i], &read[i]);
    if (!status && *lines.at)
        status = nh_error(NHOOD_ERR_ARGUMENT, "%s, line %d: something follows the last factor",
                          path, lines.number + 1);
    if (!status) memcpy(factor, read, sizeof read);
    nh_release(device->host, text);
    return status;
}

/* ---- writing ---- */

static bool write_text(int file, const void *text) {
    return nh_file_write(file, text, strlen(text));
}

nhood_status nh_calibration_save(const struct nh_device *device, const char *path,
                                 const double factor[NH_FACTORS]) {
    char text[512 + NH_FACTORS * 64], word[DEVICE_BYTES], table[17];
    device_word(device, false, word);
    table_word(device, table);
    int used = snprintf(text, sizeof text, "%s\ndevice %s\ntable %s\n", header, word, table);
    for (int i = 0; i < NH_FACTORS; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s %ld\n", factor_names[i],
                         thousandths_of(factor[i]));
    if (nh_file_replace(path, write_text, text)) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
}

/* ---- in use ---- */

/* A described device has a backend that all contexts share, so calibrating it needs a copy. */
static bool make_own(struct nh_device *device) {
    struct nh_cuda_device *own = device->backend;
    if (device->spec_only) {
        own = nh_allocate(device->host, sizeof *own);
        if (own) *own = *(const struct nh_cuda_device *)device->backend;
    }
    if (own) device->backend = own;
    return own;
}

nhood_status nh_calibration_attach(struct nh_device *device, const char *folder) {
    static const char lead[] = "calibrated, ";
    char path[NH_PATH_BYTES];
    double factor[NH_FACTORS];
    if (!*folder) return NHOOD_OK;
    nhood_status status = nh_calibration_path(device, folder, path);
    if (!status) status = nh_calibration_load(device, path, factor);
    if (status == NHOOD_ERR_ARGUMENT)
        nh_log(device->host, NHOOD_LOG_WARNING, "the calibration of %s is not used: %s",
               device->info.name, nhood_last_error());
    if (status) return status == NHOOD_ERR_MEMORY ? status : NHOOD_OK;
    size_t bytes = sizeof lead + strlen(path);
    struct nh_coefficients *scaled = nh_allocate(device->host, sizeof *scaled + bytes);
    if (!scaled || !make_own(device)) {
        nh_release(device->host, scaled);
        return NHOOD_ERR_MEMORY;
    }
    nh_coefficients_scale(factor, scaled);
    char *origin = (char *)(scaled + 1);
    snprintf(origin, bytes, "%s%s", lead, path);
    scaled->origin = origin;
    ((struct nh_cuda_device *)device->backend)->coefficients = scaled;
    return NHOOD_OK;
}

void nh_calibration_detach(struct nh_device *device) {
    struct nh_cuda_device *backend = device->backend;
    if (!backend || !backend->coefficients) return;
    nh_release(device->host, (void *)backend->coefficients);
    backend->coefficients = NULL;
    if (!device->spec_only) return;
    nh_release(device->host, backend);
    device->backend = NULL;
}

const char *nh_calibration_origin(const struct nh_device *device) {
    const struct nh_cuda_device *backend = device->backend;
    if (backend->coefficients) return backend->coefficients->origin;
    if (!strncmp(device->info.description, fitted_on, sizeof fitted_on - 1))
        return "built in, fitted on an H200";
    return "built in, of an H200, scaled by published rates";
}
