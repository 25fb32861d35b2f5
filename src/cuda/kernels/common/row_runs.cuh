/* Runs of rows. A kernel that moves rows and computes next to nothing would spend most instructions on finding out
 * where each row is. So a group of lanes takes several rows that follow each other along the last axis, finds the first
 * one, and moves its pointers from one to the next. */
#pragma once
#include "naive.cuh"

/* Calls Take::rows<COUNT>(args, query) for COUNT queries that follow each other along the last axis, beginning with
 * `query`: COUNT is ROWS or, at the end of a line and where lines are not `straight`, 1. */
template <int ROWS, class Take, class Args> NH_DEVICE void nh_for_runs(const Args &args, bool straight) {
    const long long count = args.batch * args.heads * nh_token_count(args);
    long long end = args.axis[2].length;
    if constexpr (NH_REGIONS) end = args.region[2].query.offset + args.region[2].query.length;
    for (long long run = nh_first_row(); run * ROWS < count; run += nh_row_step()) {
        const long long after = (run + 1) * ROWS, run_end = after < count ? after : count;
        NH_UNROLL_1 for (long long row = run * ROWS; row < run_end;) {
            const nh_query query = nh_query_of(args, row, args.heads);
            if (straight && row + ROWS == run_end && query.at[2] + ROWS <= end) {
                Take::template rows<ROWS>(args, query);
                break;
            }
            Take::template rows<1>(args, query);
            row++;
        }
    }
}
