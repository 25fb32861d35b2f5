/* The statistics of a query that the fused backward passes need: LSE in base 2 as nh_near_lse() makes it, delta =
 * rowsum(dO * O) - dLSE, LSE in base 2 as it is, and a zero, as the copy engine moves 16 bytes. [B, H, X, Y, Z, 4],
 * f32. Also clears the query's sums of dQ in memory, in rows of NH_SUM_COLUMNS (0: there are none). */
#include "row_of_config.cuh"

#include "overlap.cuh"
#include "query_sums.cuh"
#include "row_runs.cuh"

struct stats_rows {
    const elem *o, *d_o;
    const real *lse, *d_lse;
    float *stats, *sums;
};

NH_DEVICE stats_rows rows_of(const nh_cuda_args &args, const nh_query &query) {
    const auto row_of = [&](int slot) { return nh_row(args.tensor[slot], query.batch, query.at, query.head); };
    const auto scalar_of = [&](int slot) { return nh_scalar(args.tensor[slot], query.batch, query.at, query.head); };
    return {row_of(NH_O),
            row_of(NH_D_O),
            scalar_of(NH_LSE),
            args.tensor[NH_D_LSE].data ? scalar_of(NH_D_LSE) : nullptr,
            (float *)scalar_of(NH_DELTA),
            NH_SUM_COLUMNS ? nh_sums_row(args, query) : nullptr};
}

/* Moves to the next query along the last axis. */
NH_DEVICE void move(const nh_cuda_args &args, stats_rows &rows) {
    const auto step = [&](int slot) { return args.tensor[slot].axis[2]; };
    rows.o += step(NH_O);
    rows.d_o += step(NH_D_O);
    rows.lse += step(NH_LSE);
    if (rows.d_lse) rows.d_lse += step(NH_D_LSE);
    rows.stats += step(NH_DELTA);
    rows.sums += step(NH_D_Q_SUMS);
}

/* A lane's part of a row of O or dO as it lies in memory: its conversion would wait for it. */
struct row_in_flight {
    nh_vector<ROW.vector> vector[ROW.vectors];
};

NH_DEVICE row_in_flight fetch(const elem *row, long long dim) {
    row_in_flight fetched;
    NH_UNROLL for (int v = 0; v < ROW.vectors; v++) {
        const int column = (v * ROW.group + nh_lane()) * ROW.vector;
        fetched.vector[v] = {};
        if (column < dim) fetched.vector[v] = *(const nh_vector<ROW.vector> *)(row + column);
    }
    return fetched;
}

NH_DEVICE real product(const row_in_flight &a, const row_in_flight &b) {
    real sum = 0;
    NH_UNROLL for (int v = 0; v < ROW.vectors; v++)
        NH_UNROLL for (int i = 0; i < ROW.vector; i++)
            sum += nh_load(a.vector[v].at[i]) * nh_load(b.vector[v].at[i]);
    return sum;
}

struct take {
    /* Fetches all rows before it waits for the first one. */
    template <int COUNT> static __device__ __forceinline__ void rows(const nh_cuda_args &args, const nh_query &query) {
        stats_rows rows = rows_of(args, query);
        row_in_flight o[COUNT], d_o[COUNT];
        float lse[COUNT], d_lse[COUNT], *stats[COUNT];
        NH_UNROLL for (int i = 0; i < COUNT; i++) {
            o[i] = fetch(rows.o, args.dim_v);
            d_o[i] = fetch(rows.d_o, args.dim_v);
            lse[i] = *rows.lse;
            d_lse[i] = rows.d_lse ? *rows.d_lse : 0;
            stats[i] = rows.stats;
            for (int column = 4 * nh_lane(); column < NH_SUM_COLUMNS; column += 4 * ROW.group)
                *(float4 *)(rows.sums + column) = make_float4(0, 0, 0, 0);
            move(args, rows);
        }
        NH_UNROLL for (int i = 0; i < COUNT; i++) {
            const float delta = nh_group_sum(product(d_o[i], o[i])) - d_lse[i];
            /* A query without a key: with any finite number its masked scores have weights of zero. */
            if (NH_REGIONS && lse[i] == NH_MINUS_INFINITY) lse[i] = 0;
            lse[i] *= (float)NH_LOG2E;
            /* Gradients of a bias or of extra tokens are not repaired. */
            const bool repaired = !args.tensor[NH_BIAS].data && !args.extra_tokens;
            const float near = repaired ? nh_near_lse(lse[i]) : lse[i];
            if (nh_lane() == 0) *(float4 *)stats[i] = make_float4(near, delta, lse[i], 0);
        }
    }
};

extern "C" __global__ void __launch_bounds__(ROW.threads) backward_stats(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    nh_let_next_begin();
    unsigned *queue = (unsigned *)args.tensor[NH_QUEUE].data;
    if (queue && NH_OWN_BLOCK == 0 && threadIdx.x < 2) queue[threadIdx.x] = 0;
    /* The sums of a dilated axis lie in the order of its groups. */
    const bool straight = !NH_SUM_COLUMNS || args.axis[2].dilation == 1;
    nh_for_runs<NH_RUN, take>(args, straight);
}
