/* cuda.gemm's launches, on a driver that only writes them down: slabs cover every batch entry and head once, grids
 * every tile, and what cannot be taken is refused. Needs NVRTC, no GPU. */
#include "cuda.h"
#include "cuda_solvers.h"
#include "fake_driver.h"
#include "problem.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum { SKIPPED = 77, ADDRESS = 1 << 20 };

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
    if (refusal || !nh_solver_cuda_gemm.candidates(&f->problem, &f->device, INFINITY, &config, 1))
        return false;
    nhood_status status = nh_solver_cuda_gemm.build(&nh_solver_cuda_gemm, &f->problem, &f->device,
                                                    &config, &operation);
    CHECK(!status, "%s: %s", text, nhood_last_error());
    if (status) return false;
    nhood_io io = {.struct_size = sizeof io, .workspace = (void *)(uintptr_t)ADDRESS};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (nh_problem_role(&f->problem, t) != NH_UNUSED) io.data[t] = address_of(t);
    f->workspace_bytes = io.workspace_bytes = operation->workspace_bytes;
    fake.launch_count = 0;
    status = operation->run(operation, &io);
    CHECK(!status && fake.launch_count <= FAKE_LAUNCHES, "%s: %s", text, nhood_last_error());
    operation->destroy(operation);
    return !status && fake.launch_count <= FAKE_LAUNCHES;
}

static const struct fake_launch *launch_of(const char *kernel, int number) {
    for (int i = 0; i < fake.launch_count; i++)
        if (strcmp(fake.launch[i].kernel, kernel) == 0 && number-- == 0) return &fake.launch[i];
    return NULL;
}

static int64_t elements_from(const struct fake_launch *launch, int slot, int32_t tensor) {
    return ((char *)launch->args.tensor[slot].data - address_of(tensor)) / 2;
}

/* The launches of a slab: how many, the first and the last. */
struct sequence {
    int launches;
    const char *pn, *nn;
};
static const struct sequence in_chunks = {3, "gemm_pn", "gemm_band"};
static const struct sequence in_parts = {2, "gemm_part_pn", "gemm_part_nn"};

/* Every slab begins where the one before it ended, for tensors of query heads and of key heads, and together they
 * are the whole problem. `batch`, `kv_heads`: what one slab should have. */
static void check_slabs(struct fixture *f, const char *text, const struct sequence *sequence,
                        int64_t batch, int64_t kv_heads) {
    if (!run(f, text)) return;
    const struct nh_problem *p = &f->problem;
    int slabs = (int)(p->batch / batch * (p->kv_heads / kv_heads));
    int64_t heads = kv_heads * (p->heads / p->kv_heads);
    CHECK(fake.launch_count == sequence->launches * slabs, "%s: %d launches", text,
          fake.launch_count);
    for (int i = 0; i < slabs; i++) {
        int64_t b = i / (p->kv_heads / kv_heads) * batch, h = i % (p->kv_heads / kv_heads);
        const struct fake_launch *pn = launch_of(sequence->pn, i), *nn = launch_of(sequence->nn, i);
        CHECK(pn && nn, "%s: slab %d is missing", text, i);
        if (!pn || !nn) return;
        CHECK(pn->args.batch == batch && pn->args.heads == heads && pn->args.kv_heads == kv_heads,
              "%s: slab %d is %lld x %lld", text, i, pn->args.batch, pn->args.heads);
        CHECK(elements_from(pn, NH_Q, NHOOD_Q) ==
                      b * p->strides[NHOOD_Q].batch + h * heads * p->strides[NHOOD_Q].head &&
                  elements_from(pn, NH_K, NHOOD_K) ==
                      b * p->strides[NHOOD_K].batch + h * kv_heads * p->strides[NHOOD_K].head &&
                  elements_from(nn, NH_O, NHOOD_O) ==
                      b * p->strides[NHOOD_O].batch + h * heads * p->strides[NHOOD_O].head,
              "%s: slab %d starts elsewhere", text, i);
        CHECK(pn->args.tensor[NH_A].data == nn->args.tensor[NH_A].data, "%s: slab %d", text, i);
    }
    CHECK(f->workspace_bytes <= (size_t)1 << 29, "%s: %zu bytes of workspace", text,
          f->workspace_bytes);
}

/* The sums of the bias's gradient: every slab's where the last launch expects them. */
static void check_bias(struct fixture *f, const char *text, int slabs_of_batch) {
    if (!run(f, text)) return;
    const struct fake_launch *sum = launch_of("gemm_bias_sum", 0);
    CHECK(sum && sum == &fake.launch[fake.launch_count - 1] && sum->args.heads == f->problem.heads,
          "%s: the sum does not come last, over all heads", text);
    if (!sum) return;
    const char *first = sum->args.tensor[NH_BIAS].data;
    int64_t head = sum->args.tensor[NH_BIAS].head, batch = sum->args.tensor[NH_BIAS].batch;
    CHECK(head == batch * slabs_of_batch, "%s: %lld sums per head", text, (long long)head);
    for (int i = 0; launch_of("gemm_bias_gradient", i); i++) {
        const struct nh_cuda_args *args = &launch_of("gemm_bias_gradient", i)->args;
        int64_t inner = f->problem.heads / args->heads;
        int64_t at = ((const char *)args->tensor[NH_D_BIAS].data - first) / 4;
        CHECK(at == i / inner * batch + i % inner * args->heads * head, "%s: slab %d at %lld", text,
              i, (long long)at);
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
    check_slabs(&f, "fwd:f16:b2h4k2d32:64x64:w7x7:c10", &in_chunks, 2, 2);
    check_slabs(&f, "fwd:f16:b6h4k2d32:512x512:w7x7:c10", &in_chunks, 2, 2);
    check_slabs(&f, "fwd:f16:b2h8k4d32:1024x1024:w7x7:c10", &in_chunks, 1, 1);
    check_slabs(&f, "fwd:f16:b2h4k2d32:64x64:w7x7", &in_parts, 2, 2);
    check_slabs(&f, "fwd:f16:b6h4k2d32:512x512:w7x7", &in_parts, 2, 2);
    check_slabs(&f, "fwd:f16:b2h8k4d32:1024x1024:w7x7", &in_parts, 1, 1);
    check_bias(&f, "bwd:f16:b6h2d32:512x512:w11x11:rpb", 2);
    check_bias(&f, "bwd:f16:b2h4d32:1024x1024:w11x11:rpb", 2);
    check_grid(&f, "pn:f16:b1h3d16:16000000:w3", 3, 16000000);
    check_grid(&f, "nn:f32:b1h2d16:5:w3:d7:clamp", 2 * 5, 1);
    check_refusal(&f, "fwd:f64:b1h1d32:64:w7",
                  "no f64: tensor cores are used for f32, f16 and bf16");
    check_refusal(&f, "fwd:f16:b1h1d32:64:w7:x3", "no extra tokens");
    check_refusal(&f, "pn:f16:b1h1d257:64:w7", "head dims above 256");
    check_refusal(&f, "fwd:f16:b1h1d32:131072:w65536",
                  "attention weights of one key head would take more than 16 GiB of workspace");
    check_refusal(&f, "pn:f16:b1h1d1:2000000000:w3", "more than 2^30 tokens per batch entry");
    check_refusal(&f, "pn:f16:b100000h40000d1:64:w3", "more than 2^31 tiles");
    nh_cuda_close(f.cuda, &f.device, count);
    CHECK(fake.libraries_open == 0, "%d libraries open", fake.libraries_open);
    return test_result();
}
