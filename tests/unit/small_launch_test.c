/* Launches of cuda.small for members of groups: those that are remembered by what lengths tell are those that are made, those that serve
 * any length have boxes for all, and blocks that are resident at a time have room for their members' arguments. */
#include "device_spec.h"
#include "launch.h"
#include "memo.h"
#include "small_launch.h"
#include "test.h"

#include <math.h>
#include <string.h>

static const struct nh_host host = {.allocate = NULL};

static int any_lengths; /* launches that serve any length */

enum { MEMBERS = 400, MOST_CONFIGS = 16, SHORTEST = 12 };

/* Sets other lengths, most of them short: longer ones tell nothing. */
static bool set_lengths(uint64_t *random, const nhood_problem *of, struct nh_problem *problem) {
    nhood_problem given = *of;
    for (int a = 0; a < given.rank; a++)
        given.axis[a].length =
            test_between(random, given.axis[a].window * given.axis[a].dilation,
                         test_between(random, 0, 3) ? 6 * SHORTEST : 40 * SHORTEST);
    return !nh_problem_canonical(&given, problem);
}

static bool same_launch(const struct nh_small_launch *a, const struct nh_small_launch *b) {
    return !memcmp(&a->config, &b->config, sizeof a->config) && a->work_tiles == b->work_tiles &&
           a->warp_tiles == b->warp_tiles && a->problem == b->problem && a->cuda == b->cuda &&
           a->serves == b->serves;
}

/* Blocks that are resident at a time have room for themselves and what each keeps for its member. */
static void check_room(const struct nh_small_launch *launch, const char *text) {
    enum { OF_SYSTEM = 1024 }; /* bytes of each block that the hardware takes */
    const int64_t bytes = small_shared_bytes(&launch->config) + NH_MEMBER_SHARED_BYTES + OF_SYSTEM;
    CHECK(launch->config.min_blocks * bytes <= launch->cuda->shared_bytes_per_multiprocessor,
          "%s: %d blocks of %lld bytes", text, launch->config.min_blocks, (long long)bytes);
}

/* A launch for any length has boxes for the columns of each legal one, in all dilation groups. Returns whether there is one. */
static bool check_any_length(const struct nh_small_launch *any, const char *text) {
    const struct nh_problem *problem = any->problem;
    const struct small_config *config = &any->config;
    const bool keys = nh_small_by_keys(any);
    if (!config->min_blocks) return false;
    check_room(any, text);
    CHECK(config->grouped && !config->whole && !config->stages && config->mask != SMALL_NO_MASK,
          "%s: a launch for its own lengths", text);
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        for (int64_t length = axis->window * axis->dilation; length <= axis->length; length++) {
            struct nh_axis own = *axis;
            own.length = length;
            own.query = own.key = own.key_tensor = (struct nh_box){0, length};
            const int64_t columns = nh_tile_count(&own, config->warp_tile[a], 1, keys).halo,
                          halo = nh_tile_count(&own, config->rows[a], 1, keys).halo;
            CHECK(columns <= config->columns[a] && halo <= config->halo[a],
                  "%s, axis %d of %lld: %lld columns, a halo of %lld in boxes of %d and %d", text,
                  a, (long long)length, (long long)columns, (long long)halo, config->columns[a],
                  config->halo[a]);
        }
    }
    return true;
}

/* Compares the launches of a config for problems of many lengths. Returns how many there are. */
static int check_config(uint64_t *random, const nhood_problem *given,
                        const struct nh_cuda_device *remembers, const struct nh_config *config) {
    struct nh_cuda_device makes = *remembers;
    makes.memo = NULL;
    int launches = 0;
    for (int i = 0; i < MEMBERS; i++) {
        struct nh_problem problem;
        struct nh_small_launch made[NH_SMALL_LAUNCHES], remembered[NH_SMALL_LAUNCHES];
        memset(remembered, 1, sizeof remembered); /* callers do not clear them */
        if (!set_lengths(random, given, &problem)) continue;
        nh_small_launches_of(&problem, &makes, config->value, NH_SMALL_GROUP, made);
        nh_small_launches_of(&problem, remembers, config->value, NH_SMALL_GROUP, remembered);
        char text[512];
        nh_problem_text(&problem, text, sizeof text);
        for (int k = 0; k < nh_small_launches(&problem); k++) {
            const bool exists = made[k].config.min_blocks, known = remembered[k].config.min_blocks;
            made[k].cuda = remembers;
            launches += exists;
            CHECK(exists == known, "%s, launch %d: made %d, remembered %d", text, k, exists, known);
            CHECK(!exists || !known || same_launch(&made[k], &remembered[k]),
                  "%s, launch %d: another one", text, k);
            if (exists) check_room(&made[k], text);
        }
    }
    return launches;
}

/* All configs that are worth trying for problems of a class, of a few lengths. */
static int check_class(uint64_t *random, const nhood_problem *given,
                       const struct nh_device *device) {
    struct nh_cuda_device cuda = *(const struct nh_cuda_device *)device->backend;
    struct nh_device grouped = *device;
    struct nh_config config[MOST_CONFIGS] = {{{0}}};
    struct nh_problem problem;
    int launches = 0;
    grouped.for_group = true;
    if (!set_lengths(random, given, &problem)) return 0;
    const int count = nh_small_candidates(&problem, &grouped, config, MOST_CONFIGS);
    CHECK(!nh_memo_create(&host, 512, &cuda.memo), "%s", nhood_last_error());
    for (int i = 0; i < count; i++)
        launches += check_config(random, given, &cuda, &config[i]);
    nh_memo_destroy(cuda.memo);
    const struct nh_device any = nh_device_for_any_length(device);
    const int served = nh_small_candidates(&problem, &any, config, MOST_CONFIGS);
    for (int i = 0; i < served; i++) {
        struct nh_small_launch launch[NH_SMALL_LAUNCHES];
        char text[512];
        nh_problem_text(&problem, text, sizeof text);
        nh_small_launches_of(&problem, &cuda, config[i].value, NH_SMALL_ANY_LENGTH, launch);
        for (int k = 0; k < nh_small_launches(&problem); k++)
            any_lengths += check_any_length(&launch[k], text);
    }
    return launches;
}

static int check_device(const char *name) {
    struct nh_device device[NH_MOST_DESCRIBED];
    uint64_t random = 1;
    int32_t described;
    int launches = 0;
    const nhood_status status = nh_cuda_describe(name, &host, device, &described);
    CHECK(!status, "%s", nhood_last_error());
    for (int i = 0; !status && i < 60; i++) {
        static const int32_t windows[] = {1, 3, 4, 5, 7, 9, 12};
        nhood_problem given;
        nhood_problem_init(&given, test_between(&random, 0, 2) ? NHOOD_OP_BWD : NHOOD_OP_FWD,
                           test_between(&random, 0, 3) ? NHOOD_DTYPE_BF16 : NHOOD_DTYPE_F32,
                           1 + i % 3);
        given.heads = 4;
        given.kv_heads = test_between(&random, 0, 3) ? 4 : 2;
        given.dim = test_between(&random, 0, 1) ? 64 : 32;
        for (int a = 0; a < given.rank; a++) {
            given.axis[a].window = windows[test_between(&random, 0, given.rank == 3 ? 3 : 6)];
            given.axis[a].causal = test_between(&random, 0, 7) == 0;
            if (test_between(&random, 0, 7) == 0) given.axis[a].dilation = 2;
            if (test_between(&random, 0, 7) == 0 && given.axis[a].window > 1)
                given.axis[a].stride = 2;
        }
        launches += check_class(&random, &given, &device[0]);
    }
    return launches;
}

int main(void) {
    const int launches = check_device("h200") + check_device("a100");
    CHECK(launches > 10000, "only %d launches were compared", launches);
    CHECK(any_lengths > 100, "only %d launches for any length", any_lengths);
    return test_result();
}
