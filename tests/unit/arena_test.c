/* The arena: memory of all sizes, that stays as it was written, is aligned, and is given back as a whole; and no memory. */
#include "arena.h"
#include "test.h"

#include <string.h>

static int allocations, most_allocations;

static void *allocate_some(void *user, size_t bytes, size_t alignment) {
    (void)user, (void)alignment;
    return allocations++ == most_allocations ? NULL : test_allocate(bytes);
}

static int releases;
static void release_some(void *user, void *memory) {
    (void)user;
    releases++;
    test_free(memory);
}

static const struct nh_host some = {.allocate = allocate_some, .release = release_some};

static void start(int most) {
    allocations = releases = 0;
    most_allocations = most;
}

static void check_sizes(void) {
    enum { COUNT = 400 };
    static unsigned char *memory[COUNT];
    static const size_t sizes[] = {1, 64, 3000, 0, 63, 5000, 1 << 20, 65};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    struct nh_arena *arena;
    start(1000);
    CHECK(!nh_arena_create(&some, &arena), "%s", nhood_last_error());
    for (int i = 0; i < COUNT; i++) {
        const size_t bytes = sizes[i % SIZES];
        memory[i] = nh_arena_allocate_unset(arena, bytes);
        CHECK(memory[i] && (uintptr_t)memory[i] % NH_ALIGNMENT == 0, "%d at %p", i,
              (void *)memory[i]);
        memset(memory[i], i % 251, bytes);
    }
    for (int i = 0; i < COUNT; i++)
        for (size_t k = 0; k < sizes[i % SIZES]; k += 61)
            CHECK(memory[i][k] == i % 251, "byte %zu of %d is another's", k, i);
    CHECK(allocations < 20, "%d allocations for %d things", allocations, (int)COUNT);
    const unsigned char *zeroed = nh_arena_allocate(arena, 1000);
    int others = 0;
    for (int i = 0; zeroed && i < 1000; i++)
        others += zeroed[i] != 0;
    CHECK(zeroed && !others, "%d bytes are not zero", others);
    nh_arena_destroy(arena);
    CHECK(releases == allocations, "%d of %d given back", releases, allocations);
}

static void check_no_memory(void) {
    struct nh_arena *arena;
    start(0);
    CHECK(nh_arena_create(&some, &arena) == NHOOD_ERR_MEMORY, "no memory for the arena");
    nh_arena_destroy(NULL);
    start(2);
    CHECK(!nh_arena_create(&some, &arena) && nh_arena_allocate_unset(arena, 100),
          "two allocations");
    CHECK(!nh_arena_allocate_unset(arena, 1 << 16) && nh_arena_allocate_unset(arena, 100),
          "a third one, and what was left of the second");
    nh_arena_destroy(arena);
    CHECK(releases == 2, "%d given back", releases);
}

/* What is given back serves the next one, but for what is large, and only one waits. */
static void check_spare(void) {
    struct nh_spare_arena spare = {NULL};
    struct nh_arena *arena, *other;
    start(1000);
    CHECK(!nh_arena_take(&spare, &some, &arena), "%s", nhood_last_error());
    for (int i = 0; i < 100; i++)
        memset(nh_arena_allocate_unset(arena, 4000), i, 4000);
    nh_arena_give_back(&spare, arena);
    const int before = allocations;
    CHECK(releases == before - 2, "%d of %d given back: the arena and a chunk wait", releases,
          before);
    CHECK(!nh_arena_take(&spare, &some, &arena), "%s", nhood_last_error());
    for (int i = 0; i < 50; i++)
        memset(nh_arena_allocate_unset(arena, 4000), i, 4000);
    CHECK(allocations == before, "%d allocations", allocations - before);
    CHECK(!nh_arena_take(&spare, &some, &other) && other != arena, "one at a time");
    CHECK(nh_arena_allocate_unset(other, 1 << 23), "8 MiB");
    nh_arena_give_back(&spare, arena);
    nh_arena_give_back(&spare, other);
    nh_arena_give_back(&spare, NULL);
    CHECK(releases == allocations - 1, "%d of %d given back: an arena waits without memory",
          releases, allocations);
    nh_arena_destroy(atomic_load(&spare.arena));
    CHECK(releases == allocations, "%d of %d given back", releases, allocations);
}

int main(void) {
    check_sizes();
    check_spare();
    check_no_memory();
    return test_result();
}
