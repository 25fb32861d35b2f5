#include "cubin.h"

#include <string.h>

/* The parts of ELF files (64 bits, little-endian) and of NVIDIA's sections in them that are read here. .nv.info is a list of
 * attributes: a byte for the format, one for the kind, and two that are the value or, in format 4, the length of a value
 * that follows. Those below have two words: the index of a symbol, and a number about that function. */
struct section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t alignment, entry_bytes;
};
enum { SECTIONS_AT = 40, SECTION_BYTES_AT = 58, HEADER_BYTES = 64 };
enum { INSTRUCTION_BYTES = 16, FORMAT_LONG = 4, REGISTERS = 0x2f, LEAST_STACK = 0x12 };

struct elf {
    const char *data;
    size_t bytes;
    uint64_t sections;
    uint16_t count, names;
};

static bool read_at(const struct elf *elf, uint64_t offset, void *value, size_t bytes) {
    if (offset > elf->bytes || elf->bytes - offset < bytes) return false;
    memcpy(value, elf->data + offset, bytes);
    return true;
}

static bool section_at(const struct elf *elf, uint16_t index, struct section *section) {
    return read_at(elf, elf->sections + index * sizeof *section, section, sizeof *section);
}

/* The section's name; "" if it lies outside of the file or does not end. */
static const char *name_of(const struct elf *elf, const struct section *section) {
    struct section names;
    if (!section_at(elf, elf->names, &names)) return "";
    uint64_t offset = names.offset + section->name;
    if (offset >= elf->bytes || !memchr(elf->data + offset, '\0', elf->bytes - offset)) return "";
    return elf->data + offset;
}

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Reads the attributes of all functions. A kernel's functions have its registers. */
static void read_attributes(const struct elf *elf, const struct section *section,
                            struct cubin_facts *facts) {
    for (uint64_t at = 0; at + 4 <= section->size;) {
        struct {
            uint8_t format, kind;
            uint16_t bytes;
        } head;
        uint32_t value[2];
        if (!read_at(elf, section->offset + at, &head, sizeof head)) return;
        at += sizeof head;
        if (head.format != FORMAT_LONG) continue;
        if (head.bytes >= sizeof value && read_at(elf, section->offset + at, value, sizeof value)) {
            if (head.kind == REGISTERS) facts->registers = value[1];
            if (head.kind == LEAST_STACK) facts->stack_bytes = value[1];
        }
        at += head.bytes;
    }
}

bool cubin_read(const void *code, size_t bytes, struct cubin_facts *facts) {
    struct elf elf = {.data = code, .bytes = bytes};
    uint16_t header[3]; /* of sections: bytes, count, index of the one with names */
    *facts = (struct cubin_facts){0};
    if (bytes < HEADER_BYTES || memcmp(code, "\177ELF\2\1", 6) != 0 ||
        !read_at(&elf, SECTIONS_AT, &elf.sections, sizeof elf.sections) ||
        !read_at(&elf, SECTION_BYTES_AT, header, sizeof header) ||
        header[0] != sizeof(struct section))
        return false;
    elf.count = header[1];
    elf.names = header[2];
    for (uint16_t i = 0; i < elf.count; i++) {
        struct section section;
        if (!section_at(&elf, i, &section)) return false;
        const char *name = name_of(&elf, &section);
        if (begins(name, ".text."))
            facts->instructions += (int64_t)section.size / INSTRUCTION_BYTES;
        if (begins(name, ".nv.shared.") && !begins(name, ".nv.shared.reserved"))
            facts->shared_bytes += (int64_t)section.size;
        if (!strcmp(name, ".nv.info")) read_attributes(&elf, &section, facts);
    }
    return facts->instructions > 0;
}

/* Warps and blocks of a multiprocessor by architecture: CUDA C++ programming guide, "compute capabilities". All have 65,536
 * registers in four equal parts, of which a warp takes a multiple of 256, and the system takes 1 KiB of shared memory per
 * block. */
static const struct {
    int arch, warps, blocks;
} limits[] = {{80, 64, 32}, {86, 48, 16},  {87, 48, 16},  {89, 48, 24},
              {90, 64, 32}, {100, 64, 32}, {103, 64, 32}, {120, 48, 24}};
enum { PARTS = 4, PART_REGISTERS = 16384, REGISTER_UNIT = 256, RESERVED_BYTES = 1024 };

static void limit(struct cubin_occupancy *occupancy, int64_t blocks, const char *by) {
    if (occupancy->limit && blocks >= occupancy->blocks) return;
    occupancy->blocks = blocks;
    occupancy->limit = by;
}

struct cubin_occupancy cubin_occupancy(const struct cubin_facts *facts, int arch, int64_t threads,
                                       int64_t dynamic_bytes, int64_t multiprocessor_bytes) {
    struct cubin_occupancy occupancy = {0};
    int64_t warps = (threads + 31) / 32;
    int64_t unit = (facts->registers * 32 + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (limits[i].arch != arch || warps < 1) continue;
        occupancy.most_warps = limits[i].warps;
        limit(&occupancy, limits[i].warps / warps, "warps");
        limit(&occupancy, limits[i].blocks, "blocks");
        if (unit) limit(&occupancy, PART_REGISTERS / unit * PARTS / warps, "registers");
        limit(&occupancy,
              multiprocessor_bytes / (dynamic_bytes + facts->shared_bytes + RESERVED_BYTES),
              "shared memory");
        occupancy.warps = occupancy.blocks * warps;
    }
    return occupancy;
}
