/* Each header of a family of kernels compiles by itself, with one example of the family's configuration: it includes what it
 * uses, and what it is compiled with is not a matter of what was included before. Needs no GPU.
 *
 * usage: headers_test ARCH OPTIONS HEADER..: options as one word, separated by spaces. */
#include "compiler.h"
#include "fake_driver.h"
#include "test.h"

#include <string.h>

enum { SKIPPED = 77, MOST_OPTIONS = 32 };

static void check_header(const struct nh_nvrtc *nvrtc, const char *header, int options,
                         const char *const *option) {
    char source[128], log[4096] = "";
    void *program = NULL;
    snprintf(source, sizeof source, "#include \"%s\"\n", header);
    CHECK(nvrtc->create(&program, source, "header.cu", nh_kernel_header_count,
                        nh_kernel_header_text, nh_kernel_header_name) == 0,
          "%s: create", header);
    if (!program) return;
    const int result = nvrtc->compile(program, options, option);
    size_t bytes = 0;
    if (result && !nvrtc->log_size(program, &bytes) && bytes < sizeof log) nvrtc->log(program, log);
    CHECK(result == 0, "%s: %s: %s", header, nvrtc->error_text(result), log);
    nvrtc->destroy(&program);
}

int main(int argc, char **argv) {
    const char *path = fake_driver_nvrtc(), *option[MOST_OPTIONS] = {"--std=c++20"};
    const struct nh_host host = {.log = NULL};
    struct nh_compiler compiler;
    char arch[48];
    int options = 2;
    if (argc < 4) return EXIT_FAILURE;
    if (!path) {
        printf("skipped: no libnvrtc (pip install nvidia-cuda-nvrtc, its path in $NHOOD_NVRTC)\n");
        return SKIPPED;
    }
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%s", argv[1]);
    option[1] = arch;
    for (char *rest = argv[2], *word; (word = strtok_r(rest, " ", &rest));)
        if (options < MOST_OPTIONS) option[options++] = word;
    CHECK(nh_compiler_open(&compiler, &host, path, false) == NHOOD_OK, "open");
    CHECK(nh_compiler_find(&compiler) == NHOOD_OK, "%s", nhood_last_error());
    for (int i = 3; i < argc && !test_failed; i++)
        check_header(&compiler.nvrtc, argv[i], options, option);
    nh_compiler_close(&compiler);
    return test_result();
}
