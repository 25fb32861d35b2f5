#include "interruption.h"

static _Thread_local struct nh_interruption *current;

static const double interval_s = 0.1;
void nh_interruption_begin(struct nh_interruption *call, const struct nh_host *host) {
    *call = (struct nh_interruption){.host = host, .previous = current};
    atomic_init(&call->came, false);
    if (host->interrupted) current = call;
}

nhood_status nh_interruption_end(struct nh_interruption *call, nhood_status status) {
    current = call->previous;
    if (!atomic_load_explicit(&call->came, memory_order_relaxed)) return status;
    return nh_error(NHOOD_ERR_INTERRUPTED, "interrupted: outputs are not complete");
}

struct nh_interruption *nh_interruption_current(void) {
    return current;
}

static bool ask(struct nh_interruption *call) {
    const double now = nh_coarse_s();
    if (call->next_s == 0) call->next_s = now + interval_s;
    if (now < call->next_s) return false;
    if (call->host->interrupted(call->host->user)) atomic_store(&call->came, true);
    call->next_s = nh_coarse_s() + interval_s;
    return atomic_load(&call->came);
}

bool nh_interrupted(struct nh_interruption *call) {
    if (!call) return false;
    if (atomic_load_explicit(&call->came, memory_order_relaxed)) return true;
    return call == current && ask(call);
}
