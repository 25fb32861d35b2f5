/* The exact results of a problem, and how far a correct solver's may be from them. */
#ifndef ORACLE_H
#define ORACLE_H

#include "problem_data.h"
#include "target.h"

struct oracle {
    /* the problem in f64 and packed: the same inputs, and the reference's outputs */
    struct problem_data truth;
    /* by output: how much its elements change if the inputs change by rounding errors */
    struct response {
        double mean_square, largest;
    } response[NHOOD_TENSOR_COUNT];
};

/* Draws the inputs of `given` and computes their exact results. Returns 0, or the exit status after a message; the oracle must
 * be freed in either case. */
int oracle_create(struct oracle *oracle, const struct target *target, struct problem_data *given,
                  uint64_t seed);
void oracle_free(struct oracle *oracle);

struct comparison {
    int32_t tensor;
    int64_t row, inner;
    double value, expected, limit;
    /* |value - expected| / limit of the worst element, which the other fields describe: at most 1 if the result is good */
    double share;
    /* a tensor with writes outside its elements, or -1 */
    int32_t spoiled;
};

/* Compares every output in `given` with the exact ones. Returns 0, or the exit status after a message. */
int oracle_compare(const struct oracle *oracle, const struct problem_data *given,
                   struct comparison *worst);

#endif
