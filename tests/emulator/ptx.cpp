// The longer ones of the instructions up to sm_80.
#include "ptx.h"

#include "element_types.h"

// ---- all lanes of a warp ----

#define SHUFFLES(Value)                                                                            \
    Value __shfl_sync(unsigned lanes, Value value, int lane, int width) {                          \
        return __shfl_sync<Value>(lanes, value, lane, width);                                      \
    }                                                                                              \
    Value __shfl_xor_sync(unsigned lanes, Value value, int other) {                                \
        return __shfl_xor_sync<Value>(lanes, value, other);                                        \
    }
SHUFFLES(float)
SHUFFLES(unsigned)
SHUFFLES(int)
#undef SHUFFLES
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

constexpr int ROWS = 16, COLUMNS = 8;

// COUNT elements of each of LINES rows of A or columns of B, and the exponents of those that are not 0.
template <int COUNT, int LINES> struct Factors {
    float value[COUNT][LINES];
    int exponent[COUNT][LINES];
    bool finite[LINES];
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

// c plus the products of a row and of N columns, finite numbers, as Hopper's tensor cores add them up, to the bit: products
// are exact, all addends are cut off two bits below the last one of the largest's, by exponents of factors, and the sum is
// cut off to f32. Source: Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (2025), arXiv 2512.07004.
template <int N, int COUNT>
void add_as_tensor_core(float *c, const Factors<COUNT, ROWS> &a, int row,
                        const Factors<COUNT, COLUMNS> &b, int column) {
    int largest[N];
    for (int j = 0; j < N; j++)
        largest[j] = c[j] != 0 ? exponent_of(c[j]) : LEAST_EXPONENT;
    for (int k = 0; k < COUNT; k++)
        for (int j = 0; j < N; j++)
            largest[j] = std::max(largest[j], a.exponent[k][row] + b.exponent[k][column + j]);
    // In units of the last bit that takes part: addends are below 2^27, so that sums of them are exact.
    double units[N], sum[N];
    for (int j = 0; j < N; j++) {
        units[j] = power_of_two(25 - largest[j]);
        sum[j] = (int32_t)(c[j] * units[j]);
    }
    for (int k = 0; k < COUNT; k++)
        for (int j = 0; j < N; j++)
            sum[j] += (int32_t)((double)a.value[k][row] * b.value[k][column + j] * units[j]);
    for (int j = 0; j < N; j++) {
        double exact = sum[j] * power_of_two(largest[j] - 25);
        float rounded = (float)exact;
        bool larger = fabs(exact) <= FLT_MAX && fabs(rounded) > fabs(exact);
        c[j] = __uint_as_float(__float_as_uint(rounded) - larger); // the next number towards 0
    }
}

// The same where an addend is not finite, and the sum neither.
template <int COUNT>
float sum_not_finite(float c, const Factors<COUNT, ROWS> &a, int row,
                     const Factors<COUNT, COLUMNS> &b, int column) {
    double sum = c;
    for (int k = 0; k < COUNT; k++)
        sum += (double)a.value[k][row] * b.value[k][column];
    return (float)sum;
}

// What a lane shows the others of its warp for a product. The first of them to go on makes all of C those of D.
struct Registers {
    uint32_t a[4], b[2], c[4], multiplied, unused[5];
};
static_assert(sizeof(Registers) == sizeof(emulator::Words));

template <class Type, int COUNT, int LINES>
void set_factors(Factors<COUNT, LINES> &factors, int line, int word, uint32_t bits) {
    for (int i = 0; i < Type::IN_WORD; i++) {
        int k = word * Type::IN_WORD + i;
        float value = Type::at(bits, i);
        factors.value[k][line] = value;
        factors.exponent[k][line] = value != 0 ? exponent_of(value) : 2 * LEAST_EXPONENT;
    }
}

template <int COUNT, int LINES> void find_finite(Factors<COUNT, LINES> &factors) {
    int largest[LINES] = {};
    for (int k = 0; k < COUNT; k++)
        for (int line = 0; line < LINES; line++)
            largest[line] = std::max(largest[line], factors.exponent[k][line]);
    for (int line = 0; line < LINES; line++)
        factors.finite[line] = largest[line] <= 127;
}

// C += A B of 16 x 8: A has DEPTHS times four words in a row, B in a column. Lane 4 g + t holds word t of rows g and
// g + 8 of A, of column g of B, for each depth, a[2 depth + half], b[depth]; columns 2 t and 2 t + 1 of rows g and g + 8
// of C, c[2 half + one].
template <class Type, int DEPTHS> void multiply_warp(Registers *lanes) {
    constexpr int COUNT = 4 * DEPTHS * Type::IN_WORD;
    Factors<COUNT, ROWS> a;
    Factors<COUNT, COLUMNS> b;
    for (int lane = 0; lane < 32; lane++)
        for (int depth = 0; depth < DEPTHS; depth++) {
            int g = lane / 4, word = 4 * depth + lane % 4;
            set_factors<Type>(a, g, word, lanes[lane].a[2 * depth]);
            set_factors<Type>(a, g + 8, word, lanes[lane].a[2 * depth + 1]);
            set_factors<Type>(b, g, word, lanes[lane].b[depth]);
        }
    find_finite(a);
    find_finite(b);
    for (int row = 0; row < ROWS; row++) {
        auto c_at = [&](int column) -> uint32_t & {
            return lanes[row % 8 * 4 + column / 2].c[row / 8 * 2 + column % 2];
        };
        float c[COLUMNS];
        bool finite[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) {
            c[j] = __uint_as_float(c_at(j));
            finite[j] = a.finite[row] && b.finite[j] && fabsf(c[j]) <= FLT_MAX;
        }
        if (std::all_of(finite, finite + COLUMNS, [](bool yes) { return yes; })) {
            add_as_tensor_core<COLUMNS>(c, a, row, b, 0);
        } else {
            for (int j = 0; j < COLUMNS; j++)
                if (finite[j]) {
                    add_as_tensor_core<1>(c + j, a, row, b, j);
                } else {
                    c[j] = sum_not_finite(c[j], a, row, b, j);
                }
        }
        for (int j = 0; j < COLUMNS; j++)
            c_at(j) = __float_as_uint(c[j]);
    }
}

template <class Type, int DEPTHS>
void multiply(float *const c[4], const unsigned a[2 * DEPTHS], const unsigned b[DEPTHS]) {
    Registers mine = {};
    std::copy_n(a, 2 * DEPTHS, mine.a);
    std::copy_n(b, DEPTHS, mine.b);
    for (int i = 0; i < 4; i++)
        mine.c[i] = __float_as_uint(*c[i]);
    exchange(~0u, mine, [&](emulator::Words *words) {
        Registers *lanes = (Registers *)words;
        if (!lanes->multiplied) multiply_warp<Type, DEPTHS>(lanes);
        lanes->multiplied = 1;
        for (int i = 0; i < 4; i++)
            *c[i] = __uint_as_float(lanes[threadIdx.x % 32].c[i]);
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
#define MMA(name, Type)                                                                            \
    void ptx_mma_sync_aligned_##name(const char *, float &c0, float &c1, float &c2, float &c3,     \
                                     unsigned a0, unsigned a1, unsigned b) {                       \
        float *const c[] = {&c0, &c1, &c2, &c3};                                                   \
        const unsigned a[] = {a0, a1};                                                             \
        multiply<Type, 1>(c, a, &b);                                                               \
    }
MMA(m16n8k8_row_col_f32_f16_f16_f32, F16)
MMA(m16n8k8_row_col_f32_bf16_bf16_f32, BF16)
#undef MMA
