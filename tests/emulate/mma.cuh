/* kernels/mma.cuh on a CPU: the same functions, lane by lane as the PTX manual lays out the fragments. */
#ifndef NH_MMA_CUH
#define NH_MMA_CUH

#define NH_DEVICE static inline

NH_DEVICE unsigned nh_shared_address(const void *shared) {
    return (unsigned)((const char *)shared - emulated::shared);
}

NH_DEVICE void nh_copy16(void *shared, const void *global, bool valid) {
    emulated::start_copy(shared, global, 16, valid);
}
NH_DEVICE void nh_copy4(void *shared, const void *global, bool valid) {
    emulated::start_copy(shared, global, 4, valid);
}
NH_DEVICE void nh_copy_commit() {
    emulated::commit_copies();
}
template <int pending> NH_DEVICE void nh_copy_wait_groups() {
    emulated::finish_copies(pending);
}
NH_DEVICE void nh_copy_wait() {
    emulated::commit_copies();
    emulated::finish_copies(0);
}

struct nh_matrix_row {
    unsigned short element[8];
};

NH_DEVICE void nh_load_emulated(unsigned fragment[4], const void *row, bool transposed) {
    if ((uintptr_t)row % 16) emulated::fail("misaligned matrix row");
    int g = emulated::current % 32 / 4, t = emulated::current % 4;
    emulated::show(*(const nh_matrix_row *)row);
    for (int i = 0; i < 4; i++) {
        unsigned short pair[2];
        for (int e = 0; e < 2; e++)
            pair[e] = transposed
                          ? emulated::shown_by<nh_matrix_row>(8 * i + 2 * t + e).element[g]
                          : emulated::shown_by<nh_matrix_row>(8 * i + g).element[2 * t + e];
        memcpy(&fragment[i], pair, sizeof pair);
    }
    emulated::wait_lanes(~0u);
}
NH_DEVICE void nh_load_matrices(unsigned fragment[4], const void *row) {
    nh_load_emulated(fragment, row, false);
}
NH_DEVICE void nh_load_matrices_at(unsigned fragment[4], unsigned row) {
    nh_load_emulated(fragment, emulated::shared + row, false);
}
NH_DEVICE void nh_load_matrices_transposed(unsigned fragment[4], const void *row) {
    nh_load_emulated(fragment, row, true);
}

struct nh_operands {
    unsigned a[4], b[2];
};

/* Element i of the two in a register. */
NH_DEVICE float nh_f16_of(unsigned pair, int i) {
    float value;
    ptx_cvt_f32_f16(value, (unsigned short)(pair >> 16 * i));
    return value;
}
NH_DEVICE float nh_bf16_of(unsigned pair, int i) {
    return __uint_as_float(pair >> 16 * i << 16);
}
/* The hardware does not look at the bits that TF32 lacks. */
NH_DEVICE float nh_tf32_of(unsigned bits, int) {
    return __uint_as_float(bits & ~0x1fffu);
}

/* `packed` elements share a register: two of 16 bits, so that a product is 16 deep, or one of TF32, 8 deep. */
template <int packed, float (*element)(unsigned, int)>
NH_DEVICE void nh_mma_emulated(float c[4], const unsigned a[4], const unsigned b[2]) {
    int g = emulated::current % 32 / 4, t = emulated::current % 4;
    nh_operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    emulated::show(mine);
    for (int i = 0; i < 4; i++) {
        int row = g + i / 2 * 8, column = 2 * t + i % 2;
        double sum = c[i];
        for (int k = 0; k < 8 * packed; k++) {
            int lane = k % (4 * packed) / packed, half = k / (4 * packed);
            sum += (double)element(emulated::shown_by<nh_operands>(row % 8 * 4 + lane)
                                       .a[row / 8 + 2 * half],
                                   k % packed) *
                   element(emulated::shown_by<nh_operands>(column * 4 + lane).b[half], k % packed);
        }
        c[i] = (float)sum;
    }
    emulated::wait_lanes(~0u);
}
NH_DEVICE void nh_mma_f16(float c[4], const unsigned a[4], const unsigned b[2]) {
    nh_mma_emulated<2, nh_f16_of>(c, a, b);
}
NH_DEVICE void nh_mma_bf16(float c[4], const unsigned a[4], const unsigned b[2]) {
    nh_mma_emulated<2, nh_bf16_of>(c, a, b);
}
NH_DEVICE void nh_mma_tf32(float c[4], const unsigned a[4], const unsigned b[2]) {
    nh_mma_emulated<1, nh_tf32_of>(c, a, b);
}

NH_DEVICE unsigned nh_to_tf32(float value) {
    unsigned bits = __float_as_uint(value);
    return std::isfinite(value) ? (bits + 0x1000) & ~0x1fffu : bits;
}
NH_DEVICE float nh_exp2(float x) {
    return std::exp2(x);
}
NH_DEVICE unsigned nh_thread_again() {
    return (unsigned)emulated::current;
}

#endif
