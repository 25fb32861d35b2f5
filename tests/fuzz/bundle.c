/* Any bytes as a bundle: opened or refused, and what it holds is read or not there. */
#include "bundle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct nh_host host;
    static const char *const keys[] = {"one", "two", "three", "nhood bundle", ""};
    struct nh_bundle bundle;
    char path[32];
    int file = memfd_create("bundle", MFD_CLOEXEC);
    if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    nhood_status status = nh_bundle_open(&bundle, &host, path);
    if (status && status != NHOOD_ERR_ARGUMENT) abort();
    for (size_t i = 0; !status && i < sizeof keys / sizeof *keys; i++) {
        void *payload;
        size_t bytes;
        if (!nh_bundle_read(&bundle, keys[i], &payload, &bytes)) continue;
        if (bytes > size || ((const char *)payload)[bytes]) abort();
        nh_release(&host, payload);
    }
    nh_bundle_close(&bundle);
    close(file);
    return 0;
}
