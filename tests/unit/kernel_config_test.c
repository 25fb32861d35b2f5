/* A kernel's configuration as the text that its compiler gets and its keys contain. */
#include "compiler.h"
#include "example_config.h"
#include "test.h"

#include <string.h>

static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(EXAMPLE_CONFIG);

static const char *text_of(const struct nh_kernel_spec *spec) {
    static char text[NH_KERNEL_TEXT_BYTES];
    nh_kernel_text(spec, 90, false, text);
    return text;
}

static void expect(const char *text, const char *expected) {
    CHECK(!strcmp(text, expected), "'%s' instead of '%s'", text, expected);
}

int main(void) {
    const struct example_config config = {.pipeline = 2, .rows = {1, 4, -8}, .warps = 4};
    struct nh_kernel_spec spec = {.source = "example.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", 3);
    expect(text_of(&spec), "example.cu --std=c++20 --gpu-architecture=sm_90a -DNH_DTYPE=3");
    nh_kernel_configure(&spec, fields, &config);
    expect(text_of(&spec), "example.cu --std=c++20 --gpu-architecture=sm_90a -DNH_DTYPE=3 "
                           "-DNH_CONFIG={.pipeline=2,.rows={1,4,-8},.warps=4}");
    CHECK(example_row_count(&config) == -32, "%d rows", example_row_count(&config));
    /* The last member, too; and none that is not there. */
    nh_kernel_name_value(&spec, "pipeline", "EXAMPLE_RING");
    nh_kernel_name_value(&spec, "warps", "EXAMPLE_FOUR");
    nh_kernel_name_value(&spec, "row", "EXAMPLE_ONE");
    expect(spec.config, "{.pipeline=EXAMPLE_RING,.rows={1,4,-8},.warps=EXAMPLE_FOUR}");
    /* A configuration set again replaces the first. */
    const struct example_config other = {.pipeline = 3};
    nh_kernel_configure(&spec, fields, &other);
    expect(spec.config, "{.pipeline=3,.rows={0,0,0},.warps=0}");
    /* What does not fit is cut off at the same length, by which nh_cuda_step_add knows it. */
    static const struct nh_kernel_field many[] = {{"many", 2000}, {NULL, 0}};
    static const int values[2000];
    nh_kernel_configure(&spec, many, values);
    CHECK(strlen(spec.config) == NH_KERNEL_CONFIG_BYTES - 1, "%zu characters", strlen(spec.config));
    return test_result();
}
