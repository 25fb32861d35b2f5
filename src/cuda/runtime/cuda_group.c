/* Groups on CUDA. Members whose steps have equal kernels form a batch: step i of all of them is one launch, whose grid is the sum
 * of theirs. Its kernel is compiled with NH_MEMBERS and finds a block's member by a table in the plan's memory
 * (kernels/common/members.cuh). What remains is launched member by member. */
#include "cuda_group.h"

#include "arena.h"
#include "launch.h"
#include "members_abi.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The most bytes of a kernel's parameters before CUDA 12.1. */
enum { MOST_PARAMETERS = 4096 };
static_assert(sizeof(struct nh_cuda_members) <= MOST_PARAMETERS &&
                  sizeof(struct nh_cuda_member_maps) <= MOST_PARAMETERS,
              "parameters of a kernel");

/* The table of a step. Offsets are those of the plan's memory. */
struct table {
    size_t arguments, members;
    /* places[0]: of members in packed tensors; places[1]: of members with tensors of their own */
    size_t places[2];
    uint32_t used;
    int32_t bases;
    unsigned *first; /* where each member's share begins, and the end, as in the plan's memory */
    size_t maps;     /* in the workspace: the tensor maps of all members */
};

/* The launch that writes the tensor maps of a batch before its steps. */
struct map_table {
    struct nh_cuda_step *step; /* NULL: there are no maps */
    size_t maps;       /* in the plan's memory: those of each member, one member after the other */
    int32_t of_member; /* how many each has */
    uint32_t used;     /* tensors that are mapped, as bits, and WORKSPACE_BIT */
    int32_t bases;
};
#define WORKSPACE_BIT (1u << 31)

struct batch {
    /* launches of all members: their kernels, grids and memory */
    struct nh_cuda_operation *operation;
    int64_t count, *member; /* indices in the group, in the table's order */
    int32_t steps;          /* of a member */
    struct table table[NH_CUDA_STEPS];
    struct map_table maps;
};

/* It is in the arena of its members, with all that it points to but memory of operations on the device. */
struct cuda_group {
    struct nh_group_operation base;
    struct nh_arena *arena;
    const struct nh_group *group;
    struct nh_cuda_device *device;
    int64_t batches, alone; /* alone: members in no batch */
    int64_t operations;     /* of batches, and of those alone that have tokens */
    int64_t with_workspace; /* of these, those that use the workspace, which is the same for all */
    struct batch *batch;
    int64_t *member; /* indices of all members: batch after batch, then those alone */
};

static const struct nh_cuda_operation *operation_of(const struct nh_group *group, int64_t index) {
    return (const struct nh_cuda_operation *)(const void *)group->member[index].operation;
}

/* ---- what forms a batch ---- */

static bool same_step(const struct nh_cuda_step *a, const struct nh_cuda_step *b) {
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        if (a->binding[slot].from != b->binding[slot].from) return false;
    if (a->maps != b->maps) return false;
    for (int32_t i = 0; i < a->maps; i++)
        if (a->map[i].slot != b->map[i].slot) return false;
    return a->threads == b->threads && a->cluster == b->cluster && a->overlaps == b->overlaps &&
           a->wave_blocks == b->wave_blocks && a->outputs == b->outputs &&
           a->grid[1] == b->grid[1] && a->grid[2] == b->grid[2];
}

static bool same_launches(const struct nh_cuda_operation *a, const struct nh_cuda_operation *b) {
    if (a == b) return true;
    if (a->count != b->count) return false;
    for (int32_t i = 0; i < a->count; i++)
        if (!same_step(a->step[i], b->step[i]) || !nh_kernel_same(a->spec[i], b->spec[i]))
            return false;
    return true;
}

/* Whether maps get an address on the device: not those of lines (nh_sm90_lines_map). */
static bool maps_fit(const struct nh_cuda_step *step) {
    for (int32_t i = 0; i < step->maps; i++)
        if (step->map[i].pixels) return false;
    return true;
}

/* Whether the member's launches can be those of a batch, which may need one more launch for maps. */
static bool can_join(const struct nh_cuda_operation *operation) {
    for (int32_t i = 0; i < operation->count; i++)
        if (!maps_fit(operation->step[i]) || !nh_cuda_serves_members(operation, operation->step[i]))
            return false;
    return operation->count > 0 && operation->count < NH_CUDA_STEPS;
}

/* A member while batches are formed. */
struct candidate {
    int64_t member, batch; /* batch: -1: alone */
    const struct nh_cuda_operation *operation;
    double tile_ns; /* about how long one of its work tiles takes */
};

/* Batch by batch, alone last; in each the longest work tiles first, so that those that are under way at the end are short, and
 * equal members side by side. */
static int compare(const void *first, const void *second) {
    const struct candidate *a = first, *b = second;
    if (a->batch != b->batch) return (uint64_t)a->batch < (uint64_t)b->batch ? -1 : 1;
    if (a->tile_ns != b->tile_ns) return a->tile_ns > b->tile_ns ? -1 : 1;
    if (a->operation != b->operation)
        return (uintptr_t)a->operation < (uintptr_t)b->operation ? -1 : 1;
    return a->member < b->member ? -1 : 1;
}

/* A member's time, spread over the rounds in which the multiprocessors take its work tiles. */
static double tile_ns(const struct nh_cuda_operation *operation, double ns) {
    int64_t tiles = 1;
    for (int32_t i = 0; i < operation->count; i++)
        tiles = nh_max(tiles, operation->step[i]->work_tiles);
    return ns * (double)nh_min(tiles, operation->device->multiprocessors) / (double)tiles;
}

/* What a member has, at most, in its batch's launch, in which the members' own follow each other: work tiles that are dealt out to
 * blocks, or blocks. */
static int64_t share_of(const struct nh_cuda_step *step) {
    return step->wave_blocks ? NH_PREPARING_SHARES + step->shares : step->grid[0];
}

/* Whether one more member leaves them within the hardware's limits. */
static bool has_room(const int64_t shares[NH_CUDA_STEPS],
                     const struct nh_cuda_operation *operation) {
    for (int32_t i = 0; i < operation->count; i++)
        if (shares[i] + share_of(operation->step[i]) > INT32_MAX) return false;
    return true;
}

/* A batch while members join it: one of them, and the shares of all so far. */
struct forming {
    const struct nh_cuda_operation *operation;
    int64_t shares[NH_CUDA_STEPS], count;
};

static void join(const struct nh_group *group, struct forming *forming, int64_t *count,
                 struct candidate *candidate) {
    const struct nh_cuda_operation *operation = operation_of(group, candidate->member);
    int64_t at = 0;
    candidate->operation = operation;
    candidate->tile_ns = tile_ns(operation, group->member[candidate->member].ns);
    if (!can_join(operation)) return;
    while (at < *count && !(same_launches(forming[at].operation, operation) &&
                            has_room(forming[at].shares, operation)))
        at++;
    if (at == *count) forming[(*count)++] = (struct forming){.operation = operation};
    for (int32_t i = 0; i < operation->count; i++)
        forming[at].shares[i] += share_of(operation->step[i]);
    forming[at].count++;
    candidate->batch = at;
}

/* Whether launches of such members use the workspace: those of a batch have their tensor maps there. */
static bool uses_workspace(const struct nh_cuda_operation *operation, bool in_batch) {
    bool maps = false;
    for (int32_t s = 0; s < operation->count; s++)
        maps = maps || operation->step[s]->maps;
    return operation->base.workspace_bytes || (in_batch && maps);
}

/* Divides the members into batches of at least two and the rest. */
static nhood_status form_batches(struct cuda_group *created) {
    const struct nh_group *group = created->group;
    const size_t room = (size_t)nh_max(group->count, 1);
    struct candidate *candidate = nh_arena_allocate_unset(created->arena, room * sizeof *candidate);
    struct forming *forming = nh_arena_allocate_unset(created->arena, room * sizeof *forming);
    int64_t formed = 0;
    nhood_status status = candidate && forming && created->member ? NHOOD_OK : NHOOD_ERR_MEMORY;
    for (int64_t i = 0; !status && i < group->count; i++) {
        candidate[i] = (struct candidate){.member = i, .batch = -1};
        if (group->member[i].problem->batch) join(group, forming, &formed, &candidate[i]);
    }
    for (int64_t i = 0; !status && i < group->count; i++)
        if (candidate[i].batch >= 0 && forming[candidate[i].batch].count < 2)
            candidate[i].batch = -1;
    created->batch =
        nh_arena_allocate(created->arena, (size_t)nh_max(formed, 1) * sizeof *created->batch);
    if (!created->batch) status = NHOOD_ERR_MEMORY;
    if (!status) qsort(candidate, (size_t)group->count, sizeof *candidate, compare);
    for (int64_t i = 0; !status && i < group->count; i++) {
        const bool first = i == 0 || candidate[i].batch != candidate[i - 1].batch;
        created->member[i] = candidate[i].member;
        const struct nh_cuda_operation *operation = candidate[i].operation;
        const bool counts = operation && (first || candidate[i].batch < 0);
        created->operations += counts;
        created->with_workspace += counts && uses_workspace(operation, candidate[i].batch >= 0);
        if (candidate[i].batch < 0) {
            created->alone++;
            continue;
        }
        if (first) created->batch[created->batches++].member = &created->member[i];
        created->batch[created->batches - 1].count++;
    }
    return status;
}

/* ---- tables ---- */

/* Whether a member has the arguments of the one before it in the table. */
static bool repeats(const struct nh_group *group, const struct batch *batch, int64_t k) {
    return k && operation_of(group, batch->member[k]) == operation_of(group, batch->member[k - 1]);
}

static size_t argument_bytes(const struct nh_cuda_step *step) {
    return step->tables ? sizeof(struct nh_cuda_table_arguments) : sizeof(struct nh_cuda_arguments);
}

static void write_arguments(const struct nh_cuda_operation *operation,
                            const struct nh_cuda_step *step, char *to) {
    struct nh_cuda_arguments with_tables;
    struct nh_cuda_arguments *arguments =
        step->tables ? &with_tables : (struct nh_cuda_arguments *)(void *)to;
    arguments->shared = step->args;
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        arguments->shared.tensor[slot].data = (void *)(uintptr_t)step->binding[slot].offset_bytes;
    nh_cuda_step_arguments(step, arguments);
    if (step->tables)
        nh_cuda_add_tables(operation, arguments, (struct nh_cuda_table_arguments *)(void *)to);
}

/* Where a member begins in what a tensor slot is bound to. */
static int64_t place_of(const struct nh_group *group, int64_t index, int32_t from, bool packed,
                        size_t workspace) {
    const struct nh_group_member *member = &group->member[index];
    if (from == NH_BIND_WORKSPACE) return (int64_t)workspace;
    if (!packed) return 0;
    return (nh_tensor_of_keys(from) ? member->first_key : member->first_query) *
           group->token_bytes[from];
}

/* Writes the places of all members for a step, in packed tensors and in tensors of their own. The workspace of a member follows that of
 * the one before it. */
static void write_places(const struct nh_group *group, const struct batch *batch, int32_t s,
                         int64_t *packed, int64_t *own) {
    size_t workspace = 0;
    int slots[NH_CUDA_TENSORS], bases = 0;
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        if (batch->table[s].used >> slot & 1) slots[bases++] = slot;
    for (int64_t k = 0; k < batch->count; k++) {
        const struct nh_cuda_operation *operation = operation_of(group, batch->member[k]);
        const struct nh_cuda_binding *binding = operation->step[s]->binding;
        for (int b = 0; b < bases; b++) {
            const int32_t from = binding[slots[b]].from;
            *packed++ = place_of(group, batch->member[k], from, true, workspace);
            *own++ = place_of(group, batch->member[k], from, false, workspace);
        }
        workspace += operation->base.workspace_bytes;
    }
}

/* Blocks of a member that takes ns, of the rest_ns that it and those behind it take. Each block that loops over work tiles is to take
 * half of the rest, within limits: blocks become shorter, so that all are done at about the same time. */
static int64_t blocks_of_member(const struct nh_cuda_step *step, double ns, double rest_ns) {
    if (!step->loop_blocks || !(ns > 0)) return share_of(step);
    const double block_ns = fmin(fmax(rest_ns / 2, NH_LEAST_BLOCK_NS), NH_MOST_BLOCK_NS),
                 wanted = ceil(ns * (double)step->loop_blocks / block_ns);
    return wanted < (double)step->grid[0] ? nh_max((int64_t)wanted, 1) : step->grid[0];
}

/* Makes room for a step's table in the plan's memory. */
static nhood_status make_table(const struct nh_group *group, struct batch *batch, int32_t s) {
    struct nh_cuda_operation *operation = batch->operation;
    struct table *table = &batch->table[s];
    int64_t different = 0;
    for (int64_t k = 0; k < batch->count; k++)
        different += !repeats(group, batch, k);
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        if (operation->step[s]->binding[slot].from != NH_BIND_NONE)
            table->used |= 1u << slot, table->bases++;
    const size_t place_bytes = (size_t)batch->count * (size_t)table->bases * sizeof(int64_t);
    table->first = nh_arena_allocate_unset(operation->arena,
                                           ((size_t)batch->count + 1) * sizeof *table->first);
    const size_t bytes = argument_bytes(operation->step[s]);
    char *arguments = nh_cuda_keep(operation, (size_t)different * bytes, &table->arguments);
    if (!table->first || !arguments) return NHOOD_ERR_MEMORY;
    for (int64_t k = 0; k < batch->count; k++) {
        const struct nh_cuda_operation *own = operation_of(group, batch->member[k]);
        if (repeats(group, batch, k)) continue;
        write_arguments(own, own->step[s], arguments);
        arguments += bytes;
    }
    struct nh_cuda_member *member =
        nh_cuda_keep(operation, ((size_t)batch->count + 1) * sizeof *member, &table->members);
    if (!member) return NHOOD_ERR_MEMORY;
    double rest_ns = 0;
    for (int64_t k = 0; k < batch->count; k++)
        rest_ns += group->member[batch->member[k]].ns;
    for (int64_t k = 0, which = -1, share = 0; k <= batch->count; k++) {
        which += k < batch->count && !repeats(group, batch, k);
        member[k] = (struct nh_cuda_member){(unsigned)share, (int)which};
        table->first[k] = (unsigned)share;
        if (k == batch->count) break;
        const double ns = group->member[batch->member[k]].ns;
        share += blocks_of_member(operation_of(group, batch->member[k])->step[s], ns, rest_ns);
        rest_ns -= ns;
    }
    /* the second moves nothing: there is room for all (kept_bytes) */
    int64_t *packed = nh_cuda_keep(operation, place_bytes, &table->places[0]);
    int64_t *own = packed ? nh_cuda_keep(operation, place_bytes, &table->places[1]) : NULL;
    if (!own) return NHOOD_ERR_MEMORY;
    write_places(group, batch, s, packed, own);
    return NHOOD_OK;
}

static uint32_t base_bit(const struct nh_cuda_step *step, const struct nh_cuda_map *map) {
    const int32_t from = step->binding[map->slot].from;
    return from == NH_BIND_WORKSPACE ? WORKSPACE_BIT : 1u << from;
}

static int32_t bits_below(uint32_t bits, uint32_t bit) {
    int32_t count = 0;
    for (uint32_t rest = bits & (bit - 1); rest; rest &= rest - 1)
        count++;
    return count;
}

/* Whether two maps are the same but for their addresses. Most differ in their boxes. */
static bool same_map(const struct nh_cuda_map *a, const struct nh_cuda_map *b) {
    const size_t begin = offsetof(struct nh_cuda_map, extent),
                 end = offsetof(struct nh_cuda_map, offset_bytes);
    return a->box[1] == b->box[1] && a->box[2] == b->box[2] &&
           !memcmp((const char *)a + begin, (const char *)b + begin, end - begin) &&
           a->rank == b->rank && a->type == b->type && a->swizzle == b->swizzle &&
           a->promotion == b->promotion && a->pixels == b->pixels;
}

/* A member's maps that differ, and what they are encoded as. */
struct encoded {
    int32_t count;
    const struct nh_cuda_map *map[NH_CUDA_STEPS * NH_CUDA_MAPS];
    const struct nh_cuda_member_map *to[NH_CUDA_STEPS * NH_CUDA_MAPS];
};

/* Encodes a map, whose address member_maps.cu sets: as that of another of the member's tensors, if that has the same. Drivers before
 * CUDA 12.6 encode no map without an address. */
static nhood_status encode(const struct nh_driver *driver, const struct nh_cuda_map *map,
                           struct encoded *encoded, struct nh_cuda_member_map *to) {
    void *const any = (void *)(uintptr_t)NH_KEPT_ALIGNMENT;
    for (int32_t i = encoded->count - 1; i >= 0; i--)
        if (same_map(encoded->map[i], map)) {
            memcpy(to->map, encoded->to[i]->map, sizeof to->map);
            return NHOOD_OK;
        }
    struct nh_cu_tensor_map made = {{0}};
    const nhood_status status =
        nh_driver_check(driver, nh_cuda_encode(driver, map, any, &made), "tensor map");
    static_assert(sizeof made == sizeof to->map, "a tensor map");
    memcpy(to->map, &made, sizeof made);
    encoded->map[encoded->count] = map;
    encoded->to[encoded->count++] = to;
    return status;
}

/* Writes map i of step s of member k, as far as a plan knows it. base: which its tensor has; workspace: where the member's part
 * begins. */
static void write_map(const struct cuda_group *created, const struct batch *batch, int64_t k,
                      const struct nh_cuda_step *step, int32_t s, int32_t i, int32_t base,
                      size_t workspace, struct nh_cuda_member_map *to) {
    const struct nh_cuda_map *map = &step->map[i];
    const struct nh_cuda_binding *binding = &step->binding[map->slot];
    for (int apart = 0; apart < 2; apart++)
        to->place[apart] =
            place_of(created->group, batch->member[k], binding->from, !apart, workspace) +
            (int64_t)binding->offset_bytes + map->offset_bytes;
    to->at = (int64_t)batch->table[s].maps + (k * step->maps + i) * (int64_t)sizeof to->map;
    to->base = base;
    to->member = (int)k;
}

/* Writes the maps of all members, one member after the other. The driver encodes them in a context only. */
static nhood_status write_maps(const struct cuda_group *created, const struct batch *batch,
                               struct nh_cuda_member_map *to) {
    const bool encodes = !nh_kernel_cache_collects(created->device->cuda->kernels);
    struct nh_cuda_scope scope;
    nhood_status status = encodes ? nh_cuda_enter(created->device, true, &scope) : NHOOD_OK;
    if (status) return status;
    size_t workspace = 0;
    int32_t base[NH_CUDA_STEPS]
                [NH_CUDA_MAPS]; /* that of each map's tensor, the same for all members */
    for (int32_t s = 0; s < batch->steps; s++)
        for (int32_t i = 0; i < batch->operation->step[s]->maps; i++) {
            const struct nh_cuda_step *step = batch->operation->step[s];
            base[s][i] = bits_below(batch->maps.used, base_bit(step, &step->map[i]));
        }
    const struct nh_driver *driver = &created->device->cuda->driver;
    for (int64_t k = 0; k < batch->count; k++) {
        const struct nh_cuda_operation *own = operation_of(created->group, batch->member[k]);
        struct encoded encoded; /* it is large, so it is not cleared */
        encoded.count = 0;
        for (int32_t s = 0; s < batch->steps; s++)
            for (int32_t i = 0; !status && i < own->step[s]->maps; i++, to++) {
                write_map(created, batch, k, own->step[s], s, i, base[s][i], workspace, to);
                if (encodes) status = encode(driver, &own->step[s]->map[i], &encoded, to);
            }
        workspace += own->base.workspace_bytes;
    }
    if (encodes) nh_cuda_leave(created->device, &scope);
    return status;
}

/* Adds the launch that writes the maps of all members, if there are any, and makes room for these in the workspace. */
static nhood_status make_maps(const struct cuda_group *created, struct batch *batch) {
    struct nh_cuda_operation *operation = batch->operation;
    struct map_table *maps = &batch->maps;
    for (int32_t s = 0; s < batch->steps; s++) {
        const struct nh_cuda_step *step = operation->step[s];
        batch->table[s].maps = nh_cuda_reserve(operation, (size_t)(batch->count * step->maps) *
                                                              sizeof(struct nh_cu_tensor_map));
        for (int32_t i = 0; i < step->maps; i++)
            maps->used |= base_bit(step, &step->map[i]);
        maps->of_member += step->maps;
    }
    if (!maps->of_member) return NHOOD_OK;
    maps->bases = bits_below(maps->used, 0);
    struct nh_cuda_member_map *to =
        nh_cuda_keep(operation, (size_t)(batch->count * maps->of_member) * sizeof *to, &maps->maps);
    if (!to) return NHOOD_ERR_MEMORY;
    nhood_status status = write_maps(created, batch, to);
    const struct nh_kernel_spec spec = {.source = "member_maps.cu"};
    const struct nh_cuda_step step = {.grid = {batch->count * maps->of_member, 1, 1},
                                      .threads = 32,
                                      .shared_bytes = sizeof(struct nh_cu_tensor_map)};
    if (!status) status = nh_cuda_step_add(operation, &step, &spec);
    if (!status) maps->step = operation->step[operation->count - 1];
    return status;
}

/* Lets an operation begin while the one ahead of it ends, of which it needs nothing unless both use the workspace, and the one behind
 * it begin while it ends. Drivers that cannot do this get the same kernels, as others may have compiled them. */
static void let_overlap(const struct cuda_group *created, struct nh_cuda_operation *operation,
                        bool writes_maps) {
    const bool apart = !operation->base.workspace_bytes || created->with_workspace == 1;
    if (created->operations < 2 || created->device->arch < NH_OVERLAPPING_ARCH) return;
    nh_kernel_define(operation->spec[operation->count - 1], "NH_BESIDE", 1);
    if (!apart || writes_maps) return;
    if (operation->count > 1) nh_kernel_define(operation->spec[0], "NH_BESIDE", 1);
    operation->step[0]->overlaps = operation->step[0]->beside = true;
}

/* The blocks of a launch for members that have so many work tiles, or blocks, together. */
static int64_t blocks_of(const struct nh_cuda_step *step, int64_t shares) {
    return step->wave_blocks ? nh_min(nh_ceil_div(shares, NH_TILE_SHARES), step->wave_blocks)
                             : shares;
}

/* What the tables and maps of a batch take of the plan's memory, at most. */
static size_t kept_bytes(const struct batch *batch) {
    const size_t count = (size_t)batch->count;
    size_t bytes = 0, maps = 0;
    for (int32_t s = 0; s < batch->steps; s++) {
        const struct nh_cuda_step *step = batch->operation->step[s];
        size_t bases = 0;
        for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
            bases += step->binding[slot].from != NH_BIND_NONE;
        bytes += nh_cuda_kept_bytes(count * argument_bytes(step)) +
                 nh_cuda_kept_bytes((count + 1) * sizeof(struct nh_cuda_member)) +
                 2 * nh_cuda_kept_bytes(count * bases * sizeof(int64_t));
        maps += count * (size_t)step->maps;
    }
    return bytes + maps * sizeof(struct nh_cuda_member_map);
}

/* Sets up the launches of a batch: those of its first member, but for what is that of all. */
static nhood_status make_batch(struct cuda_group *created, struct batch *batch) {
    const struct nh_group *group = created->group;
    const struct nh_cuda_operation *first = operation_of(group, batch->member[0]);
    struct nh_cuda_operation *operation = batch->operation =
        nh_arena_allocate_unset(created->arena, sizeof *operation);
    nhood_status status = operation ? NHOOD_OK : NHOOD_ERR_MEMORY;
    if (status) return status;
    *operation = *first;
    operation->arena = created->arena;
    operation->memory = 0; /* members' own is theirs */
    operation->use = NULL;
    operation->kept = NULL;
    operation->kept_bytes = operation->kept_room = 0;
    operation->count = 0;
    batch->steps = first->count;
    for (int32_t s = 0; !status && s < first->count; s++)
        status = nh_cuda_step_copy(operation, first->step[s], first->spec[s]);
    if (!status) status = nh_cuda_keep_room(operation, kept_bytes(batch));
    operation->base.workspace_bytes = 0;
    for (int64_t k = 0; k < batch->count; k++)
        operation->base.workspace_bytes +=
            operation_of(group, batch->member[k])->base.workspace_bytes;
    for (int32_t s = 0; !status && s < batch->steps; s++) {
        struct nh_cuda_step *step = operation->step[s];
        for (int64_t k = 1; k < batch->count; k++)
            step->shared_bytes = nh_max(
                step->shared_bytes, operation_of(group, batch->member[k])->step[s]->shared_bytes);
        nh_kernel_define(operation->spec[s], "NH_MEMBERS", step->wave_blocks ? 3 : 1);
        status = make_table(group, batch, s);
        if (!status) step->grid[0] = blocks_of(step, batch->table[s].first[batch->count]);
    }
    if (!status) status = make_maps(created, batch);
    if (!status) let_overlap(created, operation, batch->maps.step);
    if (!status) status = nh_cuda_load(operation);
    if (!status) status = nh_cuda_write_kept(operation);
    return status;
}

/* ---- executing ---- */

/* Launches step s for the members [first, first + count) of a batch, whose bases are set. The workspace and the stream are io's. */
static nhood_status launch_members(const struct batch *batch, int32_t s, int64_t first,
                                   int64_t count, bool packed, bool overlaps, const nhood_io *io,
                                   struct nh_cuda_members *members) {
    const struct nh_cuda_operation *operation = batch->operation;
    const struct table *table = &batch->table[s];
    const char *memory = (const char *)(uintptr_t)operation->memory;
    const struct nh_cuda_step *step = operation->step[s];
    void *parameters[1] = {members};
    const int64_t shares = (int64_t)table->first[first + count] - table->first[first];
    members->arguments = memory + table->arguments;
    members->argument_bytes = (int)argument_bytes(step);
    members->member =
        (const struct nh_cuda_member *)(const void *)(memory + table->members) + first;
    members->place =
        (const long long *)(const void *)(memory + table->places[!packed]) + first * table->bases;
    members->maps = (const char *)io->workspace + table->maps +
                    (size_t)(first * step->maps) * sizeof(struct nh_cu_tensor_map);
    members->members = (int)count;
    members->threads = step->threads;
    members->used = table->used;
    members->bases = table->bases;
    members->base_step = packed ? 0 : table->bases;
    return nh_cuda_launch(operation, step, blocks_of(step, shares), overlaps, io->stream,
                          parameters);
}

/* Whether the members' tensors lie as in packed ones, so that one address serves all members. Sets these tensors. */
static bool find_packed(const struct nh_group *group, const nhood_group_io *io,
                        nhood_group_io *packed) {
    bool found = false;
    if (*group->not_packed) return false;
    *packed = *io;
    packed->member = NULL;
    for (int64_t i = 0; i < group->count; i++) {
        if (!group->member[i].problem->batch) continue;
        for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
            char *data = io->member[i].data[t];
            if (data) data -= place_of(group, i, t, true, 0);
            if (!found) packed->data[t] = data;
            if (packed->data[t] != data) return false;
        }
        found = true;
    }
    return found;
}

static nhood_io packed_io(const nhood_group_io *io) {
    nhood_io all = {.struct_size = sizeof all, .workspace = io->workspace, .stream = io->stream};
    memcpy(all.data, io->data, sizeof all.data);
    return all;
}

/* Writes the maps of the members [first, first + count), or of all in packed tensors, with the bases in `launch`. */
static nhood_status launch_maps(const struct batch *batch, int64_t first, int64_t count,
                                const nhood_group_io *io, struct nh_cuda_member_maps *launch) {
    const struct map_table *maps = &batch->maps;
    const char *memory = (const char *)(uintptr_t)batch->operation->memory + maps->maps;
    void *parameters[1] = {launch};
    launch->map = (const struct nh_cuda_member_map *)(const void *)memory + first * maps->of_member;
    launch->to = io->workspace;
    launch->apart = io->member != NULL;
    launch->bases = maps->bases;
    launch->first_member = (int)first;
    return nh_cuda_launch(batch->operation, maps->step, count * maps->of_member, false, io->stream,
                          parameters);
}

/* Fills in the addresses of mapped tensors. */
static void set_map_bases(const struct map_table *maps, const nhood_io *io,
                          unsigned long long *base) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (maps->used >> t & 1) *base++ = (unsigned long long)(uintptr_t)io->data[t];
    if (maps->used & WORKSPACE_BIT) *base = (unsigned long long)(uintptr_t)io->workspace;
}

static nhood_status run_maps(const struct cuda_group *created, const struct batch *batch,
                             const nhood_group_io *io) {
    const struct map_table *maps = &batch->maps;
    struct nh_cuda_member_maps launch;
    nhood_status status = NHOOD_OK;
    if (!maps->step) return NHOOD_OK;
    if (!io->member) {
        const nhood_io all = packed_io(io);
        set_map_bases(maps, &all, launch.base);
        return launch_maps(batch, 0, batch->count, io, &launch);
    }
    for (int64_t first = 0, count; !status && first < batch->count; first += count) {
        count = nh_min(batch->count - first, NH_MEMBER_BASES / maps->bases);
        for (int64_t k = 0; k < count; k++) {
            const nhood_io own = nh_group_member_io(created->group, io, batch->member[first + k]);
            set_map_bases(maps, &own, launch.base + k * maps->bases);
        }
        status = launch_maps(batch, first, count, io, &launch);
    }
    return status;
}

/* Launches step s for all members of a batch, whose tensors are packed. */
static nhood_status launch_packed(const void *user, int32_t s, const nhood_io *io, bool overlaps) {
    const struct batch *batch = user;
    struct nh_cuda_members members;
    nh_cuda_set_bases(batch->operation->step[s], batch->table[s].used, io, members.base);
    return launch_members(batch, s, 0, batch->count, true, overlaps, io, &members);
}

/* Sets the bases of members from the first one on, up to one that does not want the step or finds no room. Returns their number. */
static int64_t set_bases_of_members(const struct cuda_group *created, const struct batch *batch,
                                    int32_t s, int64_t first, const nhood_group_io *io,
                                    unsigned long long *base) {
    const struct nh_cuda_step *step = batch->operation->step[s];
    const struct table *table = &batch->table[s];
    int64_t count = 0;
    for (; first + count < batch->count; count++) {
        const nhood_io own = nh_group_member_io(created->group, io, batch->member[first + count]);
        if ((count + 1) * table->bases > NH_MEMBER_BASES || !nh_cuda_wanted(step, &own)) break;
        nh_cuda_set_bases(step, table->used, &own, base + count * table->bases);
    }
    return count;
}

/* Runs of members are launched one after the other, so that no launch may begin before the one ahead of it has ended: that need
 * not be the launch whose results it reads. */
static nhood_status run_apart(const struct cuda_group *created, const struct batch *batch,
                              const nhood_group_io *io, bool *follows) {
    const nhood_io all = packed_io(io);
    nhood_status status = NHOOD_OK;
    struct nh_cuda_members members;
    for (int32_t s = 0; !status && s < batch->steps; s++) {
        bool whole = false;
        for (int64_t first = 0, count; !status && first < batch->count; first += nh_max(count, 1)) {
            count = set_bases_of_members(created, batch, s, first, io, members.base);
            if (!count) continue;
            whole = count == batch->count;
            status = launch_members(batch, s, first, count, false,
                                    whole && nh_cuda_may_overlap(batch->operation, s, *follows),
                                    &all, &members);
        }
        *follows = whole;
    }
    return status;
}

static nhood_status check_alignments(const struct cuda_group *created, const nhood_group_io *io) {
    const struct nh_group *group = created->group;
    nhood_status status = NHOOD_OK;
    for (int64_t i = 0; !status && i < group->count; i++) {
        const nhood_io own = nh_group_member_io(group, io, i);
        if (!group->member[i].problem->batch) continue;
        status = nh_cuda_check_alignment(operation_of(group, i), &own);
        if (status) status = nh_group_member_error(status, i);
    }
    return status;
}

static nhood_status run_batches(const struct cuda_group *created, const nhood_group_io *io,
                                bool *follows) {
    nhood_status status = NHOOD_OK;
    struct nh_cuda_scope scope;
    nhood_group_io packed;
    if (!created->batches) return NHOOD_OK;
    status = nh_cuda_enter(created->device, false, &scope);
    if (status) return status;
    if (io->member && find_packed(created->group, io, &packed)) io = &packed;
    const nhood_io all = packed_io(io);
    for (int64_t b = 0; !status && b < created->batches; b++) {
        const struct batch *batch = &created->batch[b];
        status = run_maps(created, batch, io);
        if (status) break;
        status = io->member ? run_apart(created, batch, io, follows)
                            : nh_cuda_run_steps(batch->operation, batch->steps, &all, launch_packed,
                                                batch, follows);
    }
    nh_cuda_leave(created->device, &scope);
    return status;
}

static nhood_status run_alone(const struct cuda_group *created, const nhood_group_io *io,
                              int64_t index, bool *follows) {
    const struct nh_group *group = created->group;
    if (!group->member[index].problem->batch) return nh_group_run_member(group, io, index);
    const nhood_io own = nh_group_member_io(group, io, index);
    const nhood_status status = nh_cuda_run(operation_of(group, index), &own, follows);
    return status ? nh_group_member_error(status, index) : NHOOD_OK;
}

static nhood_status run(const struct nh_group_operation *operation, const nhood_group_io *io) {
    const struct cuda_group *created = (const struct cuda_group *)operation;
    bool follows = false; /* the launch ahead is one of this execute */
    nhood_status status = check_alignments(created, io);
    if (!status) status = run_batches(created, io, &follows);
    for (int64_t i = created->group->count - created->alone; !status && i < created->group->count;
         i++)
        status = run_alone(created, io, created->member[i], &follows);
    return status;
}

/* ---- making ---- */

static void destroy(struct nh_group_operation *operation) {
    struct cuda_group *created = (struct cuda_group *)operation;
    for (int64_t b = 0; created->batch && b < created->batches; b++) {
        struct batch *batch = &created->batch[b];
        /* a graph that reads the batch's memory reads its members' window tables, too */
        for (int64_t k = 0; batch->operation && k < batch->count; k++)
            nh_cuda_share_capture(batch->operation, operation_of(created->group, batch->member[k]));
        if (batch->operation) batch->operation->base.destroy(&batch->operation->base);
    }
}

/* Gets the kernels of members in no batch, and takes their launches into account. */
static nhood_status make_alone(struct cuda_group *created) {
    const struct nh_group *group = created->group;
    nhood_status status = NHOOD_OK;
    for (int64_t i = group->count - created->alone; !status && i < group->count; i++) {
        const struct nh_group_member *member = &group->member[created->member[i]];
        struct nh_cuda_operation *operation = (struct nh_cuda_operation *)(void *)member->operation;
        if (!member->problem->batch) continue;
        created->base.launches += operation->count;
        created->base.workspace_bytes = (size_t)nh_max((int64_t)created->base.workspace_bytes,
                                                       (int64_t)operation->base.workspace_bytes);
        if (operation->count && !operation->step[0]->kernel) {
            let_overlap(created, operation, false);
            status = nh_cuda_load(operation);
        }
        if (status) status = nh_group_member_error(status, created->member[i]);
    }
    return status;
}

nhood_status nh_cuda_group_build(const struct nh_device *device, const struct nh_group *group,
                                 struct nh_group_operation **operation) {
    struct cuda_group *created = nh_arena_allocate(device->arena, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->base = (struct nh_group_operation){.run = run, .destroy = destroy};
    created->arena = device->arena;
    created->group = group;
    created->device = device->backend;
    created->member = nh_arena_allocate(created->arena,
                                        (size_t)nh_max(group->count, 1) * sizeof *created->member);
    nhood_status status = form_batches(created);
    for (int64_t b = 0; !status && b < created->batches; b++) {
        status = make_batch(created, &created->batch[b]);
        if (status) break;
        created->base.launches += created->batch[b].operation->count;
        created->base.workspace_bytes =
            (size_t)nh_max((int64_t)created->base.workspace_bytes,
                           (int64_t)created->batch[b].operation->base.workspace_bytes);
    }
    if (!status) status = make_alone(created);
    if (status) {
        destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}
