/* What a problem would take on several GPUs, its grid sharded over them. */
#ifndef SIMULATE_GPUS_H
#define SIMULATE_GPUS_H

#include "target.h"

struct gpus {
    int64_t count; /* 1: nothing to say */
    double link_gb_per_s, latency_us;
};

/* One way to share the work of a problem. */
struct sharding {
    const char *strategy; /* halo, heads or gather, as in nhood.torch.distributed */
    int64_t shards[3];    /* per axis */
    double compute_ns, travel_ns, total_ns;
    double sent_bytes; /* by each GPU, of one with neighbours on all sides */
    double hidden;     /* share of the computing that can go on while keys travel */
    double efficiency; /* time of one GPU / (GPUs * time of all) */
};

/* 3,360 GPUs, of at most 4,096, have the most ways to be shared among three axes, 567: as halos, as gather, and one by heads. */
enum { MOST_GPUS = 4096, MOST_SHARDINGS = 2 * 567 + 1 };

/* Fills in the ways there are, the fastest first, and returns how many. alone_ns: what one GPU takes. */
int gpus_shardings(const struct target *target, const struct gpus *gpus,
                   const nhood_problem *problem, double alone_ns,
                   struct sharding sharding[MOST_SHARDINGS]);

void gpus_print(const struct gpus *gpus, const nhood_problem *problem,
                const struct sharding *sharding, int count);
void gpus_print_json(const struct sharding *sharding, int count, int32_t rank);

#endif
