# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Loops over float32 that NumPy takes many passes for: updates, maxima and where they are, sums of neighbours, gradients.

Results have the bits of NumPy's kernels: the same operations in the same order, none of them contracted. (Depthwise
weight gradients, those of softmax, and rows are added up in another order, which is always the same, and the exponential
function of normal numbers is another one.) They are compiled twice, for AVX2 and for any processor, where the compiler
can; each call takes what the processor has.
"""

from libc.stdint cimport int32_t, int64_t
import numpy as np
cimport numpy as cnp

cnp.import_array()

cdef extern from *:
    unsigned int ACTORFLOW_SOURCE

SOURCE = ACTORFLOW_SOURCE  # the checksum of this file

cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC push_options
    #pragma GCC optimize("O3")
    #define EACH _Pragma("GCC ivdep") for (ptrdiff_t i = 0; i < n; i++)
    #else
    #define EACH for (ptrdiff_t i = 0; i < n; i++)
    #endif
    #if defined(__GNUC__) && defined(__x86_64__) && defined(__GLIBC__)
    #define CLONED __attribute__((target_clones("avx2", "default")))
    #else
    #define CLONED
    #endif
    #ifdef __GNUC__
    #define INLINED static inline __attribute__((always_inline))
    #else
    #define INLINED static inline
    #endif

    CLONED static void sgd(const float *weight, const float *grad, const float *velocity, float *new_weight,
                           float *new_velocity, float decay, float step, float momentum, int nesterov, ptrdiff_t n) {
        EACH {
            const float given = decay != 0 ? weight[i] * decay + grad[i] : grad[i];
            const float moved = given * step;
            const float next = momentum != 0 ? velocity[i] * momentum + moved : moved;
            new_weight[i] = weight[i] - (nesterov ? moved + next * momentum : next);
            new_velocity[i] = next;
        }
    }

    CLONED static void adam(const float *weight, const float *grad, const float *mean, const float *square,
                            float *new_weight, float *new_mean, float *new_square, float decay, float new,
                            float beta2, float newest, float unbias, float epsilon, float step, float shrink,
                            ptrdiff_t n) {
        EACH {
            const float given = decay != 0 ? weight[i] * decay + grad[i] : grad[i];
            const float average = (given - mean[i]) * new + mean[i];
            const float squares = square[i] * beta2 + given * given * newest;
            const float moved = average / (sqrtf(squares) * unbias + epsilon) * step;
            new_weight[i] = weight[i] - (shrink != 0 ? moved + weight[i] * shrink : moved);
            new_mean[i] = average;
            new_square[i] = squares;
        }
    }

    INLINED void see(const float *x, float *best, int32_t *place, int32_t here, ptrdiff_t n) {
        EACH {
            const float value = x[i], most = best[i];
            const int32_t at = place[i];
            const int takes = (at < 0) | (value > most) | ((value != value) & (most == most));
            best[i] = takes ? value : most;
            place[i] = takes ? here : at;
        }
    }

    INLINED void give(const float *x, const float *y, const float *g, float *dx, int32_t *left, int once,
                            ptrdiff_t n) {
        if (once)
            EACH {
                const float value = dx[i], grad = g[i];
                const int32_t hit = x[i] == y[i] ? left[i] : 0;
                dx[i] = hit ? grad : value;
                left[i] &= ~hit;
            }
        else
            EACH {
                const float grad = g[i], sum = dx[i];
                const int32_t hit = x[i] == y[i] ? left[i] : 0;
                dx[i] = sum + (hit ? grad : 0.0f);
                left[i] &= ~hit;
            }
    }

    INLINED void add_product(const float *x, const float *g, float *sums, ptrdiff_t n) {
        EACH sums[i] += x[i] * g[i];
    }

    /* Windows of one image, w: size, out, kernel, stride, border before, dilation, of three axes each. Gradients are
       added from the last window to the first one, which for an element is from its first kernel offset to its last. */
    CLONED static void pool(const int64_t *w, ptrdiff_t n, const float *x, float *y, int64_t *places, const float *g,
                            float *dx, float *sums, int32_t *own, int once) {
        const int64_t *size = w, *out = w + 3, *kernel = w + 6, *stride = w + 9, *before = w + 12, *apart = w + 15;
        const int64_t count = out[0] * out[1] * out[2];
        for (int64_t k = 0; k < count; k++) {
            const int64_t o = dx ? count - 1 - k : k;
            const int64_t window[3] = {o / (out[1] * out[2]), o / out[2] % out[1], o % out[2]};
            int64_t start[3], first[3], stop[3];
            for (int axis = 0; axis < 3; axis++) {  /* offsets that see an element, of which there may be few */
                const int64_t from = window[axis] * stride[axis] - before[axis], step = apart[axis];
                const int64_t end = from < size[axis] ? (size[axis] - 1 - from) / step + 1 : 0;
                start[axis] = from;
                first[axis] = from < 0 ? (step - 1 - from) / step : 0;
                stop[axis] = end < kernel[axis] ? end : kernel[axis];
            }
            memset(own, 0xff, n * sizeof *own);
            if (!dx && !sums)
                for (ptrdiff_t i = 0; i < n; i++)
                    y[o * n + i] = -INFINITY;
            for (int64_t a = first[0]; a < stop[0]; a++)
                for (int64_t b = first[1]; b < stop[1]; b++)
                    for (int64_t c = first[2]; c < stop[2]; c++) {
                        const int64_t row = (start[0] + a * apart[0]) * size[1] + start[1] + b * apart[1];
                        const int64_t here = row * size[2] + start[2] + c * apart[2];
                        if (sums)
                            add_product(x + here * n, g + o * n,
                                        sums + ((a * kernel[1] + b) * kernel[2] + c) * n, n);
                        else if (dx)
                            give(x + here * n, y + o * n, g + o * n, dx + here * n, own, once, n);
                        else
                            see(x + here * n, y + o * n, own, (int32_t)here, n);
                    }
            if (places)
                for (ptrdiff_t i = 0; i < n; i++)
                    places[o * n + i] = own[i];
        }
    }

    CLONED static void add_up(const float *bordered, ptrdiff_t before, ptrdiff_t after, float *sums, ptrdiff_t n) {
        EACH sums[i] = bordered[before + i];
        for (ptrdiff_t shift = 0; shift <= before + after; shift++)
            if (shift != before)
                EACH sums[i] += bordered[shift + i];
    }

    CLONED static void lrn(const float *x, float *y, float *scale, float *bordered, ptrdiff_t before,
                           ptrdiff_t after, float factor, float k, ptrdiff_t n) {
        EACH bordered[before + i] = x[i] * x[i];
        add_up(bordered, before, after, scale, n);
        EACH {
            scale[i] = scale[i] * factor + k;
            const float root = sqrtf(scale[i]);
            y[i] = 1.0f / (root * sqrtf(root)) * x[i];
        }
    }

    CLONED static void lrn_down(const float *g, const float *x, const float *y, const float *scale, float *dx,
                                float *bordered, ptrdiff_t before, ptrdiff_t after, float factor, ptrdiff_t n) {
        EACH bordered[before + i] = g[i] * y[i] / scale[i];
        add_up(bordered, before, after, dx, n);
        EACH {
            const float root = sqrtf(scale[i]);
            dx[i] = 1.0f / (root * sqrtf(root)) * g[i] + dx[i] * x[i] * factor;
        }
    }

    /* exp(-y) for y >= 0: 2^n times a polynomial of what is left; in two factors, as 2^n may be no normal number. */
    INLINED float exp_of(float y) {
        const float whole = 12582912.0f;  /* 1.5 * 2^23: what is added to it is rounded, and stands in its lowest bits */
        int32_t size;
        memcpy(&size, &y, sizeof size);
        size = size < 0x42dc0000 ? size : 0x42dc0000;  /* 110.0f; as integers, which have no NaN, in vectors */
        memcpy(&y, &size, sizeof y);
        const float shifted = whole - y * 1.44269504f, n = shifted - whole;
        const float r = (-y - n * 0.693359375f) + n * 2.12194440e-4f;
        float p = 1.9875691500e-4f, scale, rest;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * (r * r) + r + 1.0f;
        int32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        const int32_t power = bits - 0x4b400000, half = power >> 1;
        const int32_t scale_bits = (half + 127) << 23, rest_bits = (power - half + 127) << 23;
        memcpy(&scale, &scale_bits, sizeof scale);
        memcpy(&rest, &rest_bits, sizeof rest);
        return p * scale * rest;
    }

    /* The probability that a normal number is more than size, which is not negative, and exp(-size * size / 2). */
    INLINED float tail_at(float size, const float *powers, float *density) {
        const float t = 3.0f / (size * 0.70710678f + 3.0f), u = t * 2.0f - 1.0f;
        float total = powers[11];
        #pragma GCC unroll 11
        for (int k = 10; k >= 0; k--)
            total = total * u + powers[k];
        *density = exp_of(size * size * 0.5f);
        return total * (*density * t) * 0.5f;
    }

    CLONED static void tail_of(const float *x, float *out, const float *powers, ptrdiff_t n) {
        EACH {
            float density;
            out[i] = tail_at(x[i], powers, &density);
        }
    }

    CLONED static void gelu_down_of(const float *g, const float *x, float *dx, const float *powers, ptrdiff_t n) {
        EACH {
            const float value = x[i];
            float density;
            const float tail = tail_at(fabsf(value), powers, &density);
            const float below = (copysignf(0.5f, value) + 0.5f) - copysignf(tail, value);
            dx[i] = (value * (density * 0.39894228f) + below) * g[i];
        }
    }

    CLONED static void softmax_down_of(const float *g, const float *y, float *dx, ptrdiff_t n) {
        double total = 0.0;
        for (ptrdiff_t start = 0; start < n; start += 1024) {  /* in sixteen runs of 64 elements, at most */
            const ptrdiff_t end = n - start < 1024 ? n : start + 1024;
            float runs[16] = {0.0f};
            ptrdiff_t j = start;
            for (; j + 16 <= end; j += 16)
                for (int k = 0; k < 16; k++)
                    runs[k] += g[j + k] * y[j + k];
            for (int k = 0; j + k < end; k++)
                runs[k] += g[j + k] * y[j + k];
            for (int half = 8; half; half /= 2)
                for (int k = 0; k < half; k++)
                    runs[k] += runs[k + half];
            total += runs[0];
        }
        const float sum = (float)total;
        EACH dx[i] = (g[i] - sum) * y[i];
    }

    /* Runs of 64 rows one after the other, and their sums in double precision. */
    CLONED static void sum_of_rows(const float *rows, ptrdiff_t count, float *run, double *total, float *out,
                                   ptrdiff_t n) {
        EACH total[i] = 0.0;
        for (ptrdiff_t start = 0; start < count; start += 64) {
            const ptrdiff_t end = count - start < 64 ? count : start + 64;
            EACH run[i] = rows[start * n + i];
            for (ptrdiff_t row = start + 1; row < end; row++)
                EACH run[i] += rows[row * n + i];
            EACH total[i] += run[i];
        }
        EACH out[i] = (float)total[i];
    }

    #define ADD_ROW(name, number) \
        CLONED static void name(const number *row, number *to, int is_first, ptrdiff_t n) { \
            if (is_first) \
                for (ptrdiff_t i = 0; i < n; i++) to[i] = row[i]; \
            else \
                for (ptrdiff_t i = 0; i < n; i++) to[i] += row[i]; \
        }
    ADD_ROW(add_row, float)
    ADD_ROW(add_wide_row, double)
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC pop_options
    #endif
    """
    void sgd(const float *weight, const float *grad, const float *velocity, float *new_weight, float *new_velocity,
             float decay, float step, float momentum, bint nesterov, Py_ssize_t n) noexcept nogil
    void adam(const float *weight, const float *grad, const float *mean, const float *square, float *new_weight,
              float *new_mean, float *new_square, float decay, float new, float beta2, float newest, float unbias,
              float epsilon, float step, float shrink, Py_ssize_t n) noexcept nogil
    void pool(const int64_t *w, Py_ssize_t n, const float *x, float *y, int64_t *places, const float *g, float *dx,
              float *sums, int32_t *own, bint once) noexcept nogil
    void lrn(const float *x, float *y, float *scale, float *bordered, Py_ssize_t before, Py_ssize_t after,
             float factor, float k, Py_ssize_t n) noexcept nogil
    void lrn_down(const float *g, const float *x, const float *y, const float *scale, float *dx, float *bordered,
                  Py_ssize_t before, Py_ssize_t after, float factor, Py_ssize_t n) noexcept nogil
    void tail_of(const float *x, float *out, const float *powers, Py_ssize_t n) noexcept nogil
    void gelu_down_of(const float *g, const float *x, float *dx, const float *powers, Py_ssize_t n) noexcept nogil
    void softmax_down_of(const float *g, const float *y, float *dx, Py_ssize_t n) noexcept nogil
    void sum_of_rows(const float *rows, Py_ssize_t count, float *run, double *total, float *out,
                     Py_ssize_t n) noexcept nogil
    void add_row(const float *row, float *to, bint is_first, Py_ssize_t n) noexcept nogil
    void add_wide_row(const double *row, double *to, bint is_first, Py_ssize_t n) noexcept nogil

ctypedef fused number:
    float
    double


def normal_tail(const float[::1] x, float[::1] out, const float[::1] powers):
    """The probability that a normal number is more than each of ``x``, by 12 coefficients, lowest power first."""
    if x.shape[0] != out.shape[0] or powers.shape[0] != 12:
        raise ValueError("shapes do not fit")
    if x.shape[0]:
        with nogil:
            tail_of(&x[0], &out[0], &powers[0], x.shape[0])


def gelu_down(const float[::1] g, const float[::1] x, float[::1] dx, const float[::1] powers):
    """``g`` times the slope of GELU, by the coefficients of `normal_tail`."""
    if not g.shape[0] == x.shape[0] == dx.shape[0] or powers.shape[0] != 12:
        raise ValueError("shapes do not fit")
    if x.shape[0]:
        with nogil:
            gelu_down_of(&g[0], &x[0], &dx[0], &powers[0], x.shape[0])


def softmax_down(const float[:, ::1] g, const float[:, ::1] y, float[:, ::1] dx):
    """``dx = y * (g - sum(g * y))`` for each row."""
    cdef Py_ssize_t row
    if g.size:
        with nogil:
            for row in range(g.shape[0]):
                softmax_down_of(&g[row, 0], &y[row, 0], &dx[row, 0], g.shape[1])


def update_sgd(
    const float[::1] weight, const float[::1] grad, const float[::1] velocity, float[::1] new_weight,
    float[::1] new_velocity, float decay, float step, float momentum, bint nesterov,
):
    """A step of `SgdUpdate`."""
    if weight.size:
        with nogil:
            sgd(&weight[0], &grad[0], &velocity[0], &new_weight[0], &new_velocity[0], decay, step, momentum, nesterov,
                weight.shape[0])


def update_adam(
    const float[::1] weight, const float[::1] grad, const float[::1] mean, const float[::1] square,
    float[::1] new_weight, float[::1] new_mean, float[::1] new_square, float decay, double beta1, double beta2,
    float unbias, float epsilon, float step, float shrink,
):
    """A step of `AdamUpdate`; ``shrink`` is the part of the weight that is taken away, if it is decoupled."""
    if weight.size:
        with nogil:
            adam(&weight[0], &grad[0], &mean[0], &square[0], &new_weight[0], &new_mean[0], &new_square[0], decay,
                 <float>(1 - beta1), <float>beta2, <float>(1 - beta2), unbias, epsilon, step, shrink, weight.shape[0])


def maxima(const int64_t[::1] windows, const float[:, :, ::1] x, float[:, :, ::1] y, int64_t[:, :, ::1] places):
    """Maxima of images (count, elements, channels), and where the first one, or NaN, is; -1 of none.

    Args:
        windows: Sizes of images and results, kernel, stride, border before and dilation, of three axes each.
    """
    cdef int32_t[::1] own = np.empty(x.shape[2], np.int32)
    cdef Py_ssize_t image
    if x.size and y.size:
        with nogil:
            for image in range(x.shape[0]):
                pool(&windows[0], x.shape[2], &x[image, 0, 0], &y[image, 0, 0], &places[image, 0, 0], NULL, NULL,
                     NULL, &own[0], False)


def maxima_down(
    const int64_t[::1] windows, const float[:, :, ::1] g, const float[:, :, ::1] x, const float[:, :, ::1] y,
    float[:, :, ::1] dx, bint once,
):
    """Add gradients of maxima to ``dx``, each where the first maximum is; those of NaN are left out.

    Args:
        windows: As for `maxima`.
        once: No element is seen by two windows: gradients are put there, bit by bit.
    """
    cdef int32_t[::1] own = np.empty(x.shape[2], np.int32)
    cdef Py_ssize_t image
    if x.size and y.size:
        with nogil:
            for image in range(x.shape[0]):
                pool(&windows[0], x.shape[2], &x[image, 0, 0], <float *>&y[image, 0, 0], NULL, &g[image, 0, 0],
                     &dx[image, 0, 0], NULL, &own[0], once)


def depthwise_weight(
    const int64_t[::1] windows, const float[:, :, ::1] g, const float[:, :, ::1] x, float[:, :, ::1] sums
):
    """Put into ``sums``, (images, kernel offsets, channels), the products of gradients and elements, added up."""
    cdef int32_t[::1] own = np.empty(x.shape[2], np.int32)
    cdef Py_ssize_t image
    sums[...] = 0
    if x.size and g.size:
        with nogil:
            for image in range(x.shape[0]):
                pool(&windows[0], x.shape[2], &x[image, 0, 0], NULL, NULL, &g[image, 0, 0], NULL, &sums[image, 0, 0],
                     &own[0], False)


def normalize(
    const float[:, ::1] x, float[:, ::1] y, float[:, ::1] scale, Py_ssize_t before, Py_ssize_t after, float factor,
    float k,
):
    """``y = x / scale ** 0.75``, and ``scale = k + factor *`` the sum of squares from so many before to after."""
    cdef Py_ssize_t row, n = x.shape[1]
    cdef float[::1] bordered = np.zeros(before + n + after, np.float32)
    if x.size:
        with nogil:
            for row in range(x.shape[0]):
                lrn(&x[row, 0], &y[row, 0], &scale[row, 0], &bordered[0], before, after, factor, k, n)


def normalize_down(
    const float[:, ::1] g, const float[:, ::1] x, const float[:, ::1] y, const float[:, ::1] scale,
    float[:, ::1] dx, Py_ssize_t before, Py_ssize_t after, float factor,
):
    """``dx = g / scale ** 0.75 + factor * x *`` the sum of ``g * y / scale`` from so many before to after."""
    cdef Py_ssize_t row, n = x.shape[1]
    cdef float[::1] bordered = np.zeros(before + n + after, np.float32)
    if x.size:
        with nogil:
            for row in range(x.shape[0]):
                lrn_down(&g[row, 0], &x[row, 0], &y[row, 0], &scale[row, 0], &dx[row, 0], &bordered[0], before, after,
                         factor, n)


def sum_rows(const float[:, ::1] rows, float[::1] out):
    """The sum of rows, of which there is one at least."""
    cdef float[::1] run = np.empty(rows.shape[1], np.float32)
    cdef double[::1] total = np.empty(rows.shape[1])
    if rows.shape[1] != out.shape[0] or not rows.size:
        raise ValueError("shapes do not fit")
    with nogil:
        sum_of_rows(&rows[0, 0], rows.shape[0], &run[0], &total[0], &out[0], rows.shape[1])


def add_rows(const number[:, :, ::1] rows, const int64_t[::1] places, number[:, :, ::1] sums):
    """Put the sums of rows along axis 1, one after the other, at their places; others are left."""
    cdef Py_ssize_t outer, row
    cdef cnp.npy_bool[::1] seen
    if rows.size and sums.size:
        for outer in range(rows.shape[0]):
            seen = np.zeros(sums.shape[1], np.bool_)
            with nogil:
                for row in range(rows.shape[1]):
                    if number is float:
                        add_row(&rows[outer, row, 0], &sums[outer, places[row], 0], not seen[places[row]],
                                rows.shape[2])
                    else:
                        add_wide_row(&rows[outer, row, 0], &sums[outer, places[row], 0], not seen[places[row]],
                                     rows.shape[2])
                    seen[places[row]] = True
