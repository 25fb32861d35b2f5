/* The configs that nh_top_n keeps, against a search for the least of all that were tried, again and again. */
#include "top_n.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum { MOST_TRIED = 60 };

static struct {
    double ns[MOST_TRIED];
    int count;
} tried;

/* Draws estimates that share few numbers, some of them INFINITY. */
static void draw(uint32_t *state, int count) {
    tried.count = count;
    for (int i = 0; i < count; i++) {
        *state = *state * 1664525u + 1013904223u;
        int number = (int)(*state >> 24) % 24;
        tried.ns[i] = number == 0 ? (double)INFINITY : number;
    }
}

/* The first of the least that is not taken; -1: there is none, or it cannot run. */
static int next_of(const bool *taken) {
    int least = -1;
    for (int i = 0; i < tried.count; i++)
        if (!taken[i] && tried.ns[i] < (least < 0 ? (double)INFINITY : tried.ns[least])) least = i;
    return least;
}

static void check(int capacity) {
    struct nh_config config[MOST_TRIED] = {{{0}}};
    struct nh_top_n top;
    bool taken[MOST_TRIED] = {false};
    nh_top_configs_start(&top, config, capacity);
    for (int i = 0; i < tried.count; i++) {
        const struct nh_config one = {{i, -i}};
        double limit = nh_top_n_limit(&top);
        int before = top.count;
        nh_top_n_add(&top, &one, tried.ns[i]);
        CHECK(top.count == before || tried.ns[i] < limit, "%g kept at a limit of %g", tried.ns[i],
              limit);
    }
    int room = capacity < NH_TOP_N_MOST ? capacity : NH_TOP_N_MOST, kept = 0;
    for (int i; kept < room && (i = next_of(taken)) >= 0; kept++) {
        taken[i] = true;
        CHECK(kept < top.count && top.ns[kept] == tried.ns[i] && config[kept].value[0] == i &&
                  config[kept].value[1] == -i,
              "room for %d: place %d has config %d, not %d of %g ns", capacity, kept,
              (int)config[kept].value[0], i, tried.ns[i]);
    }
    CHECK(top.count == kept, "room for %d: %d kept of %d", capacity, top.count, kept);
    bool full = kept == room;
    CHECK(nh_top_n_limit(&top) == (full ? top.ns[kept - 1] : (double)INFINITY),
          "room for %d: the limit is %g", capacity, nh_top_n_limit(&top));
}

int main(void) {
    const int capacities[] = {1, 2, 3, NH_TOP_N_MOST, MOST_TRIED};
    uint32_t state = 1;
    for (int round = 0; round < 40; round++) {
        draw(&state, round < 20 ? round : MOST_TRIED);
        for (size_t c = 0; c < sizeof capacities / sizeof *capacities; c++)
            check(capacities[c]);
    }
    return test_result();
}
