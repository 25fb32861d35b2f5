/* Calibrations: their files, there and back and refused; what fits recover of factors that are known; what choices are judged to be. */
#include "calibrate.h"
#include "calibration.h"
#include "device_spec.h"
#include "predict.h"
#include "test.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/nhood_calibration_XXXXXX", logged[1024];

static void note_log(void *user, int32_t level, const char *line) {
    (void)user, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

static const struct nh_host host = {.log = note_log};

static struct nh_device describe(const char *name) {
    struct nh_device device[NH_MOST_DESCRIBED];
    int32_t described;
    CHECK(!nh_cuda_describe(name, &host, device, &described), "%s", nhood_last_error());
    return device[0];
}

/* In [1 / limit, limit], the logarithm uniform. */
static double random_factor(double limit) {
    return exp(log(limit) * (2.0 * rand() / RAND_MAX - 1));
}

/* ---- files ---- */

static void read_all(const char *path, char *text, size_t capacity) {
    FILE *file = fopen(path, "rb");
    size_t length = file ? fread(text, 1, capacity - 1, file) : 0;
    text[length] = '\0';
    if (file) fclose(file);
}

static void write_all(const char *path, const char *text, size_t length) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(text, 1, length, file) == length, "%s cannot be written", path);
    if (file) fclose(file);
}

/* The file does not load, for this reason, and a device does without it. */
static void check_refused(const char *path, const char *text, size_t length, const char *reason) {
    struct nh_device device = describe("h200");
    double factor[NH_FACTORS];
    write_all(path, text, length);
    nhood_status status = nh_calibration_load(&device, path, factor);
    CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), reason) &&
              strstr(nhood_last_error(), path),
          "'%s' expected: %d, %s", reason, status, nhood_last_error());
    logged[0] = '\0';
    CHECK(!nh_calibration_attach(&device, folder), "%s", nhood_last_error());
    CHECK(strstr(logged, "the calibration of h200 is not used: ") && strstr(logged, reason),
          "'%s' expected: %s", reason, logged);
    CHECK(!strcmp(nh_calibration_origin(&device), "built in, fitted on an H200"), "%s",
          nh_calibration_origin(&device));
}

/* The file with a text in place of another. */
static void check_edited(const char *path, const char *text, const char *from, const char *to,
                         const char *reason) {
    char edited[8192];
    const char *at = strstr(text, from);
    CHECK(at, "no '%s'", from);
    if (!at) return;
    int length =
        snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    check_refused(path, edited, (size_t)length, reason);
}

static void check_bad_files(const struct nh_device *device) {
    char path[NH_PATH_BYTES], text[8192];
    CHECK(!nh_calibration_path(device, folder, path), "%s", nhood_last_error());
    double factor[NH_FACTORS];
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = 1.5;
    CHECK(!nh_calibration_save(device, path, factor), "%s", nhood_last_error());
    read_all(path, text, sizeof text);
    check_refused(path, "", 0, "ends at line 1, where 'nhood-calibration' should be");
    check_edited(path, text, "nhood-calibration 1", "nhood-calibration 2",
                 "line 1: nhood-calibration = '2'");
    check_edited(path, text, "nhood-calibration 1", "nhood-wisdom 1",
                 "line 1: 'nhood-wisdom 1' where");
    check_edited(path, text, "device NVIDIA_H200", "device NVIDIA_H100",
                 "line 2: device = 'NVIDIA_H100,");
    check_edited(path, text, "table ", "table 0", "(calibrate again)");
    check_edited(path, text, "memory 1500\n", "", "line 5: 'clocks 1500' where 'memory' should be");
    check_edited(path, text, "FUSED80 1500", "FUZED80 1500", "'FUZED80 1500' where 'FUSED80'");
    check_edited(path, text, "launch 1500", "launch",
                 "line 4: launch = '' is not an integer in [125, 8000]");
    check_edited(path, text, "launch 1500", "launch 124", "line 4: launch = '124' is not");
    check_edited(path, text, "launch 1500", "launch 8001", "launch = '8001' is not");
    check_edited(path, text, "launch 1500", "launch -1500", "launch = '-1500' is not");
    check_edited(path, text, "launch 1500", "launch +1500", "launch = '+1500' is not");
    check_edited(path, text, "launch 1500", "launch 1.5", "launch = '1.5' is not");
    check_edited(path, text, "launch 1500", "launch 1500 ", "launch = '1500 ' is not");
    check_edited(path, text, "launch 1500", "launch 1500\r", "launch = '1500\r' is not");
    check_edited(path, text, "launch 1500", "launch 99999999999999999999999999",
                 "is not an integer");
    size_t length = strlen(text);
    for (size_t end = 0; end < length; end++)
        check_refused(path, text, end, "ends at line");
    strcpy(text + length, "FUSED80 1500\n");
    check_refused(path, text, strlen(text), "something follows the last factor");
    unlink(path);
    CHECK(!mkdir(path, 0700), "%s", path);
    CHECK(nh_calibration_load(device, path, factor) == NHOOD_ERR_ARGUMENT, "a folder was read");
    CHECK(nh_calibration_save(device, path, factor) == NHOOD_ERR_ARGUMENT, "a folder was replaced");
    rmdir(path);
    CHECK(nh_calibration_load(device, path, factor) == NHOOD_ERR_CACHE_MISS, "%s",
          nhood_last_error());
    CHECK(nh_calibration_save(device, "/dev/null/none", factor) == NHOOD_ERR_ARGUMENT, "%s",
          nhood_last_error());
}

static double predict(const struct nh_device *device, enum nh_kernel_kind kernel) {
    const struct nh_problem problem = {.bytes = 1e6};
    struct nh_work work;
    nh_work_start(&work, NH_OPERATION_FUSED80, &problem);
    struct nh_launch_work *launch = nh_work_add(&work, kernel);
    launch->blocks = 1000;
    launch->unit[NH_WORK_TENSOR] = 1e4;
    launch->unit[NH_WORK_EXP] = 1e4;
    return nh_predict(device->backend, &work, NULL);
}

/* A device follows its file, and only the device that has it. */
static void check_attached(const struct nh_device *device) {
    struct nh_device other = describe("h100"), twin = describe("h200"), none = describe("h200");
    char path[NH_PATH_BYTES];
    double factor[NH_FACTORS], read[NH_FACTORS];
    CHECK(!nh_calibration_path(device, folder, path), "%s", nhood_last_error());
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = i < NH_FACTOR_TENSOR ? 2 : 1;
    CHECK(!nh_calibration_save(device, path, factor), "%s", nhood_last_error());
    CHECK(!nh_calibration_load(device, path, read) && !memcmp(read, factor, sizeof read), "%s",
          nhood_last_error());
    CHECK(!nh_calibration_attach(&twin, folder) && !nh_calibration_attach(&other, folder) &&
              !nh_calibration_attach(&none, ""),
          "%s", nhood_last_error());
    double before = predict(device, NH_KERNEL_FUSED80);
    CHECK(fabs(predict(&twin, NH_KERNEL_FUSED80) - 2 * before) < 1e-9 * before,
          "%g ns calibrated, %g not", predict(&twin, NH_KERNEL_FUSED80), before);
    CHECK(predict(&none, NH_KERNEL_FUSED80) == before, "%g ns", before);
    CHECK(!strncmp(nh_calibration_origin(&twin), "calibrated, ", 12) &&
              !strcmp(nh_calibration_origin(&twin) + 12, path),
          "%s", nh_calibration_origin(&twin));
    CHECK(!strcmp(nh_calibration_origin(&other), "built in, of an H200, scaled by published rates"),
          "%s", nh_calibration_origin(&other));
    nh_calibration_detach(&twin);
    nh_calibration_detach(&other);
    unlink(path);
}

/* ---- fits ---- */

enum { PROBLEMS = 160, EACH = 4, TIMINGS = PROBLEMS * EACH };

/* Four candidates of a problem, of different kernels; kernels from KERNELS on are never timed. */
enum { KERNELS = NH_KERNEL_KINDS - 4 };

static void make_work(int problem, struct nh_work *work) {
    const struct nh_problem moved = {.bytes = 1e7 * random_factor(10)};
    nh_work_start(work, (enum nh_operation_kind)(problem % NH_OPERATION_KINDS), &moved);
    work->helpers = rand() % 2;
    for (int launches = 1 + rand() % 2; launches > 0; launches--) {
        struct nh_launch_work *launch = nh_work_add(work, (enum nh_kernel_kind)(rand() % KERNELS));
        launch->blocks = 1000 * random_factor(100);
        launch->residents = launch->in_flight = 1 + rand() % 3;
        launch->warps = 4;
        launch->steps = 1 + rand() % 20;
        for (int unit = 0; unit < NH_WORK_UNITS; unit++)
            launch->unit[unit] = unit < NH_WORK_SPILL ? 300 * random_factor(30) : 0;
    }
}

static void make_timings(const struct nh_device *device, const struct nh_coefficients *truth,
                         struct nh_timed timing[TIMINGS]) {
    static const struct nh_solver solver[EACH];
    for (int i = 0; i < TIMINGS; i++) {
        timing[i] = (struct nh_timed){.problem = i / EACH, .solver = &solver[i % EACH]};
        make_work(i / EACH, &timing[i].work);
        timing[i].measured_ns = nh_predict_by(truth, device->backend, &timing[i].work);
    }
}

/* Root mean square, of logarithms. */
static double error_of(const struct nh_device *device, const struct nh_coefficients *fitted,
                       const struct nh_coefficients *truth, const struct nh_timed timing[TIMINGS]) {
    double squares = 0;
    for (int i = 0; i < TIMINGS; i++) {
        double error = log(nh_predict_by(fitted, device->backend, &timing[i].work) /
                           nh_predict_by(truth, device->backend, &timing[i].work));
        squares += error * error;
    }
    return sqrt(squares / TIMINGS);
}

/* Timings by known factors, some of which are far off, lead back to these. */
static void check_recovered(const struct nh_device *device, double outliers) {
    static struct nh_timed timing[TIMINGS];
    static struct nh_coefficients truth, fitted;
    double factor[NH_FACTORS], found[NH_FACTORS];
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = random_factor(i < NH_FACTOR_KERNEL ? 2.5 : 1.6);
    nh_coefficients_scale(factor, &truth);
    make_timings(device, &truth, timing);
    for (int i = 0; i < TIMINGS; i++)
        if (rand() < outliers * RAND_MAX) timing[i].measured_ns *= random_factor(8);
    double before = error_of(device, &nh_built_in, &truth, timing);
    const struct nh_fold half = {2, 0, false};
    CHECK(!nh_calibrate(device, timing, TIMINGS, half, found), "%s", nhood_last_error());
    nh_coefficients_scale(found, &fitted);
    double after = error_of(device, &fitted, &truth, timing);
    CHECK(before > 2.5 * after && after < 0.12, "with %g outliers, the error is %g after %g",
          outliers, after, before);
    for (int i = 0; i < NH_FACTORS; i++)
        CHECK(fabs(1000 * found[i] - round(1000 * found[i])) < 1e-6, "factor %d = %.9g", i,
              found[i]);
    for (int i = NH_FACTOR_KERNEL + KERNELS; i < NH_FACTORS; i++)
        CHECK(fabs(found[i] - 1) < 1e-9, "a kernel that was not timed has the factor %g", found[i]);
}

/* Without an error in the table nothing moves; what is beyond all limits is brought into them. */
static void check_ends(const struct nh_device *device) {
    static struct nh_timed timing[TIMINGS];
    double found[NH_FACTORS];
    const struct nh_fold whole = {.of = 1};
    make_timings(device, &nh_built_in, timing);
    CHECK(!nh_calibrate(device, timing, TIMINGS, whole, found), "%s", nhood_last_error());
    for (int i = 0; i < NH_FACTORS; i++)
        CHECK(fabs(found[i] - 1) < 1e-9, "factor %d = %g of timings as predicted", i, found[i]);
    for (int i = 0; i < TIMINGS; i++)
        timing[i].measured_ns *= 1e6;
    CHECK(!nh_calibrate(device, timing, TIMINGS, whole, found), "%s", nhood_last_error());
    for (int i = 0; i < NH_FACTORS; i++)
        CHECK(found[i] >= 0.125 && found[i] <= 8, "factor %d = %g", i, found[i]);
}

/* ---- choices ---- */

/* A solver's timing of which only the prediction matters, that of so many blocks on each multiprocessor of an H200. */
static struct nh_timed timed(const struct nh_solver *solver, int preference, double waves,
                             double measured_ns) {
    struct nh_timed timing = {
        .solver = solver, .preference = preference, .measured_ns = measured_ns};
    const struct nh_problem problem = {.bytes = 0};
    nh_work_start(&timing.work, NH_OPERATION_FUSED80, &problem);
    nh_work_add(&timing.work, NH_KERNEL_FUSED80)->blocks = 132 * waves;
    timing.work.launch[0].unit[NH_WORK_TENSOR] = 1e3;
    return timing;
}

static void check_judged(const struct nh_device *device) {
    static const struct nh_solver one, two;
    const struct nh_fold whole = {.of = 1};
    /* The least prediction is one's first; its second takes about as long, and is preferred; two's is between them. */
    const struct nh_timed timing[] = {timed(&one, 5, 100, 100), timed(&one, 2, 103, 130),
                                      timed(&one, 1, 120, 90), timed(&two, 9, 104, 80)};
    /* The same a hundred times as long, more than NH_LONG_NS: the second is too far behind to be preferred. */
    const struct nh_timed long_timing[] = {timed(&one, 5, 1e4, 100), timed(&one, 2, 1.03e4, 130),
                                           timed(&one, 1, 1.2e4, 90), timed(&two, 9, 1.04e4, 80)};
    double slower[1] = {0};
    nh_judge(device->backend, timing, 4, whole, &nh_built_in, slower);
    CHECK(fabs(slower[0] - 130.0 / 80) < 1e-9, "%g", slower[0]);
    nh_judge(device->backend, long_timing, 4, whole, &nh_built_in, slower);
    CHECK(fabs(slower[0] - 100.0 / 80) < 1e-9, "%g", slower[0]);
    nh_judge(device->backend, timing, 1, whole, &nh_built_in, slower);
    CHECK(fabs(slower[0] - 1) < 1e-9, "%g", slower[0]);
    const double three[] = {1, 1.1, 1.331};
    struct nh_verdict verdict = nh_verdict_of(three, 3);
    CHECK(fabs(verdict.within - 2.0 / 3) < 1e-9 && fabs(verdict.worst - 1.331) < 1e-9 &&
              fabs(verdict.lost - (pow(1.4641, 1.0 / 3) - 1)) < 1e-9,
          "%g, %g, %g", verdict.within, verdict.worst, verdict.lost);
}

static void check_compared(const struct nh_device *device) {
    static struct nh_timed timing[TIMINGS];
    static struct nh_coefficients truth;
    struct nh_comparison found;
    double factor[NH_FACTORS];
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = random_factor(2.5);
    nh_coefficients_scale(factor, &truth);
    make_timings(device, &truth, timing);
    CHECK(!nh_compare(device, timing, TIMINGS, PROBLEMS, &found), "%s", nhood_last_error());
    CHECK(found.better && found.after.within > found.before.within && found.after.within > 0.9 &&
              found.after.lost < found.before.lost,
          "within %g before, %g after", found.before.within, found.after.within);
    make_timings(device, &nh_built_in, timing);
    CHECK(!nh_compare(device, timing, TIMINGS, PROBLEMS, &found), "%s", nhood_last_error());
    CHECK(!found.better && found.before.within >= 1, "a table without fault is not kept: %g",
          found.before.within);
}

int main(void) {
    const struct nh_device device = describe("h200");
    srand(1);
    CHECK(mkdtemp(folder), "no folder");
    check_bad_files(&device);
    check_attached(&device);
    for (int i = 0; i < 5; i++)
        check_recovered(&device, 0);
    check_recovered(&device, 0.05);
    check_ends(&device);
    check_judged(&device);
    check_compared(&device);
    rmdir(folder);
    return test_result();
}
