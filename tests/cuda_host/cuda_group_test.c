/* Groups on CUDA: how many launches a pass has, what they hand to their kernels, and what is not launched so. */
#include "arena.h"
#include "cuda_group.h"
#include "cuda_solvers.h"
#include "fixture.h"
#include "launch.h"
#include "members_abi.h"

#include <math.h>
#include <stddef.h>

enum { MOST = 120, TEXT = 128 };

static struct fixture f;

/* A group whose members are given by the ends of their texts, some of them several times in a row. */
struct made {
    struct nh_group group;
    struct nh_group_member member[MOST];
    struct nh_problem problem[MOST];
    struct nh_operation *built[MOST];
    int distinct;
    struct nh_group_operation *operation;
    struct nh_arena *arena;
    nhood_group_io io;
    nhood_io own[MOST];
};

/* The members' solvers are solver[0 .. solvers - 1] in turn. */
static nhood_status make_by(const struct nh_solver *const *solver, int solvers,
                            const struct nh_config *config, const char *head,
                            const char *const *end, int count, int times, struct made *made) {
    struct nh_device device = f.device[0];
    memset(made, 0, sizeof *made);
    nhood_status status = nh_arena_create(&f.host, &made->arena);
    device.arena = made->arena;
    device.kernels_later = device.for_group = true;
    made->group = (struct nh_group){.count = (int64_t)count * times, .member = made->member};
    for (int i = 0; !status && i < count; i++) {
        const struct nh_solver *own = solver[i % solvers];
        char text[TEXT];
        struct nh_problem room;
        snprintf(text, sizeof text, "%s:%s", head, end[i]);
        read_problem(text, &made->problem[i]);
        const struct nh_problem *view = nh_solver_view(own, &made->problem[i], &room);
        status = config ? own->build(own, view, &device, config, &made->built[i])
                        : build_first(own, &made->problem[i], &device, &made->built[i]);
        if (!status) made->distinct++;
        for (int k = 0; k < times; k++)
            made->member[i * times + k] = (struct nh_group_member){
                .problem = &made->problem[i], .operation = made->built[i], .ns = 1e3 * (i + 1)};
    }
    if (status) return status;
    nh_group_pack(&made->group);
    return nh_cuda_group_build(&device, &made->group, &made->operation);
}

static nhood_status make(const struct nh_solver *solver, const struct nh_config *config,
                         const char *head, const char *const *end, int count, int times,
                         struct made *made) {
    return make_by(&solver, 1, config, head, end, count, times, made);
}

static void unmake(struct made *made) {
    if (made->operation) made->operation->destroy(made->operation);
    for (int i = 0; i < made->distinct; i++)
        made->built[i]->destroy(made->built[i]);
    nh_arena_destroy(made->arena);
}

/* Executes with all tensors, packed or each member's own, which then begins 1 MiB behind that of the member before. */
static nhood_status run(struct made *made, bool apart, int missing) {
    const struct nh_problem *first = &made->problem[0];
    made->io = (nhood_group_io){.struct_size = sizeof made->io,
                                .count = made->group.count,
                                .workspace = workspace_address(),
                                .workspace_bytes = made->operation->workspace_bytes,
                                .stream = (void *)(uintptr_t)0x5000,
                                .query_tokens = made->group.query_tokens,
                                .key_tokens = made->group.key_tokens};
    memset(made->own, 0, sizeof made->own);
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (nh_problem_role(first, t) == NH_UNUSED || t == missing) continue;
        made->io.data[t] = address_of(t);
        for (int64_t i = 0; i < made->group.count; i++)
            made->own[i].data[t] = address_of(t) + (i << 20);
    }
    if (apart) made->io.member = made->own;
    fake.launch_count = 0;
    const nhood_status status = made->operation->run(made->operation, &made->io);
    for (int i = 0; i < fake.launch_count && i < FAKE_LAUNCHES; i++)
        CHECK(fake.launch[i].sends_open == 0, "launch %d while the plan's memory was written", i);
    return status;
}

static const struct nh_cuda_members *handed(int launch) {
    return &fake.launch[launch].members;
}

/* ---- one launch for each pass ---- */

static const struct nh_config rows = {{0}};
enum { HELD = 1 }; /* an allocation of the device, from its first plan with memory on */
static const char *const images[] = {"b1h2d64:14x14:w7x7", "b1h2d64:20x30:w7x7",
                                     "b2h4d64:9x17:w5x3", "b1h2d64:64x64:w7x7:d2x1",
                                     "b1h6k3d64:9x9:w3x3"};
enum { IMAGES = sizeof images / sizeof *images };

/* The kernel's grid has the blocks of all members, in which 8 lanes share a query with a head. */
static void check_forward(void) {
    static struct made made;
    int64_t rows_of_all = 0;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", images, IMAGES, 1, &made);
    CHECK(!status, "%s", nhood_last_error());
    if (!status) {
        const int64_t rows_of_block = ROW_THREADS / 8;
        for (int i = 0; i < IMAGES; i++)
            rows_of_all += nh_ceil_div(made.problem[i].batch * made.problem[i].query_tokens *
                                           made.problem[i].heads,
                                       rows_of_block);
        CHECK(made.operation->launches == 1 && !run(&made, false, -1) && fake.launch_count == 1,
              "%d launches, %s", fake.launch_count, nhood_last_error());
        CHECK(fake.launch[0].grid[0] == rows_of_all, "%u blocks, not %lld", fake.launch[0].grid[0],
              (long long)rows_of_all);
        CHECK(handed(0)->members == IMAGES && handed(0)->base_step == 0 &&
                  handed(0)->base[0] == (uintptr_t)address_of(NHOOD_Q),
              "packed tensors");
        CHECK(!run(&made, true, NHOOD_LSE) && fake.launch_count == 1, "%d launches, %s",
              fake.launch_count, nhood_last_error());
        /* Q, K, V, O and LSE, which is not given; the last member has the longest tiles and comes first */
        CHECK(handed(0)->bases == 5 && handed(0)->base_step == 5 &&
                  handed(0)->base[1] == (uintptr_t)address_of(NHOOD_K) + ((uintptr_t)4 << 20) &&
                  handed(0)->base[4] == 0,
              "tensors of members: %d bases, K at %llx", handed(0)->bases, handed(0)->base[1]);
    }
    unmake(&made);
}

/* A backward pass has as many launches as that of one member, and one gradient can be left out. Each member has its own part of the
 * workspace. */
static void check_backward(void) {
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "bwd:f16", images, IMAGES, 2, &made);
    CHECK(!status, "%s", nhood_last_error());
    if (!status) {
        size_t bytes = 0;
        for (int i = 0; i < IMAGES; i++)
            bytes += 2 * made.built[i]->workspace_bytes;
        CHECK(made.operation->workspace_bytes == bytes, "workspace of %zu bytes, not %zu",
              made.operation->workspace_bytes, bytes);
        CHECK(!run(&made, false, -1) && fake.launch_count == 2, "%d launches", fake.launch_count);
        CHECK(!run(&made, true, NHOOD_D_K) && fake.launch_count == 2, "%d launches",
              fake.launch_count);
        for (int i = 0; i < 2 * IMAGES; i++)
            made.own[i].data[NHOOD_D_V] = NULL;
        fake.launch_count = 0;
        CHECK(!made.operation->run(made.operation, &made.io) && fake.launch_count == 1,
              "%d launches without dK and dV", fake.launch_count);
        made.own[3].data[NHOOD_D_K] = address_of(NHOOD_D_K);
        fake.launch_count = 0;
        CHECK(!made.operation->run(made.operation, &made.io) && fake.launch_count == 2 &&
                  handed(1)->members == 1,
              "%d launches where one member wants dK", fake.launch_count);
    }
    unmake(&made);
}

/* What was copied to the device at an address: the table, as this test has nothing else copied. */
static const void *sent(const void *address) {
    return fake.sent + ((uintptr_t)address - FAKE_MEMORY);
}

/* What a kernel adds up for a tensor of a member. */
static uintptr_t address_in(const struct nh_cuda_members *members, int64_t k, int slot) {
    const struct nh_cuda_member *member = sent(members->member + k);
    const struct nh_cuda_args *args =
        sent(members->arguments + (ptrdiff_t)member->arguments * members->argument_bytes);
    int64_t index = 0;
    for (int s = 0; s < slot; s++)
        index += members->used >> s & 1;
    const long long *place = sent(members->place + k * members->bases + index);
    return (uintptr_t)members->base[k * members->base_step + index] + (uintptr_t)*place +
           (uintptr_t)args->tensor[slot].data;
}

static void check_table(void) {
    static const char *const two[] = {"b1h2d64:14x14:w7x7", "b1h2d64:20x30:w7x7:q3+5x0+30"};
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", two, 1, 2, &made);
    CHECK(!status && !run(&made, false, -1), "%s", nhood_last_error());
    if (!status) {
        const uintptr_t bytes = 14 * 14 * 2 * 64 * 2;
        CHECK(fake.sent_bytes <= sizeof fake.sent, "%zu bytes of tables", fake.sent_bytes);
        CHECK(address_in(handed(0), 0, NH_V) == (uintptr_t)address_of(NHOOD_V) &&
                  address_in(handed(0), 1, NH_V) == (uintptr_t)address_of(NHOOD_V) + bytes,
              "V of the second of two equal members, packed");
        CHECK(!run(&made, true, -1) &&
                  address_in(handed(0), 1, NH_V) == (uintptr_t)address_of(NHOOD_V) + (1 << 20) &&
                  handed(0)->base_step > 0,
              "V of the second of two equal members, apart");
        for (int32_t t = NHOOD_Q; t <= NHOOD_O; t++)
            made.own[1].data[t] = address_of(t) + bytes;
        made.own[1].data[NHOOD_LSE] = address_of(NHOOD_LSE) + bytes / 64 * 2;
        CHECK(!made.operation->run(made.operation, &made.io) && handed(1)->base_step == 0 &&
                  address_in(handed(1), 1, NH_V) == (uintptr_t)address_of(NHOOD_V) + bytes,
              "tensors of members that lie packed: %d launches", fake.launch_count);
    }
    unmake(&made);
    /* A part of a grid has a kernel of its own: its address is that of the grid's first token. */
    status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", two + 1, 1, 2, &made);
    CHECK(!status && !run(&made, false, -1), "%s", nhood_last_error());
    if (!status)
        CHECK(address_in(handed(0), 0, NH_Q) ==
                  (uintptr_t)address_of(NHOOD_Q) - (uintptr_t)3 * 30 * 2 * 64 * 2,
              "Q of a part");
    unmake(&made);
    status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", two, 2, 1, &made);
    fake.for_members = false; /* each has a launch of its own */
    CHECK(!status && made.operation->launches == 2 && !run(&made, false, -1) &&
              fake.launch_count == 2 && fake.memory_open == HELD,
          "members with different kernels: %d launches, %s", fake.launch_count, nhood_last_error());
    fake.for_members = true;
    unmake(&made);
}

/* A launch has room for so many addresses: 6 of each member with a bias, which packed tensors do not take. */
static void check_many(void) {
    static const char *const one[] = {"b1h2d64:9x9:w3x3:rpb"};
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", one, 1, MOST, &made);
    CHECK(!status && !run(&made, true, -1), "%s", nhood_last_error());
    if (!status) {
        const int room = NH_MEMBER_BASES / 6;
        CHECK(fake.launch_count == 2 && handed(0)->members == room &&
                  handed(1)->members == MOST - room && handed(1)->bases == 6,
              "%d launches, the first of %d members", fake.launch_count, handed(0)->members);
        CHECK(fake.launch[0].grid[0] + fake.launch[1].grid[0] ==
                      MOST * fake.launch[1].grid[0] / (unsigned)(MOST - room) &&
                  handed(1)->member == handed(0)->member + room,
              "grids of %u and %u blocks", fake.launch[0].grid[0], fake.launch[1].grid[0]);
    }
    unmake(&made);
}

/* Launches of other families: as many as one member has, that may begin early as its own may. */
static void check_tiles(void) {
    static const char *const ends[] = {"b1h2d64:64x64:w9x9", "b1h2d64:80x70:w9x9",
                                       "b3h2d64:48x64:w9x9"};
    static struct made made, alone;
    struct nh_config config;
    struct nh_problem problem;
    read_problem("bwd:bf16:b1h2d64:64x64:w9x9", &problem);
    CHECK(nh_solver_cuda_split80.candidates(&problem, &f.device[0], &config, 1) == 1, "no config");
    nhood_status status = make(&nh_solver_cuda_split80, &config, "bwd:bf16", ends, 3, 1, &made);
    CHECK(!status && !run(&made, false, -1), "%s", nhood_last_error());
    const int launches = fake.launch_count;
    bool overlaps[2] = {fake.launch[0].overlaps, fake.launch[launches - 1].overlaps};
    status = make(&nh_solver_cuda_split80, &config, "bwd:bf16", ends, 1, 1, &alone);
    fake.for_members = false;
    CHECK(!status && !run(&alone, false, -1), "%s", nhood_last_error());
    fake.for_members = true;
    CHECK(launches == fake.launch_count && launches == made.operation->launches,
          "%d launches, one member has %d", launches, fake.launch_count);
    CHECK(!overlaps[0] && overlaps[1] == fake.launch[launches - 1].overlaps && overlaps[1],
          "launches that begin early");
    unmake(&made);
    unmake(&alone);
}

/* The launches of an execute that begin before the one ahead of them has ended, as bits. */
static unsigned early_launches(struct made *made, const char *what) {
    unsigned early = 0;
    CHECK(!run(made, false, -1), "%s: %s", what, nhood_last_error());
    for (int i = 0; i < fake.launch_count; i++)
        early |= (unsigned)fake.launch[i].overlaps << i;
    return early;
}

/* Launches that need nothing of each other: the first one waits for whatever is ahead of the execute, and none begins early that
 * shares a workspace with the others. */
static void check_beside(void) {
    static const char *const three[] = {"b1h2d64:14x14:w7x7", "b1h2d64:20x30:w7x7:q3+5x0+30",
                                        "b1h2d64:20x30:w7x7:rpb"};
    static struct made made;
    struct nh_cuda_device *cuda = f.device[0].backend;
    fake.for_members = false; /* each has a launch of its own */
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", three, 3, 1, &made);
    CHECK(!status && made.operation->launches == 3, "%s", nhood_last_error());
    CHECK(early_launches(&made, "three launches") == 6 && fake.launch_count == 3 &&
              early_launches(&made, "once more") == 6,
          "launches that begin early");
    cuda->overlaps = false;
    CHECK(early_launches(&made, "a driver that cannot") == 0, "launches that begin early");
    cuda->overlaps = true;
    unmake(&made);
    cuda->arch = 89;
    status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", three, 2, 1, &made);
    CHECK(!status && early_launches(&made, "an older GPU") == 0, "launches that begin early");
    unmake(&made);
    cuda->arch = 90;
    status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", three, 1, 1, &made);
    CHECK(!status && early_launches(&made, "one launch") == 0, "a launch that begins early");
    unmake(&made);
    /* steps of one member follow each other as ever */
    unsigned steps[2];
    int count[2];
    for (int i = 0; i < 2; i++) {
        status = make(&nh_solver_cuda_naive, &rows, "bwd:f16", three + i, 1, 1, &made);
        steps[i] = status ? 0 : early_launches(&made, three[i]);
        count[i] = fake.launch_count;
        unmake(&made);
    }
    status = make(&nh_solver_cuda_naive, &rows, "bwd:f16", three, 2, 1, &made);
    /* the second member takes longer, and comes first */
    const unsigned early = status ? 0 : early_launches(&made, "two members");
    CHECK(made.operation->workspace_bytes > 0 && fake.launch_count == count[0] + count[1] &&
              early == (steps[1] | steps[0] << count[1]),
          "%d launches, those that begin early: %x", fake.launch_count, early);
    unmake(&made);
    fake.for_members = true;
}

/* The same where one member has several launches and a workspace, which is its own, and the other one has one launch. Whichever
 * comes first. */
static void check_beside_several(void) {
    static const char *const sets[] = {"b4h2d32:28x28:w7x7", "b4h2d32:28x28:w7x7:d4x4"};
    static const struct nh_solver *const solvers[] = {&nh_solver_cuda_small, &nh_solver_cuda_short,
                                                      &nh_solver_cuda_small};
    static struct made made;
    fake.for_members = false;     /* each has launches of its own */
    for (int i = 0; i < 2; i++) { /* the last member takes longest, and comes first */
        const char *const ends[] = {sets[i], sets[1 - i]};
        nhood_status status = make_by(solvers + i, 2, NULL, "bwd:bf16", ends, 2, 1, &made);
        const unsigned early = status ? 0 : early_launches(&made, "sets of heads");
        CHECK(made.operation->workspace_bytes > 0 && fake.launch_count == 3 && early == 6,
              "%d launches, those that begin early: %x", fake.launch_count, early);
        unmake(&made);
    }
    fake.for_members = true;
}

/* The maps of a batch are in the workspace, too, until its kernels have ended: what writes there must not begin before. */
static void check_beside_maps(void) {
    static const char *const ends[] = {"b1h2d64:64x64:w15x15", "b1h2d64:64x64:w15x15",
                                       "b8h8d64:256x256:w31x31"};
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_fused90, NULL, "fwd:bf16", ends, 3, 1, &made);
    fake.for_members = false; /* not all launches are for several */
    const unsigned early = status ? 0 : early_launches(&made, "maps");
    CHECK(fake.launch_count == 5 && !strncmp(fake.launch[2].kernel, "repair_clear", 12) &&
              early == 16,
          "%d launches, those that begin early: %x", fake.launch_count, early);
    fake.for_members = true;
    unmake(&made);
}

/* Where blocks loop over work tiles, a member has fewer of them than for itself alone, as here it takes 1 us, and a block 27 at least;
 * first those that take half of the 120 us of all. */
static void check_loops(void) {
    static const char *const ends[] = {"b1h8d64:3000:w129"};
    static struct made made;
    struct nh_config config;
    struct nh_problem problem;
    read_problem("bwd:bf16:b1h8d64:3000:w129", &problem);
    CHECK(nh_solver_cuda_joint90.candidates(&problem, &f.device[0], &config, 1) == 1, "no config");
    nhood_status status = make(&nh_solver_cuda_joint90, &config, "bwd:bf16", ends, 1, MOST, &made);
    CHECK(!status && !run(&made, false, -1) && fake.launch_count > 2, "%s", nhood_last_error());
    /* the first launch writes maps */
    for (int s = 1; !status && s < fake.launch_count; s++) {
        const struct nh_cuda_member *member = sent(handed(s)->member);
        const struct nh_cuda_device *device = f.device[0].backend;
        const unsigned wave = (unsigned)device->multiprocessors, first = member[1].first_block,
                       last = member[MOST].first_block - member[MOST - 1].first_block;
        CHECK(member[0].first_block == 0 && first > 0 && last > first &&
                  member[MOST].first_block == fake.launch[s].grid[0],
              "launch %d: %u blocks of the first member, %u of the last", s, first, last);
        CHECK(s != 2 || (first == (wave + 59) / 60 && last == (wave + 26) / 27),
              "%u and %u blocks of %u", first, last, wave);
    }
    unmake(&made);
}

/* Tensor maps are written by one more launch, one map a block, before the others: Q, K, V and O of each member, for which the plan
 * has all but addresses. */
static void check_maps(void) {
    static const char *const ends[] = {"b1h2d64:64x64:w15x15", "b1h2d64:64x128:w15x15"};
    static struct made made;
    struct nh_config config;
    struct nh_problem problem;
    read_problem("fwd:bf16:b1h2d64:64x128:w15x15", &problem);
    CHECK(nh_solver_cuda_fused90.candidates(&problem, &f.device[0], &config, 1) == 1, "no config");
    fake.maps_encoded = 0;
    nhood_status status = make(&nh_solver_cuda_fused90, &config, "fwd:bf16", ends, 2, 1, &made);
    CHECK(!status && made.operation->launches == 2, "%s", nhood_last_error());
    const int encoded = fake.maps_encoded;
    CHECK(!status && !run(&made, false, NHOOD_LSE) && fake.launch_count == 2 &&
              fake.maps_encoded == encoded,
          "%d launches, %d maps encoded by an execute, %s", fake.launch_count,
          fake.maps_encoded - encoded, nhood_last_error());
    if (!status) {
        enum { OF_MEMBER = 3 };
        const int written = (int)fake.launch[0].grid[0];
        const struct nh_cuda_member_maps *maps = &fake.launch[0].maps;
        const struct nh_cuda_member_map *first = sent(maps->map), *last = first + written - 1;
        const int64_t tokens = 64 * 64;
        CHECK(strncmp(fake.launch[0].kernel, "member_maps", 11) == 0 && written == 2 * OF_MEMBER &&
                  fake.launch[0].threads == 32,
              "%s, %d blocks", fake.launch[0].kernel, written);
        /* K and V are the same but for their addresses, and encoded once */
        CHECK(encoded < written && !memcmp(first[1].map, first[2].map, sizeof first->map) &&
                  memcmp(first[0].map, first[1].map, sizeof first->map) != 0 &&
                  memcmp(first[1].map, first[1 + OF_MEMBER].map, sizeof first->map) != 0,
              "%d of %d maps encoded", encoded, written);
        CHECK(maps->apart == 0 && maps->base[0] == (uintptr_t)address_of(NHOOD_Q) &&
                  first->base == 0 && first->member == 0 && last->member == 1,
              "packed tensors");
        /* The second of the members takes longer, and comes first; the other one begins the tensors. */
        CHECK(first->place[0] == tokens * 2 * 64 * 2 && first->place[1] == 0 && last->place[0] == 0,
              "the first map's tensor begins at %lld", first->place[0]);
        CHECK((const char *)made.io.workspace + last->at + sizeof last->map <=
                      (const char *)made.io.workspace + made.operation->workspace_bytes &&
                  fake.launch[1].members.maps == (const char *)made.io.workspace + first->at &&
                  last->at - first->at == (written - 1) * (int64_t)sizeof last->map,
              "maps in the workspace");
        CHECK(!run(&made, true, -1) && fake.launch_count == 2 && fake.launch[0].maps.apart == 1 &&
                  fake.launch[0].maps.base[0] == (uintptr_t)address_of(NHOOD_Q) + (1 << 20),
              "tensors of members, %d launches", fake.launch_count);
    }
    unmake(&made);
}

/* Members with window tables, which lie in memory of each of them: a launch's arguments have where. Memory that a captured graph
 * reads remains. */
static void check_windows(void) {
    static const char *const ends[] = {"b1h2d64:14x14:wz7xz7", "b1h2d64:20x30:wz7xz7"};
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", ends, 2, 1, &made);
    CHECK(!status && made.operation->launches == 1 && !run(&made, false, -1) &&
              fake.launch_count == 1 && fake.memory_open == 3 + HELD,
          "%d launches, %d allocations, %s", fake.launch_count, fake.memory_open,
          nhood_last_error());
    for (int64_t k = 0; !status && k < 2; k++) {
        const struct nh_cuda_member *member = sent(handed(0)->member + k);
        const char *args =
            sent(handed(0)->arguments + (ptrdiff_t)member->arguments * handed(0)->argument_bytes);
        const struct nh_cuda_table_axis *axis =
            (const void *)(args + offsetof(struct nh_cuda_args, axis));
        /* the second member has the longer tiles, and comes first; 40 or 28 ranges of 8 bytes, then those of the next axis */
        CHECK(axis[1].axis.length == (k ? 14 : 20) && axis[0].seen[0] == 0 &&
                  axis[1].seen[0] == FAKE_MEMORY &&
                  axis[1].seen[1] == FAKE_MEMORY + (k ? 14 : 20) * 8 &&
                  axis[2].seen[0] == FAKE_MEMORY + (k ? 256 : 512),
              "member %d: tables at %llx and %llx", (int)k, (unsigned long long)axis[1].seen[0],
              (unsigned long long)axis[2].seen[0]);
    }
    fake.capturing = true;
    CHECK(!status && !run(&made, false, -1), "%s", nhood_last_error());
    fake.capturing = false;
    unmake(&made);
    CHECK(fake.memory_open == 3 + HELD, "%d allocations are left after a capture",
          fake.memory_open);
    fake.memory_open = HELD;
}

/* ---- what does not go ---- */

static void check_refusals(void) {
    static struct made made;
    nhood_status status = make(&nh_solver_cuda_naive, &rows, "fwd:f16", images, 2, 1, &made);
    CHECK(!status && !run(&made, true, -1), "%s", nhood_last_error());
    if (!status) {
        made.own[1].data[NHOOD_K] = address_of(NHOOD_K) + 2;
        fake.launch_count = 0;
        CHECK(made.operation->run(made.operation, &made.io) == NHOOD_ERR_ARGUMENT &&
                  fake.launch_count == 0 && strstr(nhood_last_error(), "member 1: io.data[k]"),
              "a misaligned tensor: %s", nhood_last_error());
    }
    unmake(&made);
}

/* ---- faults ---- */

/* Boxes of tensor maps, which ask for much shared memory. */
static nhood_status make_boxes(void) {
    static const char *const one[] = {"b1h2d64:64x64:w15x15"};
    static struct made made;
    const nhood_status status = make(&nh_solver_cuda_fused90, NULL, "fwd:bf16", one, 1, 3, &made);
    unmake(&made);
    return status;
}

static nhood_status make_images(void) {
    static struct made made;
    const nhood_status status =
        make(&nh_solver_cuda_naive, &rows, "bwd:f16", images, IMAGES, 2, &made);
    unmake(&made);
    return status;
}

/* Whether a launch could be that of all members but for its shared memory. */
static bool hosts_but_for_room(const struct nh_cuda_operation *operation) {
    bool hosts = operation->count > 0 && operation->count < NH_CUDA_STEPS;
    for (int32_t s = 0; s < operation->count; s++) {
        struct nh_cuda_step *step = operation->step[s];
        const int64_t bytes = step->shared_bytes;
        step->shared_bytes = 0;
        hosts = hosts && nh_cuda_serves_members(operation, step);
        step->shared_bytes = bytes;
    }
    return hosts;
}

/* Builds the configs that a solver proposes for members of groups: all leave room for a member's arguments and have no maps that are
 * made on the host, so that their launches are those of all members. Returns the number of those that could be. */
static int check_room_of(const struct nh_solver *solver, const char *text) {
    enum { MOST_CONFIGS = 16 };
    struct nh_device grouped = f.device[0];
    struct nh_problem problem, room;
    struct nh_config config[MOST_CONFIGS];
    memset(config, 0, sizeof config);
    grouped.kernels_later = grouped.for_group = true;
    read_problem(text, &problem);
    const struct nh_problem *view = nh_solver_view(solver, &problem, &room);
    if (nh_solver_refusal(solver, view, &grouped)) return 0;
    const int count = solver->candidates(view, &grouped, config, MOST_CONFIGS);
    int hosted = 0;
    for (int k = 0; k < count; k++) {
        struct nh_operation *built;
        const nhood_status status = solver->build(solver, view, &grouped, &config[k], &built);
        CHECK(!status, "%s, %s: %s", solver->name, text, nhood_last_error());
        if (status) return hosted;
        const struct nh_cuda_operation *operation = (const void *)built;
        hosted += hosts_but_for_room(operation);
        for (int32_t s = 0; s < operation->count; s++)
            for (int32_t i = 0; i < operation->step[s]->maps; i++)
                CHECK(!operation->step[s]->map[i].pixels, "%s, %s, config %d: a map of lines",
                      solver->name, text, k);
        for (int32_t s = 0; s < operation->count; s++)
            CHECK(!hosts_but_for_room(operation) ||
                      nh_cuda_serves_members(operation, operation->step[s]),
                  "%s, %s, config %d, step %d: %lld bytes of shared memory", solver->name, text, k,
                  (int)s, (long long)operation->step[s]->shared_bytes);
        built->destroy(built);
    }
    return hosted;
}

static void check_room(void) {
    static const char *const text[] = {
        "fwd:bf16:b512h12d64:40x40:w7x7",      "fwd:bf16:b9h12d64:64x64:w7x7",
        "fwd:f32:b9h4d32:64x64:w7x7",          "bwd:bf16:b99h12d64:40x40:w7x7",
        "bwd:f16:b9h4d32:64x64:w13x13",        "fwd:bf16:b512h8d64:5000:w129",
        "bwd:bf16:b99h8d64:5000:w129",         "fwd:f16:b9h8d32:16x30x40:w5x5x5",
        "fwd:bf16:b9h8d128:16x30x40:w5x15x15", "bwd:bf16:b9h8d128:16x30x40:w5x15x15",
        "fwd:f16:b9h8d256:60x60:w21x21",       "bwd:f16:b9h8d256:60x60:w21x21",
        "fwd:bf16:b9h8d128:5000:w1001",        "bwd:bf16:b9h8d128:5000:w1001:c1",
        "fwd:bf16:b9h8d256:5000:w1001",        "bwd:bf16:b9h8d256:5000:w1001",
        "fwd:bf16:b9h8d64:60x60:w21x21:rpb",   "bwd:bf16:b9h8d64:60x60:w21x21:rpb",
        "fwd:bf16:b9h8d128:60x60:w21x21:rpb",  "bwd:bf16:b9h8d128:60x60:w21x21:rpb",
        "fwd:bf16:b9h8d128:500:w500",          "bwd:bf16:b9h8d128:500:w500",
        "fwd:bf16:b9h8d192:60x60:w13x13",      "bwd:bf16:b9h8d192:60x60:w13x13",
        "fwd:f32:b9h8d128:60x60:w13x13",       "bwd:f32:b9h8d128:60x60:w13x13",
        "fwd:bf16:b9h8d64:60x60:w31x31:x16",   "bwd:bf16:b9h8d128:60x60:w31x31:x16",
        "fwd:bf16:b99h4d32:56x56:w7x7:p11",    "bwd:bf16:b99h4d64:56x56:w7x7:p11",
        "fwd:bf16:b99h4d32:56x56:w7x7:d8x8",   "bwd:bf16:b99h4d32:56x56:w7x7:d8x8",
        "fwd:bf16:b99h4d128:14x14:w7x7",       "bwd:bf16:b99h4d128:14x14:w7x7"};
    static const struct {
        const struct nh_solver *solver;
        int least; /* of configs that are hosted */
    } asked[] = {{&nh_solver_cuda_small, 12},   {&nh_solver_cuda_fused90, 12},
                 {&nh_solver_cuda_split90, 12}, {&nh_solver_cuda_joint90, 4},
                 {&nh_solver_cuda_fused80, 4},  {&nh_solver_cuda_split80, 4},
                 {&nh_solver_cuda_short, 2},    {&nh_solver_cuda_short90, 2}};
    for (size_t s = 0; s < sizeof asked / sizeof *asked; s++) {
        int hosted = 0;
        for (size_t i = 0; i < sizeof text / sizeof *text; i++)
            hosted += check_room_of(asked[s].solver, text[i]);
        CHECK(hosted >= asked[s].least, "%s: %d configs", asked[s].solver->name, hosted);
    }
}

/* Work tiles of a small window's launch for a group, or of one for a single problem. */
static int64_t tiles_of(const struct nh_config *config, const char *text, bool grouped) {
    struct nh_device device = f.device[0];
    struct nh_problem problem;
    struct nh_operation *built;
    device.kernels_later = device.for_group = grouped;
    read_problem(text, &problem);
    const nhood_status status =
        nh_solver_cuda_small.build(&nh_solver_cuda_small, &problem, &device, config, &built);
    CHECK(!status, "%s: %s", text, nhood_last_error());
    if (status) return 0;
    const struct nh_cuda_operation *operation = (const void *)built;
    const int64_t tiles = operation->step[0]->work_tiles;
    built->destroy(built);
    return tiles;
}

/* Axes of small windows that are alike are exchanged in a launch for a group, if work tiles then have fewer rows that do not exist. */
static void check_turned(void) {
    struct nh_problem problem;
    struct nh_config config;
    memset(&config, 0, sizeof config);
    read_problem("fwd:bf16:b9h12d64:64x64:w7x7", &problem);
    CHECK(nh_solver_cuda_small.candidates(&problem, &f.device[0], &config, 1) == 1, "no config");
    const int64_t one = tiles_of(&config, "fwd:bf16:b1h12d64:19x14:w7x7", true),
                  other = tiles_of(&config, "fwd:bf16:b1h12d64:14x19:w7x7", true);
    const int64_t alone[] = {tiles_of(&config, "fwd:bf16:b1h12d64:19x14:w7x7", false),
                             tiles_of(&config, "fwd:bf16:b1h12d64:14x19:w7x7", false)};
    CHECK(alone[0] != alone[1], "%lld work tiles", (long long)alone[0]);
    CHECK(one == other && one == nh_min(alone[0], alone[1]),
          "%lld and %lld work tiles, alone %lld and %lld", (long long)one, (long long)other,
          (long long)alone[0], (long long)alone[1]);
    CHECK(tiles_of(&config, "fwd:bf16:b1h12d64:19x14:w7x5", true) ==
              tiles_of(&config, "fwd:bf16:b1h12d64:19x14:w7x5", false),
          "axes with different windows");
}

/* ---- launches that the device remembers ---- */

static bool same_steps(const struct nh_operation *a, const struct nh_operation *b) {
    const struct nh_cuda_operation *one = (const void *)a, *other = (const void *)b;
    if (one->count != other->count || a->workspace_bytes != b->workspace_bytes) return false;
    for (int32_t i = 0; i < one->count; i++) {
        const struct nh_cuda_step *s = one->step[i], *t = other->step[i];
        if (!nh_kernel_same(one->spec[i], other->spec[i]) || s->grid[0] != t->grid[0] ||
            s->threads != t->threads || s->shared_bytes != t->shared_bytes ||
            s->shares != t->shares || s->work_tiles != t->work_tiles ||
            s->wave_blocks != t->wave_blocks || s->maps != t->maps ||
            memcmp(&s->args, &t->args, sizeof s->args) != 0)
            return false;
    }
    return true;
}

/* Compares what the device makes, and makes again, of a problem by a config with what it makes without a memory. Returns whether
 * there is such an operation. */
static bool compare_remembered(const struct nh_device *device, const struct nh_device *forgetful,
                               const struct nh_config *config, const struct nh_problem *problem) {
    const struct nh_solver *small = &nh_solver_cuda_small;
    struct nh_operation *fresh = NULL, *again = NULL;
    const nhood_status status = small->build(small, problem, forgetful, config, &fresh);
    for (int i = 0; i < 2; i++) {
        const double ns = small->estimate(small, problem, device, config, NULL),
                     own_ns = small->estimate(small, problem, forgetful, config, NULL);
        CHECK(ns == own_ns || (!(ns < INFINITY) && !(own_ns < INFINITY)), "%g ns, not %g", ns,
              own_ns);
        again = NULL;
        CHECK(small->build(small, problem, device, config, &again) == status, "%s",
              nhood_last_error());
        CHECK(!fresh || !again || same_steps(fresh, again), "other launches, %d", i);
        if (again) again->destroy(again);
    }
    if (fresh) fresh->destroy(fresh);
    return fresh;
}

/* Problems that differ in one thing each, whose launches may not be taken for each other's. */
static void check_remembered(void) {
    static const char *const like[] = {
        "bf16:b1h12d64:30x41:w7x7",      "f16:b1h12d64:30x41:w7x7",
        "f32:b1h12d64:30x41:w7x7",       "bf16:b1h12d32:30x41:w7x7",
        "bf16:b1h12k3d64:30x41:w7x7",    "bf16:b1h12d64:41x30:w7x7",
        "bf16:b1h12d64:30x41:w7x5",      "bf16:b1h12d64:30x41:w7x7:s2x1",
        "bf16:b1h12d64:30x41:w7x7:d1x2", "bf16:b1h12d64:30x41:w7x7:c10",
        "bf16:b1h12d64:30x41:w7x7:rpb",  "bf16:b3h12d64:30x41:w7x7",
        "bf16:b1h12d64:30x41:w7x7:p10",  "bf16:b1h12d64:1x30x41:w1x7x7",
        "bf16:b1h12d64:1230:w7",         "bf16:b1h12d64:14x14:w7x7"};
    enum { LIKE = sizeof like / sizeof *like, MOST_CONFIGS = 6 };
    struct nh_device device = f.device[0], forgetful;
    struct nh_cuda_device backend = *(const struct nh_cuda_device *)device.backend;
    int built = 0;
    device.kernels_later = device.for_group = true;
    forgetful = device;
    forgetful.backend = &backend;
    backend.memo = NULL;
    for (int backward = 0; backward < 2; backward++)
        for (int l = 0; l < LIKE; l++) {
            struct nh_config config[MOST_CONFIGS];
            struct nh_problem leader, problem;
            char text[TEXT];
            snprintf(text, sizeof text, "%s:%s", backward ? "bwd" : "fwd", like[l]);
            read_problem(text, &leader);
            memset(config, 0, sizeof config);
            const int configs =
                nh_solver_cuda_small.candidates(&leader, &forgetful, config, MOST_CONFIGS);
            for (int c = 0; c < configs; c++)
                for (int i = 0; i < LIKE; i++) {
                    snprintf(text, sizeof text, "%s:%s", backward ? "bwd" : "fwd", like[i]);
                    read_problem(text, &problem);
                    if (problem.rank != leader.rank) continue;
                    built += compare_remembered(&device, &forgetful, &config[c], &problem);
                    problem.scale = 1e-31; /* less than the least that a mask by products takes */
                    built += compare_remembered(&device, &forgetful, &config[c], &problem);
                }
        }
    CHECK(built > 500, "%d launches compared", built);
}

int main(void) {
    fake_driver_reset(90);
    fake.for_members = true;
    CHECK(!fixture_open(&f, ""), "%s", nhood_last_error());
    check_forward();
    check_backward();
    check_table();
    check_many();
    check_tiles();
    check_beside();
    check_beside_several();
    check_beside_maps();
    check_loops();
    check_maps();
    check_windows();
    check_refusals();
    check_room();
    check_turned();
    check_remembered();
    fixture_close(&f, "groups");
    check_failing_call(&f, "memory_allocate", make_boxes);
    check_failing_call(&f, "memory_send", make_boxes);
    check_failing_call(&f, "library_load", make_boxes);
    check_failing_call(&f, "kernel_set", make_boxes);
    check_failing_call(&f, "tensor_map", make_boxes);
    check_failing_allocations(&f, make_images);
    return test_result();
}
