/* A launch of cuda.split90: what it makes, what it needs, and its step. */
#ifndef NH_SPLIT90_PASS_H
#define NH_SPLIT90_PASS_H

#include "backward90.h"

/* What a launch makes: blocks own queries for dQ and keys for all else. */
enum nh_split90_pass {
    NH_SPLIT90_D_Q,
    NH_SPLIT90_D_K_AND_V,
    NH_SPLIT90_D_K,
    NH_SPLIT90_D_V,
    NH_SPLIT90_PASSES
};

struct nh_split90_facts {
    /* owns keys and loops over queries */
    bool keys;
    uint32_t outputs;
    /* products with rows of the head dim and of the value dim, and sums */
    int products, products_v, sums, sums_v;
    /* registers of a thread per four rows of a loop tile: scores, their gradients and what is packed of them */
    int registers;
};
extern const struct nh_split90_facts nh_split90_facts[NH_SPLIT90_PASSES];

/* Whether the gradients of this problem are made by this launch: registers hold both sums of keys up to some width. */
bool nh_split90_used(const struct nh_problem *problem, enum nh_split90_pass pass);

/* Whether the tiles fit registers and, that of the loop twice, shared memory. */
bool nh_split90_fits(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* Shared memory that a launch takes beside what nh_backward90_shared_bytes counts. */
int64_t nh_split90_own_bytes(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* Loop tiles that fit shared memory at a time. */
int32_t nh_split90_stages(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* As nh_backward90_step, with the knobs and the shared memory of the launch. */
nhood_status nh_split90_step(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass,
                             size_t stats, struct nh_cuda_step *step, struct nh_kernel_spec *spec);

#endif
