// driver_abi.h and driver.def against the toolkit's cuda.h. Everything is checked while this compiles: that the symbols
// exist, that parameters agree in number, size and kind, and that constants have the same values.
// src/cuda/runtime has a cuda.h of its own, so that folder is not searched.
#define _Alignas alignas
#include "../../src/cuda/runtime/driver_abi.h"

#include <cuda.h>

#include <cstdio>
#include <type_traits>

namespace {

template <class Ours, class Theirs> constexpr bool same_kind() {
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
}

template <class Ours, class Theirs> struct same_signature : std::false_type {};

template <class Result, class... Ours, class TheirResult, class... Theirs>
struct same_signature<Result (*)(Ours...), TheirResult (*)(Theirs...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(Ours) != sizeof...(Theirs))
            return false;
        else
            return same_kind<Result, TheirResult>() && (same_kind<Ours, Theirs>() && ...);
    }();
};

// Shows that the comparison can fail.
static_assert(same_signature<int (*)(int, void *), CUresult (*)(CUdevice, CUcontext *)>::value);
static_assert(!same_signature<int (*)(int), int (*)(void *)>::value);
static_assert(!same_signature<int (*)(int), int (*)(int, int)>::value);
static_assert(!same_signature<int (*)(int), int (*)(long long)>::value);

#define X(member, symbol, parameters)                                                              \
    static_assert(same_signature<nh_cu_result(*) parameters, decltype(&symbol)>::value, #symbol);
#include "../../src/cuda/runtime/driver.def"
#undef X

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #ours)
SAME(NH_CU_SUCCESS, CUDA_SUCCESS);
SAME(NH_CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(NH_CU_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(NH_CU_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(NH_CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(NH_CU_ATTRIBUTE_MEMORY_BUS_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(NH_CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(NH_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(NH_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(NH_CU_FUNCTION_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(NH_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(NH_CU_LAUNCH_OVERLAPS, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(NH_CU_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME(NH_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(NH_CU_TENSOR_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(NH_CU_TENSOR_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(NH_CU_TENSOR_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_32B);
SAME(NH_CU_TENSOR_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_64B);
SAME(NH_CU_TENSOR_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(NH_CU_TENSOR_PROMOTE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
SAME(NH_CU_TENSOR_PROMOTE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME(NH_CU_TENSOR_PROMOTE_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

static_assert(sizeof(nh_cu_tensor_map) == sizeof(CUtensorMap));
static_assert(alignof(nh_cu_tensor_map) >= alignof(CUtensorMap));
static_assert(sizeof(nh_cu_pointer) == sizeof(CUdeviceptr));
static_assert(sizeof(nh_cu_launch) == sizeof(CUlaunchConfig));
static_assert(offsetof(nh_cu_launch, block) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(nh_cu_launch, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(nh_cu_launch, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(nh_cu_launch, attribute) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(nh_cu_launch, attributes) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(nh_cu_launch_attribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(nh_cu_launch_attribute, value) == offsetof(CUlaunchAttribute, value));

} // namespace

int main() {
    std::printf("the driver's declarations are those of cuda.h %d.%d\n", CUDA_VERSION / 1000,
                CUDA_VERSION % 1000 / 10);
    return 0;
}
