/* What the tool prints on stdout: JSON objects, one a line, and numbers with units for people. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

/* One object: begin, then members, then end, which ends the line. */
void json_begin(void);
void json_text(const char *name, const char *value);
void json_integer(const char *name, int64_t value);
/* null if the number is not finite, which JSON has no word for */
void json_number(const char *name, double value);
void json_flag(const char *name, bool value);
void json_list_begin(const char *name);
void json_list_object(void);
void json_object_end(void);
void json_list_end(void);
void json_end(void);

/* Room for the text of any problem. */
enum { PROBLEM_BYTES = 512 };

enum { UNIT_BYTES = 32 };
/* "1.25 ms", "3.1 MiB"; both return text. */
const char *time_text(double ns, char text[UNIT_BYTES]);
const char *size_text(double bytes, char text[UNIT_BYTES]);

#endif
