/* Any text as wisdom. */
#include "nhood.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nhood_context *context;
    int64_t accepted = -1;
    if (!context && nhood_context_create(NULL, &context)) abort();
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    nhood_status status = nhood_wisdom_import(context, text, &accepted);
    if (status ? status != NHOOD_ERR_ARGUMENT : accepted < 0) abort();
    free(text);
    return 0;
}
