/* Measures the peak rate of a multiprocessor: multiply-adds in registers and nothing else. NH_PEAK 0: FMA of `real`; 1:
 * tensor cores by mma.sync. sm_90 needs wgmma for its full rate: peak90.cu. */
#include "prelude.cuh"

#define CHAINS 8

extern "C" __global__ void __launch_bounds__(256) peak(long long rounds, float *out) {
#if NH_PEAK == 0
    real a[CHAINS], x = (real)threadIdx.x, y = (real)0.5;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        a[i] = (real)i;
    for (long long r = 0; r < rounds; r++)
#pragma unroll
        for (int repeat = 0; repeat < 4; repeat++)
#pragma unroll
            for (int i = 0; i < CHAINS; i++)
                a[i] = a[i] * y + x;
    real sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += a[i];
    if (sum == (real)-1) out[0] = 1;
#else
    float c[CHAINS][4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};
    for (long long r = 0; r < rounds; r++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                         "{%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == -1.0f) out[0] = 1;
#endif
}
