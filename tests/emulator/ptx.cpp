// The longer ones of the instructions up to sm_80.
#include "ptx.h"

#include "element_types.h"

// ---- all lanes of a warp ----

int __reduce_max_sync(unsigned lanes, int value) {
    for (int step = 16; step > 0; step /= 2)
        value = std::max(value, __shfl_xor_sync(lanes, value, step));
    return value;
}
int __reduce_min_sync(unsigned lanes, int value) {
    return -1 - __reduce_max_sync(lanes, -1 - value);
}
unsigned __ballot_sync(unsigned, bool set) {
    return exchange(~0u, set ? 1u : 0u, [](emulator::Words *words) {
        unsigned ballot = 0;
        for (int lane = 0; lane < 32; lane++)
            ballot |= words[lane][0] << lane;
        return ballot;
    });
}

// ---- conversions ----

void ptx_cvt_f32_f16(const char *, float &to, uint16_t from) {
    to = nh_f32_from_f16(from);
}
void ptx_cvt_rn_f16_f32(const char *, uint16_t &to, float from) {
    to = nh_f16_from_f32(from);
}
void ptx_cvt_rn_bf16_f32(const char *, uint16_t &to, float from) {
    to = nh_bf16_from_f32(from);
}
void ptx_cvt_rn_f16x2_f32(const char *, unsigned &to, float high, float low) {
    to = (unsigned)nh_f16_from_f32(high) << 16 | nh_f16_from_f32(low);
}
void ptx_cvt_rn_bf16x2_f32(const char *, unsigned &to, float high, float low) {
    to = (unsigned)nh_bf16_from_f32(high) << 16 | nh_bf16_from_f32(low);
}
// To nearest, ties away from zero.
void ptx_cvt_rna_tf32_f32(const char *, unsigned &to, float from) {
    unsigned bits = __float_as_uint(from);
    bool finite = (bits & 0x7f800000) != 0x7f800000;
    to = finite ? (bits + 0x1000) & ~0x1fffu : bits;
}

// ---- asynchronous copies ----

static void copy_async(unsigned to, const void *from, unsigned bytes, unsigned valid_bytes) {
    void *shared = emulator::shared(to, bytes, bytes);
    if (valid_bytes && (uintptr_t)from % bytes)
        emulator::fail("cp.async from %p, %u bytes", from, bytes);
    emulator::start(emulator::COPIES, [=] {
        memset(shared, 0, bytes);
        memcpy(shared, from, valid_bytes);
    });
}
void ptx_cp_async_cg_shared_global(const char *, unsigned to, const void *from,
                                   unsigned valid_bytes) {
    copy_async(to, from, 16, valid_bytes);
}
void ptx_cp_async_ca_shared_global(const char *text, unsigned to, const void *from,
                                   unsigned valid_bytes) {
    copy_async(to, from, strstr(text, ", 8,") ? 8 : 4, valid_bytes);
}
void ptx_cp_async_commit_group(const char *) {
    emulator::commit(emulator::COPIES);
}
void ptx_cp_async_wait_group(const char *, unsigned pending) {
    emulator::wait_groups(emulator::COPIES, pending);
}
void ptx_cp_async_wait_all(const char *) {
    emulator::commit(emulator::COPIES);
    emulator::wait_groups(emulator::COPIES, 0);
}

// ---- matrices ----

// 16-bit element of a row whose words are given.
static uint16_t half_of(const uint32_t *row, int column) {
    return (uint16_t)(row[column / 2] >> 16 * (column % 2));
}

static void load_matrices(unsigned *const to[4], unsigned row, bool transposed) {
    struct {
        uint32_t word[4];
    } mine;
    memcpy(&mine, emulator::shared(row, 16, 16), 16);
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    exchange(~0u, mine, [&](emulator::Words *words) {
        for (int i = 0; i < 4; i++) {
            emulator::Words *matrix = words + 8 * i;
            *to[i] = transposed
                         ? (unsigned)half_of(matrix[2 * t + 1], g) << 16 | half_of(matrix[2 * t], g)
                         : matrix[g][t];
        }
        return 0;
    });
}
void ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(const char *, unsigned &a, unsigned &b,
                                                  unsigned row) {
    unsigned other[2], *const to[] = {&a, &b, &other[0], &other[1]};
    load_matrices(to, row, false);
}
void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned &a, unsigned &b,
                                                  unsigned &c, unsigned &d, unsigned row) {
    unsigned *const to[] = {&a, &b, &c, &d};
    load_matrices(to, row, false);
}
void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned &a, unsigned &b,
                                                        unsigned &c, unsigned &d, unsigned row) {
    unsigned *const to[] = {&a, &b, &c, &d};
    load_matrices(to, row, true);
}
void ptx_ld_shared_v4_u32(const char *, unsigned &a, unsigned &b, unsigned &c, unsigned &d,
                          unsigned from) {
    const uint32_t *word = (const uint32_t *)emulator::shared(from, 16, 16);
    a = word[0];
    b = word[1];
    c = word[2];
    d = word[3];
}

void ptx_st_global_v4_u32(const char *, void *to, unsigned a, unsigned b, unsigned c, unsigned d) {
    const uint32_t word[] = {a, b, c, d};
    if ((uintptr_t)to % sizeof word) emulator::fail("st.global.v4 to %p", to);
    memcpy(to, word, sizeof word);
}

// Lane by lane the other way: each gives its elements to the rows that the lanes name.
static void store_matrices(const unsigned (&from)[4], unsigned row, bool transposed) {
    struct {
        uint32_t word[4];
    } mine = {{from[0], from[1], from[2], from[3]}};
    uint16_t *to = (uint16_t *)emulator::shared(row, 16, 16);
    int matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
    exchange(~0u, mine, [&](emulator::Words *words) {
        for (int column = 0; column < 8; column++)
            to[column] = transposed ? half_of(&words[4 * column + line / 2][matrix], line % 2)
                                    : half_of(&words[4 * line + column / 2][matrix], column % 2);
        return 0;
    });
}
void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned row, unsigned a,
                                                  unsigned b, unsigned c, unsigned d) {
    store_matrices({a, b, c, d}, row, false);
}
void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned row, unsigned a,
                                                        unsigned b, unsigned c, unsigned d) {
    store_matrices({a, b, c, d}, row, true);
}

// COUNT elements of A's row or of B's column, the exponents of those that are not 0, and whether all are finite.
template <int COUNT> struct Factors {
    float value[COUNT];
    int exponent[COUNT];
    bool finite;
};

constexpr int LEAST_EXPONENT = -300; // of no product, but less than that of any

static int exponent_of(float x) {
    int field = (int)(__float_as_uint(x) >> 23 & 255);
    return (field ? field : 1) - 127;
}
static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

// c plus the products of two rows of COUNT finite numbers as Hopper's tensor cores add them up, to the bit: products are
// exact, all addends are cut off two bits below the last one of the largest's, by exponents of factors, and the sum is
// cut off to f32. Source: Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (2025), arXiv 2512.07004.
template <int COUNT>
float tensor_core_sum(float c, const Factors<COUNT> &a, const Factors<COUNT> &b) {
    int largest = c != 0 ? exponent_of(c) : LEAST_EXPONENT;
    for (int i = 0; i < COUNT; i++)
        largest = std::max(largest, a.exponent[i] + b.exponent[i]);
    double units = power_of_two(25 - largest); // to the last bit that takes part
    int64_t sum = (int64_t)(c * units);
    for (int i = 0; i < COUNT; i++)
        sum += (int64_t)((double)a.value[i] * b.value[i] * units);
    double exact = (double)sum * power_of_two(largest - 25);
    float rounded = (float)exact;
    if (fabs(exact) > FLT_MAX) return rounded;
    return fabs(rounded) > fabs(exact) ? nextafterf(rounded, 0) : rounded;
}

// The same where an addend is not finite, and the sum neither.
template <int COUNT>
float sum_not_finite(float c, const Factors<COUNT> &a, const Factors<COUNT> &b) {
    double sum = c;
    for (int i = 0; i < COUNT; i++)
        sum += (double)a.value[i] * b.value[i];
    return (float)sum;
}

// Elements of four lanes from `lane` on; in words, as each lane shows its own, they are `first`, `first + step` ..
template <class Type, int DEPTHS>
auto factors_of(const emulator::Words *words, int lane, int first, int step) {
    Factors<4 * DEPTHS * Type::IN_WORD> factors;
    int count = 0, largest = 0;
    for (int depth = 0; depth < DEPTHS; depth++)
        for (int word = 0; word < 4; word++)
            for (int k = 0; k < Type::IN_WORD; k++, count++) {
                uint32_t bits = words[lane + word][(first + step * depth) * Type::IN_WORD + k];
                float value = __uint_as_float(bits);
                int exponent = exponent_of(value);
                factors.value[count] = value;
                factors.exponent[count] = value != 0 ? exponent : 2 * LEAST_EXPONENT;
                largest = std::max(largest, exponent);
            }
    factors.finite = largest <= 127;
    return factors;
}

// c += A B of 16 x 8: A has DEPTHS times four words in a row, B in a column. Lane 4 g + t holds word t of rows g and
// g + 8 of A, of column g of B, for each depth; a[2 depth + half], b[depth].
template <class Type, int DEPTHS>
void multiply(float *const c[4], const unsigned a[2 * DEPTHS], const unsigned b[DEPTHS]) {
    struct {
        float a[2 * DEPTHS][Type::IN_WORD], b[DEPTHS][Type::IN_WORD];
    } mine;
    for (int k = 0; k < Type::IN_WORD; k++) {
        for (int i = 0; i < 2 * DEPTHS; i++)
            mine.a[i][k] = Type::at(a[i], k);
        for (int i = 0; i < DEPTHS; i++)
            mine.b[i][k] = Type::at(b[i], k);
    }
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    exchange(~0u, mine, [&](emulator::Words *words) {
        const Factors<4 * DEPTHS * Type::IN_WORD> row[] = {
            factors_of<Type, DEPTHS>(words, 4 * g, 0, 2),
            factors_of<Type, DEPTHS>(words, 4 * g, 1, 2)};
        for (int one = 0; one < 2; one++) {
            const auto column = factors_of<Type, DEPTHS>(words, 4 * (2 * t + one), 2 * DEPTHS, 1);
            for (int half = 0; half < 2; half++) {
                float &to = *c[2 * half + one];
                bool finite = fabsf(to) <= FLT_MAX && row[half].finite && column.finite;
                to = finite ? tensor_core_sum(to, row[half], column)
                            : sum_not_finite(to, row[half], column);
            }
        }
        return 0;
    });
}

#define MMA(name, Type)                                                                            \
    void ptx_mma_sync_aligned_##name(const char *, float &c0, float &c1, float &c2, float &c3,     \
                                     unsigned a0, unsigned a1, unsigned a2, unsigned a3,           \
                                     unsigned b0, unsigned b1) {                                   \
        float *const c[] = {&c0, &c1, &c2, &c3};                                                   \
        const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};                                     \
        multiply<Type, 2>(c, a, b);                                                                \
    }
MMA(m16n8k16_row_col_f32_f16_f16_f32, F16)
MMA(m16n8k16_row_col_f32_bf16_bf16_f32, BF16)
MMA(m16n8k8_row_col_f32_tf32_tf32_f32, TF32)
#undef MMA
void ptx_mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32(const char *, float &c0, float &c1,
                                                            float &c2, float &c3, unsigned a0,
                                                            unsigned a1, unsigned b) {
    float *const c[] = {&c0, &c1, &c2, &c3};
    const unsigned a[] = {a0, a1};
    multiply<BF16, 1>(c, a, &b);
}
