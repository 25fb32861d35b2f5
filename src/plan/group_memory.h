/* What groups have learnt about choices: by classes of problems, which differ in lengths and batch alone. */
#ifndef NH_GROUP_MEMORY_H
#define NH_GROUP_MEMORY_H

#include "planner.h"

/* What problems of a class share: a config of one is then one of the other, if it fits. Windows as long as their axis are one kind.
 * Padding is zero. */
struct nh_class {
    const struct nh_device *device; /* NULL: parts of grids and periodic axes are in no class */
    uint64_t wisdom_version;
    char only[NH_WISDOM_SOLVER_BYTES]; /* "" for any solver */
    int32_t op, dtype, rank, has_bias;
    uint32_t flags;
    struct {
        int64_t window, stride, dilation; /* window: 0: the whole axis */
        int32_t causal, kind;
    } axis[NH_AXES];
    int64_t heads, kv_heads, dim, dim_v, extra_tokens;
    double scale;
};

void nh_class_of(const struct nh_request *request, const struct nh_problem *problem,
                 struct nh_class *class);
bool nh_class_same(const struct nh_class *a, const struct nh_class *b);

/* A choice for members of groups, and where it was made. */
struct nh_lead {
    int64_t length[NH_AXES], batch;
    double work, group_work,
        ns; /* of the problem, of its group; what the problem adds to the time of that */
    struct nh_choice choice;
    bool apart;             /* its launches serve no other member */
    struct nh_choice alone; /* for a plan of its own */
};

/* Whether a solver proposes a config for problems of a class. */
struct nh_verdict {
    const struct nh_solver *solver;
    struct nh_config config;
    bool proposed;
};

/* What is known of a class. The oldest entries make room for new ones. */
enum { NH_KNOWN_LEADS = 16, NH_KNOWN_VERDICTS = 8 };
struct nh_known {
    struct nh_class class;
    int64_t leads, verdicts; /* that were ever added */
    struct nh_lead lead[NH_KNOWN_LEADS];
    struct nh_verdict verdict[NH_KNOWN_VERDICTS];
};
static inline int nh_known_leads(const struct nh_known *known) {
    return (int)nh_min(known->leads, NH_KNOWN_LEADS);
}
static inline int nh_known_verdicts(const struct nh_known *known) {
    return (int)nh_min(known->verdicts, NH_KNOWN_VERDICTS);
}

/* Copies what is known of the class, nothing at first. */
void nh_group_recall(struct nh_group_choices *choices, const struct nh_class *class,
                     struct nh_known *known);

/* Keeps what is known. Of two threads that learn about a class at once, what one of them learnt is lost, and so is all without
 * memory: it is then searched for again. Does nothing for problems in no class. */
void nh_group_keep(struct nh_group_choices *choices, const struct nh_known *known);

#endif
