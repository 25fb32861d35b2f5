/* Predicts the time of a problem whose grid is sharded over several GPUs. */
#ifndef SIMULATE_GPUS_H
#define SIMULATE_GPUS_H

#include "target.h"

struct gpus {
    int64_t count; /* 1: there is nothing to predict */
    double link_gb_per_s, latency_us;
};

/* One way to divide the work of a problem. */
struct sharding {
    const char *strategy; /* halo, heads or gather, as in nhood.torch.distributed */
    int64_t shards[3];    /* per axis */
    double compute_ns, travel_ns, total_ns;
    double sent_bytes; /* by a GPU with neighbors on all sides */
    double hidden;     /* share of the computation that can overlap with the exchange of keys */
    double efficiency; /* time of one GPU / (GPUs * time of all) */
};

/* Among up to 4,096 GPUs, 3,360 can be divided over three axes in the most ways, 567. Each counts twice, as halo and as gather,
 * and there is one way by heads. */
enum { MOST_GPUS = 4096, MOST_SHARDINGS = 2 * 567 + 1 };

/* Lists the possible ways, the fastest first, and returns their number. alone_ns is the time on one GPU. */
int gpus_shardings(const struct target *target, const struct gpus *gpus,
                   const nhood_problem *problem, double alone_ns,
                   struct sharding sharding[MOST_SHARDINGS]);

void gpus_print(const struct gpus *gpus, const nhood_problem *problem,
                const struct sharding *sharding, int count);
void gpus_print_json(const struct sharding *sharding, int count, int32_t rank);

#endif
