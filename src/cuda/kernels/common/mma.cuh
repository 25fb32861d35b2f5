/* Tensor core and asynchronous copy instructions of sm_80 and later, one function per instruction.
 *
 * Fragments, by lane (g = lane / 4, t = lane % 4), as the PTX manual lays them out:
 *     accumulators of 16x8: c[0..1] at row g, columns 2t and 2t+1; c[2..3] the same of row g + 8
 *     16-bit A of 16x16: a[0] row g, a[1] row g + 8, columns 2t, 2t+1; a[2..3] the same 8 columns on
 *     16-bit B of 16x8: b[0] rows 2t, 2t+1 of column g; b[1] the same 8 rows down
 *     TF32 A of 16x8: a[0] (g, t), a[1] (g + 8, t), a[2] (g, t + 4), a[3] (g + 8, t + 4)
 *     TF32 B of 8x8: b[0] (t, g), b[1] (t + 4, g) */
#ifndef NH_MMA_CUH
#define NH_MMA_CUH

#include "prelude.cuh"

NH_DEVICE unsigned nh_shared_address(const void *shared) {
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* Copies 16 bytes to shared memory, bypassing L1; if not `valid`, zeros. Both addresses are multiples of 16. */
NH_DEVICE void nh_copy16_at(unsigned shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}
NH_DEVICE void nh_copy16(void *shared, const void *global, bool valid) {
    nh_copy16_at(nh_shared_address(shared), global, valid);
}

/* The same for 8 bytes, through L1. */
NH_DEVICE void nh_copy8(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(nh_shared_address(shared)), "l"(global),
                 "r"(valid ? 8 : 0)
                 : "memory");
}

/* The same for 4 bytes, through L1. */
NH_DEVICE void nh_copy4(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(nh_shared_address(shared)), "l"(global),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* Waits for all of this thread's copies; a barrier then makes them visible to the others. */
NH_DEVICE void nh_copy_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* nh_copy_commit closes a group of this thread's copies; the other waits until at most `pending` are in flight. */
NH_DEVICE void nh_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending> NH_DEVICE void nh_copy_wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* Loads four 8x8 matrices of 16-bit elements: lanes 8i .. 8i + 7 give the addresses of the rows of matrix i. Each lane
 * gets elements 2t and 2t + 1 of row g of each. */
NH_DEVICE void nh_load_matrices_at(unsigned fragment[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row)
                 : "memory");
}

NH_DEVICE void nh_load_matrices(unsigned fragment[4], const void *row) {
    nh_load_matrices_at(fragment, nh_shared_address(row));
}

/* Loads two matrices, whose rows' addresses lanes 0 .. 15 give; those of other lanes are not used. */
NH_DEVICE void nh_load_two_matrices_at(unsigned fragment[2], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(row)
                 : "memory");
}

/* The same as nh_load_matrices_at, each matrix transposed: rows 2t and 2t + 1 of column g. */
NH_DEVICE void nh_load_matrices_transposed_at(unsigned fragment[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row)
                 : "memory");
}

NH_DEVICE void nh_load_matrices_transposed(unsigned fragment[4], const void *row) {
    nh_load_matrices_transposed_at(fragment, nh_shared_address(row));
}

/* The inverse of nh_load_matrices_at, for sm_90 and later: elements of row g go to the rows at the lanes' addresses. */
NH_DEVICE void nh_store_matrices_at(unsigned row, const unsigned fragment[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(fragment[0]),
                 "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
                 : "memory");
}
NH_DEVICE void nh_store_matrices(void *row, const unsigned fragment[4]) {
    nh_store_matrices_at(nh_shared_address(row), fragment);
}

/* Loads 16 bytes for this lane. */
NH_DEVICE void nh_load_words_at(unsigned word[4], unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(from)
                 : "memory");
}

NH_DEVICE void nh_mma_f16(float c[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

NH_DEVICE void nh_mma_bf16(float c[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same with half the depth: A of 16x8 is a[0] and a[1] of the 16-bit A above, B of 8x8 is b[0]. */
NH_DEVICE void nh_mma_bf16_shallow(float c[4], const unsigned a[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}
NH_DEVICE void nh_mma_f16_shallow(float c[4], const unsigned a[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

NH_DEVICE void nh_mma_tf32(float c[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Rounds to TF32, which has 10 bits of mantissa, to nearest. From sm_90 on there is an instruction that rounds ties to
 * even; rounding ties away from zero takes four instructions on every architecture. */
NH_DEVICE unsigned nh_to_tf32(float value) {
    unsigned bits;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
    return bits;
}

/* Splits value into high + low, to 2^-21 of it. Tensor cores truncate low to TF32. For an infinity, low is NaN, and so
 * are all scores and sums with it: those rows are repaired. */
NH_DEVICE void nh_split_tf32(float value, unsigned *high, unsigned *low) {
    *high = nh_to_tf32(value);
#if !NH_TF32
    *low = __float_as_uint(value - __uint_as_float(*high));
#endif
}

/* 2^x, within 2 units in the last place; exact at 0, and 0 at -infinity. */
NH_DEVICE float nh_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* For normal numbers, to 1 and 2 units in the last place; a reciprocal below 2^-126 is flushed to 0. */
NH_DEVICE float nh_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
NH_DEVICE float nh_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* threadIdx.x, in a way that the compiler takes for a new value each time: what depends on it is computed again instead
 * of kept in registers through a loop. */
NH_DEVICE unsigned nh_thread_again() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

#endif
