// The longer ones of the instructions of sm_90.
#include "ptx90.h"

#include "element_types.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

// ---- barriers ----

struct MemoryBarrier {
    uint16_t expected, pending;
    int32_t bytes : 31;
    uint32_t phase : 1;
};
static_assert(sizeof(MemoryBarrier) == 8);

constexpr int MOST_PENDING_BYTES = (1 << 20) - 1; // the range of tx-count in the PTX ISA

static MemoryBarrier &barrier_at(unsigned address) {
    return *(MemoryBarrier *)emulator::shared(address, 8, 8);
}
static void end_phase_if_complete(MemoryBarrier &barrier) {
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.expected;
    barrier.phase ^= 1;
    emulator::note_event();
}

void ptx_mbarrier_init_shared__cta_b64(const char *, unsigned address, unsigned arrivals) {
    barrier_at(address) = {(uint16_t)arrivals, (uint16_t)arrivals, 0, 0};
    emulator::note_event();
}
void ptx_mbarrier_inval_shared__cta_b64(const char *, unsigned address) {
    MemoryBarrier &barrier = barrier_at(address);
    if (barrier.pending != barrier.expected || barrier.bytes)
        emulator::fail("the barrier at %#x ends in the middle of a phase", address);
    barrier = {};
}
void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(const char *, unsigned address, unsigned bytes) {
    MemoryBarrier &barrier = barrier_at(address);
    if (!barrier.pending) emulator::fail("one arrival too many at the barrier at %#x", address);
    barrier.bytes += (int)bytes;
    if (barrier.bytes > MOST_PENDING_BYTES)
        emulator::fail("%d bytes pending at the barrier at %#x", barrier.bytes, address);
    barrier.pending--;
    end_phase_if_complete(barrier);
}
void ptx_mbarrier_arrive_shared__cta_b64(const char *text, unsigned address) {
    ptx_mbarrier_arrive_expect_tx_shared__cta_b64(text, address, 0);
}
void ptx_cp_async_mbarrier_arrive_noinc_shared__cta_b64(const char *text, unsigned address) {
    ptx_cp_async_wait_all(text);
    ptx_mbarrier_arrive_shared__cta_b64(text, address);
}
// Waits until the phase of that parity is over.
void ptx_mbarrier_try_wait_parity_shared__cta_b64(const char *, unsigned address, unsigned parity) {
    const MemoryBarrier &barrier = barrier_at(address);
    auto over = [&] {
        if (barrier.phase == parity) emulator::land_boxes(address);
        return barrier.phase != parity;
    };
    char what[64] = "";
    if (!over()) snprintf(what, sizeof what, "phase %u of the barrier at %#x", parity, address);
    emulator::wait_until(what, over);
}

// ---- boxes ----

// Where the swizzle puts a byte: bits 4 and up of its address change with the 128-byte line it is in.
static unsigned swizzled(unsigned address, unsigned lines) {
    return address ^ (address >> 7 & (lines - 1)) << 4;
}

// Copies a row of the box, zeros where the tensor ends; returns the address after it.
static unsigned copy_row(const emulator::TensorMap &map, unsigned to, const char *from, int first) {
    const unsigned lines = map.swizzle ? 1u << map.swizzle : 1;
    for (int i = 0; i < map.box[0]; i++, to += map.element_bytes) {
        void *element = emulator::shared(swizzled(to, lines), map.element_bytes, map.element_bytes);
        bool inside = from && first + i >= 0 && (uint64_t)(first + i) < map.extent[0];
        if (inside) {
            memcpy(element, from + (int64_t)(first + i) * map.element_bytes, map.element_bytes);
        } else {
            memset(element, 0, map.element_bytes);
        }
    }
    return to;
}

struct Coordinates {
    int at[5];
};

// Row by row, axis 1 fastest. A box spans box[i] elements of an axis and takes every element_stride[i]-th of them.
template <class Row>
unsigned for_rows(const emulator::TensorMap &map, unsigned shared, const char *memory,
                  const Coordinates &first, int axis, Row row) {
    if (axis == 0) return row(map, shared, memory, first.at[0]);
    for (int i = 0; i < map.box[axis]; i += map.element_stride[axis]) {
        int at = first.at[axis] + i;
        bool inside = memory && at >= 0 && (uint64_t)at < map.extent[axis];
        const char *part = inside ? memory + at * (int64_t)map.stride_bytes[axis - 1] : nullptr;
        shared = for_rows(map, shared, part, first, axis - 1, row);
    }
    return shared;
}

void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes(
    const char *, unsigned to, const void *encoded, unsigned barrier, int x0, int x1, int x2,
    int x3, int x4) {
    emulator::TensorMap map;
    memcpy(&map, encoded, sizeof map);
    emulator::shared(to, map.element_bytes, 128);
    if (map.pixels) emulator::fail("a box of a map for im2col");
    emulator::start_box(barrier, [=] {
        unsigned end =
            for_rows(map, to, map.address, {{x0, x1, x2, x3, x4}}, map.rank - 1, copy_row);
        barrier_at(barrier).bytes -= (int)(end - to);
        end_phase_if_complete(barrier_at(barrier));
    });
}

// Pixels one after the other: axis 1 fastest, from its begin to its end, but for what is before the first pixel; without
// margins (lower and upper corners of 0) and offsets. Pixels after the tensor's last one are zeros. A first pixel outside the
// tensor is not emulated.
void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_im2col_mbarrier__complete_tx__bytes(
    const char *, unsigned to, const void *encoded, unsigned barrier, int x0, int x1, int x2,
    int x3, int x4, unsigned short offset1, unsigned short offset2, unsigned short offset3) {
    emulator::TensorMap map;
    memcpy(&map, encoded, sizeof map);
    emulator::shared(to, map.element_bytes, 128);
    if (!map.pixels) emulator::fail("pixels of a map for boxes");
    if (offset1 || offset2 || offset3) emulator::fail("offsets of im2col");
    const Coordinates first = {{x0, x1, x2, x3, x4}};
    for (int axis = 0; axis < 5; axis++)
        if (first.at[axis] < 0 || (uint64_t)first.at[axis] >= map.extent[axis])
            emulator::fail("pixels from coordinate %d of axis %d on", first.at[axis], axis);
    emulator::start_box(barrier, [=] {
        Coordinates at = first;
        unsigned end = to;
        for (int pixel = 0; pixel < map.pixels; pixel++) {
            const char *from = (uint64_t)at.at[4] < map.extent[4] ? map.address : nullptr;
            for (int axis = 1; from && axis < 5; axis++)
                from += at.at[axis] * (int64_t)map.stride_bytes[axis - 1];
            end = copy_row(map, end, from, at.at[0]);
            for (int axis = 1; (uint64_t)++at.at[axis] == map.extent[axis] && axis < 4; axis++)
                at.at[axis] = 0;
        }
        barrier_at(barrier).bytes -= (int)(end - to);
        end_phase_if_complete(barrier_at(barrier));
    });
}

// A box that is written may end outside the tensor but not start before it ("Using TMA to transfer multi-dimensional
// arrays" in the CUDA C++ Programming Guide): an H200 takes such sums for an illegal instruction.
static void check_written_box(const emulator::TensorMap &map, const Coordinates &first) {
    for (int axis = 0; axis < map.rank; axis++) {
        if (map.element_stride[axis] != 1) emulator::fail("a box with element strides is written");
        if (first.at[axis] < 0)
            emulator::fail("a box is written from coordinate %d of axis %d on", first.at[axis],
                           axis);
    }
}

// Adds a row of the box; returns the address after it.
static unsigned add_row(const emulator::TensorMap &map, unsigned from, const char *to, int first) {
    const unsigned lines = map.swizzle ? 1u << map.swizzle : 1;
    for (int i = 0; i < map.box[0]; i++, from += 4) {
        float *element = (float *)emulator::shared(swizzled(from, lines), 4, 4);
        bool inside = to && first + i >= 0 && (uint64_t)(first + i) < map.extent[0];
        if (inside) ((float *)const_cast<char *>(to))[first + i] += *element;
    }
    return from;
}

void ptx_cp_reduce_async_bulk_tensor_5d_global_shared__cta_add_tile_bulk_group(
    const char *, const void *encoded, unsigned from, int x0, int x1, int x2, int x3, int x4) {
    emulator::TensorMap map;
    memcpy(&map, encoded, sizeof map);
    emulator::shared(from, 4, 128);
    if (map.element_bytes != 4) emulator::fail("only sums of f32 are emulated");
    const Coordinates first = {{x0, x1, x2, x3, x4}};
    check_written_box(map, first);
    emulator::start(emulator::SUMS,
                    [=] { for_rows(map, from, map.address, first, map.rank - 1, add_row); });
}
// Stores a row of the box; returns the address after it.
static unsigned store_row(const emulator::TensorMap &map, unsigned from, const char *to,
                          int first) {
    const unsigned lines = map.swizzle ? 1u << map.swizzle : 1, bytes = map.element_bytes;
    for (int i = 0; i < map.box[0]; i++, from += bytes) {
        const void *element = emulator::shared(swizzled(from, lines), bytes, bytes);
        bool inside = to && first + i >= 0 && (uint64_t)(first + i) < map.extent[0];
        if (inside) memcpy(const_cast<char *>(to) + (int64_t)(first + i) * bytes, element, bytes);
    }
    return from;
}

void ptx_cp_async_bulk_tensor_5d_global_shared__cta_bulk_group(const char *, const void *encoded,
                                                               int x0, int x1, int x2, int x3,
                                                               int x4, unsigned from) {
    emulator::TensorMap map;
    memcpy(&map, encoded, sizeof map);
    emulator::shared(from, map.element_bytes, 128);
    const Coordinates first = {{x0, x1, x2, x3, x4}};
    check_written_box(map, first);
    emulator::start(emulator::SUMS,
                    [=] { for_rows(map, from, map.address, first, map.rank - 1, store_row); });
}
void ptx_cp_async_bulk_commit_group(const char *) {
    emulator::commit(emulator::SUMS);
}
void ptx_cp_async_bulk_wait_group_read(const char *) {
    emulator::wait_groups(emulator::SUMS, 0);
}
void ptx_cp_async_bulk_wait_group(const char *) {
    emulator::wait_groups(emulator::SUMS, 0);
}

// Kernels repeat this load until the word is set.
void ptx_ld_acquire_gpu_global_u32(const char *, unsigned &value, const unsigned *word) {
    emulator::wait_until("a word in memory", [&] { return *word != 0; });
    value = *word;
}
void ptx_st_release_gpu_global_u32(const char *, unsigned *word, unsigned value) {
    *word = value;
}

// ---- products of a warpgroup ----

// A tile of 16-bit elements in shared memory, as a descriptor tells: rows of one swizzle atom, 8 rows `stride` bytes
// after the last 8, and, when the columns exceed the atom, the next columns `leading` bytes on.
struct Tile {
    unsigned address, leading, stride, row_bits; // 2^row_bits bytes

    explicit Tile(unsigned long long descriptor)
        : address((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4), row_bits(descriptor >> 62 == 1 ? 7 : 6) {
        unsigned mode = (unsigned)(descriptor >> 62);
        if (mode != 1 && mode != 2) emulator::fail("wgmma: swizzle mode %u is not emulated", mode);
    }

    // Eight elements of a row, two in a word, from a column on that is a multiple of eight: swizzles keep them together.
    const uint32_t *eight(int row, int column) const {
        unsigned byte = 2 * (unsigned)column, chunk = byte >> row_bits, of = (unsigned)row;
        unsigned at = address + chunk * leading + of / 8 * stride + (of % 8 << row_bits) +
                      (byte & ((1u << row_bits) - 1));
        return (const uint32_t *)emulator::shared(swizzled(at, 1u << row_bits >> 4), 16, 16);
    }
};

constexpr int DEPTH = 16;

// Two rows of A, g and g + 8 of the thread's warp.
struct Rows {
    double at[DEPTH][2];
};

template <class Type> Rows rows_of_shared(const Tile &a) {
    Rows rows;
    int first = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < DEPTH; k += 8) {
            const uint32_t *eight = a.eight(first + 8 * half, k);
            for (int j = 0; j < 8; j++)
                rows.at[k + j][half] = Type::at(eight[j / 2], j % 2);
        }
    return rows;
}

// Four lanes hold two rows together.
template <class Type> Rows rows_of_lanes(const unsigned a[4]) {
    struct {
        unsigned word[4];
    } mine;
    memcpy(mine.word, a, sizeof mine.word);
    return exchange(~0u, mine, [](emulator::Words *words) {
        Rows rows;
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < DEPTH; k++)
                rows.at[k][half] =
                    Type::at(words[threadIdx.x % 32 / 4 * 4 + k % 8 / 2][half + k / 8 * 2], k % 2);
        return rows;
    });
}

// What an instruction's text tells. Its last operand is 1 where B is transposed.
struct Product {
    bool bf16, transposed, accumulate;

    Product(const char *text, size_t registers) {
        static const char head[] = "{.reg .pred p; setp.ne.b32 p, ", shape[] = ".m64n",
                          tail[] = ", 1;}";
        char *end = nullptr;
        bool understood = !strncmp(text, head, strlen(head));
        if (understood) accumulate = strtol(text + strlen(head), &end, 10);
        understood = understood && !strncmp(end, ", 0;", 4);
        const char *found = understood ? strstr(end, shape) : nullptr;
        if (!found) emulator::fail("not understood: %s", text);
        unsigned long n = strtoul(found + strlen(shape), &end, 10);
        bf16 = !strncmp(end, "k16.f32.bf16.", 13);
        if (n != 2 * registers || (!bf16 && strncmp(end, "k16.f32.f16.", 12)))
            emulator::fail("wgmma of %zu registers: %s", registers, text);
        transposed = !strcmp(end + strlen(end) - strlen(tail), tail);
    }
};

// One thread's part of D: of each 8 columns the pair that starts at column 2 t, of both its rows.
template <class Type, bool TRANSPOSED>
void multiply_rows(const Rows &a, const Tile &b, bool accumulate, const std::vector<float *> &d) {
    int t = threadIdx.x % 4;
    for (size_t i = 0; i < d.size(); i += 4) {
        int column = (int)i * 2 + 2 * t;
        double element[DEPTH][2]; // of B's two columns
        for (int k = 0; TRANSPOSED && k < DEPTH; k++) {
            uint32_t pair = b.eight(k, column & ~7)[t];
            for (int one = 0; one < 2; one++)
                element[k][one] = Type::at(pair, one);
        }
        for (int k = 0; !TRANSPOSED && k < DEPTH; k += 8)
            for (int one = 0; one < 2; one++) {
                const uint32_t *eight = b.eight(column + one, k);
                for (int j = 0; j < 8; j++)
                    element[k + j][one] = Type::at(eight[j / 2], j % 2);
            }
        double sum[4] = {};
        for (int k = 0; k < DEPTH; k++)
            for (int j = 0; j < 4; j++)
                sum[j] += a.at[k][j / 2] * element[k][j % 2];
        for (int j = 0; j < 4; j++)
            *d[i + j] = (float)((accumulate ? *d[i + j] : 0) + sum[j]);
    }
}

template <class Type>
void multiply_rows(const Rows &a, const Tile &b, const Product &product,
                   const std::vector<float *> &d) {
    if (product.transposed) {
        multiply_rows<Type, true>(a, b, product.accumulate, d);
    } else {
        multiply_rows<Type, false>(a, b, product.accumulate, d);
    }
}

// A is read when the product is done, not before.
void multiply_warpgroup(const char *text, unsigned long long a, unsigned long long b,
                        float *const *d, size_t count) {
    emulator::start(emulator::PRODUCTS, [=, to = std::vector<float *>(d, d + count),
                                         product = Product(text, count)] {
        if (product.bf16) {
            multiply_rows<BF16>(rows_of_shared<BF16>(Tile(a)), Tile(b), product, to);
        } else {
            multiply_rows<F16>(rows_of_shared<F16>(Tile(a)), Tile(b), product, to);
        }
    });
}

void multiply_warpgroup(const char *text, const unsigned (&a)[4], unsigned long long b,
                        float *const *d, size_t count) {
    const Product product(text, count);
    Rows rows = product.bf16 ? rows_of_lanes<BF16>(a) : rows_of_lanes<F16>(a);
    emulator::start(emulator::PRODUCTS, [=, to = std::vector<float *>(d, d + count)] {
        if (product.bf16) {
            multiply_rows<BF16>(rows, Tile(b), product, to);
        } else {
            multiply_rows<F16>(rows, Tile(b), product, to);
        }
    });
}

void ptx_wgmma_commit_group_sync_aligned(const char *) {
    emulator::commit(emulator::PRODUCTS);
}
// The lanes of a warp go on together: one of them may then say for all that what they read is free.
void ptx_wgmma_wait_group_sync_aligned(const char *, unsigned pending) {
    emulator::wait_groups(emulator::PRODUCTS, pending);
    emulator::lane_barrier(~0u);
}
