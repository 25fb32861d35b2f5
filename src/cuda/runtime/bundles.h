/* The bundles of a context: kernels that were compiled elsewhere. */
#ifndef NH_BUNDLES_H
#define NH_BUNDLES_H

#include "bundle.h"

struct nh_bundles {
    const struct nh_host *host;
    struct nh_bundle *bundle;
    /* bundles in use: those made from other sources than this library's are left out, with a warning */
    int32_t count;
};

/* paths: bundle files, separated by NH_PATH_LIST_SEPARATOR; NULL or "": none. Fails with ARGUMENT (a file is missing or
 * is no bundle) or MEMORY. nh_bundles_close is to be called in any case. */
nhood_status nh_bundles_open(struct nh_bundles *bundles, const struct nh_host *host,
                             const char *paths);
void nh_bundles_close(struct nh_bundles *bundles);

/* Finds the machine code of a kernel by its nh_kernel_text in the first bundle that has it; false: none does. The
 * caller gives *code back with nh_release. */
bool nh_bundles_read(const struct nh_bundles *bundles, const char *text, void **code,
                     size_t *bytes);

/* Appends ", bundle <path> (<n> kernels, <origin's compiler>)" for each. */
void nh_bundles_note(const struct nh_bundles *bundles, char *note, size_t capacity);

#endif
