// The threads of the blocks of one cluster, as fibers, and what they wait for.
#include "emulator.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

dim3 threadIdx, blockIdx, gridDim;

namespace emulator {
namespace {

using Effects = std::vector<std::function<void()>>;

struct Groups {
    Effects open;
    std::vector<Effects> closed;
};

constexpr size_t STACK_BYTES = 256 << 10;

// Threads that have not ended, and how many of them arrived; `generation` counts how often all had.
struct Barrier {
    unsigned alive, arrived, generation;
};

// Where a stack goes on. The C library's jumps look for handlers to run on the way, which takes longer than the jump.
// noipa: callers of what leaves a stack must not take registers for unchanged because nothing in between writes them.
struct Place {
    void *words[5]; // as many as __builtin_setjmp takes

    // Leaves this stack; in a function of its own, as the builtins ask.
    [[noreturn, gnu::noipa]] void go() {
        __builtin_longjmp(words, 1);
    }
};

// What is looked at in each round, side by side.
struct Fiber {
    bool done;
    unsigned generation;
    const Barrier *barrier; // that it waits at, while that is of the generation
    unsigned asked; // the block's events when it was last asked whether it is ready, to no avail
    bool (*ready)(void *); // whether it can go on; NULL: when the barrier no longer holds it
    void *argument;
    const char *waits_for;
};

// A thread's stack lives on: the fiber of the next block's thread begins where this one ended.
struct Stack {
    std::unique_ptr<char[]> bytes;
    Place at;
    Groups groups[KINDS];
};

constexpr unsigned WARP = 32, LEVELS = 6, GUARD_BYTES = 4096, NAMED_BARRIERS = 16;

// A barrier for each aligned group of 1, 2, 4 .. 32 lanes, by its first, and what the lanes show each other there.
struct Warp {
    Barrier group[LEVELS][WARP];
    Words words[LEVELS][2][WARP];
};

// What shared memory begins with. As floating point, NaN, which spoils all it meets; or, as kernels make results that are
// not finite again from what is in memory, numbers: some 15 in f16, 10^7 in f32 and bf16.
constexpr unsigned char POISON[] = {0xff, 0x4b};

// A number without the period that what is counted may have.
unsigned scatter(unsigned count) {
    return count * 2654435761u >> 16;
}

// Threads that have their turn only when no other can go on: of one warp the first lane, the others, or all.
struct Slow {
    unsigned warp, lanes;

    bool has(unsigned thread) const {
        return thread / WARP == warp && lanes >> thread % WARP & 1;
    }
};

struct Block {
    dim3 at;
    unsigned number, left; // threads that have not ended
    Slow slow;
    Fiber fibers[MOST_THREADS];
    Stack stacks[MOST_THREADS];
    Barrier barrier, named[NAMED_BARRIERS];
    Warp warps[MOST_THREADS / WARP];
    std::map<unsigned, Effects> boxes;
    unsigned boxes_under_way, events; // what may have made a thread ready that was not is an event
    unsigned char poison;
    alignas(1024) char memory[MOST_SHARED_BYTES + GUARD_BYTES];
};

std::vector<std::unique_ptr<Block>> blocks; // of the cluster
Block *block;                               // of the running thread
Barrier cluster;
unsigned threads, bytes_of_block;
unsigned turn; // of the running thread in its block's round
Place scheduler;
ucontext_t scheduler_context;
bool progress, idle; // in this round; in the last one, so that what is slow has its turn
unsigned box_count;
void (*running)(void **);
void **running_parameters;

Fiber &current() {
    return block->fibers[threadIdx.x];
}

Groups &current_groups(Kind kind) {
    return block->stacks[threadIdx.x].groups[kind];
}

bool next_turn();

// Hands over to the thread whose turn is next, or else to the scheduler; returns when it is the running thread's turn again.
[[gnu::noipa]] void leave_stack() {
    Place &mine = block->stacks[threadIdx.x].at;
    Place &other = next_turn() ? block->stacks[threadIdx.x].at : scheduler;
    if (!__builtin_setjmp(mine.words)) other.go();
}

struct LaneGroup {
    Warp &warp;
    unsigned level, first;
};

LaneGroup lane_group(unsigned lanes) {
    if (lanes == ~0u) return {block->warps[threadIdx.x / WARP], LEVELS - 1, 0};
    unsigned first = (unsigned)__builtin_ctz(lanes), ones = lanes >> first;
    unsigned size = WARP - (unsigned)__builtin_clz(ones);
    if (ones & (ones + 1) || size & (size - 1) || first % size ||
        !(lanes >> threadIdx.x % WARP & 1))
        fail("a barrier of the lanes %#x is not emulated", lanes);
    return {block->warps[threadIdx.x / WARP], (unsigned)__builtin_ctz(size), first};
}

void open_if_full(Barrier &barrier) {
    if (barrier.arrived < barrier.alive) return;
    barrier.arrived = 0;
    barrier.generation++;
}

bool is_held(const Fiber &fiber) {
    return fiber.barrier && fiber.barrier->generation == fiber.generation;
}

void arrive_and_wait(Barrier &barrier, const char *what) {
    Fiber &fiber = current();
    progress = true;
    fiber.generation = barrier.generation;
    barrier.arrived++;
    open_if_full(barrier);
    if (barrier.generation != fiber.generation) return;
    fiber.barrier = &barrier;
    fiber.waits_for = what;
    fiber.ready = nullptr;
    leave_stack();
    progress = true;
    fiber.barrier = nullptr;
}

// Calls visit(barrier) for each group of lanes that a thread belongs to.
template <class Visit> void visit_groups(unsigned thread, Visit visit) {
    for (unsigned level = 0; level < LEVELS; level++)
        visit(block->warps[thread / WARP].group[level][thread % WARP >> level << level]);
}

// A thread that has ended is waited for no longer.
void leave() {
    const Groups &sums = current_groups(SUMS);
    if (!sums.open.empty() || !sums.closed.empty()) fail("ends before its sums have been read");
    auto leave_barrier = [](Barrier &barrier) {
        barrier.alive--;
        open_if_full(barrier);
    };
    visit_groups(threadIdx.x, leave_barrier);
    leave_barrier(block->barrier);
    leave_barrier(cluster);
}

void fiber_main() {
    for (;;) {
        leave_stack();
        awake();
        running(running_parameters);
        current().done = true;
        leave();
        block->left--;
    }
}

// Goes on with the running thread, and those whose turns are after its own.
[[gnu::noipa]] void resume() {
    if (!__builtin_setjmp(scheduler.words)) block->stacks[threadIdx.x].at.go();
}

// A stack whose fiber waits for the first block's thread. swapcontext only begins; all other switches are jumps, which
// make no system call.
[[gnu::noipa]] void create(Stack &stack) {
    stack.bytes.reset(new char[STACK_BYTES]);
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stack.bytes.get();
    start.uc_stack.ss_size = STACK_BYTES;
    start.uc_link = nullptr;
    makecontext(&start, fiber_main, 0);
    if (!__builtin_setjmp(scheduler.words)) swapcontext(&scheduler_context, &start);
}

void prepare(unsigned thread) {
    threadIdx.x = thread;
    Stack &stack = block->stacks[thread];
    if (!stack.bytes) create(stack);
    block->fibers[thread] = {false, 0, nullptr, 0, nullptr, nullptr, "its first turn"};
    for (Groups &groups : stack.groups) {
        groups.open.clear();
        groups.closed.clear();
    }
}

Slow slow_of(unsigned block_number) {
    static const unsigned lanes[] = {1, ~1u, ~0u};
    const unsigned warp_count = (threads + WARP - 1) / WARP, choice = scatter(block_number);
    return {choice / 3 % (warp_count + 1), lanes[choice % 3]};
}

void enter(Block &entered) {
    block = &entered;
    blockIdx = entered.at;
}

void prepare_block() {
    const unsigned number = blockIdx.x + blockIdx.y + blockIdx.z;
    block->at = blockIdx;
    block->number = number;
    block->left = threads;
    block->slow = slow_of(number);
    block->poison = POISON[number / 2 % 2];
    block->boxes_under_way = 0;
    memset(block->memory, block->poison, sizeof block->memory);
    block->barrier = {threads, 0, 0};
    for (Barrier &barrier : block->named)
        barrier = {};
    for (Warp &warp : block->warps)
        memset(warp.group, 0, sizeof warp.group);
    turn = threads; // a stack that is made hands over to nobody but the scheduler
    for (unsigned i = 0; i < threads; i++) {
        visit_groups(i, [](Barrier &barrier) { barrier.alive++; });
        prepare(i);
    }
}

void check_block() {
    for (unsigned i = bytes_of_block; i < bytes_of_block + GUARD_BYTES; i++)
        if ((unsigned char)block->memory[i] != block->poison)
            fail("byte %u of shared memory was written, the launch asked for %u", i,
                 bytes_of_block);
    for (auto &[barrier, effects] : block->boxes)
        if (!effects.empty()) fail("a box for the barrier at %#x is waited for by nobody", barrier);
}

// Whether the thread, which is the running one now, can go on. While the others only compute, the answer stays what it was.
bool is_ready(Fiber &fiber) {
    if (!fiber.ready) return true;
    if (fiber.asked == block->events && !idle) return false;
    if (fiber.ready(fiber.argument)) return true;
    fiber.asked = block->events;
    return false;
}

// The next thread of the block that can go on in this round becomes the running one. Every other block runs its threads
// backwards, and each has other slow ones: an order that only happens to be right shows.
bool next_turn() {
    while (turn < threads) {
        unsigned thread = block->number % 2 ? threads - 1 - turn : turn;
        turn++;
        Fiber &fiber = block->fibers[thread];
        if (fiber.done || is_held(fiber)) continue;
        if (block->slow.has(thread) && !idle) continue;
        threadIdx.x = thread;
        if (is_ready(fiber)) return true;
    }
    return false;
}

// A turn for each thread of the block that can go on.
void run_round() {
    turn = 0;
    if (next_turn()) resume();
}

void report_deadlock() {
    for (unsigned i = 0; i < threads; i += WARP)
        if (!block->fibers[i].done)
            fprintf(stderr, "thread %u waits for %s\n", i, block->fibers[i].waits_for);
}

template <class Visit> void for_blocks(Visit visit) {
    for (auto &member : blocks) {
        enter(*member);
        visit();
    }
}

// The cluster whose first block is blockIdx.
void run_cluster(unsigned size) {
    const dim3 first = blockIdx;
    while (blocks.size() < size)
        blocks.push_back(std::make_unique<Block>());
    blocks.resize(size);
    for (unsigned rank = 0; rank < size; rank++) {
        block = blocks[rank].get();
        blockIdx = {first.x + rank, first.y, first.z};
        prepare_block();
    }
    cluster = {threads * size, 0, 0};
    idle = false;
    for (unsigned left = 1; left;) {
        progress = false;
        left = 0;
        for_blocks([&] {
            run_round();
            left += block->left;
        });
        if (progress || !idle) {
            idle = !progress;
            continue;
        }
        for_blocks(report_deadlock);
        fail("deadlock");
    }
    for_blocks(check_block);
    blockIdx = first;
}

} // namespace

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "emulator: block %u,%u,%u thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _Exit(1);
}

void yield_until(const char *what, bool (*ready)(void *), void *argument) {
    Fiber &fiber = current();
    fiber.waits_for = what;
    fiber.ready = ready;
    fiber.argument = argument;
    fiber.asked = block->events - 1;
    leave_stack();
}

void awake() {
    progress = true;
}

void note_event() {
    block->events++;
}

void block_barrier() {
    arrive_and_wait(block->barrier, "its block");
}

void named_barrier(unsigned name, unsigned some) {
    if (name >= NAMED_BARRIERS || some % WARP || some > threads)
        fail("barrier %u of %u threads", name, some);
    Barrier &barrier = block->named[name];
    if (barrier.arrived && barrier.alive != some)
        fail("barrier %u waits for %u threads and for %u", name, barrier.alive, some);
    barrier.alive = some;
    arrive_and_wait(barrier, "others at its named barrier");
}

void cluster_barrier() {
    arrive_and_wait(cluster, "its cluster");
}

void lane_barrier(unsigned lanes) {
    LaneGroup group = lane_group(lanes);
    arrive_and_wait(group.warp.group[group.level][group.first], "its warp");
}

Words *lane_words(unsigned lanes) {
    LaneGroup group = lane_group(lanes);
    unsigned turn = group.warp.group[group.level][group.first].generation % 2;
    return group.warp.words[group.level][turn];
}

uint64_t shuffle(unsigned lanes, uint64_t mine, unsigned from) {
    LaneGroup group = lane_group(lanes);
    Barrier &barrier = group.warp.group[group.level][group.first];
    Words *words = group.warp.words[group.level][barrier.generation % 2];
    memcpy(words[threadIdx.x % WARP], &mine, sizeof mine);
    arrive_and_wait(barrier, "its warp");
    uint64_t got;
    memcpy(&got, words[from], sizeof got);
    return got;
}

char *shared_memory() {
    return block->memory;
}

// Addresses count from the dynamic part; static variables of a kernel lie elsewhere, at a distance that wraps.
unsigned shared_address(const void *pointer) {
    ptrdiff_t distance = (const char *)pointer - block->memory;
    if (distance != (int)distance) fail("%p is no shared memory", pointer);
    return (unsigned)distance;
}

namespace {

void *shared_of(Block &owner, unsigned address, unsigned bytes, unsigned alignment) {
    if (address % alignment) fail("shared address %#x is no multiple of %u", address, alignment);
    bool dynamic = address < sizeof owner.memory;
    if (dynamic && address + bytes > bytes_of_block)
        fail("%u bytes at shared address %#x, the launch asked for %u", bytes, address,
             bytes_of_block);
    return owner.memory + (int)address;
}

} // namespace

void *shared(unsigned address, unsigned bytes, unsigned alignment) {
    return shared_of(*block, address, bytes, alignment);
}

// The block's place in the cluster, from 1 on, stands above its own addresses.
constexpr unsigned PLACE_BITS = 24;
static_assert(MOST_SHARED_BYTES + GUARD_BYTES <= 1u << PLACE_BITS);

unsigned cluster_address(unsigned address, unsigned rank) {
    if (rank >= blocks.size()) fail("a cluster of %zu blocks has no block %u", blocks.size(), rank);
    return address | (rank + 1) << PLACE_BITS;
}

void *cluster_shared(unsigned address, unsigned bytes, unsigned alignment) {
    unsigned place = address >> PLACE_BITS;
    if (!place || place > blocks.size()) fail("%#x is no address of the cluster's", address);
    Block &owner = *blocks[place - 1];
    if (!owner.left) fail("block %u of the cluster has ended", place - 1);
    return shared_of(owner, address & ((1u << PLACE_BITS) - 1), bytes, alignment);
}

void start(Kind kind, std::function<void()> effect) {
    current_groups(kind).open.push_back(std::move(effect));
}

void commit(Kind kind) {
    Groups &groups = current_groups(kind);
    groups.closed.push_back(std::move(groups.open));
    groups.open.clear();
}

void wait_groups(Kind kind, unsigned pending) {
    auto &closed = current_groups(kind).closed;
    if (kind == SUMS && closed.size() > pending) wait_until("the copy engine", [] { return idle; });
    while (closed.size() > pending) {
        for (auto &effect : closed.front())
            effect();
        closed.erase(closed.begin());
    }
}

void start_box(unsigned barrier, std::function<void()> effect) {
    note_event();
    if (scatter(box_count++) % 2) return effect();
    block->boxes[barrier].push_back(std::move(effect));
    block->boxes_under_way++;
}

bool land_boxes(unsigned barrier) {
    if (!block->boxes_under_way) return false;
    Effects landing = std::exchange(block->boxes[barrier], {});
    block->boxes_under_way -= (unsigned)landing.size();
    for (auto &effect : landing)
        effect();
    return !landing.empty();
}

void run_grid(dim3 grid, unsigned cluster_size, unsigned block_threads, unsigned shared_bytes,
              void (*kernel)(void **), void **parameters) {
    gridDim = grid;
    threads = block_threads;
    bytes_of_block = shared_bytes;
    running = kernel;
    running_parameters = parameters;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x += cluster_size)
                run_cluster(cluster_size);
}

} // namespace emulator
