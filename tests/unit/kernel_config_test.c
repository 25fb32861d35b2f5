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

static const char *config_of(const struct nh_kernel_spec *spec) {
    static char text[NH_KERNEL_CONFIG_BYTES];
    nh_kernel_config_text(spec, text);
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
    expect(config_of(&spec), "{.pipeline=EXAMPLE_RING,.rows={1,4,-8},.warps=EXAMPLE_FOUR}");
    /* A configuration set again replaces the first. */
    const struct example_config other = {.pipeline = 3};
    nh_kernel_configure(&spec, fields, &other);
    expect(config_of(&spec), "{.pipeline=3,.rows={0,0,0},.warps=0}");
    /* The same values are the same kernel, whatever room there is behind them. */
    struct nh_kernel_spec copy;
    memset(&copy, 0xff, sizeof copy);
    nh_kernel_copy(&copy, &spec);
    CHECK(nh_kernel_same(&copy, &spec), "a copy is another kernel");
    expect(config_of(&copy), "{.pipeline=3,.rows={0,0,0},.warps=0}");
    copy.value[1]++;
    CHECK(!nh_kernel_same(&copy, &spec), "another value is the same kernel");
    copy.value[1]--;
    nh_kernel_define(&copy, "NH_MEMBERS", 1);
    CHECK(!nh_kernel_same(&copy, &spec), "one more macro is the same kernel");
    /* More than fits is counted, by which nh_cuda_step_add knows it, and left out. */
    static const struct nh_kernel_field many[] = {{"many", 2000}, {NULL, 0}};
    static const int values[2000];
    nh_kernel_configure(&spec, many, values);
    CHECK(spec.values == 2000, "%d values", (int)spec.values);
    CHECK(strlen(config_of(&spec)) < NH_KERNEL_CONFIG_BYTES, "a text of too many values");
    return test_result();
}
