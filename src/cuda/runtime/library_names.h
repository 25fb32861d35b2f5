/* The names of CUDA's libraries, and where else NVRTC lies: in the toolkit, or where pip puts it, relative to a folder
 * of site-packages, as this library may be. Lists for initializers. */
#ifndef NH_LIBRARY_NAMES_H
#define NH_LIBRARY_NAMES_H

#if defined(_WIN32) /* one name of NVRTC for all versions of CUDA 12, one for all of 13 */
#define NH_DRIVER_NAMES "nvcuda.dll"
#define NH_NVRTC_NAMES "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"
#define NH_NVRTC_FOLDERS NULL
#define NH_NVRTC_PACKAGES "../nvidia/cu13/bin/x86_64", "../nvidia/cuda_nvrtc/bin"
/* The builtins library of a version of NVRTC, which does not look for it in its own folder. */
#define NH_NVRTC_BUILTINS "nvrtc-builtins64_%d%d.dll"
#define NH_NVRTC_TRIED                                                                             \
    "nvrtc64_130_0.dll and nvrtc64_120_0.dll in the process, in the loader's path"
#else
#define NH_DRIVER_NAMES "libcuda.so.1", "libcuda.so"
#define NH_NVRTC_NAMES "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"
#define NH_NVRTC_FOLDERS                                                                           \
    "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib",                           \
        "/usr/local/cuda/targets/sbsa-linux/lib"
#define NH_NVRTC_PACKAGES "../nvidia/cu13/lib", "../nvidia/cuda_nvrtc/lib"
#define NH_NVRTC_TRIED                                                                             \
    "libnvrtc.so.13, .12 and .so in the process, in the loader's path, under /usr/local/cuda"
#endif

#endif
