#include "top_n.h"

#include <string.h>

void nh_top_n_start(struct nh_top_n *top, void *item, size_t item_bytes, int capacity) {
    top->item = item;
    top->item_bytes = item_bytes;
    top->count = 0;
    top->capacity = capacity < NH_TOP_N_MOST ? capacity : NH_TOP_N_MOST;
}

void nh_top_n_add(struct nh_top_n *top, const void *item, double ns) {
    if (!(ns < nh_top_n_limit(top))) return;
    int last = top->count < top->capacity ? top->count++ : top->capacity - 1, at = last;
    for (; at > 0 && top->ns[at - 1] > ns; at--)
        top->ns[at] = top->ns[at - 1];
    char *place = (char *)top->item + (size_t)at * top->item_bytes;
    memmove(place + top->item_bytes, place, (size_t)(last - at) * top->item_bytes);
    memcpy(place, item, top->item_bytes);
    top->ns[at] = ns;
}
