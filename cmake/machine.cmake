# Whether this machine runs what is compiled for AVX-512: elsewhere the library takes AVX2 in its place. True where that cannot
# be asked, as in cross builds.
include(CheckCSourceRuns)
set(nhood_runs_avx512 TRUE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    check_c_source_runs("int main(void) {
        return !(__builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\") &&
                 __builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vl\"));
    }" nhood_machine_avx512)
    set(nhood_runs_avx512 ${nhood_machine_avx512})
endif()
