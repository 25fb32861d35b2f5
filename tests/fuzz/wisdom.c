/* Any text as wisdom; what was taken over comes back. */
#include "nhood.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *export(nhood_context *context) {
    size_t length = 0;
    nhood_wisdom_export(context, NULL, 0, &length);
    char *text = malloc(length + 1);
    if (!text || nhood_wisdom_export(context, text, length + 1, NULL)) abort();
    return text;
}

static nhood_context *create(void) {
    nhood_context *context = NULL;
    nhood_context_options options = {.struct_size = sizeof options, .threads = 1, .cache = ""};
    if (nhood_context_create(&options, &context)) abort();
    return context;
}

static int64_t count_lines(const char *text) {
    int64_t lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nhood_context *one, *two;
    int64_t accepted = -1, again = -1;
    if (!one) one = create();
    if (!two) two = create();
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    nhood_status status = nhood_wisdom_import(one, text, &accepted);
    free(text);
    if (status ? status != NHOOD_ERR_ARGUMENT || accepted : accepted < 0) abort();
    char *first = export(one);
    if (count_lines(first) - 1 > accepted) abort();
    if (nhood_wisdom_import(two, first, &again) || again != count_lines(first) - 1) abort();
    char *second = export(two);
    if (strcmp(first, second) != 0) abort();
    free(first);
    free(second);
    nhood_wisdom_forget(one, NHOOD_ANY_DEVICE, NULL, NULL);
    nhood_wisdom_forget(two, NHOOD_ANY_DEVICE, NULL, NULL);
    return 0;
}
