/* What every kernel starts from: types of storage and arithmetic by NH_DTYPE, conversions, vector loads, and indexing
 * of tokens. No header of CUDA is needed, as conversions are written as single instructions. */
#pragma once
#include "kernel_abi.h"
#include "window.h"

/* How a kernel takes its arguments: by NH_PARAMETER(type) and, first of all, NH_TAKE_MEMBER(type) or, with tensor maps,
 * by NH_PARAMETERS(type, maps) and NH_TAKE_MEMBER_AND_MAPS(type, maps). A kernel whose loop over work tiles may begin
 * with any of them is a function work(args) or work(args, maps), and calls it by NH_FOR_MEMBERS(type, work) or
 * NH_FOR_MEMBERS_WITH_MAPS(type, maps, work) instead. And the number of a block, and of all blocks, along x. Where a
 * launch is for several problems they are those of the block's own. NH_BESIDE: the launch is one of several that need
 * nothing of each other. */
#ifdef NH_BESIDE
#include "overlap.cuh"
#define NH_BEGIN_BESIDE const nh_beside beside;
#else
#define NH_BEGIN_BESIDE
#endif
#ifdef NH_MEMBERS
#include "members.cuh"
#else
#define NH_OWN_BLOCK blockIdx.x
#define NH_OWN_BLOCKS gridDim.x
#define NH_PARAMETER(type) const __grid_constant__ type args
#define NH_TAKE_MEMBER(type) NH_BEGIN_BESIDE
#define NH_PARAMETERS(type, maps_type) const __grid_constant__ type args, const __grid_constant__ maps_type maps
#define NH_TAKE_MEMBER_AND_MAPS(type, maps_type) NH_BEGIN_BESIDE
#define NH_FOR_MEMBERS(type, work) NH_BEGIN_BESIDE work(args);
#define NH_FOR_MEMBERS_WITH_MAPS(type, maps_type, work) NH_BEGIN_BESIDE work(args, maps);
#define NH_DEALS 0 /* members.cuh */
#endif

#define NH_DEVICE static __device__ __forceinline__

/* Before a loop: whether the compiler unrolls it, entirely or not at all. */
#define NH_UNROLL _Pragma("unroll")
#define NH_UNROLL_1 _Pragma("unroll 1")

#define NH_F64 1
#define NH_F32 2
#define NH_F16 3
#define NH_BF16 4
#define NH_ZERO_FILL 8

#define NH_LOG2E 1.4426950408889634
#define NH_LN2 0.6931471805599453

/* 1: long sums are added up in short chains, see nh_cuda_define_long_sums */
#ifndef NH_LONG_SUMS
#define NH_LONG_SUMS 0
#endif

#if NH_DTYPE == NH_F64
typedef double elem;
typedef double real;
#elif NH_DTYPE == NH_F32
typedef float elem;
typedef float real;
#else
typedef unsigned short elem; /* the bits */
typedef float real;
#endif

#define NH_INFINITY __int_as_float(0x7f800000)
#define NH_LOWEST __int_as_float(0xff7fffff) /* the lowest f32 */

/* From here on numbers may round to infinity when they are stored. This is just below the middle between the largest
 * number of a 16-bit type and the next power of two, and leaves room for the rounding of a division. */
#if NH_DTYPE == NH_F64
#define NH_BEYOND_STORAGE 0x1.fffffffffffp1023
#elif NH_DTYPE == NH_F32
#define NH_BEYOND_STORAGE 0x1.fffffp127f
#elif NH_DTYPE == NH_F16
#define NH_BEYOND_STORAGE 65519.f
#else
#define NH_BEYOND_STORAGE 0x1.fefffp127f
#endif

/* From here on, in base 2, scores that weights are relative to are rounded by more than 1/2, so that all weights of a
 * row may be too small for their type, or too large. */
#define NH_FAR_SCORE 0x1p24f

/* From here on, an LSE in base 2 is rounded by so much that weights would be more than 1 by 2 % or, further on, by any
 * factor. Its query's gradients are repaired then: pair by pair, where weights are 1 at most. */
#define NH_FAR_LSE 0x1p20f
#define NH_NAN __int_as_float(0x7fffffff)

/* An LSE in base 2, or its negative, such that weights relative to one that is far from 0 are not finite. */
NH_DEVICE float nh_near_lse(float lse) {
    return fabsf(lse) > NH_FAR_LSE && fabsf(lse) < NH_INFINITY ? NH_NAN : lse;
}

enum { NH_PER_UNIT = 16 / sizeof(elem) }; /* elements in 16 bytes */

#if NH_DTYPE == NH_F64
#define NH_MINUS_INFINITY __longlong_as_double(0xfff0000000000000ll)
NH_DEVICE real nh_exp(real x) { return exp(x); }
NH_DEVICE real nh_log(real x) { return log(x); }
#else
#define NH_MINUS_INFINITY __int_as_float(0xff800000)
NH_DEVICE real nh_exp(real x) { return NH_DTYPE == NH_F32 ? expf(x) : __expf(x); }
NH_DEVICE real nh_log(real x) { return logf(x); }
#endif

NH_DEVICE real nh_load(elem x) {
#if NH_DTYPE == NH_F16
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#elif NH_DTYPE == NH_BF16
    return __uint_as_float((unsigned)x << 16);
#else
    return x;
#endif
}

NH_DEVICE elem nh_store(real x) {
#if NH_DTYPE == NH_F16
    elem y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#elif NH_DTYPE == NH_BF16
    elem y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    return x;
#endif
}

/* Stores 16 bytes at once. From words in registers, the compiler would make four stores. */
NH_DEVICE void nh_store_words(elem *to, const unsigned word[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

/* Packs two values of 16 bits, the first in the low half. */
NH_DEVICE unsigned nh_pack(float low, float high) {
    unsigned both;
#if NH_DTYPE == NH_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

/* Adds a term to a sum (Kahan summation). lost: the rounding error so far, to be subtracted from the next term. */
NH_DEVICE void nh_add_compensated(real &sum, real &lost, real term) {
    const real exact = term - lost, larger = sum + exact;
    lost = larger - sum - exact;
    sum = larger;
}

/* Rounds to the storage type, as P is rounded before P V. */
NH_DEVICE real nh_round(real x) {
    return nh_load(nh_store(x));
}

/* The larger of a magnitude and that of x; NaN if one of them is. */
NH_DEVICE float nh_larger(float magnitude, float x) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(magnitude), "f"(fabsf(x)));
    return y;
}

/* Up to 16 bytes that are moved by one instruction. */
template <int COUNT> struct alignas(COUNT * sizeof(elem)) nh_vector { elem at[COUNT]; };

template <int COUNT> NH_DEVICE void nh_load_vector(const elem *from, real to[COUNT]) {
    nh_vector<COUNT> v = *(const nh_vector<COUNT> *)from;
    NH_UNROLL for (int i = 0; i < COUNT; i++)
        to[i] = nh_load(v.at[i]);
}

template <int COUNT> NH_DEVICE void nh_store_vector(elem *to, const real from[COUNT]) {
    nh_vector<COUNT> v;
    NH_UNROLL for (int i = 0; i < COUNT; i++)
        v.at[i] = nh_store(from[i]);
    *(nh_vector<COUNT> *)to = v;
}

NH_DEVICE elem *nh_row(const nh_cuda_tensor &t, long long batch, const long long at[3], long long head) {
    return (elem *)t.data + batch * t.batch + at[0] * t.axis[0] + at[1] * t.axis[1] + at[2] * t.axis[2] + head * t.head;
}

/* An element of a tensor that holds one `real` per token and head: LSE, its gradient, delta. */
NH_DEVICE real *nh_scalar(const nh_cuda_tensor &t, long long batch, const long long at[3], long long head) {
    return (real *)t.data + batch * t.batch + at[0] * t.axis[0] + at[1] * t.axis[1] + at[2] * t.axis[2] + head * t.head;
}

/* Returns the quotient and leaves the remainder in *index. Most indices fit 32 bits, where division is cheap. */
NH_DEVICE long long nh_split(long long *index, long long divisor) {
    long long quotient;
    if (((*index | divisor) >> 32) == 0) {
        quotient = (unsigned)*index / (unsigned)divisor;
    } else {
        quotient = *index / divisor;
    }
    *index -= quotient * divisor;
    return quotient;
}
