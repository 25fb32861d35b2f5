/* The part of XLA's foreign function interface that the handlers in xla.c use: its structs, written down.
 *
 * XLA publishes them as a C API, xla/ffi/api/c_api.h, of which jaxlib has a copy. It grows by fields at the end of structs that
 * begin with their size, so what is written here stays true, and no header of XLA's is needed to compile. Names are XLA's without
 * their prefix. tests/python_jax/layout.c compares them with the header of the installed jaxlib. */
#ifndef NH_XLA_ABI_H
#define NH_XLA_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_API_MAJOR = 0, XLA_API_MINOR = 3 }; /* the oldest one with all that is used here */

enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_INSTANTIATE = 0, XLA_STAGE_INITIALIZE = 2, XLA_STAGE_EXECUTE = 3 };
enum { XLA_ATTRIBUTE_STRING = 4, XLA_BUFFER = 1 };
enum { XLA_TRAIT_COMMAND_BUFFER = 1 }; /* calls may be captured and replayed */
enum {
    XLA_S32 = 4,
    XLA_S64 = 5,
    XLA_U8 = 6,
    XLA_F16 = 10,
    XLA_F32 = 11,
    XLA_F64 = 12,
    XLA_BF16 = 16
};
enum {
    XLA_CANCELLED = 1,
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13
};

struct xla_error; /* XLA's own */
struct xla_api;

struct xla_extension {
    size_t struct_size;
    int type; /* XLA_EXTENSION_* */
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extension;
    int major, minor;
};

struct xla_error_create {
    size_t struct_size;
    struct xla_extension *extension;
    const char *message; /* copied */
    int code;
};

struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extension;
    int dtype; /* XLA_F32 .. */
    void *data;
    int64_t rank;
    int64_t *dims;
};

struct xla_text {
    const char *start;
    size_t length;
};

struct xla_type_id {
    int64_t number; /* 0: XLA chooses one */
};

struct xla_type_info {
    size_t struct_size;
    struct xla_extension *extension;
    void (*deleter)(void *object);
};

/* Arguments or results. */
struct xla_buffers {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t count;
    int *kinds; /* XLA_BUFFER */
    struct xla_buffer **buffers;
};

struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t count;
    int *kinds;              /* XLA_ATTRIBUTE_* */
    struct xla_text **names; /* sorted */
    void **values;
};

struct xla_call {
    size_t struct_size;
    struct xla_extension *extension;
    const struct xla_api *api;
    void *context; /* XLA's own */
    int stage;     /* XLA_STAGE_* */
    struct xla_buffers arguments, results;
    struct xla_attributes attributes;
};

/* For setting a state as well as for getting it. */
struct xla_state {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    int stage; /* of the handler that sets it */
    struct xla_type_id *type;
    void *state;
};

struct xla_stream {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    void *stream;
};

struct xla_device_ordinal {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    int32_t ordinal;
};

struct xla_metadata {
    size_t struct_size;
    struct xla_version version;
    uint32_t traits;
    struct xla_type_id state_type;
};

struct xla_metadata_extension {
    struct xla_extension extension;
    struct xla_metadata *metadata;
};

typedef void xla_function(void);

struct xla_api {
    size_t struct_size;
    struct xla_extension *extension;
    struct xla_version version;
    const void *internal;
    struct xla_error *(*error_create)(struct xla_error_create *);
    xla_function *error_message, *error_destroy, *handler_register;
    struct xla_error *(*stream_get)(struct xla_stream *);
    xla_function *type_register, *context_get;
    struct xla_error *(*state_set)(struct xla_state *);
    struct xla_error *(*state_get)(struct xla_state *);
    xla_function *memory_allocate, *memory_free, *pool_schedule, *pool_threads;
    xla_function *future_create, *future_set_available, *future_set_error, *run_id_get;
    struct xla_error *(*device_ordinal_get)(struct xla_device_ordinal *);
};

#endif
