/* denoise: a picture, volume or signal in, a cleaner one out, by one neighborhood-attention call. */
#include "moments.h"

#include <nhood.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: denoise INPUT [options]\n"
    "\n"
    "Denoises a picture (.png .ppm .pgm .pnm .pfm), a volume (.nii .nii.gz) or a signal (.txt "
    ".csv, one number\n"
    "per line) by one neighborhood-attention call on patch features; no training, no weights.\n"
    "PNG: 8 or 16 bits, grey or colour, as stored; transparency is left out. NIfTI: the first "
    "frame; results\n"
    "keep its geometry and units.\n"
    "\n"
    "Without --noisy INPUT is taken as clean: noise is added first, and the result is compared "
    "with INPUT.\n"
    "\n"
    "  --sigma S          standard deviation of the noise, in units of the samples; those of "
    "pictures are\n"
    "                     0..255 whatever their bits (.pfm: as they are), a volume's largest is "
    "255. With\n"
    "                     --noisy it is estimated when not given; without, it defaults to 25, "
    "12.75 for\n"
    "                     volumes, and a tenth of the signal's power for signals\n"
    "  --noisy            INPUT is noisy already: add nothing\n"
    "  --seed N           of the added noise; default 1\n"
    "  --output DIR       where results go; default 'denoised'\n"
    "  --window W[xW..]   odd or even sizes, one for all axes or one each; default 21x21, 5x7x7, "
    "2001\n"
    "  --method M|A       M: attention moments (default); A: non-local means of patches\n"
    "  --softness C       bandwidth of the attention, h^2 = C sigma^2; default 45 for pictures, 24 "
    "otherwise\n"
    "  --features N       components that decide what looks alike; default 7 for pictures, 8 "
    "otherwise\n"
    "  --storage TYPE     f32 (default), f16 or bf16 tensors\n"
    "  --causal           the slowest axis (time) sees only its past\n"
    "  --crop R,C,H,W     keep H rows and W columns of a picture, from row R and column C\n"
    "  --threads N        CPU threads; default: all\n"
    "  --memory MB        for the attention's tensors; what needs more is attended in bands; "
    "default 1024\n"
    "  --plain N          tokens to time a plain C loop on, for comparison; default 4096, 0 for "
    "none\n"
    "  --help\n"
    "\n"
    "Writes noisy, denoised and difference files and, for pictures and volumes, comparison.png: "
    "noisy,\n"
    "denoised and difference side by side (the middle slice of a volume). Pictures are written "
    "with "
    "8 bits,\n"
    "noisy and denoised also as .pfm, neither rounded nor clipped.\n";

struct request {
    const char *input, *output, *window, *method, *storage, *crop;
    double sigma, softness;
    uint64_t seed;
    bool noisy, causal;
    int threads, features;
    int64_t plain, memory;
};

static bool read_number(const char *name, const char *given, double low, double high,
                        double *value) {
    char *end;
    errno = 0;
    *value = strtod(given, &end);
    if (errno || end == given || *end || !(*value >= low && *value <= high))
        return fail("--%s %s: a number in [%g, %g] is expected", name, given, low, high);
    return true;
}

static bool read_integer(const char *name, const char *given, int64_t low, int64_t high,
                         int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(given, &end, 10);
    if (errno || end == given || *end || *value < low || *value > high)
        return fail("--%s %s: a whole number in [%lld, %lld] is expected", name, given,
                    (long long)low, (long long)high);
    return true;
}

enum {
    SIGMA = 256,
    NOISY,
    SEED,
    OUTPUT,
    WINDOW,
    METHOD,
    SOFTNESS,
    FEATURES,
    STORAGE,
    CAUSAL,
    CROP,
    THREADS,
    MEMORY,
    PLAIN
};

static const struct option options[] = {
    {"sigma", 1, NULL, SIGMA},       {"noisy", 0, NULL, NOISY},
    {"seed", 1, NULL, SEED},         {"output", 1, NULL, OUTPUT},
    {"window", 1, NULL, WINDOW},     {"method", 1, NULL, METHOD},
    {"softness", 1, NULL, SOFTNESS}, {"features", 1, NULL, FEATURES},
    {"storage", 1, NULL, STORAGE},   {"causal", 0, NULL, CAUSAL},
    {"crop", 1, NULL, CROP},         {"threads", 1, NULL, THREADS},
    {"memory", 1, NULL, MEMORY},     {"plain", 1, NULL, PLAIN},
    {"help", 0, NULL, 'h'},          {NULL, 0, NULL, 0}};

static bool read_option(int option, struct request *request) {
    int64_t integer = 0;
    bool ok = true;
    switch (option) {
    case SIGMA: return read_number("sigma", optarg, 1e-9, 1e9, &request->sigma);
    case SOFTNESS: return read_number("softness", optarg, 1e-3, 1e6, &request->softness);
    case NOISY: request->noisy = true; break;
    case CAUSAL: request->causal = true; break;
    case OUTPUT: request->output = optarg; break;
    case WINDOW: request->window = optarg; break;
    case METHOD: request->method = optarg; break;
    case STORAGE: request->storage = optarg; break;
    case CROP: request->crop = optarg; break;
    case SEED:
        ok = read_integer("seed", optarg, 0, INT64_MAX, &integer);
        request->seed = (uint64_t)integer;
        break;
    case FEATURES:
        ok = read_integer("features", optarg, 1, MOST_PATCH, &integer);
        request->features = (int)integer;
        break;
    case THREADS:
        ok = read_integer("threads", optarg, 1, 1024, &integer);
        request->threads = (int)integer;
        break;
    case MEMORY: return read_integer("memory", optarg, 1, 1 << 20, &request->memory);
    case PLAIN: return read_integer("plain", optarg, 0, INT32_MAX, &request->plain);
    default: return fail("see denoise --help");
    }
    return ok;
}

static bool read_list(const char *name, const char *given, const char *separator, int count,
                      int64_t *value) {
    char copy[128], *rest = copy;
    if (strlen(given) >= sizeof copy) return fail("--%s %s: too long", name, given);
    strcpy(copy, given);
    for (int i = 0; i < count; i++) {
        char *word = strsep(&rest, separator);
        if (!word) return fail("--%s %s: %d numbers are expected", name, given, count);
        if (!read_integer(name, word, 0, INT32_MAX, &value[i])) return false;
    }
    return rest ? fail("--%s %s: %d numbers are expected", name, given, count) : true;
}

static bool apply_window(const struct request *request, const struct grid *grid,
                         struct settings *settings) {
    int64_t size[3];
    int rank = grid->rank, given = strchr(request->window, 'x') ? rank : 1;
    if (!read_list("window", request->window, "x", given, size)) return false;
    for (int a = 0; a < rank; a++) {
        int axis = 3 - rank + a;
        settings->window[axis] = size[given == 1 ? 0 : a];
        if (settings->window[axis] < 1 || settings->window[axis] > grid->extent[axis])
            return fail("--window %s: %lld on axis %d is not in [1, %lld]", request->window,
                        (long long)settings->window[axis], a, (long long)grid->extent[axis]);
    }
    return true;
}

static bool apply(const struct request *request, const struct grid *grid,
                  struct settings *settings) {
    static const struct {
        const char *name;
        int dtype;
    } storages[] = {{"f32", NHOOD_DTYPE_F32}, {"f16", NHOOD_DTYPE_F16}, {"bf16", NHOOD_DTYPE_BF16}};
    settings->dtype = 0;
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(request->storage, storages[i].name)) settings->dtype = storages[i].dtype;
    if (!settings->dtype)
        return fail("--storage %s: f32, f16 or bf16 is expected", request->storage);
    settings->moments = !strcmp(request->method, "M");
    if (!settings->moments && strcmp(request->method, "A") != 0)
        return fail("--method %s: M or A is expected", request->method);
    if (!settings->moments) {
        settings->softness = grid->rank == 2 ? 12 : 6;
        settings->components = settings->patches.length;
    }
    if (request->softness > 0) settings->softness = request->softness;
    if (request->features) settings->features = request->features;
    if (settings->features > settings->components)
        return fail("--features %d: there are %d components", settings->features,
                    settings->components);
    settings->causal = request->causal;
    settings->threads = request->threads;
    settings->plain_tokens = request->plain;
    if (request->memory) settings->memory_bytes = request->memory << 20;
    settings->sigma = request->sigma;
    return request->window ? apply_window(request, grid, settings) : true;
}

/* The noise level: as given, estimated from a noisy input, or the rank's default. */
static bool choose_sigma(struct request *request, const struct grid *grid) {
    if (request->sigma > 0) return true;
    if (!request->noisy) {
        request->sigma = grid->rank == 2   ? 25
                         : grid->rank == 3 ? 12.75
                                           : sqrt(0.1 * grid_variance(grid));
        return request->sigma > 0 ? true : fail("%s is constant: give --sigma", request->input);
    }
    if (!grid_estimate_sigma(grid, &request->sigma)) return false;
    if (!(request->sigma > 0)) return fail("%s: no noise was found: give --sigma", request->input);
    printf("noise level %.4g (estimated)\n", request->sigma);
    return true;
}

static bool write_as(const struct request *request, const char *name, const char *ending,
                     const struct grid *grid) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s%s", request->output, name, ending) >=
        sizeof path)
        return fail("--output: %zu bytes are too long for a path", strlen(request->output));
    return grid_write(path, grid);
}

static bool write_to(const struct request *request, const char *name, const struct grid *grid) {
    static const char *const ending[] = {"", ".txt", ".png", ".nii.gz"};
    return write_as(request, name, ending[grid->rank], grid);
}

/* 128 + 2 * (noisy - denoised): what was taken away, around grey. */
static void difference_of(const struct grid *noisy, const struct grid *clean,
                          struct grid *difference) {
    bool signal = noisy->rank == 1;
    for (int64_t i = 0; i < grid_samples(noisy); i++) {
        float taken = noisy->sample[i] - clean->sample[i];
        difference->sample[i] = signal ? taken : 128 + 2 * taken;
    }
    nifti_drop_units(difference);
}

static bool write_comparison(const struct request *request, const struct grid *const part[3]) {
    struct grid wide;
    const int64_t *extent = part[0]->extent, width = extent[2] * part[0]->channels;
    if (!grid_create(&wide, 2, (const int64_t[3]){1, extent[1], 3 * extent[2]}, part[0]->channels))
        return false;
    for (int p = 0; p < 3; p++)
        for (int64_t y = 0; y < extent[1]; y++)
            memcpy(wide.sample + (y * 3 + p) * width,
                   part[p]->sample + (extent[0] / 2 * extent[1] + y) * width,
                   (size_t)width * sizeof(float));
    bool ok = write_to(request, "comparison", &wide);
    grid_destroy(&wide);
    return ok;
}

static bool write_results(const struct request *request, const struct grid *noisy,
                          const struct grid *clean) {
    struct grid difference;
    if (!grid_copy(noisy, &difference)) return false;
    difference_of(noisy, clean, &difference);
    if (mkdir(request->output, 0777) && errno != EEXIST) {
        grid_destroy(&difference);
        return fail("%s: cannot be created: %s", request->output, strerror(errno));
    }
    bool ok = write_to(request, "noisy", noisy) && write_to(request, "denoised", clean) &&
              write_to(request, "difference", &difference);
    if (noisy->rank == 2) /* for other programs */
        ok = ok && write_as(request, "noisy", ".pfm", noisy) &&
             write_as(request, "denoised", ".pfm", clean);
    const struct grid *const part[3] = {noisy, clean, &difference};
    if (ok && noisy->rank > 1) ok = write_comparison(request, part);
    grid_destroy(&difference);
    return ok;
}

static double decibels(const struct grid *truth, const struct grid *grid) {
    double peak = truth->rank == 1 ? grid_variance(truth) : 255.0 * 255.0;
    return 10 * log10(peak / grid_mean_square_error(truth, grid));
}

static void print_report(const struct request *request, const struct settings *settings,
                         const struct grid *truth, const struct grid *noisy,
                         const struct grid *clean, const struct timing *timing) {
    printf("%s: %lld tokens, window ", request->input, (long long)grid_tokens(noisy));
    for (int a = 3 - noisy->rank; a < 3; a++)
        printf("%s%lld", a > 3 - noisy->rank ? "x" : "", (long long)settings->window[a]);
    printf(", head dim %d, value dim %d, %s\n", timing->dim, timing->dim_v, request->storage);
    if (truth)
        printf("%s: %.3f dB noisy, %.3f dB denoised\n", noisy->rank == 1 ? "SNR" : "PSNR",
               decibels(truth, noisy), decibels(truth, clean));
    const struct attention_report *attention = &timing->attention;
    printf("attention: %.3f s, %.1f GFLOP/s", attention->seconds,
           attention->flops / attention->seconds * 1e-9);
    if (attention->calls > 1) printf(", in %d bands", attention->calls);
    printf("; in all: %.3f s\n", timing->total_seconds);
    printf("plan: %s\n", attention->description);
    if (timing->plain_tokens)
        printf("a plain C loop on one core: %.2f s (from %lld of the tokens; largest difference "
               "%.1e)\n",
               timing->plain_seconds, (long long)timing->plain_tokens, timing->plain_difference);
    printf("results are in %s/\n", request->output);
}

static bool run(struct request *request) {
    struct grid truth = {0}, noisy = {0}, clean = {0};
    struct settings settings;
    struct timing timing;
    int64_t crop[4];
    bool ok = grid_read(request->input, &truth);
    if (ok && request->crop)
        ok = read_list("crop", request->crop, ",", 4, crop) &&
             grid_crop(&truth, crop[0], crop[1], crop[2], crop[3]);
    ok = ok && choose_sigma(request, &truth);
    if (ok) settings_defaults(&truth, &settings);
    ok = ok && apply(request, &truth, &settings) && grid_copy(&truth, &noisy);
    if (ok && !request->noisy) grid_add_noise(&noisy, request->sigma, request->seed);
    ok =
        ok && denoise(&noisy, &settings, &clean, &timing) && write_results(request, &noisy, &clean);
    if (ok)
        print_report(request, &settings, request->noisy ? NULL : &truth, &noisy, &clean, &timing);
    grid_destroy(&truth);
    grid_destroy(&noisy);
    grid_destroy(&clean);
    return ok;
}

int main(int argc, char **argv) {
    struct request request = {
        .output = "denoised", .method = "M", .storage = "f32", .seed = 1, .plain = 4096};
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (!read_option(option, &request)) {
            fprintf(stderr, "denoise: %s\n", error_text());
            return 2;
        }
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "denoise: give one input file; see denoise --help\n");
        return 2;
    }
    request.input = argv[optind];
    if (run(&request)) return 0;
    fprintf(stderr, "denoise: %s\n", error_text());
    return 2;
}
