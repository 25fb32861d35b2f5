/* The memo: results by their keys, which of them remain where room is short, no memory, and several threads. */
#include "memo.h"
#include "test.h"

#include <pthread.h>
#include <string.h>

static bool no_memory;

static void *allocate_some(void *user, size_t bytes, size_t alignment) {
    (void)user, (void)alignment;
    return no_memory ? NULL : test_allocate(bytes);
}

static void release_some(void *user, void *memory) {
    (void)user;
    test_free(memory);
}

static const struct nh_host some = {.allocate = allocate_some, .release = release_some};

/* A result that says which key it is of. */
struct result {
    int64_t of, square;
};

static void keep(struct nh_memo *memo, int64_t key) {
    const struct result result = {key, key * key};
    nh_memo_keep(memo, &key, sizeof key, &result, sizeof result);
}

static bool finds(struct nh_memo *memo, int64_t key) {
    struct result result = {-1, -1};
    const bool found = nh_memo_find(memo, &key, sizeof key, &result, sizeof result);
    CHECK(found ? result.of == key && result.square == key * key : result.of == -1, "of %d: %d",
          (int)key, (int)result.of);
    return found;
}

static void check_room(void) {
    enum { PLACES = 64, KEYS = 1000 };
    struct nh_memo *memo;
    int found = 0;
    CHECK(!nh_memo_create(&some, PLACES, &memo), "%s", nhood_last_error());
    CHECK(!finds(memo, 1), "nothing was kept");
    for (int64_t key = 0; key < KEYS; key++) {
        keep(memo, key);
        CHECK(finds(memo, key), "%d was kept", (int)key);
        CHECK(finds(memo, 0), "what is asked for remains");
    }
    for (int64_t key = 0; key < KEYS; key++)
        found += finds(memo, key);
    CHECK(found == PLACES, "%d of %d places are used", found, PLACES);
    nh_memo_destroy(memo);
}

/* Keys and results of other lengths are others. */
static void check_lengths(void) {
    struct nh_memo *memo;
    const char text[] = "a key of 23 characters.";
    char result[8];
    CHECK(!nh_memo_create(&some, 4, &memo), "%s", nhood_last_error());
    nh_memo_keep(memo, text, 23, "result 1", 8);
    nh_memo_keep(memo, text, 22, "result 2", 8);
    CHECK(nh_memo_find(memo, text, 23, result, 8) && !memcmp(result, "result 1", 8), "23 bytes");
    CHECK(nh_memo_find(memo, text, 22, result, 8) && !memcmp(result, "result 2", 8), "22 bytes");
    CHECK(!nh_memo_find(memo, text, 21, result, 8) && !nh_memo_find(memo, text, 23, result, 7),
          "other lengths");
    nh_memo_destroy(memo);
}

static void check_no_memory(void) {
    struct nh_memo *memo;
    no_memory = true;
    CHECK(nh_memo_create(&some, 4, &memo) == NHOOD_ERR_MEMORY && !memo, "%s", nhood_last_error());
    no_memory = false;
    CHECK(!nh_memo_create(&some, 4, &memo), "%s", nhood_last_error());
    no_memory = true;
    keep(memo, 1);
    CHECK(!finds(memo, 1), "there was no memory");
    no_memory = false;
    for (int64_t key = 2; key < 9; key++)
        keep(memo, key);
    no_memory = true;
    keep(memo, 10);
    CHECK(finds(memo, 8) && finds(memo, 10), "memory of the oldest result is taken again");
    no_memory = false;
    nh_memo_destroy(memo);
}

static void *use(void *memo) {
    for (int64_t i = 0; i < 20000; i++)
        if (!finds(memo, i % 37)) keep(memo, i % 37);
    return NULL;
}

static void check_threads(void) {
    pthread_t thread[4];
    struct nh_memo *memo;
    CHECK(!nh_memo_create(&some, 16, &memo), "%s", nhood_last_error());
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, use, memo);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    nh_memo_destroy(memo);
}

int main(void) {
    check_room();
    check_lengths();
    check_no_memory();
    check_threads();
    return test_result();
}
