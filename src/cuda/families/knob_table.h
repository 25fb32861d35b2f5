/* Defines the indices of a solver's knobs, their number KNOBS, and the table `knobs`. A source file includes this once,
 * with NH_KNOBS defined as the name of its <solver>_knobs.def. If several files of a solver need the knobs, a header of
 * the solver has both instead. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include NH_KNOBS
#undef KNOB
    KNOBS
};
static const struct nh_knob knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include NH_KNOBS
#undef KNOB
    {NULL, NULL}};
