/* What each operating system has its own code for, with the store above it: the same promises on all of them. */
#include "file_io.h"
#include "os.h"
#include "store.h"
#include "test.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct nh_host host = {0};
static char base[512];

/* Names are UTF-8 everywhere. */
#define FOLDER "nhood-os-\xc3\x9f\xe8\xaa\x9e"

static const char *in_base(const char *name) {
    static char path[2][700];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", base, name);
    return path[turn];
}

static bool write_text(int file, const void *text) {
    return nh_file_write(file, text, strlen(text));
}

static bool holds(const char *path, const char *expected) {
    char text[64] = "";
    int file = nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ);
    int64_t count = file < 0 ? -1 : nh_os_read_at(file, text, sizeof text - 1, 0);
    if (file >= 0) close(file);
    return count == (int64_t)strlen(expected) && strcmp(text, expected) == 0;
}

static void files(void) {
    const char *path = in_base("letter");
    char text[8] = "";
    CHECK(nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ) < 0 && errno == ENOENT, "errno %d", errno);
    CHECK(nh_os_open(NH_NO_FOLDER, in_base("none/x"), NH_OPEN_READ) < 0 &&
              (errno == ENOENT || errno == ENOTDIR),
          "errno %d", errno);
    CHECK(nh_file_replace(path, write_text, "one\n\x1a two") && holds(path, "one\n\x1a two"),
          "bytes come back as they are");
    CHECK(nh_os_open(NH_NO_FOLDER, path, NH_OPEN_NEW) < 0 && errno == EEXIST, "errno %d", errno);
    CHECK(nh_file_replace(path, write_text, "three") && holds(path, "three"), "replaced");
    int file = nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ);
    CHECK(nh_os_read_at(file, text, 2, 1) == 2 && !strcmp(text, "hr"), "'%s' at byte 1", text);
    CHECK(nh_os_read_at(file, text, 2, 0) == 2 && !memcmp(text, "th", 2), "'%s' at byte 0", text);
    CHECK(nh_os_read_at(file, text, 2, 5) == 0, "behind the end");
    CHECK(nh_os_read_at(file, text, 2, (uint64_t)1 << 33) == 0, "beyond 32 bits");
    close(file);
    CHECK(nh_os_remove(NH_NO_FOLDER, path) && nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ) < 0,
          "removed");
}

static void locks(void) {
    const char *path = in_base("lock");
    int lock = nh_os_lock(path);
    CHECK(lock >= 0, "errno %d", errno);
    CHECK(nh_os_lock(path) < 0 && errno == EWOULDBLOCK, "a lock that is held: errno %d", errno);
    nh_os_unlock(lock, path);
    lock = nh_os_lock(path);
    CHECK(lock >= 0, "a lock that was given back: errno %d", errno);
    nh_os_unlock(lock, path);
    nh_os_unlock(-1, path);
    CHECK(nh_os_lock(in_base("none/lock")) < 0 && errno != EWOULDBLOCK, "no folder");
}

static bool reads(struct nh_store *store, const char *key, const char *expected) {
    void *payload;
    size_t bytes;
    if (!nh_store_read(store, key, &payload, &bytes)) return false;
    bool same = bytes == strlen(expected) && memcmp(payload, expected, bytes) == 0;
    nh_release(&host, payload);
    return same;
}

struct seen {
    int files;
    int64_t bytes, oldest_ns;
};

static void see(void *arg, const struct nh_folder_entry *entry) {
    struct seen *seen = arg;
    if (*entry->name == '.') return;
    seen->files++;
    seen->bytes += entry->bytes;
    seen->oldest_ns = entry->modified_ns;
}

static void store(void) {
    struct nh_store store;
    const char *path = in_base("store");
    char reason[160];
    nh_store_open(&store, &host, path, 140);
    CHECK(store.folder >= 0, "a folder that is made");
    CHECK(nh_os_folder_is_own(store.folder, reason, sizeof reason), "%s", reason);
    nh_store_write(&store, "a", "first", 5);
    nh_store_write(&store, "a", "second", 6);
    nh_store_write(&store, "b", "other", 5);
    CHECK(reads(&store, "a", "second") && reads(&store, "b", "other"), "entries");
    struct seen seen = {0};
    CHECK(nh_os_scan_folder(store.folder, see, &seen) && seen.files == 2 &&
              seen.bytes == 32 + 1 + 6 + 32 + 1 + 5,
          "%d files of %lld bytes", seen.files, (long long)seen.bytes);
    int64_t age_ns = nh_os_file_clock_ns() - seen.oldest_ns;
    CHECK(age_ns > -2000000000 && age_ns < 60 * (int64_t)1000000000, "%lld ns old",
          (long long)age_ns);
    /* 77 bytes are there and 140 allowed: the third entry is one too many, and "b" was used last. */
    struct timespec pause = {.tv_nsec = 30000000};
    nanosleep(&pause, NULL);
    CHECK(reads(&store, "b", "other"), "b");
    nanosleep(&pause, NULL);
    nh_store_write(&store, "c", "0123456789012345678901234567890123456789", 40);
    CHECK(!reads(&store, "a", "second") && reads(&store, "b", "other"), "the oldest was removed");
    nh_store_close(&store);
    nh_os_remove(NH_NO_FOLDER, in_base("lock"));
    CHECK(nh_file_replace(in_base("file"), write_text, "x") &&
              nh_os_open_folder(in_base("file")) < 0 && nh_os_open_folder(in_base("none")) < 0,
          "no folder");
    nh_store_open(&store, &host, in_base("file/below"), 140);
    CHECK(store.folder < 0, "a folder below a file");
}

static void environment(void) {
    char room[NH_PATH_BYTES], path[NH_PATH_BYTES];
    const char *search = nh_os_environment("PATH", room);
    CHECK(search && *search, "PATH");
    CHECK(!nh_os_environment("NHOOD_NO_SUCH_VARIABLE", room), "a variable that is not set");
    int length = nh_os_cache_folder(path);
    CHECK(length == (int)strlen(path), "%d bytes of %s", length, path);
    CHECK(nh_os_cpus() >= 1 && nh_os_usable_cpus() >= 1, "processors");
}

static void libraries(void) {
    char path[512];
    CHECK(!nh_os_library_open("nhood-no-such-library") && nh_os_library_error(), "a reason");
    CHECK(!nh_os_library_loaded("nhood-no-such-library"), "not loaded");
    CHECK(nh_os_library_path(&host, path, sizeof path) && strchr(path, '/') &&
              strstr(path, "os_test"),
          "%s", path);
}

static void *set(void *flag) {
    *(int *)flag = 1;
    return NULL;
}

static void threads(void) {
    pthread_t thread;
    int flag = 0;
    CHECK(!nh_thread_create(&thread, set, &flag) && !pthread_join(thread, NULL) && flag, "ran");
}

int main(void) {
    const char *temporary = getenv("TEMP") ? getenv("TEMP") : "/tmp";
    snprintf(base, sizeof base, "%s/%ld-" FOLDER, temporary, (long)getpid());
    CHECK(nh_folder_make(in_base("deep/folder")), "%s: errno %d", base, errno);
    CHECK(nh_folder_make(in_base("deep/folder")), "once more");
    files();
    locks();
    store();
    environment();
    libraries();
    threads();
#if !defined(_WIN32) /* whose shell takes no names in UTF-8 */
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    CHECK(!system(command) && access(base, F_OK), "%s stays behind", base);
#endif
    return test_result();
}
