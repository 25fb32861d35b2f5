/* Wisdom: merging in any order, text there and back, lines left out for their reasons, files. */
#include "wisdom.h"

#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char last_log[512];
static int logs;

static void note_log(void *user, int32_t level, const char *line) {
    (void)user;
    CHECK(level == NHOOD_LOG_WARNING, "level %d", (int)level);
    snprintf(last_log, sizeof last_log, "%s", line);
    logs++;
}

static const struct nh_host host = {.log = note_log};

static struct nh_wisdom *create(void) {
    struct nh_wisdom *wisdom = NULL;
    if (nh_wisdom_create(&host, &wisdom)) exit(EXIT_FAILURE);
    return wisdom;
}

/* Equal wisdom has equal text. */
static void check_equal(struct nh_wisdom *a, struct nh_wisdom *b, const char *what) {
    char *first = NULL, *second = NULL;
    size_t first_length = 0, second_length = 0;
    nh_wisdom_text(a, &first, &first_length);
    nh_wisdom_text(b, &second, &second_length);
    CHECK(first_length == second_length && strlen(first) == first_length && !strcmp(first, second),
          "%s:\n%s--\n%s", what, first, second);
    nh_release(&host, first);
    nh_release(&host, second);
}

/* ---- merging ---- */

enum { RECORDS = 400 };

static void random_record(uint64_t *state, char problem[64], struct nh_wisdom_record *record) {
    static const char *const device[] = {"chip_a", "chip_b"};
    static const char *const solver[] = {"one", "two", "three"};
    static const char *const config[] = {"", "size=1", "size=2"};
    snprintf(problem, 64, "fwd:f32:b1h1d8:%d:w3", (int)test_between(state, 3, 20));
    *record = (struct nh_wisdom_record){.device = device[test_between(state, 0, 1)],
                                        .problem = problem,
                                        .solver = solver[test_between(state, 0, 2)],
                                        .config = config[test_between(state, 0, 2)],
                                        .median_ns = test_between(state, 1, 5),
                                        .samples = test_between(state, 1, 3)};
}

static void fill(struct nh_wisdom *wisdom, uint64_t seed) {
    char problem[64];
    struct nh_wisdom_record record;
    for (int i = 0; i < RECORDS; i++) {
        random_record(&seed, problem, &record);
        CHECK(!nh_wisdom_add(wisdom, &record), "%s", nhood_last_error());
    }
}

/* Merging is commutative, associative and idempotent. */
static void merging(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct nh_wisdom *a = create(), *b = create(), *c = create();
        struct nh_wisdom *forward = create(), *backward = create();
        fill(a, seed);
        fill(b, seed + 1000);
        fill(c, seed + 2000);
        CHECK(!nh_wisdom_merge(forward, a) && !nh_wisdom_merge(forward, b) &&
                  !nh_wisdom_merge(forward, c),
              "%s", nhood_last_error());
        nh_wisdom_merge(b, c);
        nh_wisdom_merge(backward, b);
        nh_wisdom_merge(backward, a);
        check_equal(forward, backward, "order");
        nh_wisdom_merge(forward, a);
        nh_wisdom_merge(forward, backward);
        check_equal(forward, backward, "twice");
        nh_wisdom_destroy(a);
        nh_wisdom_destroy(b);
        nh_wisdom_destroy(c);
        nh_wisdom_destroy(forward);
        nh_wisdom_destroy(backward);
    }
}

/* The record with more samples stays; of as many, the faster. */
static void preferring(void) {
    static const int64_t given[][2] = {{100, 5}, {80, 4}, {90, 5}, {95, 5}}; /* ns, samples */
    static const int64_t kept[][2] = {{100, 5}, {100, 5}, {90, 5}, {90, 5}};
    const struct nh_wisdom_key key = {.device = "chip", .problem = "fwd:f32:b1h1d8:9:w3"};
    struct nh_wisdom *wisdom = create();
    for (int i = 0; i < 4; i++) {
        struct nh_wisdom_record record = {key.device, key.problem, "one",
                                          "",         given[i][0], given[i][1]};
        int64_t median_ns = 0, samples = 0;
        CHECK(!nh_wisdom_add(wisdom, &record), "%s", nhood_last_error());
        CHECK(nh_wisdom_look_up(wisdom, &key, "one", "", &median_ns, &samples) &&
                  median_ns == kept[i][0] && samples == kept[i][1],
              "after record %d: %lld ns by %lld samples", i, (long long)median_ns,
              (long long)samples);
    }
    nh_wisdom_destroy(wisdom);
}

static void forgetting(void) {
    struct nh_wisdom *wisdom = create();
    int64_t accepted = 0;
    CHECK(!nh_wisdom_has_any(wisdom), "empty");
    CHECK(!nh_wisdom_read(wisdom,
                          "nhood-wisdom 1\n"
                          "chip fwd:f32:b1h1d8:9:w3 one size=1 100 7\n"
                          "chip fwd:f32:b1h1d8:9:w3 one size=2 90 7\n"
                          "other fwd:f32:b1h1d8:9:w3 one size=2 95 7\n"
                          "chip fwd:f32:b1h1d8:9:w5 one size=2 95 7\n",
                          "text", &accepted) &&
              accepted == 4 && nh_wisdom_has_any(wisdom),
          "%lld lines", (long long)accepted);
    CHECK(nh_wisdom_forget(wisdom, NULL, "fwd:f32:b1h1d8:9:w7") == 0, "unknown");
    CHECK(nh_wisdom_forget(wisdom, "other", "fwd:f32:b1h1d8:9:w5") == 0, "not there");
    CHECK(nh_wisdom_forget(wisdom, "other", NULL) == 1, "one device");
    CHECK(nh_wisdom_forget(wisdom, NULL, "fwd:f32:b1h1d8:9:w3") == 2, "one problem");
    CHECK(nh_wisdom_forget(wisdom, NULL, NULL) == 1 && !nh_wisdom_has_any(wisdom), "all");
    nh_wisdom_destroy(wisdom);
    nh_wisdom_destroy(NULL);
}

/* ---- text ---- */

/* Texts that name window tables by hashes are taken as they are, but all else in them is checked. */
static void tables(void) {
    struct nh_wisdom *wisdom = create(), *again = create();
    struct nh_wisdom_key key = {"chip", "bwd:f32:b1h1d8:9x4:wt7#0123456789abcdefv5xz3"};
    int64_t accepted = 0, median_ns = 0, samples = 0;
    CHECK(!nh_wisdom_read(wisdom,
                          "nhood-wisdom 1\n"
                          "chip bwd:f32:b1h1d8:9x4:wt7#0123456789abcdefv5xz3 one size=1 100 7\n"
                          "chip bwd:f32:b1h1d8:9x4:wt7#0123456789abcdefv8xz3 one size=1 100 7\n"
                          "chip bwd:f32:b1h1d8:9x4:wt7#0123456789abcdexz3 one size=1 100 7\n"
                          "chip bwd:f32:b1h1d8:9x4:wt0#0123456789abcdefxz3 one size=1 100 7\n",
                          "text", &accepted) &&
              accepted == 1,
          "%lld lines, %s", (long long)accepted, last_log);
    CHECK(nh_wisdom_look_up(wisdom, &key, "one", "size=1", &median_ns, &samples) &&
              median_ns == 100,
          "%lld ns", (long long)median_ns);
    char *text = NULL;
    size_t length = 0;
    nh_wisdom_text(wisdom, &text, &length);
    CHECK(!nh_wisdom_read(again, text, "text", &accepted) && accepted == 1, "%s", last_log);
    check_equal(wisdom, again, "there and back");
    nh_release(&host, text);
    nh_wisdom_destroy(wisdom);
    nh_wisdom_destroy(again);
    logs = 0;
}

static void texts(void) {
    struct nh_wisdom *wisdom = create(), *again = create();
    struct nh_wisdom_key key = {"chip,_2_cores", "fwd:f32:b1h1d8:9:w3"};
    int64_t accepted = 0, median_ns = 0, samples = 0;
    /* Not in canonical form, with the line ends of another system and none at the end. */
    CHECK(!nh_wisdom_read(wisdom,
                          "nhood-wisdom 1\n"
                          "chip,_2_cores fwd:f32:b1h1k1d8v8:9:w3:s1:d1:c0 one - 120 9\r\n"
                          "\n"
                          "chip,_2_cores fwd:f32:b1h1d8:9:w3 gone knob=x 999999999999999 1",
                          "text", &accepted) &&
              accepted == 2 && logs == 0,
          "%lld lines, %s", (long long)accepted, last_log);
    CHECK(nh_wisdom_look_up(wisdom, &key, "one", "", &median_ns, &samples) && median_ns == 120 &&
              samples == 9,
          "%lld ns, %lld samples", (long long)median_ns, (long long)samples);
    CHECK(!nh_wisdom_look_up(wisdom, &key, "one", "-", &median_ns, &samples), "no such config");
    char *text = NULL;
    size_t length = 0;
    nh_wisdom_text(wisdom, &text, &length);
    CHECK(!strcmp(text, "nhood-wisdom 1\n"
                        "chip,_2_cores fwd:f32:b1h1d8:9:w3 one - 120 9\n"
                        "chip,_2_cores fwd:f32:b1h1d8:9:w3 gone knob=x 999999999999999 1\n"),
          "%s", text);
    CHECK(!nh_wisdom_read(again, text, "text", &accepted) && accepted == 2, "%s", last_log);
    check_equal(wisdom, again, "there and back");
    nh_release(&host, text);
    nh_wisdom_destroy(wisdom);
    nh_wisdom_destroy(again);
}

static void reasons(void) {
#define FINE "chip fwd:f32:b1h1d8:9:w3 one size=1 100 7"
    static const struct {
        const char *line, *reason;
    } bad[] = {
        {"what is this", "it has 3 fields, not 6"},
        {FINE " 8", "it has 7 fields, not 6"},
        {"chip  fwd:f32:b1h1d8:9:w3 one size=1 100 7", "it has 7 fields"},
        {" fwd:f32:b1h1d8:9:w3 one size=1 100 7", "its device is empty"},
        {"ch\tip fwd:f32:b1h1d8:9:w3 one size=1 100 7", "its device is empty or has a byte"},
        {"chip fwd:f32:b1h1d8:9:w3 \xc3\xa9 size=1 100 7", "its solver is empty or has a byte"},
        {"chip fwd:f32:b1h1d8:2:w3 one size=1 100 7", "axis[0].window = 3 exceeds length 2"},
        {"chip fwd:f31:b1h1d8:9:w3 one size=1 100 7", "column 5"},
        {"chip fwd:f32:b1h1d8:9:w3 one size=1 1e3 7", "its median = '1e3' is not an integer"},
        {"chip fwd:f32:b1h1d8:9:w3 one size=1 0 7", "its median = '0' is not an integer in [1,"},
        {"chip fwd:f32:b1h1d8:9:w3 one size=1 1000000000000001 7", "in [1, 10^15]"},
        {"chip fwd:f32:b1h1d8:9:w3 one size=1 99999999999999999999 7", "its median has 20 bytes"},
        {"chip fwd:f32:b1h1d8:9:w3 one size=1 100 -7", "its samples = '-7' is not an integer"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct nh_wisdom *wisdom = create();
        char text[512];
        int64_t accepted = 0;
        logs = 0;
        snprintf(text, sizeof text, "nhood-wisdom 1\n" FINE "\n%s\n" FINE "\n", bad[i].line);
        CHECK(!nh_wisdom_read(wisdom, text, "text", &accepted) && accepted == 2 && logs == 1 &&
                  strstr(last_log, "text, line 3 left out: ") && strstr(last_log, bad[i].reason),
              "%s: %s", bad[i].line, last_log);
        nh_wisdom_destroy(wisdom);
    }
    /* Several are one line of the log. */
    struct nh_wisdom *wisdom = create();
    char text[3000] = "nhood-wisdom 1\n";
    int64_t several = 0;
    logs = 0;
    for (int i = 0; i < 100; i++)
        strcat(text, i % 50 == 3 ? FINE "\n" : "one two\n");
    CHECK(!nh_wisdom_read(wisdom, text, "text", &several) && several == 2 && logs == 1 &&
              !strcmp(last_log, "text: 98 lines left out, line 2 first: it has 2 fields, not 6"),
          "%d logged, %s", logs, last_log);
    snprintf(text, sizeof text, "nhood-wisdom 1\n");
    int64_t accepted = 0;
    memset(text + strlen(text), 'x', sizeof text - 1 - strlen(text));
    text[sizeof text - 1] = '\0';
    CHECK(!nh_wisdom_read(wisdom, text, "text", &accepted) && accepted == 0 &&
              strstr(last_log, "its device has"),
          "%s", last_log);
    const char *const headers[] = {"", "nhood-wisdom 2\n", "nhood-wisdom 1", "x"};
    for (int i = 0; i < 4; i++)
        CHECK(nh_wisdom_read(wisdom, headers[i], "text", &accepted) == NHOOD_ERR_ARGUMENT &&
                  strstr(nhood_last_error(), "text does not start with the line"),
              "%s", nhood_last_error());
    nh_wisdom_destroy(wisdom);
}

/* ---- files ---- */

static char folder[64];

static void in_folder(const char *name, char path[128]) {
    snprintf(path, 128, "%s/%s", folder, name);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) exit(EXIT_FAILURE);
}

static void files(void) {
    struct nh_wisdom *one = create(), *two = create(), *both = create(), *read = create();
    char path[128], other[128];
    int64_t accepted = 0;
    in_folder("wisdom", path);
    CHECK(nh_wisdom_load(read, path, &accepted) == NHOOD_ERR_CACHE_MISS, "%s", nhood_last_error());
    fill(one, 7);
    fill(two, 8);
    CHECK(!nh_wisdom_save(one, path, false), "%s", nhood_last_error());
    check_equal(one, one, "saving changes nothing");
    CHECK(!nh_wisdom_save(two, path, false), "%s", nhood_last_error());
    nh_wisdom_merge(both, one);
    nh_wisdom_merge(both, two);
    CHECK(!nh_wisdom_load(read, path, &accepted) && accepted > 0, "%s", nhood_last_error());
    check_equal(both, read, "a merge in the file");
    nh_wisdom_forget(read, NULL, NULL);
    CHECK(!nh_wisdom_save(two, path, true) && !nh_wisdom_load(read, path, &accepted), "%s",
          nhood_last_error());
    check_equal(two, read, "replaced");

    in_folder("letter", other);
    write_file(other, "Dear reader,\n");
    CHECK(nh_wisdom_save(one, other, false) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "letter does not start with"),
          "a letter is not overwritten: %s", nhood_last_error());
    CHECK(nh_wisdom_load(one, folder, &accepted) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "not a regular file"),
          "%s", nhood_last_error());
    in_folder("pipe", other);
    CHECK(!mkfifo(other, 0600) && nh_wisdom_load(one, other, &accepted) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "not a regular file"),
          "a pipe nobody writes to: %s", nhood_last_error());
    in_folder("none/wisdom", other);
    CHECK(nh_wisdom_save(one, other, false) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "No such file"),
          "%s", nhood_last_error());
    CHECK(nh_wisdom_load(one, other, &accepted) == NHOOD_ERR_CACHE_MISS, "no folder");
    nh_wisdom_destroy(one);
    nh_wisdom_destroy(two);
    nh_wisdom_destroy(both);
    nh_wisdom_destroy(read);
}

/* Processes that save at once: whatever is lost, the file is whole at every moment. */
static void races(void) {
    enum { PROCESSES = 6, SAVES = 15 };
    char path[128];
    pid_t child[PROCESSES];
    in_folder("shared", path);
    for (int p = 0; p < PROCESSES; p++)
        if ((child[p] = fork()) == 0) {
            struct nh_wisdom *wisdom = create();
            int bad = 0;
            for (int i = 0; i < SAVES; i++) {
                int64_t accepted = 0;
                fill(wisdom, (uint64_t)(100 * p + i + 1));
                bad += nh_wisdom_save(wisdom, path, false) != NHOOD_OK;
                bad += nh_wisdom_load(wisdom, path, &accepted) != NHOOD_OK || !accepted;
            }
            nh_wisdom_destroy(wisdom);
            _exit(bad || logs);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status = 1;
        waitpid(child[p], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d", p);
    }
}

static void *fill_and_read(void *argument) {
    struct nh_wisdom *wisdom = argument;
    char *text = NULL;
    size_t length = 0;
    fill(wisdom, (uint64_t)(uintptr_t)&text);
    if (!nh_wisdom_text(wisdom, &text, &length)) nh_release(&host, text);
    return NULL;
}

static void threads(void) {
    pthread_t thread[4];
    struct nh_wisdom *wisdom = create();
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, fill_and_read, wisdom);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(nh_wisdom_has_any(wisdom), "records");
    nh_wisdom_destroy(wisdom);
}

int main(void) {
    snprintf(folder, sizeof folder, "/tmp/nhood-wisdom-XXXXXX");
    if (!mkdtemp(folder)) return EXIT_FAILURE;
    merging();
    preferring();
    forgetting();
    tables();
    texts();
    reasons();
    logs = 0;
    files();
    races();
    threads();
    static const char *const names[] = {"wisdom", "letter", "shared", "pipe"};
    for (int i = 0; i < 4; i++) {
        char path[128];
        in_folder(names[i], path);
        unlink(path);
    }
    CHECK(rmdir(folder) == 0, "unfinished files are left in %s", folder);
    return test_result();
}
