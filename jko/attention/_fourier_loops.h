/* The loops of fourier.py for one instruction set; included as _exponential_loops.h is.

   Of TOKENS tokens at a time, in four vectors each: the factors of the basis, and the values of
   series.  Factors stand in rows of TOKENS; frequencies ascend. */

#define VEC NAME(vec)
#define TOKENS (4 * LANES)

/* Real and imaginary rows of u^k, k = 0 .. degree, from those of u in row 1.  Halving the exponent
   keeps the rounding of u^k to that of log2(k) products. */
INLINE void NAME(powers)(size_t degree, double *re, double *im)
{
    for (int t = 0; t < TOKENS; t++) re[t] = 1, im[t] = 0;
    for (size_t k = 2; k <= degree; k++) {
        const double *a = re + k / 2 * TOKENS, *b = im + k / 2 * TOKENS;
        const double *c = re + (k - k / 2) * TOKENS, *d = im + (k - k / 2) * TOKENS;
        for (int t = 0; t < TOKENS; t++) {
            re[k * TOKENS + t] = a[t] * c[t] - b[t] * d[t];
            im[k * TOKENS + t] = a[t] * d[t] + b[t] * c[t];
        }
    }
}

/* Room for the factors of TOKENS tokens: four groups of rows.

   inner[0]: cos j theta, j = 0, 1, ...;   outer[0]: cos 0, sin 2 phi, cos 2 phi, ...
   inner[1]: sin j theta, j = 1, 2, ...;   outer[1]: sin phi, cos phi, sin 3 phi, ...
   In dimension 2 inner[0] has all frequencies of the angle and outer[0] is 1. */
static void NAME(factors)(const struct fourier *f, size_t start, size_t count)
{
    double re[TOKENS], im[TOKENS], *around_re = f->scratch,
                                   *around_im = around_re + (f->degree + 1) * TOKENS;
    for (int t = 0; t < TOKENS; t++) {
        /* beyond the last token: the last one again */
        const double *x = f->points + (start + ((size_t)t < count ? (size_t)t : count - 1)) * f->dim;
        double radius = __builtin_sqrt(x[0] * x[0] + x[1] * x[1]);
        around_re[TOKENS + t] = radius == 0 ? 1 : x[0] / radius;
        around_im[TOKENS + t] = radius == 0 ? 0 : x[1] / radius;
        if (f->dim == 3) {
            double norm = __builtin_sqrt(x[2] * x[2] + radius * radius);
            re[t] = x[2] / norm, im[t] = radius / norm;
        }
    }
    NAME(powers)(f->degree, around_re, around_im);
    if (f->dim == 3) {
        memcpy(f->inner[0] + TOKENS, re, sizeof re);
        /* the row of sin 0 is kept in front of the group */
        memcpy(f->inner[1], im, sizeof im);
        NAME(powers)(f->degree, f->inner[0], f->inner[1] - TOKENS);
    } else
        for (int t = 0; t < TOKENS; t++) f->outer[0][t] = 1;
    size_t rows[2] = {0, 0};
    for (size_t k = 0; k <= f->degree; k++) {
        size_t group = f->dim == 3 ? k % 2 : 0;
        double *to = f->dim == 3 ? f->outer[group] : f->inner[0];
        if (k > 0)
            memcpy(to + TOKENS * rows[group]++, around_im + k * TOKENS, TOKENS * sizeof(double));
        memcpy(to + TOKENS * rows[group]++, around_re + k * TOKENS, TOKENS * sizeof(double));
    }
}

/* Values of one function from its coefficients in both groups, added to `value`. */
INLINE void NAME(series)(const struct fourier *f, size_t function, VEC value[4])
{
    for (int group = 0; group < f->groups; group++) {
        const size_t inner = f->size[group].inner, outer = f->size[group].outer;
        const double *c = f->coefficients[group] + function * inner * outer;
        const VEC *out = (const VEC *)f->outer[group];
        for (size_t o = 0; o < outer; o += 2, c += 2 * inner, out += 8) {
            const VEC *in = (const VEC *)f->inner[group];
            const size_t next = o + 1 < outer ? inner : 0; /* the last of an odd number: twice */
            VEC one[4] = {{0}}, two[4] = {{0}};
            for (size_t i = 0; i < inner; i++, in += 4) {
                UNROLL
                for (int v = 0; v < 4; v++) {
                    one[v] += c[i] * in[v];
                    two[v] += c[next + i] * in[v];
                }
            }
            UNROLL
            for (int v = 0; v < 4; v++) {
                value[v] += one[v] * out[v];
                if (next) value[v] += two[v] * out[4 + v];
            }
        }
    }
}

static void NAME(values)(const struct fourier *f, size_t start, size_t count)
{
    double value[TOKENS] __attribute__((aligned(ALIGNMENT)));
    NAME(factors)(f, start, count);
    for (size_t h = 0; h < f->heads; h++)
        for (size_t p = 0; p < f->columns; p++) {
            VEC sum[4] = {{0}};
            NAME(series)(f, h * f->columns + p, sum);
            memcpy(value, sum, sizeof value);
            double *total = f->total + (h * f->stride + start) * f->columns + p;
            for (size_t t = 0; t < count; t++) total[t * f->columns] = value[t];
        }
}

#undef TOKENS
#undef VEC
