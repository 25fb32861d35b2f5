#include "group_memory.h"

#include "hash.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>

enum { SLOTS = 64 }; /* a power of two; classes that share a slot evict each other */

struct nh_group_choices {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    struct nh_known *slot[SLOTS];
};

void nh_class_of(const struct nh_request *request, const struct nh_problem *problem,
                 struct nh_class *class) {
    memset(class, 0, sizeof *class);
    if (nh_problem_partial(problem) || nh_problem_periodic(problem)) return;
    class->device = request->device;
    class->wisdom_version = nh_wisdom_version(request->wisdom);
    if (request->only) snprintf(class->only, sizeof class->only, "%s", request->only);
    class->op = problem->op;
    class->dtype = problem->dtype;
    class->rank = problem->rank;
    class->has_bias = problem->has_bias;
    class->flags = problem->flags;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const bool whole = !axis->windows.kind && axis->window == axis->length;
        class->axis[a].window = whole ? 0 : axis->window;
        class->axis[a].stride = axis->stride;
        class->axis[a].dilation = axis->dilation;
        class->axis[a].causal = axis->causal;
        class->axis[a].kind = axis->windows.kind;
    }
    class->heads = problem->heads;
    class->kv_heads = problem->kv_heads;
    class->dim = problem->dim;
    class->dim_v = problem->dim_v;
    class->extra_tokens = problem->extra_tokens;
    class->scale = problem->scale;
}

bool nh_class_same(const struct nh_class *a, const struct nh_class *b) {
    return a->device && !memcmp(a, b, sizeof *a);
}

nhood_status nh_group_choices_create(const struct nh_host *host,
                                     struct nh_group_choices **choices) {
    *choices = nh_allocate(host, sizeof **choices);
    if (!*choices) return NHOOD_ERR_MEMORY;
    (*choices)->host = host;
    return nh_guarded_lock_start(&(*choices)->lock, &(*choices)->guard);
}

void nh_group_choices_destroy(struct nh_group_choices *choices) {
    if (!choices) return;
    for (int i = 0; i < SLOTS; i++)
        nh_release(choices->host, choices->slot[i]);
    nh_guarded_lock_end(&choices->lock, &choices->guard);
    nh_release(choices->host, choices);
}

static struct nh_known **slot_of(struct nh_group_choices *choices, const struct nh_class *class) {
    const uint64_t hash = nh_hash(NH_HASH_START, class, sizeof *class);
    return &choices->slot[(hash >> 32 ^ hash) & (SLOTS - 1)];
}

void nh_group_recall(struct nh_group_choices *choices, const struct nh_class *class,
                     struct nh_known *known) {
    struct nh_known *const *slot = slot_of(choices, class);
    pthread_mutex_lock(&choices->lock);
    const bool found = *slot && nh_class_same(&(*slot)->class, class);
    if (found) *known = **slot;
    pthread_mutex_unlock(&choices->lock);
    if (found) return;
    memset(known, 0, sizeof *known);
    known->class = *class;
}

void nh_group_keep(struct nh_group_choices *choices, const struct nh_known *known) {
    struct nh_known **slot = slot_of(choices, &known->class);
    if (!known->class.device) return;
    pthread_mutex_lock(&choices->lock);
    if (!*slot) *slot = nh_allocate(choices->host, sizeof **slot);
    if (*slot) **slot = *known;
    pthread_mutex_unlock(&choices->lock);
}
