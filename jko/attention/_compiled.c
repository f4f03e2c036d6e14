/* The inner loops of the kernel sums, compiled; see compiled.py, which calls them.

   Sums of exponentials (kernel.py): total_i = sum_j exp(<u_i, y_j>) c_j with u_i = D x_i, for points
   of dimension 2, 3 and 4 and the payloads c_j of orders 0, 1 and 2 (see moment_payload), in
   dimension 2 and 3 with one more column.  The exponential is made in registers, between the
   product that gives its argument and the products that consume it; where the targets are the
   sources and D is symmetric, it serves the pairs (i, j) and (j, i).  Arguments are expected
   within +-700, which UNSHIFTED_NORM sees to, and are not checked; the exponential is accurate to
   an ulp, and not-a-number stays not-a-number.

   Fourier series (fourier.py): the factors of the basis at tokens, and values of series.

   One source, three instruction sets, the best of which is chosen when the module is imported. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")
#if defined(__clang__)
#define SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLE(v, ...) __builtin_shuffle(v, (IVEC){__VA_ARGS__})
#endif
#define ALIGNMENT 64
#define WIDEST 8 /* doubles in the widest vector */

/* 1 / ln 2, and p_1 .. p_11 of 2^r = 1 + p_1 r + ... + p_11 r^11, of least relative error
   (5e-17) on |r| <= 1/2 with p_1 = ln 2. */
#define LOG2_E 0x1.71547652b82fep0
static const double POWER[] = {
    0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a22cp-5,  0x1.3b2ab6fba4011p-7,
    0x1.5d87fe782ddc3p-10, 0x1.4309130200de6p-13, 0x1.ffcbff49c8d6ep-17, 0x1.62bfe6a2b0475p-20,
    0x1.b51e2b15805aap-24, 0x1.e5e9346f9d5cfp-28, 0x1.f4bc8fd6d93d9p-32,
};

/* One head.  Sources are kept in blocks of as many as a vector holds, coordinate by coordinate;
   zeros make the last block whole. */
struct problem {
    size_t targets, sources; /* multiples of WIDEST */
    size_t part, parts;      /* symmetric sums: blocks of targets part, part + parts, ... */
    const double *rows;      /* u_i / ln 2, targets x dim */
    const double *points;    /* y_j, in blocks */
    const double *payload;   /* c_j, in blocks */
    double *total;           /* targets x columns; symmetric sums: in blocks */
};

typedef void loop(const struct problem *);

/* Series in groups of a product of inner and outer factors; see _fourier_loops.h. */
struct fourier {
    size_t dim, degree, heads, columns, stride; /* stride: tokens in all, of `total` */
    int groups;                                 /* 1 in dimension 2, else 2 */
    struct {
        size_t inner, outer;
    } size[2];
    const double *points;          /* tokens x dim */
    const double *coefficients[2]; /* heads x columns x outer x inner */
    double *inner[2], *outer[2], *scratch;
    double *total; /* heads x stride x columns */
};

#if defined(__x86_64__)
#define NAME(x) x##_avx512
#define LANES 8
#define REGISTERS 32
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#include "_exponential_loops.h"
#include "_fourier_loops.h"
#pragma GCC pop_options
#undef NAME
#undef LANES
#undef REGISTERS

#define NAME(x) x##_avx2
#define LANES 4
#define REGISTERS 16
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include "_exponential_loops.h"
#include "_fourier_loops.h"
#pragma GCC pop_options
#undef NAME
#undef LANES
#undef REGISTERS
#endif

#define NAME(x) x##_base
#define LANES 2
#define REGISTERS 16
#include "_exponential_loops.h"
#include "_fourier_loops.h"

/* Best first. */
static const struct instruction_set {
    const char *name;
    size_t lanes;
    loop *(*find)(int symmetric, int dim, int columns);
    void (*factors)(const struct fourier *, size_t start, size_t count);
    void (*values)(const struct fourier *, size_t start, size_t count);
} SETS[] = {
#if defined(__x86_64__)
    {"avx512", 8, find_avx512, factors_avx512, values_avx512},
    {"avx2", 4, find_avx2, factors_avx2, values_avx2},
#endif
    {"base", 2, find_base, factors_base, values_base},
};
#define COUNT (sizeof SETS / sizeof SETS[0])
static const struct instruction_set *chosen = &SETS[COUNT - 1];

static int available(const struct instruction_set *set)
{
#if defined(__x86_64__)
    if (set->lanes == 8)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    if (set->lanes == 4) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return set->lanes == 2;
}

static size_t padded(size_t count) { return (count + WIDEST - 1) / WIDEST * WIDEST; }

static double *aligned(void *memory)
{
    return (double *)(((uintptr_t)memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

/* A table (count, columns) into blocks, or out of them. */
INLINE void arrange(double *table, size_t count, size_t columns, size_t lanes, double *blocks, int out)
{
    for (size_t start = 0; start < count; start += lanes)
        for (size_t k = 0; k < lanes && start + k < count; k++)
            for (size_t c = 0; c < columns; c++) {
                double *entry = table + (start + k) * columns + c;
                double *place = blocks + start * columns + c * lanes + k;
                if (out)
                    *entry = *place;
                else
                    *place = *entry;
            }
}

/* The arrays of a call: at (targets, dim), matrices (heads, dim, dim), points (sources, dim),
   payload (sources, columns), total (heads, targets, columns). */
struct call {
    Py_buffer at, matrices, points, payload, total;
    int dim, columns;
    size_t heads, targets, sources, part, parts;
};

static void release(struct call *c)
{
    PyBuffer_Release(&c->at);
    PyBuffer_Release(&c->matrices);
    PyBuffer_Release(&c->points);
    PyBuffer_Release(&c->payload);
    PyBuffer_Release(&c->total);
}

static int shaped(const Py_buffer *buffer, size_t entries)
{
    return (size_t)buffer->len == entries * sizeof(double);
}

/* The rows x D / ln 2. */
static void multiply(const double *x, size_t count, size_t dim, const double *matrix, double *rows)
{
    for (size_t i = 0; i < count; i++, x += dim, rows += dim)
        for (size_t c = 0; c < dim; c++) {
            double sum = 0;
            for (size_t k = 0; k < dim; k++) sum += x[k] * matrix[k * dim + c];
            rows[c] = LOG2_E * sum;
        }
}

static int fits(const struct call *c, int symmetric)
{
    return (!symmetric || c->sources == c->targets) && shaped(&c->points, c->sources * c->dim) &&
           shaped(&c->payload, c->sources * c->columns) && shaped(&c->at, c->targets * c->dim) &&
           shaped(&c->matrices, c->heads * c->dim * c->dim) &&
           shaped(&c->total, c->heads * c->targets * c->columns);
}

static PyObject *evaluate(PyObject *args, int symmetric)
{
    struct call c = {.parts = 1};
    Py_ssize_t heads, targets, part = 0, parts = 1;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*nnii|nn", &c.at, &c.matrices, &c.points, &c.payload,
                          &c.total, &heads, &targets, &c.dim, &c.columns, &part, &parts))
        return NULL;
    c.heads = heads, c.targets = targets, c.part = part, c.parts = parts;
    c.sources = c.dim > 0 ? (size_t)c.points.len / sizeof(double) / c.dim : 0;
    const size_t lanes = chosen->lanes;
    loop *run = chosen->find(symmetric, c.dim, c.columns);
    if (run == NULL || heads < 0 || targets < 0 || part < 0 || parts < 1 || !fits(&c, symmetric)) {
        release(&c);
        PyErr_SetString(PyExc_ValueError, "arrays of these sizes are not supported");
        return NULL;
    }
    size_t width = padded(c.sources), height = padded(c.targets);
    size_t entries = width * (c.dim + c.columns) + height * (c.dim + c.columns);
    void *memory = PyMem_RawCalloc(entries * sizeof(double) + ALIGNMENT, 1);
    if (memory == NULL) {
        release(&c);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    double *points = aligned(memory), *payload = points + width * c.dim;
    double *total = payload + width * c.columns, *rows = total + height * c.columns;
    arrange(c.points.buf, c.sources, c.dim, lanes, points, 0);
    arrange(c.payload.buf, c.sources, c.columns, lanes, payload, 0);
    struct problem p = {.targets = height, .sources = width, .part = c.part, .parts = c.parts,
                        .rows = rows, .points = points, .payload = payload, .total = total};
    for (size_t h = 0; h < c.heads; h++) {
        const double *matrix = (const double *)c.matrices.buf + h * c.dim * c.dim;
        double *out = (double *)c.total.buf + h * c.targets * c.columns;
        multiply(c.at.buf, c.targets, c.dim, matrix, rows);
        if (symmetric) {
            memset(total, 0, height * c.columns * sizeof(double));
            run(&p);
            arrange(out, c.targets, c.columns, lanes, total, 1);
        } else {
            run(&p);
            memcpy(out, total, c.targets * c.columns * sizeof(double));
        }
    }
    PyMem_RawFree(memory);
    Py_END_ALLOW_THREADS;
    release(&c);
    Py_RETURN_NONE;
}

static PyObject *row_sums(PyObject *self, PyObject *args) { return evaluate(args, 0); }

static PyObject *symmetric_sums(PyObject *self, PyObject *args) { return evaluate(args, 1); }

static PyObject *supports(PyObject *self, PyObject *args)
{
    int dim, columns;
    if (!PyArg_ParseTuple(args, "ii", &dim, &columns)) return NULL;
    return PyBool_FromLong(chosen->find(0, dim, columns) != NULL);
}

/* Memory for the factors of the tokens that are handled together; NULL if there is none. */
static void *prepare(struct fourier *f, size_t tokens)
{
    size_t rows = f->degree + 1;
    void *memory = PyMem_RawCalloc((10 * rows + 4) * tokens * sizeof(double) + ALIGNMENT, 1);
    if (memory == NULL) return NULL;
    double *next = aligned(memory);
    f->inner[0] = next, next += 2 * rows * tokens;
    f->inner[1] = next + tokens, next += (rows + 1) * tokens;
    f->outer[0] = next, next += (rows + 1) * tokens;
    f->outer[1] = next, next += (rows + 1) * tokens;
    f->scratch = next;
    return memory;
}

/* Rows of the factors in dimension 2 and 3. */
static void full_size(struct fourier *f)
{
    size_t degree = f->degree;
    f->groups = f->dim == 3 ? 2 : 1;
    f->size[0].inner = f->dim == 3 ? degree + 1 : 2 * degree + 1;
    f->size[0].outer = f->dim == 3 ? degree / 2 * 2 + 1 : 1;
    f->size[1].inner = degree;
    f->size[1].outer = (degree + 1) / 2 * 2;
}

static PyObject *fourier_factors(PyObject *self, PyObject *args)
{
    Py_buffer points, out[4] = {{0}};
    Py_ssize_t dim, degree;
    if (!PyArg_ParseTuple(args, "y*nnw*w*|w*w*", &points, &dim, &degree, &out[0], &out[1], &out[2],
                          &out[3]))
        return NULL;
    struct fourier f = {.dim = dim, .degree = degree, .points = points.buf};
    const struct instruction_set *set = chosen;
    size_t tokens = 4 * set->lanes, count = 0;
    int fits = (dim == 2 || dim == 3) && degree >= 1;
    if (fits) {
        full_size(&f);
        count = points.len / sizeof(double) / dim;
        fits = shaped(&points, count * dim);
        for (int g = 0; g < f.groups; g++)
            fits = fits && shaped(&out[2 * g], f.size[g].inner * count) &&
                   shaped(&out[2 * g + 1], f.size[g].outer * count);
    }
    void *memory = fits ? prepare(&f, tokens) : NULL;
    if (memory != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        for (size_t start = 0; start < count; start += tokens) {
            size_t some = count - start < tokens ? count - start : tokens;
            set->factors(&f, start, some);
            for (int g = 0; g < f.groups; g++) {
                double *inner = (double *)out[2 * g].buf + start;
                double *outer = (double *)out[2 * g + 1].buf + start;
                for (size_t i = 0; i < f.size[g].inner; i++)
                    memcpy(inner + i * count, f.inner[g] + i * tokens, some * sizeof(double));
                for (size_t o = 0; o < f.size[g].outer; o++)
                    memcpy(outer + o * count, f.outer[g] + o * tokens, some * sizeof(double));
            }
        }
        PyMem_RawFree(memory);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&points);
    for (int k = 0; k < 4; k++)
        if (out[k].obj != NULL) PyBuffer_Release(&out[k]);
    if (!fits) return PyErr_Format(PyExc_ValueError, "arrays of these sizes are not supported");
    if (memory == NULL) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *fourier_values(PyObject *self, PyObject *args)
{
    Py_buffer points, total, coefficients[2] = {{0}};
    Py_ssize_t dim, degree, heads, columns, start, stop, inner[2] = {0}, outer[2] = {0};
    if (!PyArg_ParseTuple(args, "y*w*nnnnnny*nn|y*nn", &points, &total, &dim, &degree, &heads,
                          &columns, &start, &stop, &coefficients[0], &outer[0], &inner[0],
                          &coefficients[1], &outer[1], &inner[1]))
        return NULL;
    struct fourier f = {.dim = dim, .degree = degree, .heads = heads, .columns = columns,
                        .points = points.buf, .total = total.buf};
    const struct instruction_set *set = chosen;
    size_t tokens = 4 * set->lanes;
    int fits = (dim == 2 || dim == 3) && degree >= 1 && heads >= 0 && columns > 0;
    if (fits) {
        full_size(&f);
        f.stride = points.len / sizeof(double) / dim;
        fits = shaped(&points, f.stride * dim) && shaped(&total, heads * f.stride * columns) &&
               start >= 0 && start <= stop && (size_t)stop <= f.stride;
        for (int g = 0; g < f.groups; g++) {
            fits = fits && coefficients[g].obj != NULL && inner[g] >= 0 && outer[g] >= 0 &&
                   (size_t)inner[g] <= f.size[g].inner && (size_t)outer[g] <= f.size[g].outer &&
                   shaped(&coefficients[g], (size_t)heads * columns * inner[g] * outer[g]);
            f.size[g].inner = inner[g], f.size[g].outer = outer[g];
            f.coefficients[g] = coefficients[g].buf;
        }
    }
    void *memory = fits ? prepare(&f, tokens) : NULL;
    if (memory != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        for (size_t at = start; at < (size_t)stop; at += tokens)
            set->values(&f, at, (size_t)stop - at < tokens ? (size_t)stop - at : tokens);
        PyMem_RawFree(memory);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&points);
    PyBuffer_Release(&total);
    for (int g = 0; g < 2; g++)
        if (coefficients[g].obj != NULL) PyBuffer_Release(&coefficients[g]);
    if (!fits) return PyErr_Format(PyExc_ValueError, "arrays of these sizes are not supported");
    if (memory == NULL) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *instruction_sets(PyObject *self, PyObject *args)
{
    PyObject *names = PyList_New(0);
    for (size_t k = 0; names != NULL && k < COUNT; k++) {
        if (!available(&SETS[k])) continue;
        PyObject *name = PyUnicode_FromString(SETS[k].name);
        if (name == NULL || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *self, PyObject *args)
{
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (size_t k = 0; k < COUNT; k++)
        if (strcmp(name, SETS[k].name) == 0 && available(&SETS[k])) {
            chosen = &SETS[k];
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "this processor has no instruction set '%s'", name);
}

static PyObject *used(PyObject *self, PyObject *args) { return PyUnicode_FromString(chosen->name); }

static PyMethodDef methods[] = {
    {"row_sums", row_sums, METH_VARARGS,
     "row_sums(at, matrices, points, payload, total, heads, targets, dim, columns)"},
    {"symmetric_sums", symmetric_sums, METH_VARARGS,
     "symmetric_sums(at, matrices, points, payload, total, heads, targets, dim, columns, part, parts)"},
    {"supports", supports, METH_VARARGS, "supports(dim, columns): whether there is a loop"},
    {"fourier_factors", fourier_factors, METH_VARARGS,
     "fourier_factors(points, dim, degree, inner, outer[, inner, outer])"},
    {"fourier_values", fourier_values, METH_VARARGS,
     "fourier_values(points, total, dim, degree, heads, columns, start, stop, coefficients, outer, "
     "inner[, coefficients, outer, inner])"},
    {"instruction_sets", instruction_sets, METH_NOARGS,
     "instruction_sets(): names of those that this processor has, best first"},
    {"instruction_set", used, METH_NOARGS, "instruction_set(): the one in use, at first the best"},
    {"use", use, METH_VARARGS, "use(name): change the instruction set, for tests"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "The inner loops of the kernel sums.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t k = COUNT; k-- > 0;)
        if (available(&SETS[k])) chosen = &SETS[k];
    return PyModule_Create(&module);
}
