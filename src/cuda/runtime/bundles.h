/* The bundles of a context: kernels that were compiled elsewhere. */
#ifndef NH_BUNDLES_H
#define NH_BUNDLES_H

#include "bundle.h"

struct nh_bundles {
    const struct nh_host *host;
    struct nh_bundle *bundle;
    /* in use; those made from other sources than this library's are not, and a warning said so */
    int32_t count;
};

/* paths: separated by colons; NULL: none. ARGUMENT (one is not there or no bundle), MEMORY. To be closed in any case. */
nhood_status nh_bundles_open(struct nh_bundles *bundles, const struct nh_host *host,
                             const char *paths);
void nh_bundles_close(struct nh_bundles *bundles);

/* The machine code of a kernel by its nh_kernel_text, for nh_release; of several bundles the first that has it. */
bool nh_bundles_read(const struct nh_bundles *bundles, const char *text, void **code,
                     size_t *bytes);

/* Appends ", bundle <path> (<n> kernels, <origin's compiler>)" for each. */
void nh_bundles_note(const struct nh_bundles *bundles, char *note, size_t capacity);

#endif
