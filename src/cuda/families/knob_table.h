/* The indices of a solver's knobs, KNOBS of them, and the table `knobs`: to be included once, with NH_KNOBS defined as the
 * name of its <solver>_knobs.def. Solvers whose files share their knobs have both in a header of their own. */
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
