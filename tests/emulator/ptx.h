// The PTX instructions that the kernels use up to sm_80, one function each: what compiler.cpp makes of `asm`. The first
// argument is the statement's text, the others are its operands, outputs first.
#pragma once
#include "cuda_language.h"
#include "dtype.h"

// ---- conversions ----

inline void ptx_cvt_f32_f16(const char *, float &to, uint16_t from) {
    to = nh_f32_from_f16(from);
}
inline void ptx_cvt_rn_f16_f32(const char *, uint16_t &to, float from) {
    to = nh_f16_from_f32(from);
}
inline void ptx_cvt_rn_bf16_f32(const char *, uint16_t &to, float from) {
    to = nh_bf16_from_f32(from);
}
inline void ptx_cvt_rn_f16x2_f32(const char *, unsigned &to, float high, float low) {
    to = (unsigned)nh_f16_from_f32(high) << 16 | nh_f16_from_f32(low);
}
inline void ptx_cvt_rn_bf16x2_f32(const char *, unsigned &to, float high, float low) {
    to = (unsigned)nh_bf16_from_f32(high) << 16 | nh_bf16_from_f32(low);
}
// To nearest, ties away from zero.
inline void ptx_cvt_rna_tf32_f32(const char *, unsigned &to, float from) {
    unsigned bits = __float_as_uint(from);
    bool finite = (bits & 0x7f800000) != 0x7f800000;
    to = finite ? (bits + 0x1000) & ~0x1fffu : bits;
}
inline void ptx_ex2_approx_ftz_f32(const char *, float &to, float from) {
    to = exp2f(from);
}
inline void ptx_lg2_approx_ftz_f32(const char *, float &to, float from) {
    to = log2f(from);
}
inline void ptx_rcp_approx_ftz_f32(const char *, float &to, float from) {
    to = 1 / from;
}
inline void ptx_add_u32(const char *, unsigned &to, unsigned a, unsigned b) {
    to = a + b;
}
inline void ptx_mov_u32(const char *, unsigned &to) {
    to = threadIdx.x; // the only register that is read so
}

// ---- asynchronous copies ----

inline void copy_async(unsigned to, const void *from, unsigned bytes, unsigned valid_bytes) {
    void *shared = emulator::shared(to, bytes, bytes);
    if (valid_bytes && (uintptr_t)from % bytes)
        emulator::fail("cp.async from %p, %u bytes", from, bytes);
    emulator::start(emulator::COPIES, [=] {
        memset(shared, 0, bytes);
        memcpy(shared, from, valid_bytes);
    });
}
inline void ptx_cp_async_cg_shared_global(const char *, unsigned to, const void *from,
                                          unsigned valid_bytes) {
    copy_async(to, from, 16, valid_bytes);
}
inline void ptx_cp_async_ca_shared_global(const char *text, unsigned to, const void *from,
                                          unsigned valid_bytes) {
    copy_async(to, from, strstr(text, ", 8,") ? 8 : 4, valid_bytes);
}
inline void ptx_cp_async_commit_group(const char *) {
    emulator::commit(emulator::COPIES);
}
inline void ptx_cp_async_wait_group(const char *, unsigned pending) {
    emulator::wait_groups(emulator::COPIES, pending);
}
inline void ptx_cp_async_wait_all(const char *) {
    emulator::commit(emulator::COPIES);
    emulator::wait_groups(emulator::COPIES, 0);
}

// ---- matrices ----

// 16-bit element of a row whose words are given.
inline uint16_t half_of(const uint32_t *row, int column) {
    return (uint16_t)(row[column / 2] >> 16 * (column % 2));
}

inline void load_matrices(unsigned *const to[4], unsigned row, bool transposed) {
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
inline void ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(const char *, unsigned &a, unsigned &b,
                                                         unsigned row) {
    unsigned other[2], *const to[] = {&a, &b, &other[0], &other[1]};
    load_matrices(to, row, false);
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned &a, unsigned &b,
                                                         unsigned &c, unsigned &d, unsigned row) {
    unsigned *const to[] = {&a, &b, &c, &d};
    load_matrices(to, row, false);
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned &a,
                                                               unsigned &b, unsigned &c,
                                                               unsigned &d, unsigned row) {
    unsigned *const to[] = {&a, &b, &c, &d};
    load_matrices(to, row, true);
}
inline void ptx_ld_shared_v4_u32(const char *, unsigned &a, unsigned &b, unsigned &c, unsigned &d,
                                 unsigned from) {
    const uint32_t *word = (const uint32_t *)emulator::shared(from, 16, 16);
    a = word[0];
    b = word[1];
    c = word[2];
    d = word[3];
}

inline void ptx_st_global_v4_u32(const char *, void *to, unsigned a, unsigned b, unsigned c,
                                 unsigned d) {
    const uint32_t word[] = {a, b, c, d};
    if ((uintptr_t)to % sizeof word) emulator::fail("st.global.v4 to %p", to);
    memcpy(to, word, sizeof word);
}

// Lane by lane the other way: each gives its elements to the rows that the lanes name.
inline void store_matrices(const unsigned (&from)[4], unsigned row, bool transposed) {
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
inline void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned row, unsigned a,
                                                         unsigned b, unsigned c, unsigned d) {
    store_matrices({a, b, c, d}, row, false);
}
inline void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned row,
                                                               unsigned a, unsigned b, unsigned c,
                                                               unsigned d) {
    store_matrices({a, b, c, d}, row, true);
}

// The element types of products: how many one register holds, and the value of each.
struct F16 {
    static constexpr int IN_WORD = 2;
    static float at(uint32_t word, int index) {
        return nh_f32_from_f16((uint16_t)(word >> 16 * index));
    }
};
struct BF16 {
    static constexpr int IN_WORD = 2;
    static float at(uint32_t word, int index) {
        return nh_f32_from_bf16((uint16_t)(word >> 16 * index));
    }
};
struct TF32 {
    static constexpr int IN_WORD = 1;
    static float at(uint32_t word, int) {
        return __uint_as_float(word & ~0x1fffu);
    }
};

// c plus the products of two rows of COUNT finite numbers as Hopper's tensor cores add them up, to the bit: products are
// exact, all addends are cut off two bits below the last one of the largest's, by exponents of factors, and the sum is
// cut off to f32. Source: Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (2025), arXiv 2512.07004.
inline int exponent_of(float x) {
    int field = (int)(__float_as_uint(x) >> 23 & 255);
    return (field ? field : 1) - 127;
}
inline double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}
template <int COUNT>
float tensor_core_sum(float c, const float (&a)[COUNT], const float (&b)[COUNT]) {
    int largest = c != 0 ? exponent_of(c) : -300;
    for (int i = 0; i < COUNT; i++)
        if (a[i] != 0 && b[i] != 0) {
            int exponent = exponent_of(a[i]) + exponent_of(b[i]);
            largest = largest < exponent ? exponent : largest;
        }
    double units = power_of_two(25 - largest); // to the last bit that takes part
    int64_t sum = (int64_t)(c * units);
    for (int i = 0; i < COUNT; i++)
        sum += (int64_t)((double)a[i] * b[i] * units);
    double exact = (double)sum * power_of_two(largest - 25);
    float rounded = (float)exact;
    return fabs(rounded) > fabs(exact) ? nextafterf(rounded, 0) : rounded;
}

// c += A B of 16 x 8: A has DEPTHS times four words in a row, B in a column. Lane 4 g + t holds word t of rows g and
// g + 8 of A, of column g of B, for each depth; a[2 depth + half], b[depth].
template <class Type, int DEPTHS>
void multiply(float *const c[4], const unsigned a[2 * DEPTHS], const unsigned b[DEPTHS]) {
    struct {
        unsigned a[2 * DEPTHS], b[DEPTHS];
    } mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    exchange(~0u, mine, [&](emulator::Words *words) {
        for (int i = 0; i < 4; i++) {
            int half = i / 2, column = 2 * t + i % 2, count = 0;
            float row[4 * DEPTHS * Type::IN_WORD], other[4 * DEPTHS * Type::IN_WORD];
            double sum = *c[i]; // not finite if an addend is not
            for (int depth = 0; depth < DEPTHS; depth++)
                for (int word = 0; word < 4; word++)
                    for (int k = 0; k < Type::IN_WORD; k++, count++) {
                        row[count] = Type::at(words[4 * g + word][2 * depth + half], k);
                        other[count] = Type::at(words[4 * column + word][2 * DEPTHS + depth], k);
                        sum += (double)row[count] * other[count];
                    }
            *c[i] = fabs(sum) <= FLT_MAX ? tensor_core_sum(*c[i], row, other) : (float)sum;
        }
        return 0;
    });
}

#define MMA(name, Type)                                                                            \
    inline void ptx_mma_sync_aligned_##name(const char *, float &c0, float &c1, float &c2,         \
                                            float &c3, unsigned a0, unsigned a1, unsigned a2,      \
                                            unsigned a3, unsigned b0, unsigned b1) {               \
        float *const c[] = {&c0, &c1, &c2, &c3};                                                   \
        const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};                                     \
        multiply<Type, 2>(c, a, b);                                                                \
    }
MMA(m16n8k16_row_col_f32_f16_f16_f32, F16)
MMA(m16n8k16_row_col_f32_bf16_bf16_f32, BF16)
MMA(m16n8k8_row_col_f32_tf32_tf32_f32, TF32)
#undef MMA
inline void ptx_mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32(const char *, float &c0,
                                                                   float &c1, float &c2, float &c3,
                                                                   unsigned a0, unsigned a1,
                                                                   unsigned b) {
    float *const c[] = {&c0, &c1, &c2, &c3};
    const unsigned a[] = {a0, a1};
    multiply<BF16, 1>(c, a, &b);
}
