#include "simulate_plot.h"

#include "message.h"
#include "output.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layout in pixels: the side of the panels, and where they start. */
enum { SIDE = 440, LEFT = 60, RIGHT = 600, TOP = 70, WIDTH = 1080, HEIGHT = 580 };
enum { MOST_STRIDES = 64 };
static const char *const whole_color = "#7fbf7b", *const masked_color = "#fdb863",
                         *const query_color = "#3465a4";

static void label(FILE *file, double x, double y, const char *anchor, const char *text) {
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++)
        if (*text == '<' || *text == '&') {
            fprintf(file, "&#%d;", *text);
        } else {
            fputc(*text, file);
        }
    fprintf(file, "</text>\n");
}

static void rectangle(FILE *file, const double at[2], const double size[2], const char *style) {
    fprintf(file, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" %s/>\n", at[0], at[1],
            size[0], size[1], style);
}

static void filled(FILE *file, const double at[2], const double size[2], const char *color) {
    char style[96];
    snprintf(style, sizeof style, "fill=\"%s\" stroke=\"white\" stroke-width=\"0.5\"", color);
    rectangle(file, at, size, style);
}

/* ---- key tiles of a grid ---- */

/* The first dilation group of a problem with two axes, y before x. */
struct grid {
    nhood_axis axis[2];
    int64_t query[2], key[2]; /* extents of tiles */
    double scale;             /* pixels a position */
};

/* Reads the last two extents of a tile that a config such as "key_tile=1x8x16,.." has. False if it has none of that name. */
static bool read_tile(const char *config, const char *name, int64_t extent[2]) {
    const size_t length = strlen(name);
    for (const char *at = config; (at = strstr(at, name)); at += length)
        if (at[length] == '=' && (at == config || at[-1] == ','))
            return sscanf(at + length, "=%*dx%" SCNd64 "x%" SCNd64, &extent[0], &extent[1]) == 2;
    return false;
}

/* Finds the tiles of a KV loop, which is over the keys of tiles of queries. False if the config has none. */
static bool grid_of(const nhood_problem *problem, const char *config, struct grid *grid) {
    for (int a = 0; a < 2; a++) {
        grid->axis[a] = problem->axis[a];
        int64_t dilation = grid->axis[a].dilation;
        grid->axis[a].length = (grid->axis[a].length + dilation - 1) / dilation;
        grid->axis[a].dilation = 1;
    }
    const bool forward =
        read_tile(config, "query_tile", grid->query) &&
        (read_tile(config, "key_tile", grid->key) || read_tile(config, "key_box", grid->key));
    if (!forward && !(read_tile(config, "dq_query_tile", grid->query) &&
                      read_tile(config, "dq_key_tile", grid->key)))
        return false;
    if (!grid->query[0] || !grid->query[1] || !grid->key[0] || !grid->key[1]) return false;
    grid->scale = SIDE / fmax((double)grid->axis[0].length, (double)grid->axis[1].length);
    return true;
}

/* Whether the tiles can be drawn: on two axes of a whole grid that is not periodic. Solvers may merge the axes if windows
 * cover all of the second. */
static bool has_two_axes(const nhood_problem *problem) {
    const nhood_axis *second = &problem->axis[1];
    for (int32_t a = 0; a < problem->rank; a++) {
        const nhood_region *region = &problem->region[a];
        if (problem->axis[a].periodic || region->query_length || region->key_length) return false;
    }
    return problem->rank == 2 && (second->window < second->length || second->causal);
}

/* The fastest config with such tiles; NULL if there is none, or if the problem does not have two axes. */
static const struct candidate *find_grid(const struct plot *plot, struct grid *grid) {
    const struct candidate *best = NULL;
    for (size_t i = 0; has_two_axes(plot->problem) && i < plot->candidates->count; i++) {
        const struct candidate *row = &plot->candidates->row[i];
        if (row->refusal || row->tiles <= 0 || (best && best->estimate_ns <= row->estimate_ns) ||
            !grid_of(plot->problem, row->config, grid))
            continue;
        best = row;
    }
    if (best) grid_of(plot->problem, best->config, grid);
    return best;
}

/* Keys [begin, end) of the first and of the last query of a tile on one axis. */
struct visible {
    int64_t begin[2], end[2];
};

static struct visible visible_of(const struct grid *grid, int a, int64_t query) {
    int64_t last = query + grid->query[a] - 1, count;
    if (last >= grid->axis[a].length) last = grid->axis[a].length - 1;
    const int64_t row[2] = {query, last};
    struct visible visible;
    for (int i = 0; i < 2; i++) {
        nhood_window(&grid->axis[a], row[i], &visible.begin[i], &count);
        visible.end[i] = visible.begin[i] + count;
    }
    return visible;
}

/* Draws a box of positions on the two axes. */
static void draw_box(FILE *file, const struct grid *grid, const int64_t from[2],
                     const int64_t size[2], const char *color) {
    const double at[2] = {LEFT + (double)from[1] * grid->scale,
                          TOP + (double)from[0] * grid->scale};
    double extent[2];
    for (int a = 0; a < 2; a++) {
        int64_t end = from[a] + size[a];
        if (end > grid->axis[a].length) end = grid->axis[a].length;
        extent[1 - a] = (double)(end - from[a]) * grid->scale;
    }
    filled(file, at, extent, color);
}

static void draw_loop(FILE *file, const struct grid *grid, const int64_t query[2]) {
    struct visible y = visible_of(grid, 0, query[0]), x = visible_of(grid, 1, query[1]);
    int64_t tile[2];
    for (tile[0] = y.begin[0]; tile[0] < y.end[1]; tile[0] += grid->key[0])
        for (tile[1] = x.begin[0]; tile[1] < x.end[1]; tile[1] += grid->key[1]) {
            bool whole = tile[0] >= y.begin[1] && tile[0] + grid->key[0] <= y.end[0] &&
                         tile[1] >= x.begin[1] && tile[1] + grid->key[1] <= x.end[0];
            draw_box(file, grid, tile, grid->key, whole ? whole_color : masked_color);
        }
    const double at[2] = {LEFT + (double)query[1] * grid->scale,
                          TOP + (double)query[0] * grid->scale};
    const double size[2] = {(double)grid->query[1] * grid->scale,
                            (double)grid->query[0] * grid->scale};
    char style[96];
    snprintf(style, sizeof style, "fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", query_color);
    rectangle(file, at, size, style);
}

static void draw_map(FILE *file, const struct plot *plot) {
    static const char *const meaning[] = {"seen by all queries of the tile", "masked",
                                          "query tile"};
    const char *const color[] = {whole_color, masked_color, query_color};
    char title[128];
    struct grid grid;
    const struct candidate *tiled = find_grid(plot, &grid);
    if (!tiled) return;
    const double at[2] = {LEFT, TOP};
    const double size[2] = {(double)grid.axis[1].length * grid.scale,
                            (double)grid.axis[0].length * grid.scale};
    rectangle(file, at, size, "fill=\"#f4f4f4\" stroke=\"#888\"");
    int64_t corner[2] = {0, 0}, middle[2];
    for (int a = 0; a < 2; a++)
        middle[a] = grid.axis[a].length / 2 / grid.query[a] * grid.query[a];
    draw_loop(file, &grid, middle);
    draw_loop(file, &grid, corner);
    snprintf(title, sizeof title, "%s: key tiles of %lldx%lld for two query tiles of %lldx%lld",
             tiled->solver, (long long)grid.key[0], (long long)grid.key[1],
             (long long)grid.query[0], (long long)grid.query[1]);
    label(file, LEFT, TOP - 12, "start", title);
    for (int i = 0; i < 3; i++) {
        const double mark[2] = {LEFT + 160.0 * i + (i ? 60 : 0), TOP + SIDE + 18};
        const double square[2] = {12, 12};
        filled(file, mark, square, color[i]);
        label(file, mark[0] + 18, mark[1] + 11, "start", meaning[i]);
    }
}

/* ---- time over stride ---- */

struct curve {
    int64_t stride[MOST_STRIDES];
    double ns[MOST_STRIDES];
    bool unmasked[MOST_STRIDES];
    int count;
};

/* The times for strides of 1, 2, 3, 4, 6, 8 .. and the longest window. Shorter windows limit the stride of their axis. */
static nhood_status find_curve(const struct plot *plot, struct curve *curve) {
    int64_t longest = 1;
    for (int32_t a = 0; a < plot->problem->rank; a++)
        if (plot->problem->axis[a].window > longest) longest = plot->problem->axis[a].window;
    for (int64_t s = 1; curve->count < MOST_STRIDES; s += s & (s - 1) ? s / 3 : s > 1 ? s / 2 : 1) {
        nhood_problem problem = *plot->problem;
        struct candidates candidates;
        if (s > longest) s = longest;
        for (int32_t a = 0; a < problem.rank; a++)
            problem.axis[a].stride = s < problem.axis[a].window ? s : problem.axis[a].window;
        nhood_status status = candidates_explain(plot->target, &problem, NULL, &candidates);
        const struct candidate *best = status ? NULL : candidates_estimated(&candidates);
        if (best) {
            curve->stride[curve->count] = s;
            curve->unmasked[curve->count] = best->tiles > 0 && best->masked_tiles <= 0;
            curve->ns[curve->count++] = best->estimate_ns;
        }
        candidates_free(&candidates);
        if (status || s == longest) return status;
    }
    return NHOOD_OK;
}

static void draw_axes(FILE *file, const struct curve *curve, double top_ns) {
    char text[UNIT_BYTES];
    fprintf(file, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#888\"/>\n", RIGHT, TOP,
            TOP + SIDE, RIGHT + SIDE);
    for (int i = 0; i <= 4; i++) {
        double y = TOP + SIDE - SIDE * i / 4.0;
        label(file, RIGHT - 6, y + 4, "end", time_text(top_ns * i / 4, text));
    }
    for (int i = 0; i < curve->count; i++) {
        snprintf(text, sizeof text, "%lld", (long long)curve->stride[i]);
        label(file, RIGHT + SIDE * (i + 0.5) / curve->count, TOP + SIDE + 16, "middle", text);
    }
    label(file, RIGHT + SIDE / 2.0, TOP + SIDE + 36, "middle",
          "stride on every axis; filled: no tile needs a mask");
}

static void draw_curve(FILE *file, const struct plot *plot, const struct curve *curve) {
    double top_ns = 0;
    for (int i = 0; i < curve->count; i++)
        top_ns = fmax(top_ns, 1.15 * curve->ns[i]);
    bool dense = plot->dense_ns < 2 * top_ns;
    if (dense) top_ns = fmax(top_ns, 1.05 * plot->dense_ns);
    draw_axes(file, curve, top_ns);
    label(file, RIGHT, TOP - 12, "start", "predicted time");
    if (dense) {
        double y = TOP + SIDE * (1 - plot->dense_ns / top_ns);
        fprintf(file, "<path d=\"M%d %.1f H%d\" stroke=\"#a40000\" stroke-dasharray=\"6 4\"/>\n",
                RIGHT, y, RIGHT + SIDE);
        label(file, RIGHT + SIDE, y - 5, "end", "windows of everything");
    }
    fprintf(file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", query_color);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < curve->count; i++) {
            double x = RIGHT + SIDE * (i + 0.5) / curve->count;
            double y = TOP + SIDE * (1 - curve->ns[i] / top_ns);
            if (pass == 0) {
                fprintf(file, "%c%.1f %.1f", i ? 'L' : 'M', x, y);
            } else {
                fprintf(file,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" stroke=\"%s\" fill=\"%s\"/>\n", x,
                        y, query_color, curve->unmasked[i] ? query_color : "white");
            }
        }
        if (pass == 0) fprintf(file, "\"/>\n");
    }
}

int plot_write(const struct plot *plot, const char *path) {
    struct curve curve = {.count = 0};
    nhood_status status = find_curve(plot, &curve);
    if (status) return complain_library(status, plot->text);
    FILE *file = fopen(path, "w");
    if (!file) return complain(EXIT_FAILURE, "%s: cannot be written", path);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, HEIGHT);
    label(file, LEFT, 24, "start", plot->text);
    label(file, LEFT, 42, "start", plot->target->info.description);
    draw_map(file, plot);
    draw_curve(file, plot, &curve);
    fprintf(file, "</svg>\n");
    bool failed = ferror(file);
    if (fclose(file) || failed) return complain(EXIT_FAILURE, "%s: cannot be written", path);
    return 0;
}
