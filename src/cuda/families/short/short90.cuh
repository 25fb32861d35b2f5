/* Whole dilation groups fetched by the copy engine of sm_90, with warp specialization. A ring of stages in shared
 * memory holds the keys, values and queries of a group each. One thread of a producer warp fetches; the consumer warps
 * compute 16 queries at a time on what has landed. No consumer waits for another: it takes the next 16 queries of the
 * block's work tiles, wherever these are in the ring, and releases their stage when it is done with it.
 *
 * A work tile is one group and one query head. If there are few, it is only a part of a group's queries, some of its
 * lines along the first axis (args.tiling.parts), together with all of its keys. Groups are boxes that the engine can
 * fetch: equally long (SHORT_EVEN), or of all kinds that there are (SHORT_BOXES), a token shorter on some axes
 * than the longest, with zeros in place of the missing tokens.
 *
 * Rows lie as the engine writes them: 128 bytes each, or 64 for a head dim of 32, their units of 16 bytes swizzled;
 * wider rows in planes of 64 elements. */
#pragma once

#include "short_queries.cuh"

#include "tma.cuh"

namespace nh_short {

struct nh_maps {
    nh_tensor_map q, k, v;
};

/* The work tile of a stage: on which axes (bits of `kind`) its group is shorter than the longest, and the offsets of
 * the group's first token in O and LSE, in elements. */
struct alignas(16) nh_place {
    long long output, lse;
    int batch, head, key_head, residue[3], kind, part;
};
static_assert(sizeof(nh_place) == SHORT_PLACE_BYTES, "the host's count of shared memory");

/* ---- where things lie ---- */

/* Addresses in shared memory. Rows of a group, and of the queries of a part, are rounded up to a multiple of 16. */
struct nh_ring {
    int rows, own_rows, count; /* the last one: of stages */
    unsigned full, free;       /* barriers */
    nh_place *places;
    unsigned *columns; /* each row as a key, the same in all stages */
    unsigned stages;
    short_ring_layout at;
};

NH_DEVICE unsigned nh_plane_bytes(int rows, int width) {
    return rows * short_line_bytes(width);
}
NH_DEVICE unsigned nh_tensor_bytes(int rows, int width) {
    return rows * short_ring_row_bytes(width);
}

/* Addresses of a stage's tensors. Outputs overwrite queries. */
NH_DEVICE unsigned nh_keys_at(const nh_ring &ring, int stage) {
    return ring.stages + stage * ring.at.stage_bytes;
}
NH_DEVICE unsigned nh_values_at(const nh_ring &ring, int stage) {
    return nh_keys_at(ring, stage) + ring.at.values;
}
NH_DEVICE unsigned nh_queries_at(const nh_ring &ring, int stage) {
    return nh_keys_at(ring, stage) + ring.at.queries;
}

NH_DEVICE char *nh_shared_pointer(unsigned address) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    return nh_shared_memory + (address - nh_shared_address(nh_shared_memory));
}

/* Stages are aligned to the period of the swizzle, 1024 bytes; planes are multiples of it. */
NH_DEVICE nh_ring nh_ring_of(const nh_short_args &args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_ring ring;
    ring.at = short_ring_layout_of(&C, &args.tiling);
    ring.rows = args.tiling.rows;
    ring.own_rows = short_own_rows(&args.tiling);
    ring.count = args.tiling.stages;
    ring.full = nh_shared_address(nh_shared_memory);
    ring.free = ring.full + ring.at.free;
    ring.places = (nh_place *)(nh_shared_memory + ring.at.places);
    ring.columns = (unsigned *)(nh_shared_memory + ring.at.columns);
    ring.stages = (ring.full + ring.at.stages + SHORT_ALIGNMENT - 1) / SHORT_ALIGNMENT * SHORT_ALIGNMENT;
    return ring;
}

/* nh_unit_at: address of a unit of 16 bytes of a row's first plane. nh_step_at: address of the lane's unit of a
 * product's step, given that of step 0: the steps of a plane differ in bits 5 and 6. rows: of a plane. */
template <int WIDTH> NH_DEVICE unsigned nh_unit_at(unsigned rows, int row, int unit) {
    const int swizzle = short_line_bytes(WIDTH) == 128 ? row & 7 : row >> 1 & 3;
    return rows + row * short_line_bytes(WIDTH) + ((unit ^ swizzle) << 4);
}
template <int WIDTH> NH_DEVICE unsigned nh_step_at(int rows, unsigned first, int step) {
    const int steps = short_line_bytes(WIDTH) / 32;
    return (first + step / steps * nh_plane_bytes(rows, WIDTH)) ^ (step % steps * 32);
}

/* ---- work tiles ---- */

NH_DEVICE nh_group nh_group_of_kind(const nh_short_args &args, int kind) {
    nh_group group = {};
    NH_UNROLL for (int a = 0; a < 3; a++)
        group.length[a] = args.tiling.tiles[a] - (kind >> a & 1);
    return group;
}

/* Splits a work tile's number into digits. With SHORT_BOXES residues are slowest: tiles of a kind follow each other. */
NH_DEVICE nh_place nh_place_of(const nh_short_args &args, int number) {
    nh_place place = {};
    unsigned rest = (unsigned)number;
    const auto take = [&](int &digit, unsigned radix) {
        digit = (int)(rest % radix);
        rest /= radix;
    };
    take(place.part, (unsigned)args.tiling.parts);
    take(place.head, (unsigned)args.heads);
    if (C.order == SHORT_BOXES) take(place.batch, (unsigned)args.batch);
    NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS && C.dilated; a--)
        take(place.residue[a], (unsigned)args.axis[a].dilation);
    if (C.order != SHORT_BOXES) place.batch = (int)rest;
    return place;
}

/* Advances by a number of work tiles, which is given by its digits, too, so that no division is needed. */
NH_DEVICE void nh_move(const nh_short_args &args, nh_place &place, const nh_place &by) {
    int carry = 0;
    const auto add = [&](int &digit, int step, int radix) {
        digit += step + carry;
        carry = digit >= radix;
        if (carry) digit -= radix;
    };
    add(place.part, by.part, args.tiling.parts);
    add(place.head, by.head, (int)args.heads);
    if (C.order == SHORT_BOXES) add(place.batch, by.batch, (int)args.batch);
    NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS && C.dilated; a--)
        add(place.residue[a], by.residue[a], (int)args.axis[a].dilation);
    if (C.order != SHORT_BOXES) place.batch += by.batch + carry;
}

/* Computes what else consumers need of a place. */
NH_DEVICE void nh_complete(const nh_short_args &args, nh_place &place) {
    const nh_cuda_tensor &o = args.tensor[NH_O], &lse = args.tensor[NH_LSE];
    place.key_head = args.tiling.heads == 1 ? place.head : place.head / args.tiling.heads;
    place.output = place.batch * o.batch + place.head * o.head;
    place.lse = place.batch * lse.batch + place.head * lse.head;
    place.kind = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3 && C.dilated; a++) {
        place.output += place.residue[a] * o.axis[a];
        place.lse += place.residue[a] * lse.axis[a];
        if (C.order == SHORT_BOXES) place.kind |= (nh_tokens_of(args, a, place.residue[a]) < args.tiling.tiles[a]) << a;
    }
}

template <int LAYOUT, int WIDTH>
NH_DEVICE void nh_fetch_rows(int rows, unsigned to, const nh_tensor_map *map, unsigned barrier, int head, int heads,
                             const int token[3], int batch) {
    int at[5];
    NH_UNROLL for (int plane = 0; plane < short_planes(WIDTH); plane++) {
        ::place<LAYOUT>(at, 64 * plane, head, heads, WIDTH, token, batch);
        nh_copy_box(to + plane * nh_plane_bytes(rows, WIDTH), map, barrier, at);
    }
}

NH_DEVICE void nh_fetch_work_tile(const nh_short_args &args, const nh_maps &maps, const nh_ring &ring, int stage,
                                  const nh_place &place) {
    const unsigned barrier = ring.full + 8 * stage;
    const int heads = (int)args.heads, key_heads = (int)args.kv_heads, key_head = place.key_head;
    const int token[3] = {C.folded ? 0 : place.residue[0], place.residue[C.folded ? 2 : 1],
                          C.folded ? 0 : place.residue[2]};
    const int line = place.part * args.tiling.lines, first_axis = NH_FIRST_AXIS;
    int own[3] = {token[0], token[1], token[2]};
    own[first_axis] += line * (C.dilated && !C.folded ? (int)args.axis[first_axis].dilation : 1);
    nh_barrier_expect(barrier, nh_tensor_bytes(args.tiling.tokens, C.dim) +
                                   nh_tensor_bytes(args.tiling.tokens, C.dim_v) +
                                   nh_tensor_bytes(args.tiling.queries, C.dim));
    nh_fetch_rows<C.k_map, C.dim>(ring.rows, nh_keys_at(ring, stage), &maps.k, barrier, key_head, key_heads, token,
                                  place.batch);
    nh_fetch_rows<C.q_map, C.dim>(ring.own_rows, nh_queries_at(ring, stage), &maps.q, barrier, place.head, heads, own,
                                  place.batch);
    nh_fetch_rows<C.v_map, C.dim_v>(ring.rows, nh_values_at(ring, stage), &maps.v, barrier, key_head, key_heads, token,
                                    place.batch);
}

/* The state of the producer thread: its next work tile, and the stage for that. */
struct nh_producer {
    nh_place place;
    int number = (int)NH_OWN_BLOCK, stage = 0, parity = 1;
};

/* Fetches the next work tile as soon as its stage is free. */
NH_DEVICE void nh_fetch(const nh_short_args &args, const nh_maps &maps, const nh_ring &ring, nh_producer &producer) {
    nh_complete(args, producer.place);
    nh_barrier_wait(ring.free + 8 * producer.stage, producer.parity);
    ring.places[producer.stage] = producer.place;
    nh_fetch_work_tile(args, maps, ring, producer.stage, producer.place);
    producer.number += (int)NH_OWN_BLOCKS;
    if (++producer.stage == ring.count) {
        producer.stage = 0;
        producer.parity ^= 1;
    }
}

/* Fetches all work tiles of the block but the first. */
NH_DEVICE void nh_fetch_rest(const nh_short_args &args, const nh_maps &maps, const nh_ring &ring,
                             nh_producer &producer) {
    const nh_place step = nh_place_of(args, (int)NH_OWN_BLOCKS);
    NH_UNROLL_1 while (producer.number < args.tiling.work_tiles) {
        nh_move(args, producer.place, step);
        nh_fetch(args, maps, ring, producer);
    }
}

} // namespace nh_short
