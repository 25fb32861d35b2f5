/* Means of values near the largest number of their type are finite: sums come before the division by that of the weights and
 * overflow, or weights are rounded up and their sum is not. All keys are equal and every channel has one value, so that each output
 * is that value whatever the queries are. CUDA devices are emulated, so memory is the host's.
 *
 * Usage: large_values_test ISA SOLVER.. */
#include "dtype.h"
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static double value_of_channel(int32_t dtype, int64_t channel) {
    const double largest = dtype == NHOOD_DTYPE_F16    ? 65504
                           : dtype == NHOOD_DTYPE_BF16 ? 0x1.fep127
                           : dtype == NHOOD_DTYPE_F32  ? 3.4e38
                                                       : 1.7e308;
    return channel % 3 == 2 ? 1 : channel % 3 ? largest : -largest;
}

static void fill(const nhood_problem *problem, nhood_io *io, int tensor, int64_t elements) {
    static uint64_t state = 5;
    const bool values = tensor == NHOOD_V || tensor == NHOOD_EXTRA_V;
    for (int64_t i = 0; i < elements; i++) {
        double number =
            test_uniform(&state); /* queries; scores are this times the head dim's root */
        if (tensor == NHOOD_K || tensor == NHOOD_EXTRA_K) number = 1;
        if (values) number = value_of_channel(problem->dtype, i % problem->dim);
        nh_store_f64(problem->dtype, io->data[tensor], i, number);
    }
}

static void means_are_finite(nhood_context *context, const char *solver, const char *text) {
    const int32_t device = strncmp(solver, "cuda.", 5) == 0;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_io io = {.struct_size = sizeof io};
    nhood_problem problem;
    nhood_plan *plan = NULL;
    int64_t elements[NHOOD_TENSOR_COUNT], wrong = 0;
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        nhood_problem_elements(&problem, tensor, &elements[tensor]);
        if (!elements[tensor] || tensor == NHOOD_LSE) continue;
        io.data[tensor] = malloc((size_t)elements[tensor] * sizeof(double));
        fill(&problem, &io, tensor, elements[tensor]);
    }
    CHECK(!nhood_plan_create(context, device, &problem, &options, &plan), "%s", nhood_last_error());
    io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    char *memory = test_allocate(io.workspace_bytes + 256);
    io.workspace = memory + (256 - (uintptr_t)memory % 256) % 256;
    memset(io.workspace, 0xff, io.workspace_bytes);
    CHECK(!nhood_plan_execute(plan, &io), "%s", nhood_last_error());
    for (int64_t i = 0; i < elements[NHOOD_O]; i++) {
        const double expected = value_of_channel(problem.dtype, i % problem.dim);
        const double value = nh_load_f64(problem.dtype, io.data[NHOOD_O], i);
        wrong +=
            !(fabs(value / expected - 1) < (problem.dtype == NHOOD_DTYPE_BF16 ? 0x1p-7 : 0x1p-10));
    }
    CHECK(!wrong, "%s, %s: %lld of %lld elements are off", solver, text, (long long)wrong,
          (long long)elements[NHOOD_O]);
    test_free(memory);
    nhood_plan_release(plan);
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(io.data[tensor]);
}

static const char *const cases[][2] = {
    {"cpu.fused", "fwd:bf16:b1h2d32:9x20:w7x7:x3"},
    {"cpu.fused", "fwd:bf16:b1h2d64:300:w90:q60+200:k50+200"},
    {"cpu.fused", "fwd:f16:b1h2d20:9x20:w7x7:d1x2"},
    {"cpu.fused", "fwd:f16:b1h2d20:5x6x7:w3x4x5"},
    {"cpu.fused", "fwd:f32:b1h1d16:700:w600"},
    {"cpu.fused", "fwd:f64:b1h1d9:12x12:w7x7"},
    {"reference", "fwd:bf16:b1h1d9:12x12:w7x7:x2"},
    {"reference", "fwd:f64:b1h1d9:12x12:w7x7:q1+8x0+12:k3+9x0+12"},
    {"cuda.naive", "fwd:f32:b1h1d33:20x20:w5x5:x3"},
    {"cuda.naive", "fwd:bf16:b1h1d30:90:w31:p1:q3+80:k7+70"},
    {"cuda.naive", "fwd:f64:b1h1d9:12x12:w7x7"},
    {"cuda.naive", "fwd:f32:b4h4d8:56x56:w3x3"}, /* a thread each */
    {"cuda.small", "fwd:f32:b1h1d32:20x20:w7x7"},
    {"cuda.small", "fwd:bf16:b1h2d32:24x28:w7x7:q3+18x0+28:k3+17x0+28"},
    {"cuda.small", "fwd:f16:b1h2d48:20x20:w7x7"},
    {"cuda.short", "fwd:f32:b1h2d32:50:w7"},
    {"cuda.short", "fwd:f16:b1h2d48:14x14:w7x7"},
    {"cuda.short90", "fwd:f16:b1h2d64:14x14:w7x7"},
    {"cuda.fused80", "fwd:f32:b1h1d48:300:w90:x3"},
    {"cuda.fused80", "fwd:bf16:b1h1d32:300:w90:q90+100:k100+80"},
    {"cuda.fused90", "fwd:f16:b1h1d64:300:w90:x3"},
    {"cuda.fused90", "fwd:bf16:b1h1d64:7x20x20:w5x7x7"},
};

int main(int count, char **argument) {
    nhood_context_options options = {
        .struct_size = sizeof options, .isa = argument[1], .cache = ""};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    for (int a = 2; a < count; a++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!strcmp(argument[a], cases[i][0]))
                means_are_finite(context, cases[i][0], cases[i][1]);
    nhood_context_destroy(context);
    return test_result();
}
