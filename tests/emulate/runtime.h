/* What a kernel takes from CUDA, on a CPU: compiled in front of each kernel by emulated_nvrtc.cpp.
 *
 * The threads of a block are fibers of one thread of the process, run in turn. Whatever threads do together (barriers,
 * shuffles, matrix loads, tensor core products) waits until all of a warp, or of the block, have come to it. Shared
 * memory starts as garbage, and asynchronous copies land only when they are waited for: a kernel that reads what it did
 * not write, or waits too late, computes something else. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <vector>

using std::max;
using std::min;

#define __CUDACC__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes)
/* glibc has such functions already */
#define __expf(x) std::exp(x)
#define __logf(x) std::log(x)

struct uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) {
    return {x, y};
}

namespace emulated {

/* GARBAGE, repeated, is about 3000 in f32 and bf16 and 5 in f16: a NaN would be taken for the caller's, and put right */
enum { MOST_THREADS = 1024, STACK_BYTES = 128 << 10, LANE_WORDS = 8, GARBAGE = 0x45 };

/* dynamic shared memory */
alignas(128) static char shared[256 << 10];

struct copy {
    void *to;
    const void *from;
    int bytes;
    bool valid;
};

struct thread {
    ucontext_t context;
    std::vector<char> stack;
    bool finished;
    std::vector<copy> open;
    std::vector<std::vector<copy>> groups;
};

/* Where the lanes of `members` wait for each other; lanes that have ended are not waited for. */
struct barrier {
    uint32_t members, arrived;
    unsigned passed;
};

static thread threads[MOST_THREADS];
static ucontext_t scheduler;
static int current, count;
static unsigned block[3], grid[3];
/* a warp's barriers by the first lane that takes part: groups of lanes may shuffle on their own */
static barrier of_lanes[MOST_THREADS / 32][32];
static uint32_t alive[MOST_THREADS / 32];
static int block_arrived, block_alive;
static unsigned block_passed;
/* what lanes show each other */
static uint32_t shown[MOST_THREADS / 32][32][LANE_WORDS];
static void (*body)();

static void yield() {
    swapcontext(&threads[current].context, &scheduler);
}

static void pass_if_full(barrier &b) {
    if (!b.arrived || (b.members & alive[current / 32] & ~b.arrived)) return;
    b.arrived = 0;
    b.passed++;
}

static void pass_block_if_full() {
    if (!block_arrived || block_arrived < block_alive) return;
    block_arrived = 0;
    block_passed++;
}

static void wait_lanes(uint32_t members) {
    barrier &b = of_lanes[current / 32][__builtin_ctz(members)];
    unsigned passed = b.passed;
    b.members = members;
    b.arrived |= 1u << current % 32;
    pass_if_full(b);
    while (b.passed == passed)
        yield();
}

static void wait_block() {
    unsigned passed = block_passed;
    block_arrived++;
    pass_block_if_full();
    while (block_passed == passed)
        yield();
}

static void leave() {
    alive[current / 32] &= ~(1u << current % 32);
    for (barrier &b : of_lanes[current / 32])
        pass_if_full(b);
    block_alive--;
    pass_block_if_full();
}

static uint32_t (*warp())[LANE_WORDS] {
    return shown[current / 32];
}

/* Shows a value to the lanes; the caller reads what it wants of the others and waits for them once more. */
template <class T> static void show(const T &value, uint32_t members = ~0u) {
    static_assert(sizeof value <= sizeof shown[0][0], "a lane's words");
    memcpy(warp()[current % 32], &value, sizeof value);
    wait_lanes(members);
}

template <class T> static T shown_by(int lane) {
    T value;
    memcpy(&value, warp()[lane], sizeof value);
    return value;
}

template <class T> static T exchange(uint32_t members, T value, int lane) {
    show(value, members);
    T other = shown_by<T>(lane);
    wait_lanes(members);
    return other;
}

static unsigned ballot(uint32_t members, bool vote) {
    show((unsigned)vote, members);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (members & alive[current / 32] & 1u << lane) votes |= shown_by<unsigned>(lane) << lane;
    wait_lanes(members);
    return votes;
}

static void fail(const char *what) {
    fprintf(stderr, "emulated kernel: %s\n", what);
    abort();
}

static void start_copy(void *to, const void *from, int bytes, bool valid) {
    if ((uintptr_t)to % bytes || (valid && (uintptr_t)from % bytes)) fail("misaligned copy");
    threads[current].open.push_back({to, from, bytes, valid});
}

static void commit_copies() {
    thread &t = threads[current];
    t.groups.push_back(std::move(t.open));
    t.open.clear();
}

static void finish_copies(size_t pending) {
    std::vector<std::vector<copy>> &groups = threads[current].groups;
    while (groups.size() > pending) {
        for (const copy &c : groups.front())
            c.valid ? memcpy(c.to, c.from, c.bytes) : memset(c.to, 0, c.bytes);
        groups.erase(groups.begin());
    }
}

static void enter() {
    body();
    threads[current].finished = true;
    leave();
    for (;;)
        yield();
}

static void run_block() {
    memset(shared, GARBAGE, sizeof shared);
    memset(of_lanes, 0, sizeof of_lanes);
    memset(alive, 0xff, sizeof alive);
    block_arrived = 0;
    block_alive = count;
    for (int t = 0; t < count; t++) {
        thread &made = threads[t];
        made.stack.resize(STACK_BYTES);
        made.finished = false;
        made.open.clear();
        made.groups.clear();
        getcontext(&made.context);
        made.context.uc_stack.ss_sp = made.stack.data();
        made.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&made.context, enter, 0);
    }
    for (int left = count; left;) {
        left = 0;
        for (current = 0; current < count; current++) {
            if (threads[current].finished) continue;
            left++;
            swapcontext(&scheduler, &threads[current].context);
        }
    }
}

struct thread_axis {
    operator unsigned() const {
        return (unsigned)current;
    }
};
struct index_axis {
    const unsigned &value;
    operator unsigned() const {
        return value;
    }
};

} // namespace emulated

static struct { emulated::thread_axis x; } threadIdx;
static struct {
    emulated::index_axis x{emulated::block[0]}, y{emulated::block[1]}, z{emulated::block[2]};
} blockIdx;
static struct {
    emulated::index_axis x{emulated::grid[0]}, y{emulated::grid[1]}, z{emulated::grid[2]};
} gridDim;

static inline void __syncthreads() {
    emulated::wait_block();
}
static inline int __syncthreads_or(int vote) {
    static int votes;
    if (emulated::current == 0) votes = 0;
    __syncthreads();
    votes |= vote;
    __syncthreads();
    int all = votes;
    __syncthreads();
    return all;
}
static inline void __syncwarp() {
    emulated::wait_lanes(~0u);
}
template <class T> static T __shfl_xor_sync(unsigned members, T value, int mask, int = 32) {
    return emulated::exchange(members, value, emulated::current % 32 ^ mask);
}
template <class T> static T __shfl_sync(unsigned members, T value, int lane, int width = 32) {
    return emulated::exchange(members, value,
                              emulated::current % 32 / width * width + lane % width);
}
static inline unsigned __ballot_sync(unsigned members, int vote) {
    return emulated::ballot(members, vote != 0);
}
static inline int __any_sync(unsigned members, int vote) {
    return emulated::ballot(members, vote != 0) != 0;
}
static inline int __all_sync(unsigned members, int vote) {
    return emulated::ballot(members, vote == 0) == 0;
}

template <class To, class From> static To emulated_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "as many bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned bits) {
    return emulated_bits<float>(bits);
}
static inline float __int_as_float(int bits) {
    return emulated_bits<float>(bits);
}
static inline unsigned __float_as_uint(float value) {
    return emulated_bits<unsigned>(value);
}
static inline double __longlong_as_double(long long bits) {
    return emulated_bits<double>(bits);
}
static inline int __ffs(int bits) {
    return __builtin_ffs(bits);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}

/* Conversions, which kernels write as PTX: emulated_nvrtc.cpp makes asm("cvt.rn.f16.f32 ..") a call of these. */
static inline void ptx_cvt_f32_f16(float &to, unsigned short from) {
    to = (float)emulated_bits<_Float16>(from);
}
static inline void ptx_cvt_rn_f16_f32(unsigned short &to, float from) {
    to = emulated_bits<unsigned short>((_Float16)from);
}
static inline void ptx_cvt_rn_bf16_f32(unsigned short &to, float from) {
    unsigned bits = __float_as_uint(from);
    to = from != from ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline void ptx_cvt_rn_f16x2_f32(unsigned &to, float high, float low) {
    unsigned short halves[2];
    ptx_cvt_rn_f16_f32(halves[0], low);
    ptx_cvt_rn_f16_f32(halves[1], high);
    memcpy(&to, halves, sizeof to);
}
static inline void ptx_cvt_rn_bf16x2_f32(unsigned &to, float high, float low) {
    unsigned short halves[2];
    ptx_cvt_rn_bf16_f32(halves[0], low);
    ptx_cvt_rn_bf16_f32(halves[1], high);
    memcpy(&to, halves, sizeof to);
}

/* The kernel's entry: every block of the grid, one after the other. */
template <class Args>
static void emulated_launch(void (*kernel)(Args), void **parameters, const unsigned grid[3],
                            unsigned threads) {
    using args = std::remove_const_t<std::remove_reference_t<Args>>;
    static void (*entry)(Args);
    static const args *given;
    entry = kernel;
    given = (const args *)parameters[0];
    emulated::body = [] { entry(*given); };
    emulated::count = (int)threads;
    memcpy(emulated::grid, grid, sizeof emulated::grid);
    unsigned(&at)[3] = emulated::block;
    for (at[2] = 0; at[2] < grid[2]; at[2]++)
        for (at[1] = 0; at[1] < grid[1]; at[1]++)
            for (at[0] = 0; at[0] < grid[0]; at[0]++)
                emulated::run_block();
}
