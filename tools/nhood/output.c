#include "output.h"

#include "progress.h"

#include <math.h>
#include <stdio.h>

/* the next member is the object's first, so it needs no comma */
static bool first;

static void quote(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void separate(void) {
    if (!first) printf(", ");
    first = false;
}

static void member(const char *name) {
    separate();
    quote(name);
    printf(": ");
}

void json_begin(void) {
    progress_hide();
    putchar('{');
    first = true;
}

void json_text(const char *name, const char *value) {
    member(name);
    quote(value);
}

void json_integer(const char *name, int64_t value) {
    member(name);
    printf("%lld", (long long)value);
}

void json_number(const char *name, double value) {
    member(name);
    if (isfinite(value))
        printf("%.9g", value);
    else
        printf("null");
}

void json_flag(const char *name, bool value) {
    member(name);
    printf(value ? "true" : "false");
}

void json_list_begin(const char *name) {
    member(name);
    putchar('[');
    first = true;
}

void json_list_object(void) {
    separate();
    putchar('{');
    first = true;
}

void json_object_end(void) {
    putchar('}');
    first = false;
}

void json_list_end(void) {
    putchar(']');
    first = false;
}

void json_end(void) {
    printf("}\n");
    fflush(stdout);
}

static const char *with_unit(double value, double step, const char *const *unit, int units,
                             char text[UNIT_BYTES]) {
    int i = 0;
    for (; i + 1 < units && value >= step * 0.9995; i++)
        value /= step;
    int decimals = value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
    snprintf(text, UNIT_BYTES, "%.*f %s", value == floor(value) ? 0 : decimals, value, unit[i]);
    return text;
}

const char *time_text(double ns, char text[UNIT_BYTES]) {
    static const char *const unit[] = {"ns", "us", "ms", "s"};
    return with_unit(ns, 1000, unit, 4, text);
}

const char *size_text(double bytes, char text[UNIT_BYTES]) {
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    return with_unit(bytes, 1024, unit, 5, text);
}
