// The PTX instructions that the kernels use up to sm_80, one function each: what compiler.cpp makes of `asm`. The first
// argument is the statement's text, the others are its operands, outputs first. Those of more than a line are in ptx.cpp:
// compiled once, and not with each kernel.
#pragma once
#include "cuda_language.h"
#include "dtype.h"

// ---- conversions ----

void ptx_cvt_f32_f16(const char *, float &to, uint16_t from);
void ptx_cvt_rn_f16_f32(const char *, uint16_t &to, float from);
void ptx_cvt_rn_bf16_f32(const char *, uint16_t &to, float from);
void ptx_cvt_rn_f16x2_f32(const char *, unsigned &to, float high, float low);
void ptx_cvt_rn_bf16x2_f32(const char *, unsigned &to, float high, float low);
void ptx_cvt_rna_tf32_f32(const char *, unsigned &to, float from);
inline void ptx_bar_sync(const char *, unsigned name, unsigned threads) {
    emulator::named_barrier(name, threads);
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
inline void ptx_max_NaN_f32(const char *, float &to, float a, float b) {
    to = a != a || a > b ? a : b;
}
inline void ptx_add_u32(const char *, unsigned &to, unsigned a, unsigned b) {
    to = a + b;
}
inline void ptx_mov_u32(const char *, unsigned &to) {
    to = threadIdx.x; // the only register that is read so
}

// ---- asynchronous copies ----

void ptx_cp_async_cg_shared_global(const char *, unsigned to, const void *from,
                                   unsigned valid_bytes);
void ptx_cp_async_ca_shared_global(const char *text, unsigned to, const void *from,
                                   unsigned valid_bytes);
void ptx_cp_async_commit_group(const char *);
void ptx_cp_async_wait_group(const char *, unsigned pending);
void ptx_cp_async_wait_all(const char *);

// ---- matrices ----

void ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(const char *, unsigned &a, unsigned &b,
                                                  unsigned row);
void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned &a, unsigned &b,
                                                  unsigned &c, unsigned &d, unsigned row);
void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned &a, unsigned &b,
                                                        unsigned &c, unsigned &d, unsigned row);
void ptx_ld_shared_v4_u32(const char *, unsigned &a, unsigned &b, unsigned &c, unsigned &d,
                          unsigned from);
void ptx_st_global_v4_u32(const char *, void *to, unsigned a, unsigned b, unsigned c, unsigned d);
void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(const char *, unsigned row, unsigned a,
                                                  unsigned b, unsigned c, unsigned d);
void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const char *, unsigned row, unsigned a,
                                                        unsigned b, unsigned c, unsigned d);

#define MMA(name)                                                                                  \
    void ptx_mma_sync_aligned_##name(const char *, float &c0, float &c1, float &c2, float &c3,     \
                                     unsigned a0, unsigned a1, unsigned a2, unsigned a3,           \
                                     unsigned b0, unsigned b1);
MMA(m16n8k16_row_col_f32_f16_f16_f32)
MMA(m16n8k16_row_col_f32_bf16_bf16_f32)
MMA(m16n8k8_row_col_f32_tf32_tf32_f32)
#undef MMA
#define MMA(name)                                                                                  \
    void ptx_mma_sync_aligned_##name(const char *, float &c0, float &c1, float &c2, float &c3,     \
                                     unsigned a0, unsigned a1, unsigned b);
MMA(m16n8k8_row_col_f32_f16_f16_f32)
MMA(m16n8k8_row_col_f32_bf16_bf16_f32)
#undef MMA
