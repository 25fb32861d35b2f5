/* The numbers as kernels have them: by the compiler of the emulator. */
#include "small_numbers.h"

SMALL_NUMBERS_FUNCTION(small_numbers_of_kernels)
