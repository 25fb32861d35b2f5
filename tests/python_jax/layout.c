/* The structs of native/xla_abi.h against those of XLA's own header: compiling is the test. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"
#include "xla_abi.h"

/* What is written down ends where a later XLA's may go on. */
#define BEGINS_AS(mine, theirs) _Static_assert(sizeof(struct mine) <= sizeof(theirs), #mine)
#define SAME_SIZE(mine, theirs) _Static_assert(sizeof(struct mine) == sizeof(theirs), #mine)
#define SAME(mine, field, theirs, their_field)                                                     \
    _Static_assert(offsetof(struct mine, field) == offsetof(theirs, their_field) &&                \
                       sizeof(((struct mine *)0)->field) == sizeof(((theirs *)0)->their_field),    \
                   #mine "." #field)
#define EQUAL(mine, theirs) _Static_assert((int)(mine) == (int)(theirs), #mine)

EQUAL(XLA_API_MAJOR, XLA_FFI_API_MAJOR);
_Static_assert(XLA_FFI_API_MINOR >= XLA_API_MINOR, "an XLA that is older than nhood.jax can be");
EQUAL(XLA_EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
EQUAL(XLA_STAGE_INSTANTIATE, XLA_FFI_ExecutionStage_INSTANTIATE);
EQUAL(XLA_ATTRIBUTE_STRING, XLA_FFI_AttrType_STRING);
EQUAL(XLA_BUFFER, XLA_FFI_ArgType_BUFFER);
EQUAL(XLA_BUFFER, XLA_FFI_RetType_BUFFER);
EQUAL(XLA_TRAIT_COMMAND_BUFFER, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
EQUAL(XLA_S32, XLA_FFI_DataType_S32);
EQUAL(XLA_S64, XLA_FFI_DataType_S64);
EQUAL(XLA_F16, XLA_FFI_DataType_F16);
EQUAL(XLA_F32, XLA_FFI_DataType_F32);
EQUAL(XLA_F64, XLA_FFI_DataType_F64);
EQUAL(XLA_BF16, XLA_FFI_DataType_BF16);
EQUAL(XLA_CANCELLED, XLA_FFI_Error_Code_CANCELLED);
EQUAL(XLA_INVALID_ARGUMENT, XLA_FFI_Error_Code_INVALID_ARGUMENT);
EQUAL(XLA_RESOURCE_EXHAUSTED, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
EQUAL(XLA_UNIMPLEMENTED, XLA_FFI_Error_Code_UNIMPLEMENTED);
EQUAL(XLA_INTERNAL, XLA_FFI_Error_Code_INTERNAL);

SAME_SIZE(xla_version, XLA_FFI_Api_Version); /* within other structs */
SAME(xla_version, major, XLA_FFI_Api_Version, major_version);
SAME(xla_version, minor, XLA_FFI_Api_Version, minor_version);

BEGINS_AS(xla_error_create, XLA_FFI_Error_Create_Args);
SAME(xla_error_create, extension, XLA_FFI_Error_Create_Args, extension_start);
SAME(xla_error_create, message, XLA_FFI_Error_Create_Args, message);
SAME(xla_error_create, code, XLA_FFI_Error_Create_Args, errc);

BEGINS_AS(xla_buffer, XLA_FFI_Buffer);
SAME(xla_buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(xla_buffer, data, XLA_FFI_Buffer, data);
SAME(xla_buffer, rank, XLA_FFI_Buffer, rank);
SAME(xla_buffer, dims, XLA_FFI_Buffer, dims);

SAME_SIZE(xla_text, XLA_FFI_ByteSpan);
SAME(xla_text, start, XLA_FFI_ByteSpan, ptr);
SAME(xla_text, length, XLA_FFI_ByteSpan, len);

SAME_SIZE(xla_type_id, XLA_FFI_TypeId);
BEGINS_AS(xla_type_info, XLA_FFI_TypeInfo);
SAME(xla_type_info, deleter, XLA_FFI_TypeInfo, deleter);

SAME_SIZE(xla_buffers, XLA_FFI_Args);
SAME(xla_buffers, count, XLA_FFI_Args, size);
SAME(xla_buffers, kinds, XLA_FFI_Args, types);
SAME(xla_buffers, buffers, XLA_FFI_Args, args);
SAME_SIZE(xla_buffers, XLA_FFI_Rets);
SAME(xla_buffers, count, XLA_FFI_Rets, size);
SAME(xla_buffers, kinds, XLA_FFI_Rets, types);
SAME(xla_buffers, buffers, XLA_FFI_Rets, rets);

BEGINS_AS(xla_attributes, XLA_FFI_Attrs);
SAME(xla_attributes, count, XLA_FFI_Attrs, size);
SAME(xla_attributes, kinds, XLA_FFI_Attrs, types);
SAME(xla_attributes, names, XLA_FFI_Attrs, names);
SAME(xla_attributes, values, XLA_FFI_Attrs, attrs);

BEGINS_AS(xla_call, XLA_FFI_CallFrame);
SAME(xla_call, extension, XLA_FFI_CallFrame, extension_start);
SAME(xla_call, api, XLA_FFI_CallFrame, api);
SAME(xla_call, context, XLA_FFI_CallFrame, ctx);
SAME(xla_call, stage, XLA_FFI_CallFrame, stage);
SAME(xla_call, arguments, XLA_FFI_CallFrame, args);
SAME(xla_call, results, XLA_FFI_CallFrame, rets);
SAME(xla_call, attributes, XLA_FFI_CallFrame, attrs);

BEGINS_AS(xla_state, XLA_FFI_State_Set_Args);
SAME(xla_state, context, XLA_FFI_State_Set_Args, ctx);
SAME(xla_state, stage, XLA_FFI_State_Set_Args, stage);
SAME(xla_state, type, XLA_FFI_State_Set_Args, type_id);
SAME(xla_state, state, XLA_FFI_State_Set_Args, state);
BEGINS_AS(xla_state, XLA_FFI_State_Get_Args);
SAME(xla_state, context, XLA_FFI_State_Get_Args, ctx);
SAME(xla_state, stage, XLA_FFI_State_Get_Args, stage);
SAME(xla_state, type, XLA_FFI_State_Get_Args, type_id);
SAME(xla_state, state, XLA_FFI_State_Get_Args, state);

BEGINS_AS(xla_stream, XLA_FFI_Stream_Get_Args);
SAME(xla_stream, context, XLA_FFI_Stream_Get_Args, ctx);
SAME(xla_stream, stream, XLA_FFI_Stream_Get_Args, stream);
BEGINS_AS(xla_device_ordinal, XLA_FFI_DeviceOrdinal_Get_Args);
SAME(xla_device_ordinal, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME(xla_device_ordinal, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

BEGINS_AS(xla_metadata, XLA_FFI_Metadata);
SAME(xla_metadata, version, XLA_FFI_Metadata, api_version);
SAME(xla_metadata, traits, XLA_FFI_Metadata, traits);
SAME(xla_metadata, state_type, XLA_FFI_Metadata, state_type_id);
SAME_SIZE(xla_metadata_extension, XLA_FFI_Metadata_Extension);
SAME(xla_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(xla_metadata_extension, extension.type, XLA_FFI_Metadata_Extension, extension_base.type);

BEGINS_AS(xla_api, XLA_FFI_Api);
SAME(xla_api, version, XLA_FFI_Api, api_version);
SAME(xla_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(xla_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME(xla_api, state_set, XLA_FFI_Api, XLA_FFI_State_Set);
SAME(xla_api, state_get, XLA_FFI_Api, XLA_FFI_State_Get);
SAME(xla_api, device_ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
