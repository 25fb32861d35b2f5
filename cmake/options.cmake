# Warnings and sanitizers of every target in this project: link nhood_options.
add_library(nhood_options INTERFACE)
target_compile_definitions(nhood_options INTERFACE _GNU_SOURCE)
target_compile_options(nhood_options INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(WIN32) # 10 and later; mingw-w64's threads and gcc's own functions are linked in
    target_compile_definitions(nhood_options INTERFACE _WIN32_WINNT=0x0A00 _FILE_OFFSET_BITS=64)
    target_compile_options(nhood_options INTERFACE -Wno-float-conversion) # in its macro isfinite
    target_link_options(nhood_options INTERFACE -static)
endif()
if(NHOOD_WERROR)
    target_compile_options(nhood_options INTERFACE -Werror)
endif()
if(NHOOD_SANITIZE)
    set(nhood_is_watched $<NOT:$<BOOL:$<TARGET_PROPERTY:NHOOD_UNWATCHED>>>) # a property of the target that links this
    target_compile_options(nhood_options INTERFACE
        "$<${nhood_is_watched}:-fsanitize=${NHOOD_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
    target_link_options(nhood_options INTERFACE -fsanitize=${NHOOD_SANITIZE})
    # As gcc does: one copy of the sanitizer, which also serves libraries that programs load.
    if(CMAKE_C_COMPILER_ID MATCHES "Clang" AND NOT NHOOD_FUZZ)
        execute_process(COMMAND ${CMAKE_C_COMPILER} -print-runtime-dir OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE)
        target_link_options(nhood_options INTERFACE $<$<LINK_LANGUAGE:C>:-shared-libsan> $<$<LINK_LANGUAGE:C>:-Wl,-rpath,${folder}>)
    endif()
endif()
