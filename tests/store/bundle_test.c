/* Bundles, whole and damaged in every way: each entry is read as it was written or not at all. */
#include "bundle.h"
#include "test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[] = "/tmp/nhood-bundle-XXXXXX";
static int logged;

static void count_line(void *user, int32_t level, const char *line) {
    (void)user, (void)level, (void)line;
    logged++;
}

static const struct nh_host host = {.log = count_line};

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", base, name);
    return path;
}

static struct nh_bundle_item items[3] = {
    {.next = &items[1], .key = "one", .payload = "first", .bytes = 5},
    {.next = &items[2], .key = "two", .payload = "", .bytes = 0},
    {.key = "three", .payload = "last\0one", .bytes = 8}};

/* Counts the entries of the three that are there; -1 if one is not what was written. */
static int read_all(const struct nh_bundle *bundle) {
    int found = 0;
    for (int i = 0; i < 3; i++) {
        void *payload;
        size_t bytes;
        if (!nh_bundle_read(bundle, items[i].key, &payload, &bytes)) continue;
        if (bytes != items[i].bytes || memcmp(payload, items[i].payload, bytes) != 0) return -1;
        nh_release(&host, payload);
        found++;
    }
    return found;
}

static int read_file(const char *path, nhood_status *status) {
    struct nh_bundle bundle;
    *status = nh_bundle_open(&bundle, &host, path);
    int found = *status ? 0 : read_all(&bundle);
    nh_bundle_close(&bundle);
    return found;
}

static void check_round_trip(void) {
    struct nh_bundle bundle;
    void *payload;
    size_t bytes;
    const char *path = path_of("whole");
    CHECK(nh_bundle_write(path, "origin 1.2", &items[0]) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(nh_bundle_open(&bundle, &host, path) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(strcmp(bundle.origin, "origin 1.2") == 0 && bundle.count == 3, "%s, %lld entries",
          bundle.origin, (long long)bundle.count);
    CHECK(read_all(&bundle) == 3, "entries");
    CHECK(!nh_bundle_read(&bundle, "four", &payload, &bytes), "an entry that is not there");
    nh_bundle_close(&bundle);
    nhood_status status;
    CHECK(nh_bundle_write(path_of("empty"), "", NULL) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(read_file(path_of("empty"), &status) == 0 && !status, "empty: %s", nhood_last_error());
    CHECK(logged == 0, "%d lines", logged);
}

static void check_refusals(void) {
    nhood_status status;
    read_file("/nowhere/bundle", &status);
    CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), "'/nowhere/bundle'") &&
              strstr(nhood_last_error(), "No such file"),
          "%s", nhood_last_error());
    read_file(base, &status);
    CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), "not a regular file"), "%s",
          nhood_last_error());
    const char *pipe = path_of("pipe");
    CHECK(!mkfifo(pipe, 0600), "%s", pipe);
    read_file(pipe, &status);
    CHECK(status == NHOOD_ERR_ARGUMENT, "a pipe");
    read_file("/proc/self/exe", &status);
    CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), "not a bundle"), "%s",
          nhood_last_error());
    CHECK(nh_bundle_write("/nowhere/bundle", "", NULL) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "cannot be written: No such file"),
          "%s", nhood_last_error());
}

/* Every byte flipped, every length cut: what is read is right, and what was before the damage is there. */
static void check_damage(void) {
    const char *path = path_of("whole");
    static char whole[512];
    int file = open(path, O_RDWR);
    ssize_t bytes = read(file, whole, sizeof whole);
    /* Headers of 32 bytes, keys, payloads. */
    const ssize_t first = 32 + 12 + 10,
                  end[] = {first + 32 + 3 + 5, first + 72 + 3, first + 107 + 5 + 8};
    CHECK(bytes == end[2], "bundle of %zd bytes", bytes);
    for (ssize_t i = 0; i < bytes; i++) {
        char flipped = (char)(whole[i] ^ 0x10);
        nhood_status status;
        logged = 0;
        CHECK(pwrite(file, &flipped, 1, i) == 1, "byte %zd", i);
        int found = read_file(path, &status), before = (i >= end[0]) + (i >= end[1]);
        CHECK(i < first ? status == NHOOD_ERR_ARGUMENT : !status && found >= before && found < 3,
              "byte %zd flipped: status %d, %d entries", i, (int)status, found);
        CHECK(pwrite(file, &whole[i], 1, i) == 1, "byte %zd", i);
    }
    for (ssize_t length = bytes - 1; length >= 0; length--) {
        nhood_status status;
        logged = 0;
        CHECK(!ftruncate(file, length), "length %zd", length);
        int found = read_file(path, &status);
        bool between = length == first || length == end[0] || length == end[1];
        CHECK(length < first ? status == NHOOD_ERR_ARGUMENT
                             : !status && found == (length >= end[0]) + (length >= end[1]) &&
                                   logged == !between,
              "cut to %zd: status %d, %d entries, %d lines", length, (int)status, found, logged);
    }
    close(file);
}

/* A file that shrinks while it is in use. */
static void check_shrinking(void) {
    struct nh_bundle bundle;
    const char *path = path_of("shrinking");
    CHECK(nh_bundle_write(path, "", &items[0]) == NHOOD_OK &&
              nh_bundle_open(&bundle, &host, path) == NHOOD_OK,
          "%s", nhood_last_error());
    CHECK(!truncate(path, 50) && read_all(&bundle) == 0, "entries of a file that was cut");
    nh_bundle_close(&bundle);
}

int main(void) {
    if (!mkdtemp(base)) return EXIT_FAILURE;
    check_round_trip();
    check_refusals();
    check_damage();
    check_shrinking();
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    if (system(command)) printf("%s stays behind\n", base);
    return test_result();
}
