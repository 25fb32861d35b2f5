# Which of the instruction sets of x86-64 that the library has kernels for this machine runs: elsewhere the library takes the next
# lower one. All of them where that cannot be asked, as in cross builds.
include(CheckCSourceRuns)
set(nhood_runs_avx2 TRUE)
set(nhood_runs_avx512 TRUE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    check_c_source_runs("int main(void) {
        return !(__builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\"));
    }" nhood_machine_avx2)
    check_c_source_runs("int main(void) {
        return !(__builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\") &&
                 __builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vl\"));
    }" nhood_machine_avx512)
    set(nhood_runs_avx2 ${nhood_machine_avx2})
    set(nhood_runs_avx512 ${nhood_machine_avx512})
endif()
# What the library takes by itself on this machine, where that is known.
set(nhood_best_isa "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    set(nhood_best_isa generic)
    foreach(isa avx2 avx512)
        if(nhood_runs_${isa})
            set(nhood_best_isa ${isa})
        endif()
    endforeach()
endif()
# Whether the library gets kernels for AMX tiles. Linux is asked for tile registers, and AVX-512's own instruction converts to bf16.
include(CheckCCompilerFlag)
set(nhood_has_amx FALSE)
if(NHOOD_AMX AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    check_c_compiler_flag("-mavx512bf16 -mamx-bf16" nhood_compiles_amx)
    set(nhood_has_amx ${nhood_compiles_amx})
endif()
# Whether this machine runs them, as far as its processor goes: elsewhere the library takes AVX-512's kernels, or AVX2's.
set(nhood_runs_amx ${nhood_has_amx})
if(nhood_has_amx AND NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo amx_flags REGEX "amx_bf16" LIMIT_COUNT 1)
    if(NOT amx_flags)
        set(nhood_runs_amx FALSE)
    endif()
endif()
