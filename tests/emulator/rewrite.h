// CUDA C++ to C++.
#pragma once
#include <string>

// What the preprocessor cannot do: `asm` statements become calls of the functions of ptx.h and ptx90.h, and variables
// in shared memory ordinary ones.
std::string rewrite(const std::string &source);
