/* The binary interface: sizes and offsets that programs built against an earlier header rely on. */
#include "nhood.h"
#include "nhood_norm_rope.h"
#include "test.h"

#define SIZE(type, bytes) CHECK(sizeof(type) == (bytes), #type " has %zu bytes", sizeof(type))
#define OFFSET(type, field, at)                                                                    \
    CHECK(offsetof(type, field) == (at), #field " is at %zu", offsetof(type, field))

int main(void) {
    SIZE(nhood_axis, 40);
    SIZE(nhood_strides, 40);
    SIZE(nhood_problem, 8 + 16 + 3 * 40 + 48 + 8 + 8 + 24 * 40 + 3 * 32 + 3 * 48);
    OFFSET(nhood_problem, axis, 24);
    OFFSET(nhood_problem, batch, 144);
    OFFSET(nhood_problem, scale, 192);
    OFFSET(nhood_problem, has_bias, 200);
    OFFSET(nhood_problem, strides, 208);
    OFFSET(nhood_problem, region, 1168);
    OFFSET(nhood_problem, windows, 1264);
    SIZE(nhood_range, 8);
    SIZE(nhood_windows, 48);
    OFFSET(nhood_windows, padding, 32);
    OFFSET(nhood_windows, range, 40);
    SIZE(nhood_io, 8 + 24 * 8 + 24);
    OFFSET(nhood_io, data, 8);
    OFFSET(nhood_io, workspace, 200);
    OFFSET(nhood_io, stream, 216);
    SIZE(nhood_bound, 24);
    SIZE(nhood_group_io, 3 * 8 + 24 * 8 + 9 * 8);
    OFFSET(nhood_group_io, data, 24);
    OFFSET(nhood_group_io, query_tokens, 216);
    OFFSET(nhood_group_io, query_offset, 232);
    OFFSET(nhood_group_io, workspace, 248);
    OFFSET(nhood_group_io, lengths, 272);
    SIZE(nhood_context_options, 104);
    OFFSET(nhood_context_options, user, 40);
    OFFSET(nhood_context_options, describe, 80);
    OFFSET(nhood_context_options, bundle, 88);
    OFFSET(nhood_context_options, interrupted, 96);
    SIZE(nhood_device_info, 168);
    SIZE(nhood_ceilings, 24);
    SIZE(nhood_kernel_counts, 64);
    OFFSET(nhood_kernel_counts, store_ns, 32);
    OFFSET(nhood_kernel_counts, from_bundle, 48);
    SIZE(nhood_plan_options, 32);
    OFFSET(nhood_plan_options, budget_s, 24);
    SIZE(nhood_candidate, 128);
    OFFSET(nhood_candidate, measured_ns, 48);
    OFFSET(nhood_candidate, limit_ns, 88);
    SIZE(nhood_norm_rope_problem, 8 + 8 * 4 + 6 * 8 + 2 * 24 + 16 + 4 * 40);
    OFFSET(nhood_norm_rope_problem, flags, 36);
    OFFSET(nhood_norm_rope_problem, batch, 40);
    OFFSET(nhood_norm_rope_problem, rotated, 88);
    OFFSET(nhood_norm_rope_problem, eps, 136);
    OFFSET(nhood_norm_rope_problem, x, 152);
    SIZE(nhood_norm_rope_io, 12 * 8 + 8);
    OFFSET(nhood_norm_rope_io, table, 24);
    OFFSET(nhood_norm_rope_io, workspace, 80);
    CHECK(NHOOD_Q == 0 && NHOOD_D_EXTRA_V == 16 && NHOOD_TENSOR_COUNT == 17,
          "tensor numbers moved");
    CHECK(NHOOD_OP_IN == 5 && NHOOD_DTYPE_BF16 == 4 && NHOOD_ERR_INTERRUPTED == -8,
          "constants moved");
    for (nhood_status status = 1; status >= -9; status--)
        CHECK(nhood_status_name(status)[0], "status %d has no name", status);
    return test_result();
}
