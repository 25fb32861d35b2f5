// The words of CUDA C++ that the kernels use, for g++.
#pragma once
#include "emulator.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#define __CUDACC__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::max;
using std::min;

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

template <class To, class From> To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned bits) {
    return same_bits<float>(bits);
}
inline float __int_as_float(int bits) {
    return same_bits<float>(bits);
}
inline int __float_as_int(float value) {
    return same_bits<int>(value);
}
inline unsigned __float_as_uint(float value) {
    return same_bits<unsigned>(value);
}
inline double __longlong_as_double(long long bits) {
    return same_bits<double>(bits);
}

inline float __expf(float x) {
    return expf(x);
}
inline float __log2f(float x) {
    return log2f(x);
}
inline float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1 / sqrt(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}

inline size_t __cvta_generic_to_shared(const void *pointer) {
    return emulator::shared_address(pointer);
}

inline void __syncthreads() {
    emulator::block_barrier();
}
template <class Value> Value __ldg(const Value *from) {
    return *from;
}
inline void __syncwarp() {
    emulator::lane_barrier(~0u);
}
inline int __syncthreads_or(int value) {
    static int any;
    __syncthreads();
    any = 0;
    __syncthreads();
    any |= value;
    __syncthreads();
    return any;
}

// Every lane shows a value; read(words) then looks at those of the others.
template <class Value, class Read> auto exchange(unsigned lanes, const Value &value, Read read) {
    static_assert(sizeof value <= sizeof(emulator::Words));
    emulator::Words *words = emulator::lane_words(lanes);
    memcpy(words[threadIdx.x % 32], &value, sizeof value);
    emulator::lane_barrier(lanes);
    return read(words);
}

template <class Value> Value __shfl_sync(unsigned lanes, Value value, int lane, int width = 32) {
    static_assert(sizeof value <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    unsigned first = threadIdx.x % 32 & -(unsigned)width;
    bits = emulator::shuffle(lanes, bits, first + ((unsigned)lane & ((unsigned)width - 1)));
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class Value> Value __shfl_xor_sync(unsigned lanes, Value value, int other) {
    static_assert(sizeof value <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulator::shuffle(lanes, bits, threadIdx.x % 32 ^ (unsigned)other);
    memcpy(&value, &bits, sizeof value);
    return value;
}
// Of numbers, which is what most are, with the rest of the longer functions: compiled once, with optimisation.
float __shfl_sync(unsigned lanes, float value, int lane, int width = 32);
float __shfl_xor_sync(unsigned lanes, float value, int other);
unsigned __shfl_sync(unsigned lanes, unsigned value, int lane, int width = 32);
unsigned __shfl_xor_sync(unsigned lanes, unsigned value, int other);
int __shfl_sync(unsigned lanes, int value, int lane, int width = 32);
int __shfl_xor_sync(unsigned lanes, int value, int other);
int __reduce_max_sync(unsigned lanes, int value);
int __reduce_min_sync(unsigned lanes, int value);
unsigned __ballot_sync(unsigned lanes, bool set);
inline int __any_sync(unsigned mask, bool set) {
    return __ballot_sync(mask, set) != 0;
}
inline int __all_sync(unsigned mask, bool set) {
    return __ballot_sync(mask, set) == ~0u;
}

inline unsigned atomicAdd(unsigned *to, unsigned value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float *to, float value) {
    float before = *to; // fibers of one thread
    *to += value;
    return before;
}
inline unsigned atomicOr(unsigned *to, unsigned bits) {
    return __atomic_fetch_or(to, bits, __ATOMIC_RELAXED);
}

// Calls a kernel with the parameters that a launch points to.
template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), void **parameters, std::index_sequence<I...>) {
    kernel(*(std::remove_const_t<Parameters> *)parameters[I]...);
}
template <class... Parameters> void call(void (*kernel)(Parameters...), void **parameters) {
    call(kernel, parameters, std::index_sequence_for<Parameters...>());
}
