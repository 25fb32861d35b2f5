/* Keys that no query attends: on random axes the part that is kept has every attended key, and within a dilation step of
 * either end it has one. */
#include "problem.h"
#include "test.h"

#include <stdlib.h>

enum { AXES = 4000, MOST_LENGTH = 40 };

static struct nh_box random_box(uint64_t *state, int64_t length) {
    struct nh_box box = {test_between(state, 0, length - 1), 0};
    box.length = test_between(state, 1, length - box.offset);
    return box;
}

static struct nh_axis random_axis(uint64_t *state) {
    int64_t length = test_between(state, 1, MOST_LENGTH);
    int64_t dilation = test_between(state, 0, 1) ? 1 : test_between(state, 1, length);
    int64_t window = test_between(state, 1, length / dilation);
    struct nh_axis axis = nh_whole_axis(length, window, test_between(state, 1, window), dilation,
                                        (int32_t)test_between(state, 0, 1));
    axis.query = random_box(state, length);
    if (test_between(state, 0, 1)) axis.key = axis.key_tensor = random_box(state, length);
    return axis;
}

static bool attended(const struct nh_axis *axis, int64_t key) {
    for (int64_t i = 0; i < axis->query.length; i++) {
        int64_t query = axis->query.offset + i;
        struct nh_range window = nh_axis_window(axis, query);
        if (query % axis->dilation == key % axis->dilation &&
            key / axis->dilation >= window.begin && key / axis->dilation < window.end)
            return true;
    }
    return false;
}

static bool within(const struct nh_box *box, int64_t key) {
    return key >= box->offset && key < box->offset + box->length;
}

static bool any_attended(const struct nh_axis *axis, int64_t begin, int64_t end) {
    bool any = false;
    for (int64_t key = begin; key < end; key++)
        any = any || (within(&axis->key_tensor, key) && attended(axis, key));
    return any;
}

static void check_part(const struct nh_axis *axis) {
    const struct nh_box *all = &axis->key_tensor, *part = &axis->key;
    int64_t end = part->offset + part->length;
    CHECK(part->length >= 1 && within(all, part->offset) && within(all, end - 1),
          "[%lld, %lld) leaves the box", (long long)part->offset, (long long)end);
    CHECK((part->offset - all->offset) % axis->dilation == 0, "not a whole number of steps");
    for (int64_t key = all->offset; key < all->offset + all->length; key++)
        CHECK(within(part, key) || !attended(axis, key), "key %lld is attended and left out",
              (long long)key);
    if (!any_attended(axis, all->offset, all->offset + all->length)) return;
    CHECK(any_attended(axis, part->offset, part->offset + axis->dilation),
          "no key of the first step is attended");
    CHECK(any_attended(axis, end - axis->dilation, end), "no key of the last step is attended");
}

static void check_random_axes(int32_t op) {
    uint64_t state = 11;
    int less = 0;
    for (int i = 0; i < AXES; i++) {
        struct nh_problem problem = {.op = op, .rank = 1, .batch = 2, .kv_heads = 3, .dim = 4};
        struct nh_problem room;
        problem.axis[0] = problem.axis[1] = nh_whole_axis(1, 1, 1, 1, 0);
        problem.axis[2] = random_axis(&state);
        const struct nh_problem *attended_keys = nh_attended_keys(&problem, &room);
        CHECK((attended_keys != &problem) == nh_leaves_out_keys(attended_keys), "axis %d", i);
        CHECK(attended_keys->axis[2].key_tensor.length == problem.axis[2].key.length,
              "axis %d: the tensors are others", i);
        if (attended_keys == &problem) continue;
        less++;
        check_part(&attended_keys->axis[2]);
        CHECK(room.key_tokens == room.axis[2].key.length, "%lld key tokens",
              (long long)room.key_tokens);
    }
    CHECK(less > AXES / 4, "%d of %d axes lack keys", less, AXES);
}

/* A circle has no keys to leave out, and outputs of other operations have all of them. */
static void check_kept(void) {
    struct nh_problem room, problem = {.op = NHOOD_OP_FWD, .rank = 1, .dim = 4};
    problem.axis[0] = problem.axis[1] = nh_whole_axis(1, 1, 1, 1, 0);
    problem.axis[2] = nh_whole_axis(20, 3, 1, 1, 0);
    CHECK(nh_attended_keys(&problem, &room) == &problem, "queries cover the axis");
    problem.axis[2].query.length = 5;
    CHECK(nh_attended_keys(&problem, &room) == &room, "keys beyond the windows are left out");
    problem.op = NHOOD_OP_IN;
    CHECK(nh_attended_keys(&problem, &room) == &problem, "IN has an output of every key");
    problem.op = NHOOD_OP_BWD;
    problem.axis[2].periodic = 1;
    CHECK(nh_attended_keys(&problem, &room) == &problem, "a circle has no ends");
}

/* The set of tensors has those with a role. */
static void check_tensors(void) {
    for (int32_t op = NHOOD_OP_FWD; op <= NHOOD_OP_IN; op++)
        for (int k = 0; k < 4; k++) {
            const struct nh_problem problem = {
                .op = op, .has_bias = k & 1, .extra_tokens = k / 2 ? 3 : 0};
            uint32_t tensors = 0;
            for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
                if (nh_problem_role(&problem, t) != NH_UNUSED) tensors |= UINT32_C(1) << t;
            CHECK(nh_problem_tensors(&problem) == tensors,
                  "%s, bias %d, %d extra tokens: %x not %x", nh_op_name(op), problem.has_bias,
                  (int)problem.extra_tokens, nh_problem_tensors(&problem), tensors);
        }
}

int main(void) {
    check_tensors();
    check_random_axes(NHOOD_OP_FWD);
    check_random_axes(NHOOD_OP_BWD);
    check_kept();
    return test_result();
}
