#include "arena.h"

#include <assert.h>
#include <string.h>

/* The memory that is handed out follows a chunk's head. */
struct chunk {
    struct chunk *before;
    size_t bytes, used; /* of all that was allocated, the head included */
};

struct nh_arena {
    const struct nh_host *host;
    struct chunk *last; /* NULL: there is none yet */
};

enum {
    FIRST_BYTES = 1 << 15,      /* eight members of one launch */
    MOST_SPARE_BYTES = 1 << 22, /* a thousand */
    HEAD_BYTES = NH_ALIGNMENT
};
static_assert(sizeof(struct chunk) <= HEAD_BYTES, "room for the head");

nhood_status nh_arena_create(const struct nh_host *host, struct nh_arena **arena) {
    *arena = nh_allocate(host, sizeof **arena);
    if (!*arena) return NHOOD_ERR_MEMORY;
    (*arena)->host = host;
    return NHOOD_OK;
}

static void release_chunks(const struct nh_host *host, struct chunk *chunk) {
    while (chunk) {
        struct chunk *before = chunk->before;
        nh_release(host, chunk);
        chunk = before;
    }
}

void nh_arena_destroy(struct nh_arena *arena) {
    if (!arena) return;
    release_chunks(arena->host, arena->last);
    nh_release(arena->host, arena);
}

nhood_status nh_arena_take(struct nh_spare_arena *spare, const struct nh_host *host,
                           struct nh_arena **arena) {
    *arena = atomic_exchange(&spare->arena, NULL);
    return *arena ? NHOOD_OK : nh_arena_create(host, arena);
}

/* Keeps the last chunk, which is the largest. */
void nh_arena_give_back(struct nh_spare_arena *spare, struct nh_arena *arena) {
    if (!arena) return;
    struct chunk *last = arena->last;
    if (last && last->bytes <= MOST_SPARE_BYTES) {
        release_chunks(arena->host, last->before);
        *last = (struct chunk){NULL, last->bytes, HEAD_BYTES};
    } else {
        release_chunks(arena->host, last);
        arena->last = NULL;
    }
    nh_arena_destroy(atomic_exchange(&spare->arena, arena));
}

/* Chunks double, so that there are few, and the last one is not much larger than all that is used. */
static bool add_chunk(struct nh_arena *arena, size_t least) {
    const size_t doubled = arena->last ? 2 * arena->last->bytes : FIRST_BYTES,
                 bytes = least > doubled - HEAD_BYTES ? HEAD_BYTES + least : doubled;
    struct chunk *chunk = nh_allocate_unset(arena->host, bytes);
    if (!chunk) return false;
    *chunk = (struct chunk){arena->last, bytes, HEAD_BYTES};
    arena->last = chunk;
    return true;
}

void *nh_arena_allocate_unset(struct nh_arena *arena, size_t bytes) {
    const size_t rounded = nh_align_up(bytes);
    if ((!arena->last || arena->last->bytes - arena->last->used < rounded) &&
        !add_chunk(arena, rounded))
        return NULL;
    void *memory = (char *)arena->last + arena->last->used;
    arena->last->used += rounded;
    return memory;
}

void *nh_arena_allocate(struct nh_arena *arena, size_t bytes) {
    void *memory = nh_arena_allocate_unset(arena, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}
