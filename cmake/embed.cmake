# cmake -DOUTPUT=file.c -DSOURCES="a.cu;b.cuh" -P embed.cmake: writes every file's text as a byte array, and the tables
# of them that compiler.h declares, by file name. Comments, indentation and spaces around operators are for who reads the
# files. Spaces behind commas and semicolons stay, as the emulator reads those of instructions, which are strings. Lines keep
# their numbers, which compilers name.

# Replaces each comment of `text` by its line ends.
function(without_comments text output)
    set(kept "")
    string(FIND "${text}" "/*" begin)
    while(NOT begin EQUAL -1)
        string(SUBSTRING "${text}" 0 ${begin} before)
        string(SUBSTRING "${text}" ${begin} -1 text)
        string(FIND "${text}" "*/" length)
        string(SUBSTRING "${text}" 0 ${length} comment)
        string(REGEX REPLACE "[^\n]+" "" line_ends "${comment}")
        string(APPEND kept "${before} ${line_ends}")
        math(EXPR length "${length} + 2")
        string(SUBSTRING "${text}" ${length} -1 text)
        string(FIND "${text}" "/*" begin)
    endwhile()
    set(${output} "${kept}${text}" PARENT_SCOPE)
endfunction()

# Families are blind to each other: a kernel includes files of its own folder, of the folders that all share, and the headers
# that the host compiles, too.
set(shared "/(kernels/common|kernels/sm90|runtime|core)$")
foreach(path IN LISTS SOURCES)
    get_filename_component(name "${path}" NAME)
    if(DEFINED "folder_${name}")
        message(FATAL_ERROR "two kernel files are named ${name}")
    endif()
    get_filename_component("folder_${name}" "${path}" DIRECTORY)
endforeach()
foreach(path IN LISTS SOURCES)
    get_filename_component(folder "${path}" DIRECTORY)
    file(STRINGS "${path}" includes REGEX "^#include \"")
    foreach(include IN LISTS includes)
        string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" name "${include}")
        if(NOT "${folder_${name}}" STREQUAL "${folder}" AND NOT "${folder_${name}}" MATCHES "${shared}")
            message(FATAL_ERROR "${path} includes ${name}, which is not in its folder nor in a shared one")
        endif()
    endforeach()
endforeach()

set(arrays "")
set(table "")
set(header_names "")
set(header_texts "")
set(headers 0)
set(index 0)
foreach(path IN LISTS SOURCES)
    get_filename_component(name "${path}" NAME)
    file(READ "${path}" text)
    without_comments("${text}" text)
    string(REGEX REPLACE " *\n +" "\n" text "${text}")
    # `x<T> == y` without spaces would begin with `x<T>=`.
    string(REPLACE "> =" ">\t=" text "${text}")
    foreach(operator "=" "+" "*" "<" "/" "%" "?" ":" "&&" "||" "==" "!=" ">=" "<=" "+=" ">>" "<<")
        string(REPLACE " ${operator} " "${operator}" text "${text}")
    endforeach()
    string(REPLACE ") {" "){" text "${text}")
    string(HEX "${text}" hex)
    string(REGEX REPLACE "(................................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND arrays "static const char text_${index}[] = {\n    ${hex}0};\n")
    string(APPEND table "    {\"${name}\", text_${index}},\n")
    if(NOT name MATCHES "\\.cu$")
        string(APPEND header_names "    \"${name}\",\n")
        string(APPEND header_texts "    text_${index},\n")
        math(EXPR headers "${headers} + 1")
    endif()
    math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "/* Written by cmake/embed.cmake. */
#include \"compiler.h\"

${arrays}
const struct nh_source nh_kernel_sources[] = {
${table}};
const char *const nh_kernel_header_name[] = {
${header_names}};
const char *const nh_kernel_header_text[] = {
${header_texts}};
const int nh_kernel_source_count = ${index}, nh_kernel_header_count = ${headers};
")
