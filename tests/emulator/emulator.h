// What kernels, once g++ has compiled them, ask of the pretended GPU: block.cpp answers. One cluster of blocks, most
// often one block, runs at a time, each of its threads a fiber that goes on until it has to wait for others.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
    unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, gridDim;

namespace emulator {

constexpr unsigned MOST_THREADS = 1024, MOST_SHARED_BYTES = 232448;

// Prints what the running thread did wrong, and ends the process.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- waiting ----

// Hands over to the next thread until it is this one's turn and ready(argument) holds, which is asked for without a
// switch to this thread; `what` says in the report of a deadlock what it waits for.
void yield_until(const char *what, bool (*ready)(void *), void *argument);
void awake();
// Has all threads of the block asked again whether they are ready: for what makes them so. Barriers of threads say it themselves.
void note_event();

template <class Ready> void wait_until(const char *what, Ready ready) {
    if (!ready())
        yield_until(
            what, [](void *asked) { return (*(Ready *)asked)(); }, &ready);
    awake();
}

void block_barrier();
// Waits for so many threads of the block, the same in each call until all have come.
void named_barrier(unsigned name, unsigned threads);
void cluster_barrier();
// Waits for an aligned group of 2^n lanes, this thread's one among them.
void lane_barrier(unsigned lanes);

// 16 words per lane, by which those of a lane_barrier show each other values: written before it, read after it. The next
// barrier has others, so that a lane may go on and write while slower ones still read.
using Words = uint32_t[16];
Words *lane_words(unsigned lanes);
// What the lane `from` gives, of the same warp.
uint64_t shuffle(unsigned lanes, uint64_t mine, unsigned from);

// ---- shared memory ----

char *shared_memory(); // dynamic, of the running block

// The dynamic part by the name that a kernel declares for it, of the block that runs when it is used.
template <class T> struct DynamicShared {
    operator T *() const {
        return (T *)shared_memory();
    }
    template <class U> explicit operator U *() const {
        return (U *)shared_memory();
    }
};

unsigned shared_address(const void *pointer);
// The bytes behind an address that an instruction is given; fails if they are misaligned or outside.
void *shared(unsigned address, unsigned bytes, unsigned alignment);

// The address of a block's shared memory in its whole cluster, and the bytes behind it.
unsigned cluster_address(unsigned address, unsigned rank);
void *cluster_shared(unsigned address, unsigned bytes, unsigned alignment);

// ---- work under way ----

// Asynchronous instructions take effect only when somebody waits for them: a wait that is missing, or comes too late,
// then shows in the results. Each thread has its groups of copies (cp.async), of products (wgmma) and of sums (boxes that
// the copy engine adds or stores to memory). The latter take effect when no thread of the block can go on otherwise, so
// that a box which is written again too early shows, too.
enum Kind { COPIES, PRODUCTS, SUMS, KINDS };
void start(Kind kind, std::function<void()> effect);
void commit(Kind kind);
void wait_groups(Kind kind, unsigned pending);

// A box on its way to shared memory: lands when a thread waits at its barrier or, half of them, at once, which shows
// boxes that are fetched into places still being read. Which ones has no period, as the kernels' requests have.
void start_box(unsigned barrier, std::function<void()> effect);
bool land_boxes(unsigned barrier);

// ---- the driver's side ----

// CUtensorMap, as the pretended driver fills it.
struct TensorMap {
    const char *address;
    uint64_t extent[5], stride_bytes[4];
    uint16_t box[5], pixels; // pixels: of a map for cp.async.bulk.tensor with .im2col, else 0
    uint8_t element_stride[5], rank, swizzle, element_bytes;
};
static_assert(sizeof(TensorMap) <= 128);

// Clusters are `cluster_size` blocks that follow each other along x.
void run_grid(dim3 grid, unsigned cluster_size, unsigned threads, unsigned shared_bytes,
              void (*kernel)(void **), void **parameters);

} // namespace emulator
