/* Principal components: mean and covariance of all patches in double, then Jacobi's eigenvalue method. */
#include "patches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Upper triangle of sum of x x^T. */
static void accumulate(const struct grid *grid, const struct patches *patches, double *sum,
                       double *square) {
    const int n = patches->length;
    float patch[MOST_PATCH];
    for (int64_t z = 0; z < grid->extent[0]; z++)
        for (int64_t y = 0; y < grid->extent[1]; y++)
            for (int64_t x = 0; x < grid->extent[2]; x++) {
                patch_take(grid, patches, (const int64_t[3]){z, y, x}, patch);
                for (int i = 0; i < n; i++) {
                    sum[i] += (double)patch[i];
                    for (int j = i; j < n; j++)
                        square[i * n + j] += (double)patch[i] * (double)patch[j];
                }
            }
}

/* One Jacobi rotation that makes a[p][q] zero (Golub, Van Loan, "Matrix Computations", 8.5). */
static void rotate(int n, double *a, double *v, int p, int q) {
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int k = 0; k < n; k++) {
        double kp = a[k * n + p], kq = a[k * n + q];
        a[k * n + p] = c * kp - s * kq;
        a[k * n + q] = s * kp + c * kq;
    }
    for (int k = 0; k < n; k++) {
        double pk = a[p * n + k], qk = a[q * n + k];
        a[p * n + k] = c * pk - s * qk;
        a[q * n + k] = s * pk + c * qk;
        double vp = v[p * n + k], vq = v[q * n + k];
        v[p * n + k] = c * vp - s * vq;
        v[q * n + k] = s * vp + c * vq;
    }
}

/* Diagonalises the symmetric a; the rows of v become its eigenvectors. */
static void jacobi(int n, double *a, double *v) {
    for (int i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    double trace = 0;
    for (int i = 0; i < n; i++)
        trace += fabs(a[i * n + i]);
    for (int sweep = 0; sweep < 30; sweep++) {
        double largest = 0;
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                double size = fabs(a[p * n + q]);
                if (size > largest) largest = size;
                if (size > 1e-15 * trace) rotate(n, a, v, p, q);
            }
        if (largest <= 1e-15 * trace) return;
    }
}

bool components_create(const struct grid *grid, const struct patches *patches, int count,
                       struct components *components) {
    const int n = patches->length;
    memset(components, 0, sizeof *components);
    size_t cells = (size_t)n * (size_t)n;
    double *covariance = calloc(2 * cells + (size_t)n, sizeof *covariance);
    components->vector = calloc((size_t)count * (size_t)n, sizeof *components->vector);
    if (!covariance || !components->vector) {
        free(covariance);
        components_destroy(components);
        return fail("out of memory");
    }
    double *vectors = covariance + cells, *sum = vectors + cells,
           tokens = (double)grid_tokens(grid);
    accumulate(grid, patches, sum, covariance);
    for (int i = 0; i < n; i++)
        for (int j = i; j < n; j++) {
            double value = covariance[i * n + j] / tokens - sum[i] / tokens * (sum[j] / tokens);
            covariance[i * n + j] = covariance[j * n + i] = value;
        }
    jacobi(n, covariance, vectors);
    components->length = n;
    components->count = count;
    for (int i = 0; i < n; i++)
        components->mean[i] = (float)(sum[i] / tokens);
    for (int i = 0; i < count; i++) {
        int best = 0;
        for (int j = 1; j < n; j++)
            if (covariance[j * n + j] > covariance[best * n + best]) best = j;
        for (int j = 0; j < n; j++)
            components->vector[i * n + j] = (float)vectors[best * n + j];
        covariance[best * n + best] = -INFINITY; /* taken */
    }
    free(covariance);
    return true;
}

void components_destroy(struct components *components) {
    free(components->vector);
    memset(components, 0, sizeof *components);
}
