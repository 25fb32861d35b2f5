/* The folder for compiled kernels, wisdom and calibrations. */
#ifndef NH_CACHE_FOLDER_H
#define NH_CACHE_FOLDER_H

#include "os.h"

enum { NH_NO_CACHE_BYTES = 256 };

/* Writes the path of a context's cache folder or, if it has none, "" and the reason, which ends a sentence. `given` is
 * options.cache; the environment decides if it is NULL. A folder that exists but may not be used is logged. ARGUMENT. */
nhood_status nh_cache_folder_find(const char *given, const struct nh_host *host,
                                  char path[NH_PATH_BYTES], char reason[NH_NO_CACHE_BYTES]);

#endif
