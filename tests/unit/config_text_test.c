/* The texts of configs: tiles, words and numbers, and what is refused. */
#include "solver.h"
#include "test.h"

#include <string.h>

static const struct nh_knob knobs[] = {{"tile", NULL},   {"tile", NULL},
                                       {"tile", NULL},   {"pipeline", "copies|turns|fetched"},
                                       {"stages", NULL}, {NULL, NULL}};
static const struct nh_solver solver = {.name = "a", .knob = knobs}, plain = {.name = "b"};

static void check_kept(const struct nh_config *config, const char *expected) {
    char text[NH_CONFIG_BYTES];
    struct nh_config read;
    nh_config_text(&solver, config, text, sizeof text);
    CHECK(!strcmp(text, expected), "%s, not %s", text, expected);
    CHECK(nh_config_parse(&solver, text, &read) && !memcmp(&read, config, sizeof read),
          "%s reads as something else", text);
}

int main(void) {
    static const char *const refused[] = {
        "",
        "tile=1x8x16,pipeline=turns",
        "tile=1x8x16,pipeline=turns,stages=3,",
        "tile=1x8x16,pipeline=turns,stages=3x1",
        "tile=1x8,pipeline=turns,stages=3",
        "tile=1x8x16x2,pipeline=turns,stages=3",
        "tile=1x8x,pipeline=turns,stages=3",
        "tile=1,tile=8,tile=16,pipeline=turns,stages=3",
        "tile0=1,tile1=8,tile2=16,pipeline=turns,stages=3",
        "tile=1x8x16,pipeline=turn,stages=3",
        "tile=1x8x16,pipeline=turnst,stages=3",
        "tile=1x8x16,pipeline=1,stages=3",
        "tile=1x8x16,pipeline=,stages=3",
        "tile=1x8x16,pipeline=turns,stages=",
        "tile=1x8x16,pipeline=turns,stages=2147483648",
        "tile=1x8x16,stages=3,pipeline=turns",
    };
    const struct nh_config first = {{1, 8, 16, 1, 3}}, second = {{0, -2, 2147483647, 2, -1}},
                           third = {{4, 4, 4, 0, 0}};
    struct nh_config config;
    char text[NH_CONFIG_BYTES];
    check_kept(&first, "tile=1x8x16,pipeline=turns,stages=3");
    check_kept(&second, "tile=0x-2x2147483647,pipeline=fetched,stages=-1");
    check_kept(&third, "tile=4x4x4,pipeline=copies,stages=0");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        CHECK(!nh_config_parse(&solver, refused[i], &config), "'%s' is taken", refused[i]);
    nh_config_text(&solver, &first, text, 12);
    CHECK(strlen(text) < 12, "too long: %s", text);
    nh_config_text(&plain, &first, text, sizeof text);
    CHECK(!*text && nh_config_parse(&plain, "", &config) && !nh_config_parse(&plain, "x", &config),
          "without knobs: '%s'", text);
    return test_result();
}
