# cmake -DOUTPUT=file.c -DSOURCES="a.cu;b.cuh" -P embed.cmake: writes every file's text as a byte array, and the table
# nh_kernel_sources of them, by file name.
set(arrays "")
set(table "")
set(index 0)
foreach(path IN LISTS SOURCES)
    get_filename_component(name "${path}" NAME)
    file(READ "${path}" hex HEX)
    string(REGEX REPLACE "(................................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND arrays "static const char text_${index}[] = {\n    ${hex}0};\n")
    string(APPEND table "    {\"${name}\", text_${index}},\n")
    math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "/* Written by cmake/embed.cmake. */
#include \"kernel_sources.h\"

${arrays}
const struct nh_source nh_kernel_sources[] = {
${table}};
const int nh_kernel_source_count = ${index};
")
