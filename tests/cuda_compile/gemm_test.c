/* cuda.gemm's launches, on a driver that only writes them down: grids cover every tile, operators get their tensors, and what
 * cannot be taken is refused. Needs NVRTC, no GPU. */
#include "cuda.h"
#include "cuda_solvers.h"
#include "fake_driver.h"
#include "problem.h"
#include "test.h"

#include <string.h>

enum { SKIPPED = 77 };

struct fixture {
    struct nh_driver driver;
    struct nh_host host;
    struct nh_device device;
    struct nh_cuda *cuda;
    struct nh_problem problem;
    size_t workspace_bytes;
};

/* Tensor t of the pretended execute starts here: far enough apart to tell them by the address. */
static char *address_of(int32_t tensor) {
    return (char *)((uintptr_t)(tensor + 1) << 44);
}

static bool canonical(const char *text, struct nh_problem *problem) {
    nhood_problem given;
    bool good = nhood_problem_parse(text, &given) == NHOOD_OK &&
                nh_problem_canonical(&given, problem) == NHOOD_OK;
    CHECK(good, "%s: %s", text, nhood_last_error());
    return good;
}

/* Plans and executes once; the launches are in `fake`. */
static bool run(struct fixture *f, const char *text) {
    struct nh_config config;
    struct nh_operation *operation = NULL;
    if (!canonical(text, &f->problem)) return false;
    const char *refusal = nh_solver_cuda_gemm.refuse(&f->problem, &f->device);
    CHECK(!refusal, "%s: %s", text, refusal);
    if (refusal || !nh_solver_cuda_gemm.candidates(&f->problem, &f->device, &config, 1))
        return false;
    nhood_status status = nh_solver_cuda_gemm.build(&nh_solver_cuda_gemm, &f->problem, &f->device,
                                                    &config, &operation);
    CHECK(!status, "%s: %s", text, nhood_last_error());
    if (status) return false;
    nhood_io io = {.struct_size = sizeof io};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (nh_problem_role(&f->problem, t) != NH_UNUSED) io.data[t] = address_of(t);
    f->workspace_bytes = io.workspace_bytes = operation->workspace_bytes;
    fake.launch_count = 0;
    status = operation->run(operation, &io);
    CHECK(!status && fake.launch_count <= FAKE_LAUNCHES, "%s: %s", text, nhood_last_error());
    operation->destroy(operation);
    return !status && fake.launch_count <= FAKE_LAUNCHES;
}

/* The tensors of an operator, in the kernel's slots. */
static void check_tensors(struct fixture *f, const char *text, const int32_t tensor[3],
                          const int slot[3]) {
    if (!run(f, text)) return;
    CHECK(fake.launch_count == 1 && f->workspace_bytes == 0, "%s: %d launches, %zu bytes", text,
          fake.launch_count, f->workspace_bytes);
    for (int i = 0; i < 3; i++) {
        const struct nh_cuda_tensor *found = &fake.launch[0].args.tensor[slot[i]];
        const nhood_strides *strides = &f->problem.strides[tensor[i]];
        CHECK(found->data == address_of(tensor[i]) && found->head == strides->head &&
                  found->axis[2] == strides->axis[2],
              "%s: slot %d is not tensor %d", text, slot[i], (int)tensor[i]);
    }
}

/* groups: dilation groups of all heads, each of so many tokens. Two threads work on a row of a tile. */
static void check_grid(struct fixture *f, const char *text, int64_t groups, int64_t tokens) {
    if (!run(f, text)) return;
    const struct fake_launch *launch = &fake.launch[0];
    int64_t rows = launch->threads / 2;
    CHECK(fake.launch_count == 1 && launch->grid[1] == 1 && launch->grid[2] == 1 &&
              launch->grid[0] == groups * ((tokens + rows - 1) / rows),
          "%s: %u blocks for tiles of %lld", text, launch->grid[0], (long long)rows);
    for (int a = 0; a < NH_AXES; a++)
        CHECK(fake.launch[0].args.axis[a].dilation <= fake.launch[0].args.axis[a].length,
              "%s: dilation of axis %d", text, a);
}

static void check_refusal(const struct fixture *f, const char *text, const char *sentence) {
    struct nh_problem problem;
    if (!canonical(text, &problem)) return;
    const char *refusal = nh_solver_cuda_gemm.refuse(&problem, &f->device);
    CHECK(refusal && strcmp(refusal, sentence) == 0, "%s: %s", text, refusal ? refusal : "taken");
}

int main(void) {
    struct fixture f = {0};
    int32_t count;
    nhood_context_options options = {.struct_size = sizeof options, .cache = ""};
    options.nvrtc = fake_driver_nvrtc();
    if (!options.nvrtc) {
        printf("skipped: no libnvrtc (pip install nvidia-cuda-nvrtc, its path in $NHOOD_NVRTC)\n");
        return SKIPPED;
    }
    fake_driver_reset(90);
    fake_driver_table(&f.driver);
    nhood_status status = nh_cuda_open(&f.driver, &options, &f.host, &f.device, 1, &count, &f.cuda);
    CHECK(!status && count == 1, "%s", nhood_last_error());
    if (status) return EXIT_FAILURE;
    check_tensors(&f, "pn:f16:b2h4k2d32:64x64:w7x7", (int32_t[]){NHOOD_Q, NHOOD_K, NHOOD_A},
                  (int[]){NH_Q, NH_K, NH_A});
    check_tensors(&f, "nn:f16:b2h4k2d32v48:64x64:w7x7", (int32_t[]){NHOOD_A, NHOOD_V, NHOOD_O},
                  (int[]){NH_A, NH_V, NH_O});
    check_tensors(&f, "in:f16:b2h4k2d32v48:64x64:w7x7", (int32_t[]){NHOOD_A, NHOOD_D_O, NHOOD_D_V},
                  (int[]){NH_A, NH_V, NH_O});
    check_grid(&f, "pn:f16:b1h3d16:16000000:w3", 3, 16000000);
    check_grid(&f, "nn:f32:b1h2d16:5:w3:d7:clamp", 2 * 5, 1);
    check_refusal(&f, "fwd:f16:b1h1d32:64:w7", "no attention: only the operators pn, nn and in");
    check_refusal(&f, "bwd:f16:b1h1d32:64:w7", "no attention: only the operators pn, nn and in");
    check_refusal(&f, "pn:f64:b1h1d32:64:w7",
                  "no f64: tensor cores are used for f32, f16 and bf16");
    check_refusal(&f, "pn:f16:b1h1d257:64:w7", "head dims above 256");
    check_refusal(&f, "pn:f16:b1h1d1:2000000000:w3", "more than 2^30 tokens per batch entry");
    check_refusal(&f, "pn:f16:b100000h40000d1:64:w3", "more than 2^31 tiles");
    nh_cuda_close(f.cuda, &f.device, count);
    CHECK(fake.libraries_open == 0, "%d libraries open", fake.libraries_open);
    return test_result();
}
