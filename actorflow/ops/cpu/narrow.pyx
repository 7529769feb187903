# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Products of integers of 16 bits, and conversions of half precision and to 8 bits: what NumPy computes one by one.

They are written for processors with AVX2 and F16C, and compiled for these whatever the package is compiled for;
`IS_FAST` says whether this is one. Elsewhere others compute.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t
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
    #include <stdlib.h>
    #include <string.h>

    #define COLUMNS 16  /* of a panel: two vectors of sums */
    #define ROWS 6      /* that are computed at once: 12 vectors of sums, of 16 that there are */

    #if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
    #include <immintrin.h>
    #define FOR_AVX2 __attribute__((target("avx2,f16c")))

    static int is_fast(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    }

    /* Half of a pair of rows in a panel, whose numbers have a size of 1 or 2 bytes. */
    FOR_AVX2 static inline __attribute__((always_inline)) __m256i half_of(const char *panel, ptrdiff_t half, int size) {
        const __m128i *from = (const __m128i *)(panel + half * COLUMNS * size);
        return size == 1 ? _mm256_cvtepi8_epi16(_mm_loadu_si128(from)) : _mm256_loadu_si256((const __m256i *)from);
    }

    /* Sums of some rows and one panel: each pair of products is added at once. */
    FOR_AVX2 static inline __attribute__((always_inline)) void sums_of(
            const int16_t *a, ptrdiff_t step, const char *panel, int size, ptrdiff_t pairs, int rows, int32_t *out,
            ptrdiff_t width, ptrdiff_t columns) {
        __m256i low[ROWS], high[ROWS];
        #pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            low[r] = high[r] = _mm256_setzero_si256();
        for (ptrdiff_t p = 0; p < pairs; p++) {
            const __m256i b_low = half_of(panel, 2 * p, size), b_high = half_of(panel, 2 * p + 1, size);
            #pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, a + r * step + 2 * p, sizeof pair);
                const __m256i both = _mm256_set1_epi32(pair);
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(both, b_low));
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(both, b_high));
            }
        }
        #pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t row[COLUMNS], *to = columns < COLUMNS ? row : out + r * width;
            _mm256_storeu_si256((__m256i *)to, low[r]);
            _mm256_storeu_si256((__m256i *)(to + COLUMNS / 2), high[r]);
            if (to == row)
                memcpy(out + r * width, row, columns * sizeof *row);
        }
    }

    /* Numbers in 16 bits, whose rows end with zeros; the largest size that one had. */
    FOR_AVX2 static int64_t narrow_rows(const int32_t *x, ptrdiff_t rows, ptrdiff_t columns, int16_t *y,
                                        ptrdiff_t width) {
        int64_t most = 0;
        for (ptrdiff_t r = 0; r < rows; r++, x += columns, y += width) {
            __m256i least = _mm256_setzero_si256(), largest = least;
            ptrdiff_t i = 0;
            for (; i + 16 <= columns; i += 16) {
                const __m256i low = _mm256_loadu_si256((const __m256i *)(x + i));
                const __m256i high = _mm256_loadu_si256((const __m256i *)(x + i + 8));
                const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
                _mm256_storeu_si256((__m256i *)(y + i), both);
                least = _mm256_min_epi32(least, _mm256_min_epi32(low, high));
                largest = _mm256_max_epi32(largest, _mm256_max_epi32(low, high));
            }
            int32_t ends[16];
            _mm256_storeu_si256((__m256i *)ends, least);
            _mm256_storeu_si256((__m256i *)(ends + 8), largest);
            for (int k = 0; k < 16; k++)
                most = llabs((int64_t)ends[k]) > most ? llabs((int64_t)ends[k]) : most;
            for (; i < width; i++) {
                const int64_t number = i < columns ? x[i] : 0;
                y[i] = (int16_t)number;
                most = llabs(number) > most ? llabs(number) : most;
            }
        }
        return most;
    }

    static void pack_all(const int32_t *b, ptrdiff_t depth, ptrdiff_t columns, void *panels, int size) {
        ptrdiff_t at = 0;
        for (ptrdiff_t c = 0; c < columns; c += COLUMNS)
            for (ptrdiff_t k = 0; k < depth; k += 2)
                for (int j = 0; j < COLUMNS; j++)
                    for (int i = 0; i < 2; i++, at++) {
                        const int32_t x = c + j < columns && k + i < depth ? b[(k + i) * columns + c + j] : 0;
                        if (size == 1)
                            ((int8_t *)panels)[at] = (int8_t)x;
                        else
                            ((int16_t *)panels)[at] = (int16_t)x;
                    }
    }

    FOR_AVX2 static inline __attribute__((always_inline)) void multiply_sized(
            const int16_t *a, ptrdiff_t rows, ptrdiff_t depth, const char *panels, int size, int32_t *out,
            ptrdiff_t columns) {
        const ptrdiff_t pairs = depth / 2;
        for (ptrdiff_t c = 0; c < columns; c += COLUMNS) {
            const char *panel = panels + c * depth * size;
            for (ptrdiff_t r = 0; r < rows; r += ROWS) {
                const int16_t *from = a + r * depth;
                int32_t *to = out + r * columns + c;
                switch (rows - r) {  /* a constant each time, so that sums stay in registers */
                case 1: sums_of(from, depth, panel, size, pairs, 1, to, columns, columns - c); break;
                case 2: sums_of(from, depth, panel, size, pairs, 2, to, columns, columns - c); break;
                case 3: sums_of(from, depth, panel, size, pairs, 3, to, columns, columns - c); break;
                case 4: sums_of(from, depth, panel, size, pairs, 4, to, columns, columns - c); break;
                case 5: sums_of(from, depth, panel, size, pairs, 5, to, columns, columns - c); break;
                default: sums_of(from, depth, panel, size, pairs, ROWS, to, columns, columns - c);
                }
            }
        }
    }

    FOR_AVX2 static void multiply_all(const int16_t *a, ptrdiff_t rows, ptrdiff_t depth, const void *panels, int size,
                                      int32_t *out, ptrdiff_t columns) {
        if (size == 1)  /* a constant here, too */
            multiply_sized(a, rows, depth, panels, 1, out, columns);
        else
            multiply_sized(a, rows, depth, panels, 2, out, columns);
    }

    FOR_AVX2 static void widen(const uint16_t *x, float *y, ptrdiff_t count) {
        ptrdiff_t i = 0;
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
        for (; i < count; i++)
            y[i] = _cvtsh_ss(x[i]);
    }

    FOR_AVX2 static void narrow(const float *x, uint16_t *y, ptrdiff_t count) {
        ptrdiff_t i = 0;
        for (; i + 8 <= count; i += 8)
            _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));  /* 0: to the nearest */
        for (; i < count; i++)
            y[i] = _cvtss_sh(x[i], 0);
    }

    FOR_AVX2 static void least_and_most(const float *x, ptrdiff_t count, float *found) {
        __m256 least = _mm256_setzero_ps(), most = least;
        ptrdiff_t i = 0;
        for (; i + 8 <= count; i += 8) {  /* the number comes first: beside NaN, the second one is taken */
            least = _mm256_min_ps(_mm256_loadu_ps(x + i), least);
            most = _mm256_max_ps(_mm256_loadu_ps(x + i), most);
        }
        float low[8], high[8];
        _mm256_storeu_ps(low, least);
        _mm256_storeu_ps(high, most);
        found[0] = found[1] = 0;
        for (int k = 0; k < 8; k++) {
            found[0] = low[k] < found[0] ? low[k] : found[0];
            found[1] = high[k] > found[1] ? high[k] : found[1];
        }
        for (; i < count; i++) {
            found[0] = x[i] < found[0] ? x[i] : found[0];
            found[1] = x[i] > found[1] ? x[i] : found[1];
        }
    }

    FOR_AVX2 static void to_bytes(const float *x, uint8_t *y, ptrdiff_t count, float step, float zero) {
        const __m256 steps = _mm256_set1_ps(step), zeros = _mm256_set1_ps(zero);
        const __m256 none = _mm256_setzero_ps(), most = _mm256_set1_ps(255);
        for (ptrdiff_t i = 0; i < count; i += 8) {
            float rest[8] = {0};
            uint8_t bytes[16];
            const ptrdiff_t here = count - i < 8 ? count - i : 8;
            if (here < 8)
                memcpy(rest, x + i, here * sizeof *x);
            __m256 whole = _mm256_div_ps(_mm256_loadu_ps(here < 8 ? rest : x + i), steps);
            whole = _mm256_add_ps(_mm256_round_ps(whole, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zeros);
            whole = _mm256_min_ps(_mm256_max_ps(whole, none), most);
            const __m256i wide = _mm256_cvtps_epi32(whole);
            const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
            _mm_storeu_si128((__m128i *)bytes, _mm_packus_epi16(half, half));
            memcpy(y + i, bytes, here);
        }
    }

    /* Rows of numbers divided by a step, rounded and cut off at 8 bits around a zero point, in 16 bits with zeros behind. */
    FOR_AVX2 static void round_rows(const float *x, ptrdiff_t rows, ptrdiff_t columns, int16_t *y, ptrdiff_t width,
                                    float step, float zero) {
        const __m256 steps = _mm256_set1_ps(step), least = _mm256_set1_ps(-zero), most = _mm256_set1_ps(255 - zero);
        for (ptrdiff_t r = 0; r < rows; r++, x += columns, y += width)
            for (ptrdiff_t i = 0; i < width; i += 8) {
                float rest[8] = {0};
                const ptrdiff_t here = width - i < 8 ? width - i : 8, given = columns - i < 8 ? columns - i : 8;
                if (given < 8)
                    memcpy(rest, x + i, given * sizeof *x);
                __m256 whole = _mm256_div_ps(_mm256_loadu_ps(given < 8 ? rest : x + i), steps);
                whole = _mm256_round_ps(whole, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
                const __m256i wide = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(whole, least), most));
                const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
                memcpy(y + i, &half, here * sizeof *y);
            }
    }

    /* Sums of whole numbers, which stand where the result is to be, times a scale, and more; some with the other sign. */
    FOR_AVX2 static void scale_rows(float *y, ptrdiff_t rows, ptrdiff_t columns, float step, const float *scale,
                                    ptrdiff_t scale_step, const float *added, ptrdiff_t row_step, ptrdiff_t negated) {
        for (ptrdiff_t r = 0; r < rows; r++, y += columns, added += row_step)
            for (ptrdiff_t c = 0; c < columns; c++) {
                int32_t sum;
                memcpy(&sum, y + c, sizeof sum);
                const float found = (float)sum * (step * scale[c * scale_step]) + added[c];
                y[c] = c < negated ? -found : found;
            }
    }

    static int multiply_rounded(const float *x, ptrdiff_t rows, ptrdiff_t columns, const void *panels, int size,
                                const float *scale, ptrdiff_t scale_step, const float *added, ptrdiff_t row_step,
                                float *y, ptrdiff_t width, ptrdiff_t negated) {
        const ptrdiff_t depth = columns + columns % 2;
        float ends[2];
        least_and_most(x, rows * columns, ends);
        float step = (ends[1] - ends[0]) / 255;
        if (step == 0)
            step = 1;
        float zero = rintf(-ends[0] / step);
        if (!(zero >= 0))  /* or NaN, as where numbers are infinite */
            zero = 0;
        int16_t *rounded = malloc((rows * depth + 1) * sizeof *rounded);
        if (rounded == NULL)
            return -1;
        round_rows(x, rows, columns, rounded, depth, step, zero);
        multiply_all(rounded, rows, depth, panels, size, (int32_t *)y, width);
        free(rounded);
        scale_rows(y, rows, width, step, scale, scale_step, added, row_step, negated);
        return 0;
    }

    /* From exp(-v) of the gates of input, output and forget, and the new value, to the cell and the opened output. */
    FOR_AVX2 static void open_gates(float *gates, float *cell, ptrdiff_t rows, ptrdiff_t width) {
        for (ptrdiff_t r = 0; r < rows; r++, gates += 4 * width, cell += width)
            for (ptrdiff_t k = 0; k < width; k++) {
                const float into = 1 / (1 + gates[k]), stays = 1 / (1 + gates[2 * width + k]);
                cell[k] = stays * cell[k] + into * gates[3 * width + k];
                gates[width + k] = 1 / (1 + gates[width + k]);
            }
    }
    #else
    static int is_fast(void) { return 0; }
    static int multiply_rounded(const float *x, ptrdiff_t rows, ptrdiff_t columns, const void *panels, int size,
                                const float *scale, ptrdiff_t scale_step, const float *added, ptrdiff_t row_step,
                                float *y, ptrdiff_t width, ptrdiff_t negated) { return 0; }
    static void open_gates(float *gates, float *cell, ptrdiff_t rows, ptrdiff_t width) {}
    static void least_and_most(const float *x, ptrdiff_t count, float *found) {}
    static void to_bytes(const float *x, uint8_t *y, ptrdiff_t count, float step, float zero) {}
    static int64_t narrow_rows(const int32_t *x, ptrdiff_t rows, ptrdiff_t columns, int16_t *y, ptrdiff_t width) {
        return 0;
    }
    static void pack_all(const int32_t *b, ptrdiff_t depth, ptrdiff_t columns, void *panels, int size) {}
    static void multiply_all(const int16_t *a, ptrdiff_t rows, ptrdiff_t depth, const void *panels, int size,
                             int32_t *out, ptrdiff_t columns) {}
    static void widen(const uint16_t *x, float *y, ptrdiff_t count) {}
    static void narrow(const float *x, uint16_t *y, ptrdiff_t count) {}
    #endif
    """
    int is_fast() noexcept nogil
    int64_t narrow_rows(const int32_t *x, Py_ssize_t rows, Py_ssize_t columns, int16_t *y,
                        Py_ssize_t width) noexcept nogil
    void pack_all(const int32_t *b, Py_ssize_t depth, Py_ssize_t columns, void *panels, int size) noexcept nogil
    void multiply_all(const int16_t *a, Py_ssize_t rows, Py_ssize_t depth, const void *panels, int size, int32_t *out,
                      Py_ssize_t columns) noexcept nogil
    void least_and_most(const float *x, Py_ssize_t count, float *found) noexcept nogil
    void to_bytes(const float *x, uint8_t *y, Py_ssize_t count, float step, float zero) noexcept nogil
    int multiply_rounded(const float *x, Py_ssize_t rows, Py_ssize_t columns, const void *panels, int size,
                         const float *scale, Py_ssize_t scale_step, const float *added, Py_ssize_t row_step, float *y,
                         Py_ssize_t width, Py_ssize_t negated) noexcept nogil
    void open_gates(float *gates, float *cell, Py_ssize_t rows, Py_ssize_t width) noexcept nogil
    void widen(const uint16_t *x, float *y, Py_ssize_t count) noexcept nogil
    void narrow(const float *x, uint16_t *y, Py_ssize_t count) noexcept nogil

IS_FAST = bool(is_fast())
#: Columns of a panel.
COLUMNS = 16


def to_int16(const int32_t[:, ::1] x, int16_t[:, ::1] y):
    """A matrix in 16 bits, with zeros in the columns that it has not; returns the largest size of its numbers.

    Where that is more than 16 bits can say, what is written means nothing.
    """
    cdef Py_ssize_t rows = x.shape[0], columns = x.shape[1], width = y.shape[1]
    cdef int64_t most
    if rows != y.shape[0] or width < columns or not rows or not columns:
        raise ValueError("shapes do not fit")
    with nogil:
        most = narrow_rows(&x[0, 0], rows, columns, &y[0, 0], width)
    return most


def pack(const int32_t[:, ::1] b, int size=2):
    """A matrix as `multiply` takes it; its numbers have a size of 1 or 2 bytes."""
    cdef Py_ssize_t depth = b.shape[0], columns = b.shape[1]
    shape = ((columns + COLUMNS - 1) // COLUMNS, (depth + 1) // 2, COLUMNS, 2)
    cdef cnp.ndarray made = np.empty(shape, np.int8 if size == 1 else np.int16)
    cdef void *panels = cnp.PyArray_DATA(made)
    if depth and columns:
        with nogil:
            pack_all(&b[0, 0], depth, columns, panels, size)
    return made


def multiply(const int16_t[:, ::1] a, cnp.ndarray panels, int32_t[:, ::1] out):
    """``out = a @ b``.

    Args:
        a: An even number of columns.
        panels: ``b``, as `pack` gives it: `COLUMNS` at a time, pairs of rows together, and 0 where there are none.
        out: No sum of products' sizes may be beyond its dtype.
    """
    cdef Py_ssize_t rows = a.shape[0], depth = a.shape[1], columns = out.shape[1]
    cdef int size = panels.itemsize
    cdef void *data = cnp.PyArray_DATA(panels)
    if panels.dtype not in (np.int8, np.int16) or panels.ndim != 4 or not panels.flags.c_contiguous:
        raise ValueError(f"expected panels of int8 or int16, got {panels.dtype} with {panels.ndim} axes")
    if depth != 2 * panels.shape[1] or rows != out.shape[0] or panels.shape[0] != (columns + COLUMNS - 1) // COLUMNS:
        raise ValueError("shapes do not fit")
    if not rows or not depth or not columns:
        raise ValueError("there is nothing to multiply")
    with nogil:
        multiply_all(&a[0, 0], rows, depth, data, size, &out[0, 0], columns)


def product(const float[:, ::1] x, cnp.ndarray panels, const float[::1] scale, const float[:, :] added,
            float[:, ::1] out, Py_ssize_t negated=0):
    """Rows, rounded to 8 bits between the least and the largest number, times whole numbers: ``out``.

    Args:
        x: The rows; no more columns than 2 ** 15.
        panels: As `pack` gives them.
        scale: What sums are multiplied with, besides the step of the rounding: one number, or one a column.
        added: What is added then; rows may be the same one.
        out: The result.
        negated: Columns from the left whose results have the other sign.
    """
    cdef Py_ssize_t rows = x.shape[0], depth = x.shape[1], columns = out.shape[1], scale_step, row_step
    cdef int size = panels.itemsize, failed
    cdef void *data = cnp.PyArray_DATA(panels)
    if panels.dtype not in (np.int8, np.int16) or panels.ndim != 4 or not panels.flags.c_contiguous:
        raise ValueError(f"expected panels of int8 or int16, got {panels.dtype} with {panels.ndim} axes")
    if (depth + 1) // 2 != panels.shape[1] or panels.shape[0] != (columns + COLUMNS - 1) // COLUMNS:
        raise ValueError("shapes do not fit")
    if rows != out.shape[0] or rows != added.shape[0] or columns != added.shape[1] or added.strides[1] != sizeof(float):
        raise ValueError("shapes do not fit")
    if scale.shape[0] not in (1, columns) or not rows or not depth or not columns:
        raise ValueError("there is nothing to multiply")
    scale_step, row_step = scale.shape[0] > 1, added.strides[0] // <Py_ssize_t>sizeof(float)
    with nogil:
        failed = multiply_rounded(&x[0, 0], rows, depth, data, size, &scale[0], scale_step, &added[0, 0], row_step,
                                  &out[0, 0], columns, negated)
    if failed:
        raise MemoryError("there is no memory for rounded rows")


def gates(float[:, ::1] step, float[:, ::1] cell):
    """The cell of a network after a step, and how far its output is open.

    Args:
        step: Of input, output and forget gates ``exp(-v)``, and new values; the second quarter is what opens outputs
            afterwards.
        cell: The cell before, and afterwards.
    """
    if step.shape[0] != cell.shape[0] or step.shape[1] != 4 * cell.shape[1] or not step.shape[0] or not step.shape[1]:
        raise ValueError("shapes do not fit")
    with nogil:
        open_gates(&step[0, 0], &cell[0, 0], cell.shape[0], cell.shape[1])


def limits(const float[::1] x):
    """The least and the greatest of numbers and 0; NaN is passed over."""
    cdef float found[2]
    with nogil:
        least_and_most(&x[0] if x.shape[0] else NULL, x.shape[0], found)
    return found[0], found[1]


def to_uint8(const float[::1] x, uint8_t[::1] y, float step, float zero):
    """Numbers divided by a step, rounded, moved by a zero point, and cut off at 0 and 255."""
    if x.shape[0] != y.shape[0] or not x.shape[0]:
        raise ValueError("shapes do not fit")
    with nogil:
        to_bytes(&x[0], &y[0], x.shape[0], step, zero)


def to_float32(const uint16_t[::1] x, float[::1] y):
    """Numbers of float16, seen as bits, in float32."""
    if x.shape[0] != y.shape[0] or not x.shape[0]:
        raise ValueError("shapes do not fit")
    with nogil:
        widen(&x[0], &y[0], x.shape[0])


def to_float16(const float[::1] x, uint16_t[::1] y):
    """Numbers of float32, rounded to float16, as bits."""
    if x.shape[0] != y.shape[0] or not x.shape[0]:
        raise ValueError("shapes do not fit")
    with nogil:
        narrow(&x[0], &y[0], x.shape[0])
