/* A video that arrives frame by frame: every frame attends itself and the three before it, 5x5 tokens of each,
 * without the frames before those being kept. The results are those of attention over the whole video.
 *
 * Keys and values live in a ring of as many frames as the window has. Attention does not depend on the order of its
 * keys, so once the ring is full, a frame is the last of a grid of WINDOW frames that the ring holds in some order: one
 * plan serves all frames from then on, and nothing is copied but the new frame. (This takes one frame at a time and
 * stride 1; docs/regions.md says what else there is.) */
#include <nhood.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAMES = 12, WINDOW = 4, HEIGHT = 10, WIDTH = 12, HEADS = 2, DIM = 32 };
static const size_t frame = (size_t)HEIGHT * WIDTH * HEADS * DIM; /* floats */

static int failed(void) {
    fprintf(stderr, "%s\n", nhood_last_error());
    return 1;
}

/* A plan for the queries of `count` frames from `first` on, in a grid of `length` frames whose keys are all there. */
static int plan_frames(nhood_context *context, int first, int count, int length,
                       nhood_plan **plan) {
    nhood_problem problem;
    char text[160];
    snprintf(text, sizeof text, "fwd:f32:b1h%dd%d:%dx%dx%d:w%dx5x5:c100:q%d+%dx0+%dx0+%d", HEADS,
             DIM, length, HEIGHT, WIDTH, WINDOW, first, count, HEIGHT, WIDTH);
    if (nhood_problem_parse(text, &problem) || nhood_plan_create(context, 0, &problem, NULL, plan))
        return failed();
    return 0;
}

static int attend(nhood_plan *plan, float *q, float *k, float *v, float *out) {
    nhood_io io = {.struct_size = sizeof io, .workspace_bytes = nhood_plan_workspace_bytes(plan)};
    io.workspace = io.workspace_bytes ? aligned_alloc(64, io.workspace_bytes) : NULL;
    io.data[NHOOD_Q] = q;
    io.data[NHOOD_K] = k;
    io.data[NHOOD_V] = v;
    io.data[NHOOD_O] = out;
    int status = nhood_plan_execute(plan, &io) ? failed() : 0;
    free(io.workspace);
    return status;
}

struct stream {
    nhood_plan *plan
        [WINDOW]; /* frame t of a ring that fills; the last one serves all frames from then on */
    float *k, *v; /* the ring: frame t is in slot t mod WINDOW */
    int frames;   /* that have come */
};

static int stream_next(struct stream *stream, float *q, const float *k, const float *v,
                       float *out) {
    int t = stream->frames++;
    size_t slot = (size_t)(t % WINDOW) * frame;
    memcpy(stream->k + slot, k, frame * sizeof *k);
    memcpy(stream->v + slot, v, frame * sizeof *v);
    return attend(stream->plan[t < WINDOW ? t : WINDOW - 1], q, stream->k, stream->v, out);
}

/* The largest difference between the video frame by frame and all at once; 1 if something failed. */
static float compare(nhood_context *context, float *data) {
    float *q = data, *k = q + FRAMES * frame, *v = k + FRAMES * frame;
    float *streamed = v + FRAMES * frame, *whole = streamed + FRAMES * frame;
    struct stream stream = {.k = whole + FRAMES * frame, .v = whole + (FRAMES + WINDOW) * frame};
    nhood_plan *at_once = NULL;
    int status = plan_frames(context, 0, FRAMES, FRAMES, &at_once);
    for (int t = 0; !status && t < WINDOW; t++)
        status = plan_frames(context, t, 1, WINDOW, &stream.plan[t]);
    for (size_t at = 0; !status && at < FRAMES * frame; at += frame)
        status = stream_next(&stream, q + at, k + at, v + at, streamed + at);
    if (!status) status = attend(at_once, q, k, v, whole);
    float worst = 0;
    for (size_t i = 0; !status && i < FRAMES * frame; i++)
        if (!(fabsf(streamed[i] - whole[i]) <= worst)) worst = fabsf(streamed[i] - whole[i]);
    for (int t = 0; t < WINDOW; t++)
        nhood_plan_release(stream.plan[t]);
    nhood_plan_release(at_once);
    return status ? 1 : worst;
}

int main(void) {
    nhood_context *context = NULL;
    if (nhood_context_create(NULL, &context)) return failed();
    size_t floats = (5 * FRAMES + 2 * WINDOW) * frame;
    float *data = calloc(floats, sizeof *data);
    for (size_t i = 0; data && i < 3 * FRAMES * frame; i++)
        data[i] = sinf((float)i);
    float worst = data ? compare(context, data) : 1;
    printf("%d frames, %d kept: largest difference from the whole video %.1e\n", FRAMES, WINDOW,
           (double)worst);
    free(data);
    nhood_context_destroy(context);
    return !(worst < 1e-5f);
}
