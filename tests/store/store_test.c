/* The store under every fault it promises to survive: damage, truncation, full and unwritable folders, foreign
 * keys, and many processes that write one cold key at once. */
#include "store.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[] = "/tmp/nhood-store-XXXXXX";
static int logged;

static void count_line(void *user, int32_t level, const char *line) {
    (void)user, (void)level, (void)line;
    logged++;
}

static const struct nh_host host = {.log = count_line};

static void open_store(struct nh_store *store, const char *name, int64_t most_bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", base, name);
    nh_store_open(store, &host, path, most_bytes);
}

static bool holds(struct nh_store *store, const char *key, const void *expected, size_t bytes) {
    void *payload;
    size_t found;
    if (!nh_store_read(store, key, &payload, &found)) return false;
    bool same = found == bytes && memcmp(payload, expected, bytes) == 0;
    nh_release(&host, payload);
    return same;
}

static int files_in(int folder, char *last) {
    int count = 0;
    DIR *entries = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY));
    for (struct dirent *entry; (entry = readdir(entries));)
        if (entry->d_name[0] != '.') {
            count++;
            if (last) snprintf(last, 256, "%s", entry->d_name);
        }
    closedir(entries);
    return count;
}

static void check_round_trip(void) {
    struct nh_store store, again;
    open_store(&store, "new/deep/folder", 1 << 20);
    struct stat facts;
    CHECK(fstat(store.folder, &facts) == 0 && (facts.st_mode & 0777) == 0700, "mode of the folder");
    CHECK(!holds(&store, "a", "x", 1), "cold key");
    nh_store_write(&store, "a", "first", 5);
    nh_store_write(&store, "b", "", 0);
    CHECK(holds(&store, "a", "first", 5) && holds(&store, "b", "", 0), "own entries");
    nh_store_write(&store, "a", "second one", 10);
    nh_store_close(&store);
    open_store(&again, "new/deep/folder", 1 << 20);
    CHECK(holds(&again, "a", "second one", 10), "replaced entry after reopening");
    CHECK(files_in(again.folder, NULL) == 2, "no file left over");
    nh_store_close(&again);
}

/* Every byte flipped, every length cut: a miss each time, and a write mends it. */
static void check_damage(void) {
    struct nh_store store;
    open_store(&store, "damage", 1 << 20);
    nh_store_write(&store, "key", "payload", 7);
    char name[256], whole[256];
    CHECK(files_in(store.folder, name) == 1, "one file");
    int file = openat(store.folder, name, O_RDWR);
    ssize_t bytes = read(file, whole, sizeof whole);
    CHECK(bytes == 32 + 3 + 7, "entry of %zd bytes", bytes);
    for (ssize_t i = 0; i < bytes; i++) {
        char flipped = (char)(whole[i] ^ 0x10);
        CHECK(pwrite(file, &flipped, 1, i) == 1 && !holds(&store, "key", "payload", 7),
              "byte %zd flipped", i);
        void *payload;
        size_t found;
        CHECK(!nh_store_read(&store, "key", &payload, &found), "byte %zd flipped, read", i);
        CHECK(pwrite(file, &whole[i], 1, i) == 1 && holds(&store, "key", "payload", 7),
              "byte %zd restored", i);
    }
    for (ssize_t length = bytes - 1; length >= 0; length--) {
        CHECK(ftruncate(file, length) == 0 && !holds(&store, "key", "payload", 7),
              "cut to %zd bytes", length);
    }
    close(file);
    nh_store_write(&store, "key", "payload", 7);
    CHECK(holds(&store, "key", "payload", 7), "mended");
    nh_store_close(&store);
}

/* An entry under the name of another key, as after a collision of hashes. */
static void check_foreign_key(void) {
    struct nh_store store;
    char first[256], second[256];
    open_store(&store, "foreign", 1 << 20);
    nh_store_write(&store, "one", "1", 1);
    files_in(store.folder, first);
    int other = open(base, O_RDONLY | O_DIRECTORY);
    renameat(store.folder, first, other, "kept");
    nh_store_write(&store, "two", "2", 1);
    files_in(store.folder, second);
    renameat(other, "kept", store.folder, second);
    close(other);
    void *payload;
    size_t bytes;
    CHECK(strcmp(first, second) != 0 && !nh_store_read(&store, "two", &payload, &bytes),
          "entry of key one read as two");
    CHECK(!unlinkat(store.folder, second, 0) && !mkfifoat(store.folder, second, 0600) &&
              !nh_store_read(&store, "two", &payload, &bytes),
          "a pipe in place of an entry");
    nh_store_write(&store, "two", "2", 1);
    CHECK(holds(&store, "two", "2", 1), "mended");
    nh_store_close(&store);
}

static void check_folders(void) {
    struct nh_store store;
    char path[256];
    snprintf(path, sizeof path, "%s/shared", base);
    mkdir(path, 0700);
    chmod(path, 0777);
    logged = 0;
    open_store(&store, "shared", 1 << 20);
    CHECK(store.folder < 0 && logged == 1, "folder that others may write: %d lines", logged);
    nh_store_write(&store, "a", "x", 1);
    CHECK(!holds(&store, "a", "x", 1), "store that is off");
    chmod(path, 0700);
    if (geteuid() == 0 && chown(path, 1, (gid_t)-1) == 0) {
        open_store(&store, "shared", 1 << 20);
        CHECK(store.folder < 0 && logged == 2, "folder of another user: %d lines", logged);
    }
    snprintf(path, sizeof path, "%s/file", base);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    logged = 0;
    open_store(&store, "file/below", 1 << 20);
    CHECK(store.folder < 0 && logged == 1, "folder below a file: %d lines", logged);
    nh_store_open(&store, &host, "", 1 << 20);
    CHECK(store.folder < 0 && logged == 1, "no folder wanted: %d lines", logged);
}

/* Writes that stop half way: nothing stays behind, one line is logged, reads go on. */
static void check_full(void) {
    struct nh_store store;
    static char large[65536];
    open_store(&store, "full", 1 << 20);
    nh_store_write(&store, "small", "kept", 4);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    logged = 0;
    nh_store_write(&store, "large", large, sizeof large);
    nh_store_write(&store, "large", large, sizeof large);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(logged == 1, "%d lines", logged);
    CHECK(files_in(store.folder, NULL) == 1, "leftovers of a failed write");
    CHECK(holds(&store, "small", "kept", 4) && !holds(&store, "large", large, sizeof large),
          "reads after a failed write");
    nh_store_close(&store);
}

static void check_prune(void) {
    struct nh_store store;
    static char block[1000];
    open_store(&store, "prune", 3500);
    const char *const keys[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        nh_store_write(&store, keys[i], block, sizeof block);
        usleep(20000);
    }
    CHECK(holds(&store, "a", block, sizeof block), "a before pruning");
    usleep(20000);
    nh_store_write(&store, "d", block, sizeof block);
    CHECK(!holds(&store, "b", block, sizeof block), "b was used longest ago");
    CHECK(holds(&store, "a", block, sizeof block) && holds(&store, "c", block, sizeof block) &&
              holds(&store, "d", block, sizeof block),
          "the rest stays");
    struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    int left = openat(store.folder, "1.unfinished", O_WRONLY | O_CREAT, 0600);
    futimens(left, old);
    close(left);
    close(openat(store.folder, "2.unfinished", O_WRONLY | O_CREAT, 0600));
    nh_store_write(&store, "d", block, sizeof block);
    CHECK(faccessat(store.folder, "1.unfinished", F_OK, 0) != 0, "abandoned long ago");
    CHECK(faccessat(store.folder, "2.unfinished", F_OK, 0) == 0, "being written");
    nh_store_close(&store);
}

enum { PROCESSES = 16, RACE_BYTES = 100000 };

/* Each process writes one value over and over and reads: never anything but one whole value of somebody. */
static int race(int process) {
    static char mine[RACE_BYTES];
    memset(mine, 'a' + process, sizeof mine);
    struct nh_store store;
    open_store(&store, "race", 1 << 24);
    for (int round = 0; round < 20; round++) {
        void *payload;
        size_t bytes;
        if (nh_store_read(&store, "cold", &payload, &bytes)) {
            const char *text = payload;
            bool whole = bytes == RACE_BYTES && memcmp(text, text + 1, bytes - 1) == 0;
            nh_release(&host, payload);
            if (!whole) return 1;
        } else if (round) {
            return 2;
        }
        nh_store_write(&store, "cold", mine, sizeof mine);
    }
    nh_store_close(&store);
    return logged ? 3 : 0;
}

static void check_race(void) {
    logged = 0;
    pid_t child[PROCESSES];
    for (int i = 0; i < PROCESSES; i++)
        if ((child[i] = fork()) == 0) _exit(race(i));
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        waitpid(child[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: status %x", i, status);
    }
    struct nh_store store;
    open_store(&store, "race", 1 << 24);
    CHECK(files_in(store.folder, NULL) == 1, "one entry after the race");
    nh_store_close(&store);
}

int main(void) {
    if (!mkdtemp(base)) return EXIT_FAILURE;
    check_round_trip();
    check_damage();
    check_foreign_key();
    check_folders();
    check_full();
    check_prune();
    check_race();
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    if (system(command)) printf("%s stays behind\n", base);
    return test_result();
}
