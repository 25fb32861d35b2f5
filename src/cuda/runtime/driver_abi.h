/* The part of the CUDA driver's ABI that nhood calls, declared here so that the library builds without a toolkit.
 * tests/cuda_host checks every name and value against cuda.h where one is installed. */
#ifndef NH_DRIVER_ABI_H
#define NH_DRIVER_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nh_cu_result; /* CUresult */
typedef int nh_cu_device; /* CUdevice */
typedef unsigned long long nh_cu_pointer;
typedef struct CUctx_st *nh_cu_context;
typedef struct CUlib_st *nh_cu_library;
typedef struct CUkern_st *nh_cu_kernel;
typedef struct CUfunc_st *nh_cu_function;
typedef struct CUstream_st *nh_cu_stream;
typedef struct CUevent_st *nh_cu_event;

enum {
    NH_CU_SUCCESS = 0,
    NH_CU_ERROR_NO_DEVICE = 100,
    NH_CU_ERROR_INVALID_CONTEXT = 201,
};

enum {
    NH_CU_ATTRIBUTE_CLOCK_RATE = 13,
    NH_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
    NH_CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
    NH_CU_ATTRIBUTE_L2_BYTES = 38,
    NH_CU_ATTRIBUTE_MAJOR = 75,
    NH_CU_ATTRIBUTE_MINOR = 76,
    NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR = 81,
    NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK = 97,
};

enum { NH_CU_FUNCTION_SHARED_BYTES = 8, NH_CU_CAPTURE_RELAXED = 2 };
enum { NH_CU_EVENT_DEFAULT = 0, NH_CU_STREAM_NON_BLOCKING = 1 };

/* CUlaunchAttribute */
struct nh_cu_launch_attribute {
    int id, pad, value[16];
};
enum {
    NH_CU_LAUNCH_CLUSTER = 4,  /* CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: x, y and z */
    NH_CU_LAUNCH_OVERLAPS = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
};

/* CUlaunchConfig */
struct nh_cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    nh_cu_stream stream;
    struct nh_cu_launch_attribute *attribute;
    unsigned attributes;
};

/* CUtensorMap: opaque, 128 bytes, aligned to 128 as CUDA 13 asks; before, 64 was enough. */
struct nh_cu_tensor_map {
    _Alignas(128) uint64_t word[16];
};
enum { NH_CU_TENSOR_FLOAT16 = 6, NH_CU_TENSOR_FLOAT32 = 7, NH_CU_TENSOR_BFLOAT16 = 9 };
enum { NH_CU_TENSOR_SWIZZLE_32B = 1, NH_CU_TENSOR_SWIZZLE_64B, NH_CU_TENSOR_SWIZZLE_128B };
enum { NH_CU_TENSOR_PROMOTE_NONE = 0, NH_CU_TENSOR_PROMOTE_128B = 2, NH_CU_TENSOR_PROMOTE_256B };

#endif
