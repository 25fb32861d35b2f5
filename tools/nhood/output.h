/* The tool's output on stdout: JSON objects, one per line, and numbers with units for people. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

/* Print one object: first begin, then members, then end, which ends the line. */
void json_begin(void);
void json_text(const char *name, const char *value);
void json_integer(const char *name, int64_t value);
/* Prints null if the number is not finite, as JSON has no such numbers. */
void json_number(const char *name, double value);
void json_flag(const char *name, bool value);
void json_list_begin(const char *name);
void json_list_object(void);
void json_object_end(void);
void json_list_end(void);
void json_end(void);

/* Enough for the text of any problem. */
enum { PROBLEM_BYTES = 512 };

enum { UNIT_BYTES = 32 };
/* Write texts such as "1.25 ms" and "3.1 MiB", and return them. */
const char *time_text(double ns, char text[UNIT_BYTES]);
const char *size_text(double bytes, char text[UNIT_BYTES]);

#endif
