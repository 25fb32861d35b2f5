/* Random legal problems of every kind: each operation, type and option, windows at their limits, any strides. */
#ifndef RANDOM_PROBLEM_H
#define RANDOM_PROBLEM_H

#include "nhood.h"
#include "random.h"

/* Small enough for the reference to take milliseconds. The same state gives the same problem everywhere. */
void random_problem(struct random *random, nhood_problem *problem);

#endif
