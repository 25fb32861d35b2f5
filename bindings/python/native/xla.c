/* nhood_xla: what XLA calls for the operations of nhood.jax, on the CPU and on CUDA devices.
 *
 * A call in an XLA program has two attributes. `problem` is its text (nhood.h), and `tensors` says which tensor each buffer is:
 * "0,1,2>3,4" are Q, K and V as arguments and O and LSE as results, by the numbers of nhood.h. The workspace is one more result.
 * All buffers are packed, the last axis first.
 *
 * A call of a group has a third, `members`: the number of members, the dtype of nhood.h, and for each buffer, in the order of
 * `tensors`, its elements and where in it the members' tensors begin, in bytes; numbers with a blank behind each. Its `problem` is
 * a text of the package's own, which begins with a brace.
 *
 * A call of samples within a bound has instead `bound`: the tokens of the arrays, the dtype, samples and axes, the bytes of a length,
 * and for each buffer, in the order of `tensors`, its elements. One more argument, behind those of `tensors`, is the lengths,
 * [samples, axes].
 *
 * XLA instantiates a call once per program, which keeps a `struct call_site` for it. Its plan is found there or, on CUDA devices,
 * in the initialize stage, once for each device. Finding a plan is left to the Python package, whose cache it is in since the
 * program was traced. The execute stage only fills in pointers; on CUDA devices it may be captured into a graph.
 *
 * Neither nhood nor XLA is linked: the package hands in addresses of functions, and XLA its own with every call. */
#include "nhood.h"
#include "xla_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { MOST_DEVICES = 64, MOST_BUFFERS = 17, ERROR_BYTES = 4096, WORKSPACE_ALIGNMENT = 64 };

/* What the package hands in. */
struct nhood_xla_functions {
    nhood_status (*execute)(const nhood_plan *, const nhood_io *);
    nhood_status (*execute_group)(const nhood_plan *, const nhood_group_io *);
    void (*release)(nhood_plan *);
    size_t (*workspace_bytes)(const nhood_plan *);
    const char *(*last_error)(void);
    nhood_status (*parse)(const char *, nhood_problem *, size_t);
    nhood_status (*elements)(const nhood_problem *, int32_t, int64_t *);
    /* The plan of a problem on a CUDA device or, with ordinal -1, on the CPU. The caller releases it. NULL: an error, whose text
     * is written. */
    nhood_plan *(*find)(const char *problem, int32_t ordinal, char *error, size_t error_bytes);
    /* Writes the library's text about lengths in the words of the package's arguments. */
    void (*reword)(const char *text, char *reworded, size_t reworded_bytes);
};

EXPORTED void nhood_xla_start(const struct nhood_xla_functions *given);

static struct nhood_xla_functions library;

void nhood_xla_start(const struct nhood_xla_functions *given) {
    library = *given;
}

/* What is expected of a buffer. */
struct tensor {
    int32_t number; /* NHOOD_Q .. */
    int dtype;      /* XLA_F32 .. */
    int64_t elements;
    int64_t *offset; /* of each member, in bytes; NULL: the problem is no group */
};

struct call_site {
    struct tensor arguments[MOST_BUFFERS], results[MOST_BUFFERS];
    int64_t argument_count, result_count; /* without lengths and the workspace */
    bool is_bounded;
    struct tensor lengths; /* of samples within a bound; it has no number */
    int64_t length_bytes, tokens;
    int64_t members;  /* samples within a bound, too */
    int64_t *offsets; /* what those of the tensors are in; NULL: the problem is no group */
    _Atomic(nhood_plan *) plans[MOST_DEVICES];
    char problem[];
};

static void destroy(void *object) {
    struct call_site *site = object;
    for (int i = 0; i < MOST_DEVICES; i++) {
        nhood_plan *plan = atomic_load(&site->plans[i]);
        if (plan) library.release(plan);
    }
    free(site->offsets);
    free(site);
}

/* XLA fills in the numbers when the package registers the types: each of its platforms numbers them by itself. */
EXPORTED extern struct xla_type_id nhood_xla_cpu_type, nhood_xla_cuda_type;
EXPORTED extern struct xla_type_info nhood_xla_type_info;
struct xla_type_id nhood_xla_cpu_type, nhood_xla_cuda_type;
struct xla_type_info nhood_xla_type_info = {sizeof nhood_xla_type_info, NULL, destroy};

static struct xla_error *fail(const struct xla_call *call, int code, const char *message) {
    struct xla_error_create args = {sizeof args, NULL, message, code};
    return call->api->error_create(&args);
}

static struct xla_error *fail_with(const struct xla_call *call, nhood_status status) {
    int code = XLA_INTERNAL;
    if (status == NHOOD_ERR_ARGUMENT) code = XLA_INVALID_ARGUMENT;
    if (status == NHOOD_ERR_UNSUPPORTED) code = XLA_UNIMPLEMENTED;
    if (status == NHOOD_ERR_INTERRUPTED) code = XLA_CANCELLED;
    if (status == NHOOD_ERR_MEMORY) code = XLA_RESOURCE_EXHAUSTED;
    return fail(call, code, library.last_error());
}

/* Whether XLA only asks what kind of handler this is; then it is answered. XLA's own version is given back, as whatever is not
 * older than the structs of xla_abi.h can be called, which the sizes tell. */
static bool is_metadata(const struct xla_call *call, const struct xla_type_id *type) {
    struct xla_extension *extension = call->extension;
    if (!extension || extension->type != XLA_EXTENSION_METADATA) return false;
    struct xla_metadata *metadata = ((struct xla_metadata_extension *)extension)->metadata;
    struct xla_version version = {sizeof version, NULL, XLA_API_MAJOR, XLA_API_MINOR};
    if (call->api && call->api->version.major == XLA_API_MAJOR &&
        call->api->version.minor > XLA_API_MINOR)
        version.minor = call->api->version.minor;
    metadata->version = version;
    metadata->traits = XLA_TRAIT_COMMAND_BUFFER;
    if (type) metadata->state_type = *type;
    return true;
}

/* Structs that hold other structs by value must have these at the same places: only the last one may have grown. */
static struct xla_error *check(const struct xla_call *call) {
    const struct xla_api *api = call->api;
    if (api->struct_size >= sizeof *api && call->struct_size >= sizeof *call &&
        call->arguments.struct_size == sizeof call->arguments &&
        call->results.struct_size == sizeof call->results &&
        call->attributes.struct_size >= sizeof call->attributes)
        return NULL;
    return fail(call, XLA_UNIMPLEMENTED, "nhood.jax does not know the structs of this jaxlib");
}

/* ---- instantiate: what the attributes say ---- */

static const struct xla_text *attribute(const struct xla_call *call, const char *name) {
    for (int64_t i = 0; i < call->attributes.count; i++) {
        const struct xla_text *found = call->attributes.names[i];
        if (call->attributes.kinds[i] == XLA_ATTRIBUTE_STRING && found->length == strlen(name) &&
            !memcmp(found->start, name, found->length))
            return call->attributes.values[i];
    }
    return NULL;
}

static int dtype_of(int32_t dtype, int32_t number) {
    static const int numbers[] = {[NHOOD_DTYPE_F64] = XLA_F64,
                                  [NHOOD_DTYPE_F32] = XLA_F32,
                                  [NHOOD_DTYPE_F16] = XLA_F16,
                                  [NHOOD_DTYPE_BF16] = XLA_BF16};
    if ((number == NHOOD_LSE || number == NHOOD_D_LSE) && dtype != NHOOD_DTYPE_F64) return XLA_F32;
    return numbers[dtype];
}

/* Reads numbers up to the end, or to the sign between arguments and results. Returns where it stopped, NULL for no list. */
static const char *read_tensors(const char *text, const char *end, struct tensor *tensors,
                                int64_t *count) {
    while (text < end && *text != '>') {
        int32_t number = 0;
        const char *start = text;
        for (; text < end && *text >= '0' && *text <= '9'; text++)
            number = number * 10 + (*text - '0');
        if (text == start || text - start > 2 || number >= NHOOD_TENSOR_COUNT ||
            *count == MOST_BUFFERS)
            return NULL;
        tensors[(*count)++].number = number;
        if (text < end && *text == ',') text++;
    }
    return text;
}

/* Arguments are numbered before results. */
static struct tensor *tensor_at(struct call_site *site, int64_t index) {
    return index < site->argument_count ? &site->arguments[index]
                                        : &site->results[index - site->argument_count];
}

/* Tables of windows may follow the text of a problem, behind a line break. Those that stand for them in the text have as many
 * elements. */
static bool fill_from_problem(struct call_site *site) {
    nhood_problem problem;
    char *end = strchr(site->problem, '\n');
    if (end) *end = 0;
    const nhood_status status = library.parse(site->problem, &problem, sizeof problem);
    if (end) *end = '\n';
    if (status) return false;
    for (int64_t i = 0; i < site->argument_count + site->result_count; i++) {
        struct tensor *tensor = tensor_at(site, i);
        tensor->dtype = dtype_of(problem.dtype, tensor->number);
        if (library.elements(&problem, tensor->number, &tensor->elements)) return false;
    }
    return true;
}

/* Reads a number of at most 18 digits with a blank behind it. */
static bool read_number(const char **text, const char *end, int64_t *number) {
    const char *start = *text;
    *number = 0;
    for (; *text < end && **text >= '0' && **text <= '9' && *text - start < 18; ++*text)
        *number = *number * 10 + (**text - '0');
    return *text > start && *text < end && *(*text)++ == ' ';
}

static bool fill_from_members(struct call_site *site, const struct xla_text *members) {
    const char *text = members->start, *end = text + members->length;
    const int64_t tensors = site->argument_count + site->result_count;
    int64_t dtype;
    if (!read_number(&text, end, &site->members) || site->members > NHOOD_MOST_MEMBERS ||
        !read_number(&text, end, &dtype) || dtype < NHOOD_DTYPE_F64 || dtype > NHOOD_DTYPE_BF16)
        return false;
    site->offsets = calloc((size_t)(tensors * site->members + 1), sizeof *site->offsets);
    if (!site->offsets) return false;
    for (int64_t i = 0; i < tensors; i++) {
        struct tensor *tensor = tensor_at(site, i);
        tensor->dtype = dtype_of((int32_t)dtype, tensor->number);
        tensor->offset = site->offsets + i * site->members;
        if (!read_number(&text, end, &tensor->elements)) return false;
        for (int64_t m = 0; m < site->members; m++)
            if (!read_number(&text, end, &tensor->offset[m])) return false;
    }
    return text == end;
}

static bool fill_from_bound(struct call_site *site, const struct xla_text *bound) {
    const char *text = bound->start, *end = text + bound->length;
    int64_t dtype, axes;
    if (!read_number(&text, end, &site->tokens) || !read_number(&text, end, &dtype) ||
        dtype < NHOOD_DTYPE_F64 || dtype > NHOOD_DTYPE_BF16 ||
        !read_number(&text, end, &site->members) || site->members > NHOOD_MOST_MEMBERS ||
        !read_number(&text, end, &axes) || axes < 1 || axes > 3 ||
        !read_number(&text, end, &site->length_bytes) ||
        (site->length_bytes != 4 && site->length_bytes != 8))
        return false;
    site->is_bounded = true;
    site->lengths.dtype = site->length_bytes == 4 ? XLA_S32 : XLA_S64;
    site->lengths.elements = site->members * axes;
    for (int64_t i = 0; i < site->argument_count + site->result_count; i++) {
        struct tensor *tensor = tensor_at(site, i);
        tensor->dtype = dtype_of((int32_t)dtype, tensor->number);
        if (!read_number(&text, end, &tensor->elements)) return false;
    }
    return text == end;
}

/* members, bound: NULL if the problem is no group, or none within a bound. */
static bool fill(struct call_site *site, const struct xla_text *tensors,
                 const struct xla_text *members, const struct xla_text *bound) {
    const char *end = tensors->start + tensors->length;
    const char *text = read_tensors(tensors->start, end, site->arguments, &site->argument_count);
    if (!text || text == end) return false;
    if (read_tensors(text + 1, end, site->results, &site->result_count) != end) return false;
    if (bound) return fill_from_bound(site, bound);
    return members ? fill_from_members(site, members) : fill_from_problem(site);
}

/* The plan of a device, found if this is the first call for it. */
static struct xla_error *find(const struct xla_call *call, struct call_site *site, int32_t place,
                              int32_t ordinal) {
    if (atomic_load_explicit(&site->plans[place], memory_order_acquire)) return NULL;
    char error[ERROR_BYTES] = "";
    nhood_plan *plan = library.find(site->problem, ordinal, error, sizeof error);
    if (!plan) return fail(call, XLA_INTERNAL, error);
    nhood_plan *expected = NULL;
    if (!atomic_compare_exchange_strong(&site->plans[place], &expected, plan))
        library.release(plan);
    return NULL;
}

static struct xla_error *instantiate(const struct xla_call *call, struct xla_type_id *type,
                                     bool on_cpu) {
    if (is_metadata(call, type)) return NULL;
    struct xla_error *error = check(call);
    if (error) return error;
    const struct xla_text *problem = attribute(call, "problem");
    const struct xla_text *tensors = attribute(call, "tensors");
    const struct xla_text *members = attribute(call, "members");
    const struct xla_text *bound = attribute(call, "bound");
    if (!problem || !tensors)
        return fail(call, XLA_INVALID_ARGUMENT, "the attributes problem and tensors are needed");
    struct call_site *site = calloc(1, sizeof *site + problem->length + 1);
    if (!site) return fail(call, XLA_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(site->problem, problem->start, problem->length);
    if (!fill(site, tensors, members, bound)) {
        char text[ERROR_BYTES];
        snprintf(text, sizeof text,
                 "problem = \"%.2000s\", tensors = \"%.*s\": not what nhood.jax writes",
                 site->problem, (int)tensors->length, tensors->start);
        error = fail(call, XLA_INVALID_ARGUMENT, text);
    }
    if (!error && on_cpu) error = find(call, site, 0, -1);
    if (!error) {
        struct xla_state args = {sizeof args,           NULL, call->context,
                                 XLA_STAGE_INSTANTIATE, type, site};
        error = call->api->state_set(&args);
    }
    if (error) destroy(site);
    return error;
}

/* ---- initialize and execute ---- */

static struct xla_error *get_site(const struct xla_call *call, struct xla_type_id *type,
                                  struct call_site **site) {
    struct xla_state args = {sizeof args, NULL, call->context, XLA_STAGE_INSTANTIATE, type, NULL};
    struct xla_error *error = call->api->state_get(&args);
    *site = args.state;
    return error;
}

static struct xla_error *get_ordinal(const struct xla_call *call, int32_t *ordinal) {
    struct xla_device_ordinal args = {sizeof args, NULL, call->context, -1};
    struct xla_error *error = call->api->device_ordinal_get(&args);
    *ordinal = args.ordinal;
    if (!error && (args.ordinal < 0 || args.ordinal >= MOST_DEVICES))
        return fail(call, XLA_UNIMPLEMENTED, "the device's ordinal is not in [0, 64)");
    return error;
}

static bool fits(const struct xla_buffer *buffer, const struct tensor *tensor) {
    int64_t elements = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        elements *= buffer->dims[i];
    return buffer->dtype == tensor->dtype && elements == tensor->elements;
}

static bool take(const struct xla_buffers *given, const struct tensor *tensors, int64_t count,
                 nhood_io *io) {
    for (int64_t i = 0; i < count; i++) {
        const struct xla_buffer *buffer = given->buffers[i];
        if (given->kinds[i] != XLA_BUFFER || !fits(buffer, &tensors[i])) return false;
        io->data[tensors[i].number] = buffer->data;
    }
    return true;
}

/* The bytes of the workspace's buffer from its first aligned address on. */
static void take_workspace(const struct xla_buffer *buffer, nhood_io *io) {
    const size_t skipped = (size_t)(-(uintptr_t)buffer->data % WORKSPACE_ALIGNMENT);
    const size_t bytes = buffer->rank == 1 ? (size_t)buffer->dims[0] : 0;
    if (bytes <= skipped) return;
    io->workspace = (char *)buffer->data + skipped;
    io->workspace_bytes = bytes - skipped;
}

/* The members' tensors, from where those of the whole begin. */
static void place_members(const struct tensor *tensors, int64_t count, const nhood_io *whole,
                          nhood_io *member, int64_t members) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t m = 0; m < members; m++)
            member[m].data[tensors[i].number] =
                (char *)whole->data[tensors[i].number] + tensors[i].offset[m];
}

static struct xla_error *run_group(const struct xla_call *call, const struct call_site *site,
                                   const nhood_plan *plan, const nhood_io *whole) {
    nhood_io *member = calloc((size_t)site->members + 1, sizeof *member);
    if (!member) return fail(call, XLA_RESOURCE_EXHAUSTED, "out of memory");
    for (int64_t m = 0; m < site->members; m++)
        member[m].struct_size = sizeof *member;
    place_members(site->arguments, site->argument_count, whole, member, site->members);
    place_members(site->results, site->result_count, whole, member, site->members);
    const nhood_group_io io = {.struct_size = sizeof io,
                               .count = site->members,
                               .member = member,
                               .workspace = whole->workspace,
                               .workspace_bytes = whole->workspace_bytes,
                               .stream = whole->stream};
    const nhood_status status = library.execute_group(plan, &io);
    free(member);
    return status ? fail_with(call, status) : NULL;
}

static struct xla_error *run_bounded(const struct xla_call *call, const struct call_site *site,
                                     const nhood_plan *plan, const nhood_io *whole) {
    const struct xla_buffer *lengths = call->arguments.buffers[site->argument_count];
    if (call->arguments.kinds[site->argument_count] != XLA_BUFFER || !fits(lengths, &site->lengths))
        return fail(call, XLA_INVALID_ARGUMENT, "the lengths are not those of the problem");
    nhood_group_io io = {.struct_size = sizeof io,
                         .count = site->members,
                         .query_tokens = site->tokens,
                         .key_tokens = site->tokens,
                         .workspace = whole->workspace,
                         .workspace_bytes = whole->workspace_bytes,
                         .stream = whole->stream,
                         .lengths = lengths->data,
                         .length_bytes = site->length_bytes};
    memcpy(io.data, whole->data, sizeof io.data);
    const nhood_status status = library.execute_group(plan, &io);
    if (status != NHOOD_ERR_ARGUMENT) return status ? fail_with(call, status) : NULL;
    char text[ERROR_BYTES];
    library.reword(library.last_error(), text, sizeof text);
    return fail(call, XLA_INVALID_ARGUMENT, text);
}

static struct xla_error *run(const struct xla_call *call, const struct call_site *site,
                             const nhood_plan *plan, void *stream) {
    nhood_io io = {.struct_size = sizeof io, .stream = stream};
    if (call->arguments.count != site->argument_count + site->is_bounded ||
        call->results.count != site->result_count + 1 ||
        !take(&call->arguments, site->arguments, site->argument_count, &io) ||
        !take(&call->results, site->results, site->result_count, &io))
        return fail(call, XLA_INVALID_ARGUMENT, "the buffers are not those of the problem");
    take_workspace(call->results.buffers[site->result_count], &io);
    if (io.workspace_bytes < library.workspace_bytes(plan))
        return fail(
            call, XLA_INVALID_ARGUMENT,
            "the plan needs a larger workspace than when the program was traced, for another "
            "device or with other wisdom: trace it here");
    if (site->is_bounded) return run_bounded(call, site, plan, &io);
    if (site->offsets) return run_group(call, site, plan, &io);
    const nhood_status status = library.execute(plan, &io);
    return status ? fail_with(call, status) : NULL;
}

EXPORTED struct xla_error *nhood_xla_cpu_instantiate(struct xla_call *call);
EXPORTED struct xla_error *nhood_xla_cpu_execute(struct xla_call *call);
EXPORTED struct xla_error *nhood_xla_cuda_instantiate(struct xla_call *call);
EXPORTED struct xla_error *nhood_xla_cuda_initialize(struct xla_call *call);
EXPORTED struct xla_error *nhood_xla_cuda_execute(struct xla_call *call);

struct xla_error *nhood_xla_cpu_instantiate(struct xla_call *call) {
    return instantiate(call, &nhood_xla_cpu_type, true);
}

struct xla_error *nhood_xla_cpu_execute(struct xla_call *call) {
    if (is_metadata(call, NULL)) return NULL;
    struct call_site *site;
    struct xla_error *error = check(call);
    if (!error) error = get_site(call, &nhood_xla_cpu_type, &site);
    return error ? error : run(call, site, atomic_load(&site->plans[0]), NULL);
}

struct xla_error *nhood_xla_cuda_instantiate(struct xla_call *call) {
    return instantiate(call, &nhood_xla_cuda_type, false);
}

struct xla_error *nhood_xla_cuda_initialize(struct xla_call *call) {
    if (is_metadata(call, NULL)) return NULL;
    struct call_site *site;
    int32_t ordinal;
    struct xla_error *error = check(call);
    if (!error) error = get_site(call, &nhood_xla_cuda_type, &site);
    if (!error) error = get_ordinal(call, &ordinal);
    return error ? error : find(call, site, ordinal, ordinal);
}

struct xla_error *nhood_xla_cuda_execute(struct xla_call *call) {
    if (is_metadata(call, NULL)) return NULL;
    struct call_site *site;
    int32_t ordinal;
    struct xla_stream stream = {sizeof stream, NULL, call->context, NULL};
    struct xla_error *error = check(call);
    if (!error) error = get_site(call, &nhood_xla_cuda_type, &site);
    if (!error) error = get_ordinal(call, &ordinal);
    if (!error) error = call->api->stream_get(&stream);
    if (error) return error;
    const nhood_plan *plan = atomic_load_explicit(&site->plans[ordinal], memory_order_acquire);
    if (!plan) return fail(call, XLA_INTERNAL, "XLA has not called the initialize stage");
    return run(call, site, plan, stream.stream);
}
