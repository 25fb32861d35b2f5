/* Every number that follows from a configuration of cuda.small: small_config_test.c computes them as the host does, and
 * small_numbers.cpp as the emulator's compiler does for kernels. */
#ifndef NH_TEST_SMALL_NUMBERS_H
#define NH_TEST_SMALL_NUMBERS_H

#include "small_config.h"

#define SMALL_NUMBERS(X)                                                                           \
    X(work_tile_rows)                                                                              \
    X(warp_tiles)                                                                                  \
    X(box_columns)                                                                                 \
    X(box_blocks)                                                                                  \
    X(chunks)                                                                                      \
    X(pairs)                                                                                       \
    X(chunk_columns)                                                                               \
    X(table_columns)                                                                               \
    X(line)                                                                                        \
    X(plane)                                                                                       \
    X(fetched_rows)                                                                                \
    X(slot_rows)                                                                                   \
    X(halo_rows)                                                                                   \
    X(halos)                                                                                       \
    X(statistics_line)                                                                             \
    X(slot_statistics)                                                                             \
    X(statistics)                                                                                  \
    X(table_wraps)                                                                                 \
    X(gathers)                                                                                     \
    X(places)                                                                                      \
    X(place_steps)                                                                                 \
    X(additive_masks_bytes)                                                                        \
    X(kinds)                                                                                       \
    X(kinds_bytes)                                                                                 \
    X(bias_margin)                                                                                 \
    X(bias_sums_bytes)                                                                             \
    X(work_tile_bytes)                                                                             \
    X(visibility_bytes)                                                                            \
    X(info_bytes)                                                                                  \
    X(tables_bytes)                                                                                \
    X(ring_bytes)                                                                                  \
    X(halo_bytes)                                                                                  \
    X(rows_bytes)                                                                                  \
    X(results_bytes)                                                                               \
    X(shared_bytes)

#define SMALL_NUMBER_INDEX(name) NUMBER_##name,
enum { SMALL_NUMBERS(SMALL_NUMBER_INDEX) SMALL_NUMBER_COUNT };

/* Sets all of them. */
#define SMALL_NUMBER_SET(name) number[NUMBER_##name] = small_##name(config);
#define SMALL_NUMBERS_FUNCTION(function)                                                           \
    void function(const struct small_config *config, long long number[SMALL_NUMBER_COUNT]) {       \
        SMALL_NUMBERS(SMALL_NUMBER_SET)                                                            \
    }

#ifdef __cplusplus
extern "C"
#endif
    void
    small_numbers_of_kernels(const struct small_config *config,
                             long long number[SMALL_NUMBER_COUNT]);

#endif
