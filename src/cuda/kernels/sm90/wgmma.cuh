/* Tensor core products of a warpgroup (sm_90): D[64 x N] += A[64 x 16] B[16 x N], A in shared memory or in registers, B
 * in shared memory, D in registers. One asm statement needs as many operands as D has registers, N / 2, so the lists
 * are composed of blocks of 8. The other operands come first, as read and written: a list numbers outputs before
 * inputs. */
#pragma once
#include "prelude.cuh"

#if NH_DTYPE == NH_F16
#define NH_WGMMA_TYPES "f32.f16.f16"
#else
#define NH_WGMMA_TYPES "f32.bf16.bf16"
#endif

#define NH_PASTE_(a, b) a##b
#define NH_PASTE(a, b) NH_PASTE_(a, b)
#define NH_TEXT_(a) #a
#define NH_TEXT(a) NH_TEXT_(a)

/* Four and eight registers of an array from index i on. */
#define NH_R4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define NH_R8(c, i) NH_R4(c, i), NH_R4(c, i + 4)

/* The registers of D for N = 16 G; those for N = 16 G + 8 have names that end in _HALF. */
#define NH_REGISTERS_1(c) NH_R8(c, 0)
#define NH_REGISTERS_2(c) NH_REGISTERS_1(c), NH_R8(c, 8)
#define NH_REGISTERS_3(c) NH_REGISTERS_2(c), NH_R8(c, 16)
#define NH_REGISTERS_4(c) NH_REGISTERS_3(c), NH_R8(c, 24)
#define NH_REGISTERS_5(c) NH_REGISTERS_4(c), NH_R8(c, 32)
#define NH_REGISTERS_6(c) NH_REGISTERS_5(c), NH_R8(c, 40)
#define NH_REGISTERS_7(c) NH_REGISTERS_6(c), NH_R8(c, 48)
#define NH_REGISTERS_8(c) NH_REGISTERS_7(c), NH_R8(c, 56)
#define NH_REGISTERS_9(c) NH_REGISTERS_8(c), NH_R8(c, 64)
#define NH_REGISTERS_10(c) NH_REGISTERS_9(c), NH_R8(c, 72)
#define NH_REGISTERS_11(c) NH_REGISTERS_10(c), NH_R8(c, 80)
#define NH_REGISTERS_12(c) NH_REGISTERS_11(c), NH_R8(c, 88)
#define NH_REGISTERS_13(c) NH_REGISTERS_12(c), NH_R8(c, 96)
#define NH_REGISTERS_14(c) NH_REGISTERS_13(c), NH_R8(c, 104)
#define NH_REGISTERS_15(c) NH_REGISTERS_14(c), NH_R8(c, 112)
#define NH_REGISTERS_16(c) NH_REGISTERS_15(c), NH_R8(c, 120)
#define NH_REGISTERS_1_HALF(c) NH_REGISTERS_1(c), NH_R4(c, 8)
#define NH_REGISTERS_2_HALF(c) NH_REGISTERS_2(c), NH_R4(c, 16)
#define NH_REGISTERS_3_HALF(c) NH_REGISTERS_3(c), NH_R4(c, 24)
#define NH_REGISTERS_4_HALF(c) NH_REGISTERS_4(c), NH_R4(c, 32)
#define NH_REGISTERS_5_HALF(c) NH_REGISTERS_5(c), NH_R4(c, 40)
#define NH_REGISTERS_6_HALF(c) NH_REGISTERS_6(c), NH_R4(c, 48)
#define NH_REGISTERS_7_HALF(c) NH_REGISTERS_7(c), NH_R4(c, 56)

/* Their numbers if two operands come first. */
#define NH_SHARED_1 "%2, %3, %4, %5, %6, %7, %8, %9"
#define NH_SHARED_2 NH_SHARED_1 ", %10, %11, %12, %13, %14, %15, %16, %17"
#define NH_SHARED_3 NH_SHARED_2 ", %18, %19, %20, %21, %22, %23, %24, %25"
#define NH_SHARED_4 NH_SHARED_3 ", %26, %27, %28, %29, %30, %31, %32, %33"
#define NH_SHARED_5 NH_SHARED_4 ", %34, %35, %36, %37, %38, %39, %40, %41"
#define NH_SHARED_6 NH_SHARED_5 ", %42, %43, %44, %45, %46, %47, %48, %49"
#define NH_SHARED_7 NH_SHARED_6 ", %50, %51, %52, %53, %54, %55, %56, %57"
#define NH_SHARED_8 NH_SHARED_7 ", %58, %59, %60, %61, %62, %63, %64, %65"
#define NH_SHARED_9 NH_SHARED_8 ", %66, %67, %68, %69, %70, %71, %72, %73"
#define NH_SHARED_10 NH_SHARED_9 ", %74, %75, %76, %77, %78, %79, %80, %81"
#define NH_SHARED_11 NH_SHARED_10 ", %82, %83, %84, %85, %86, %87, %88, %89"
#define NH_SHARED_12 NH_SHARED_11 ", %90, %91, %92, %93, %94, %95, %96, %97"
#define NH_SHARED_13 NH_SHARED_12 ", %98, %99, %100, %101, %102, %103, %104, %105"
#define NH_SHARED_14 NH_SHARED_13 ", %106, %107, %108, %109, %110, %111, %112, %113"
#define NH_SHARED_15 NH_SHARED_14 ", %114, %115, %116, %117, %118, %119, %120, %121"
#define NH_SHARED_16 NH_SHARED_15 ", %122, %123, %124, %125, %126, %127, %128, %129"
#define NH_SHARED_1_HALF NH_SHARED_1 ", %10, %11, %12, %13"
#define NH_SHARED_2_HALF NH_SHARED_2 ", %18, %19, %20, %21"
#define NH_SHARED_3_HALF NH_SHARED_3 ", %26, %27, %28, %29"
#define NH_SHARED_4_HALF NH_SHARED_4 ", %34, %35, %36, %37"
#define NH_SHARED_5_HALF NH_SHARED_5 ", %42, %43, %44, %45"
#define NH_SHARED_6_HALF NH_SHARED_6 ", %50, %51, %52, %53"
#define NH_SHARED_7_HALF NH_SHARED_7 ", %58, %59, %60, %61"

/* Their numbers if five operands come first. */
#define NH_HELD_1 "%5, %6, %7, %8, %9, %10, %11, %12"
#define NH_HELD_2 NH_HELD_1 ", %13, %14, %15, %16, %17, %18, %19, %20"
#define NH_HELD_3 NH_HELD_2 ", %21, %22, %23, %24, %25, %26, %27, %28"
#define NH_HELD_4 NH_HELD_3 ", %29, %30, %31, %32, %33, %34, %35, %36"
#define NH_HELD_5 NH_HELD_4 ", %37, %38, %39, %40, %41, %42, %43, %44"
#define NH_HELD_6 NH_HELD_5 ", %45, %46, %47, %48, %49, %50, %51, %52"
#define NH_HELD_7 NH_HELD_6 ", %53, %54, %55, %56, %57, %58, %59, %60"
#define NH_HELD_8 NH_HELD_7 ", %61, %62, %63, %64, %65, %66, %67, %68"
#define NH_HELD_9 NH_HELD_8 ", %69, %70, %71, %72, %73, %74, %75, %76"
#define NH_HELD_10 NH_HELD_9 ", %77, %78, %79, %80, %81, %82, %83, %84"
#define NH_HELD_11 NH_HELD_10 ", %85, %86, %87, %88, %89, %90, %91, %92"
#define NH_HELD_12 NH_HELD_11 ", %93, %94, %95, %96, %97, %98, %99, %100"
#define NH_HELD_13 NH_HELD_12 ", %101, %102, %103, %104, %105, %106, %107, %108"
#define NH_HELD_14 NH_HELD_13 ", %109, %110, %111, %112, %113, %114, %115, %116"
#define NH_HELD_15 NH_HELD_14 ", %117, %118, %119, %120, %121, %122, %123, %124"
#define NH_HELD_16 NH_HELD_15 ", %125, %126, %127, %128, %129, %130, %131, %132"
#define NH_HELD_1_HALF NH_HELD_1 ", %13, %14, %15, %16"
#define NH_HELD_2_HALF NH_HELD_2 ", %21, %22, %23, %24"
#define NH_HELD_3_HALF NH_HELD_3 ", %29, %30, %31, %32"
#define NH_HELD_4_HALF NH_HELD_4 ", %37, %38, %39, %40"
#define NH_HELD_5_HALF NH_HELD_5 ", %45, %46, %47, %48"
#define NH_HELD_6_HALF NH_HELD_6 ", %53, %54, %55, %56"
#define NH_HELD_7_HALF NH_HELD_7 ", %61, %62, %63, %64"

/* D = A B or D += A B, with A, K-major, and B, K-major or, transposed, MN-major, in shared memory, given by
 * descriptors. n16: N / 16, a literal, or G_HALF for N = 16 G + 8. */
#define NH_WGMMA_SHARED(n16, n, c, a, b, accumulate, transposed)                                   \
    do {                                                                                           \
        unsigned long long a_ = (a), b_ = (b);                                                     \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " NH_TEXT(accumulate) ", 0; "                  \
                     "wgmma.mma_async.sync.aligned.m64n" NH_TEXT(n) "k16." NH_WGMMA_TYPES " {"       \
                     NH_PASTE(NH_SHARED_, n16) "}, %0, %1, p, 1, 1, 0, "                           \
                     NH_TEXT(transposed) ";}"                                                      \
                     : "+l"(a_), "+l"(b_), NH_PASTE(NH_REGISTERS_, n16)(c));                       \
    } while (0)

/* D = A B or D += A B with A in registers; B in shared memory, K-major or, transposed, MN-major. */
#define NH_WGMMA_HELD(n16, n, c, a, b, accumulate, transposed)                                     \
    NH_WGMMA_HELD_OF(NH_WGMMA_TYPES, n16, n, c, a, b, accumulate, transposed)

/* The same for other types of D, A and B than those of the kernel. */
#define NH_WGMMA_HELD_OF(types, n16, n, c, a, b, accumulate, transposed)                           \
    do {                                                                                           \
        unsigned long long b_ = (b);                                                               \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " NH_TEXT(accumulate) ", 0; "                  \
                     "wgmma.mma_async.sync.aligned.m64n" NH_TEXT(n) "k16." types " {"                \
                     NH_PASTE(NH_HELD_, n16) "}, {%0, %1, %2, %3}, %4, p, 1, 1, "                  \
                     NH_TEXT(transposed) ";}"                                                      \
                     : "+r"((a)[0]), "+r"((a)[1]), "+r"((a)[2]), "+r"((a)[3]), "+l"(b_),            \
                       NH_PASTE(NH_REGISTERS_, n16)(c));                                           \
    } while (0)

/* The sizes N, and what the names of their lists end in. */
#define NH_WGMMA_SIZES(SIZE)                                                                       \
    SIZE(16, 1) SIZE(24, 1_HALF) SIZE(32, 2) SIZE(40, 2_HALF) SIZE(48, 3) SIZE(56, 3_HALF)         \
    SIZE(64, 4) SIZE(72, 4_HALF) SIZE(80, 5) SIZE(88, 5_HALF) SIZE(96, 6) SIZE(104, 6_HALF)        \
    SIZE(112, 7) SIZE(120, 7_HALF) SIZE(128, 8) SIZE(144, 9) SIZE(160, 10) SIZE(176, 11)           \
    SIZE(192, 12) SIZE(208, 13) SIZE(224, 14) SIZE(240, 15) SIZE(256, 16)

__device__ constexpr bool nh_wgmma_has(int n) {
    return n >= 16 && n <= 256 && n % (n < 128 ? 8 : 16) == 0;
}

/* D = A B or, with ACCUMULATE, D += A B, 64 x N, both operands in shared memory. TRANSPOSED: B is MN-major. */
template <int N, int ACCUMULATE, int TRANSPOSED>
__device__ __forceinline__ void nh_wgmma_shared(float *d, unsigned long long a, unsigned long long b) {
    static_assert(nh_wgmma_has(N), "a size in the list above");
#define NH_SIZE(n, blocks)                                                                         \
    if constexpr (N == n && ACCUMULATE && TRANSPOSED) NH_WGMMA_SHARED(blocks, n, d, a, b, 1, 1);   \
    if constexpr (N == n && ACCUMULATE && !TRANSPOSED) NH_WGMMA_SHARED(blocks, n, d, a, b, 1, 0);  \
    if constexpr (N == n && !ACCUMULATE && TRANSPOSED) NH_WGMMA_SHARED(blocks, n, d, a, b, 0, 1);  \
    if constexpr (N == n && !ACCUMULATE && !TRANSPOSED) NH_WGMMA_SHARED(blocks, n, d, a, b, 0, 0);
    NH_WGMMA_SIZES(NH_SIZE)
#undef NH_SIZE
}

/* The same with A in registers. */
template <int N, int ACCUMULATE, int TRANSPOSED>
__device__ __forceinline__ void nh_wgmma_held(float *d, unsigned *a, unsigned long long b) {
    static_assert(nh_wgmma_has(N), "a size in the list above");
#define NH_SIZE(n, blocks)                                                                         \
    if constexpr (N == n && ACCUMULATE && TRANSPOSED) NH_WGMMA_HELD(blocks, n, d, a, b, 1, 1);     \
    if constexpr (N == n && ACCUMULATE && !TRANSPOSED) NH_WGMMA_HELD(blocks, n, d, a, b, 1, 0);    \
    if constexpr (N == n && !ACCUMULATE && !TRANSPOSED) NH_WGMMA_HELD(blocks, n, d, a, b, 0, 0);
    NH_WGMMA_SIZES(NH_SIZE)
#undef NH_SIZE
}

/* D = A B with A in registers, A and B of bf16 whatever the kernel's type. */
template <int N> __device__ __forceinline__ void nh_wgmma_held_bf16(float *d, unsigned *a, unsigned long long b) {
    static_assert(nh_wgmma_has(N), "a size in the list above");
#define NH_SIZE(n, blocks)                                                                         \
    if constexpr (N == n) NH_WGMMA_HELD_OF("f32.bf16.bf16", blocks, n, d, a, b, 0, 0);
    NH_WGMMA_SIZES(NH_SIZE)
#undef NH_SIZE
}

__device__ __forceinline__ void nh_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
__device__ __forceinline__ void nh_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most so many groups are not done. */
template <int GROUPS> __device__ __forceinline__ void nh_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/* Descriptor of a swizzled tile: rows of row_bytes (128 or 64), 8 rows per swizzle atom. leading_bytes: distance of the
 * chunks of a row along N, which only MN-major B needs. */
__device__ __forceinline__ unsigned long long nh_descriptor(unsigned address, unsigned row_bytes,
                                                            unsigned leading_bytes) {
    return (unsigned long long)((address & 0x3ffff) >> 4) |
           (unsigned long long)(leading_bytes >> 4) << 16 |
           (unsigned long long)(8 * row_bytes >> 4) << 32 |
           (unsigned long long)(row_bytes == 128 ? 1 : 2) << 62;
}

/* Stores four 8x8 matrices of 16-bit elements, transposed, to shared memory: lanes 8i .. 8i + 7 give the addresses of
 * the rows of matrix i. Each lane provides elements 2t and 2t + 1 of column g of each. */
__device__ __forceinline__ void nh_store_matrices_across(unsigned row, const unsigned fragment[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(fragment[0]),
                 "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
                 : "memory");
}

__device__ __forceinline__ void nh_store_shared(unsigned to, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
