/* A plugin of qemu's user emulation (version 1 of its interface, qemu 4.2 to 8.2): how many instructions a program executes,
 * how many of them are multiply-adds of vectors, load from memory, or store. bench/cpu/instructions.py compiles and uses it.
 *
 * Instructions are told apart by their names as disassembled, those of SVE, which older disassemblers do not know, by their
 * bits. On x86-64 any other instruction than a store that names memory counts as a load, multiply-adds too. */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of qemu-plugin.h, which distributions do not install. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void qemu_plugin_tb_fn(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void qemu_plugin_end_fn(qemu_plugin_id_t id, void *user);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *instruction);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *instruction);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, qemu_plugin_tb_fn *translated);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, enum qemu_plugin_op op,
                                              void *counter, uint64_t add);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, qemu_plugin_end_fn *end, void *user);

#define EXPORT __attribute__((visibility("default")))
EXPORT extern int qemu_plugin_version;
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv);

enum kind { ALL, MULTIPLY_ADDS, LOADS, STORES, KINDS };
static uint64_t executed[KINDS];

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* "vfmadd231ps 8(%rax, %rbx), %ymm1, %ymm0", "vmovups %ymm0, (%rax)" */
static void count_x86(const char *text, uint64_t count[KINDS]) {
    const bool memory = strchr(text, '('), last = text[strlen(text) - 1] == ')';
    if (begins(text, "vfmadd") || begins(text, "vfnmadd")) count[MULTIPLY_ADDS]++;
    if (!memory || begins(text, "lea") || begins(text, "nop") || begins(text, "prefetch")) return;
    if (last && strstr(text, "mov")) {
        count[STORES]++;
    } else {
        count[LOADS]++;
    }
}

/* "fmla v13.4s, v3.4s, v5.4s", "ldr q5, [x0]", "str q5, [x0]" */
static void count_aarch64(const char *text, uint32_t bits, uint64_t count[KINDS]) {
    /* SVE: memory operations by their highest seven bits; fmla, fmad and fmls, fmsb of vectors */
    const uint32_t group = bits >> 25;
    if (group == 0x42 || group == 0x52 || group == 0x62) {
        count[LOADS]++;
    } else if (group == 0x72) {
        count[STORES]++;
    } else if (begins(text, "fmla ") || (bits & 0xff204000) == 0x65200000) {
        count[MULTIPLY_ADDS]++;
    } else if (begins(text, "ld")) {
        count[LOADS]++;
    } else if (begins(text, "st")) {
        count[STORES]++;
    }
}

static bool x86;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    uint64_t count[KINDS] = {qemu_plugin_tb_n_insns(block)};
    for (size_t i = 0; i < count[ALL]; i++) {
        const struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        char *text = qemu_plugin_insn_disas(instruction);
        uint32_t bits;
        if (x86) {
            count_x86(text, count);
        } else {
            memcpy(&bits, qemu_plugin_insn_data(instruction), sizeof bits);
            count_aarch64(text, bits, count);
        }
        free(text);
    }
    for (int kind = ALL; kind < KINDS; kind++)
        qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &executed[kind],
                                                 count[kind]);
}

static void end(qemu_plugin_id_t id, void *user) {
    (void)id;
    (void)user;
    fprintf(stderr, "executed");
    for (int kind = ALL; kind < KINDS; kind++)
        fprintf(stderr, " %" PRIu64, executed[kind]);
    fprintf(stderr, "\n");
}

int qemu_plugin_version = 1;

/* info begins with the name of the machine. */
int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)argc;
    (void)argv;
    x86 = begins(*(const char *const *)info, "x86_64");
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}
