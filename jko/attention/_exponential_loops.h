/* The loops of compiled.py's sums of exponentials for one instruction set.

   Included once for every instruction set, with NAME(x), LANES (doubles in a vector) and
   REGISTERS (vectors that the processor holds) defined.  Every loop is written for a constant
   dimension and number of columns, and `group` targets at a time, so that their totals stay in
   registers and a source that was loaded serves them all. */

#define VEC NAME(vec)
#define IVEC NAME(ivec)
typedef double VEC __attribute__((vector_size(8 * LANES)));
typedef int64_t IVEC __attribute__((vector_size(8 * LANES)));

#define MOST (REGISTERS / 8)
#define GROUP(columns) ((columns) <= 5 ? MOST : MOST / 2)

INLINE double NAME(sum)(VEC v)
{
#if LANES == 8
    v += SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5);
#elif LANES == 4
    v += SHUFFLE(v, 2, 3, 0, 1);
#endif
    return v[0] + v[1];
}

/* 2^x for |x| < 1022: with k the nearest integer and |r| <= 1/2, the polynomial in r is made
   first and k added to the exponent of its bits. */
INLINE VEC NAME(power)(VEC x)
{
    const double magic = 0x1.8p52; /* a double of this size has an integer in its low bits */
    VEC shifted = x + magic;
    VEC r = x - (shifted - magic);
    VEC p = r * POWER[10] + POWER[9];
    UNROLL
    for (int k = 8; k >= 0; k--) p = p * r + POWER[k];
    p = p * r + 1.0;
    return (VEC)((IVEC)p + ((IVEC)shifted << 52));
}

/* The exponentials e[r] of `group` targets against a block of sources. */
INLINE void NAME(exponentials)(const int dim, const int group, const double *row, const VEC *y,
                               VEC *e)
{
    UNROLL
    for (int r = 0; r < group; r++) {
        VEC score = row[r * dim] * y[0];
        UNROLL
        for (int k = 1; k < dim; k++) score += row[r * dim + k] * y[k];
        e[r] = NAME(power)(score);
    }
}

INLINE void NAME(rows)(const int dim, const int columns, const struct problem *p)
{
    const int group = GROUP(columns);
    for (size_t i = 0; i < p->targets; i += group) {
        const VEC *y = (const VEC *)p->points, *payload = (const VEC *)p->payload;
        VEC total[MOST * 15], e[MOST];
        UNROLL
        for (int k = 0; k < group * columns; k++) total[k] = (VEC){0};
        for (size_t j = 0; j < p->sources; j += LANES, y += dim, payload += columns) {
            NAME(exponentials)(dim, group, p->rows + i * dim, y, e);
            UNROLL
            for (int c = 0; c < columns; c++)
                UNROLL
                for (int r = 0; r < group; r++) total[r * columns + c] += e[r] * payload[c];
        }
        UNROLL
        for (int k = 0; k < group * columns; k++)
            p->total[i * columns + k] = NAME(sum)(total[k]);
    }
}

/* The exponential of (i, j) serves (j, i) too, but in the blocks on the diagonal. */
INLINE void NAME(symmetric)(const int dim, const int columns, const struct problem *p)
{
    const int group = GROUP(columns);
    for (size_t start = LANES * p->part; start < p->sources; start += LANES * p->parts)
        for (size_t k = 0; k < LANES; k += group) {
            const double *row = p->rows + (start + k) * dim;
            const VEC *y = (const VEC *)(p->points + start * dim);
            const VEC *payload = (const VEC *)(p->payload + start * columns);
            const double *own = (const double *)payload + k;
            VEC *there = (VEC *)(p->total + start * columns);
            double *here = (double *)there + k;
            VEC total[MOST * 15], e[MOST];
            NAME(exponentials)(dim, group, row, y, e);
            UNROLL
            for (int c = 0; c < columns; c++)
                UNROLL
                for (int r = 0; r < group; r++) total[r * columns + c] = e[r] * payload[c];
            for (size_t j = start + LANES; j < p->sources; j += LANES) {
                y += dim, payload += columns, there += columns;
                NAME(exponentials)(dim, group, row, y, e);
                UNROLL
                for (int c = 0; c < columns; c++) {
                    VEC sum = there[c];
                    UNROLL
                    for (int r = 0; r < group; r++) {
                        total[r * columns + c] += e[r] * payload[c];
                        sum += e[r] * own[c * LANES + r];
                    }
                    there[c] = sum;
                }
            }
            UNROLL
            for (int c = 0; c < columns; c++)
                UNROLL
                for (int r = 0; r < group; r++)
                    here[c * LANES + r] += NAME(sum)(total[r * columns + c]);
        }
}

#define LOOPS(dim, columns)                                                                       \
    static void NAME(rows_##dim##_##columns)(const struct problem *p)                             \
    {                                                                                             \
        NAME(rows)(dim, columns, p);                                                              \
    }                                                                                             \
    static void NAME(symmetric_##dim##_##columns)(const struct problem *p)                        \
    {                                                                                             \
        NAME(symmetric)(dim, columns, p);                                                         \
    }
#define EVERY(what)                                                                               \
    what(2, 1) what(2, 3) what(2, 6) what(2, 2) what(2, 4) what(2, 7)                             \
    what(3, 1) what(3, 4) what(3, 10) what(3, 2) what(3, 5) what(3, 11)                           \
    what(4, 1) what(4, 5) what(4, 15)

EVERY(LOOPS)

#define CASE(dim, columns)                                                                        \
    case 100 * dim + columns:                                                                     \
        return symmetric ? NAME(symmetric_##dim##_##columns) : NAME(rows_##dim##_##columns);

static loop *NAME(find)(int symmetric, int dim, int columns)
{
    switch (100 * dim + columns) {
        EVERY(CASE)
    default:
        return NULL;
    }
}

#undef CASE
#undef EVERY
#undef LOOPS
#undef GROUP
#undef MOST
#undef IVEC
#undef VEC
