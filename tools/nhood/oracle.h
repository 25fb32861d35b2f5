/* The right answer to a problem, and how far from it an honest answer may be. */
#ifndef ORACLE_H
#define ORACLE_H

#include "problem_data.h"
#include "target.h"

struct oracle {
    /* the problem in f64 and packed: the same inputs, and the reference's outputs */
    struct problem_data truth;
    /* by output: what its elements change by when the inputs change by rounding errors */
    struct response {
        double mean_square, largest;
    } response[NHOOD_TENSOR_COUNT];
};

/* Draws the inputs of `given` and computes the truth about them. 0, or the exit status after a message; the
 * oracle must be freed in either case. */
int oracle_create(struct oracle *oracle, const struct target *target, struct problem_data *given,
                  uint64_t seed);
void oracle_free(struct oracle *oracle);

struct comparison {
    int32_t tensor;
    int64_t row, inner;
    double value, expected, limit;
    /* |value - expected| / limit of the worst element, which is the one described: at most 1 if all is well */
    double share;
    /* a tensor that was written to beside its elements, or -1 */
    int32_t spoiled;
};

/* Compares every output in `given` with the truth. 0, or the exit status after a message. */
int oracle_compare(const struct oracle *oracle, const struct problem_data *given,
                   struct comparison *worst);

#endif
