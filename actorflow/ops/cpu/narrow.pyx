# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Products of integers of 16 bits, and conversions of half precision: what NumPy computes one by one.

They are written for processors with AVX2 and F16C, and compiled for these whatever the package is compiled for;
`IS_FAST` says whether this is one. Elsewhere others compute.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t
import numpy as np
cimport numpy as cnp

cnp.import_array()

cdef extern from *:
    unsigned int ACTORFLOW_SOURCE

SOURCE = ACTORFLOW_SOURCE  # the checksum of this file

cdef extern from *:
    """
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

    /* Sums of some rows and one panel: each pair of products is added at once. */
    FOR_AVX2 static inline __attribute__((always_inline)) void sums_of(
            const int16_t *a, ptrdiff_t step, const int16_t *panel, ptrdiff_t pairs, int rows, int32_t *out,
            ptrdiff_t width, ptrdiff_t columns) {
        __m256i low[ROWS], high[ROWS];
        #pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            low[r] = high[r] = _mm256_setzero_si256();
        for (ptrdiff_t p = 0; p < pairs; p++) {
            const __m256i b_low = _mm256_loadu_si256((const __m256i *)(panel + 2 * COLUMNS * p));
            const __m256i b_high = _mm256_loadu_si256((const __m256i *)(panel + 2 * COLUMNS * p + COLUMNS));
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

    static void pack_all(const int32_t *b, ptrdiff_t depth, ptrdiff_t columns, int16_t *panels) {
        for (ptrdiff_t c = 0; c < columns; c += COLUMNS)
            for (ptrdiff_t k = 0; k < depth; k += 2)
                for (int j = 0; j < COLUMNS; j++)
                    for (int i = 0; i < 2; i++)
                        *panels++ = c + j < columns && k + i < depth ? (int16_t)b[(k + i) * columns + c + j] : 0;
    }

    FOR_AVX2 static void multiply_all(const int16_t *a, ptrdiff_t rows, ptrdiff_t depth, const int16_t *panels,
                                      int32_t *out, ptrdiff_t columns) {
        const ptrdiff_t pairs = depth / 2;
        for (ptrdiff_t c = 0; c < columns; c += COLUMNS) {
            const int16_t *panel = panels + c * depth;
            for (ptrdiff_t r = 0; r < rows; r += ROWS) {
                const int16_t *from = a + r * depth;
                int32_t *to = out + r * columns + c;
                switch (rows - r) {  /* a constant each time, so that sums stay in registers */
                case 1: sums_of(from, depth, panel, pairs, 1, to, columns, columns - c); break;
                case 2: sums_of(from, depth, panel, pairs, 2, to, columns, columns - c); break;
                case 3: sums_of(from, depth, panel, pairs, 3, to, columns, columns - c); break;
                case 4: sums_of(from, depth, panel, pairs, 4, to, columns, columns - c); break;
                case 5: sums_of(from, depth, panel, pairs, 5, to, columns, columns - c); break;
                default: sums_of(from, depth, panel, pairs, ROWS, to, columns, columns - c);
                }
            }
        }
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
    #else
    static int is_fast(void) { return 0; }
    static int64_t narrow_rows(const int32_t *x, ptrdiff_t rows, ptrdiff_t columns, int16_t *y, ptrdiff_t width) {
        return 0;
    }
    static void pack_all(const int32_t *b, ptrdiff_t depth, ptrdiff_t columns, int16_t *panels) {}
    static void multiply_all(const int16_t *a, ptrdiff_t rows, ptrdiff_t depth, const int16_t *panels, int32_t *out,
                             ptrdiff_t columns) {}
    static void widen(const uint16_t *x, float *y, ptrdiff_t count) {}
    static void narrow(const float *x, uint16_t *y, ptrdiff_t count) {}
    #endif
    """
    int is_fast() noexcept nogil
    int64_t narrow_rows(const int32_t *x, Py_ssize_t rows, Py_ssize_t columns, int16_t *y,
                        Py_ssize_t width) noexcept nogil
    void pack_all(const int32_t *b, Py_ssize_t depth, Py_ssize_t columns, int16_t *panels) noexcept nogil
    void multiply_all(const int16_t *a, Py_ssize_t rows, Py_ssize_t depth, const int16_t *panels, int32_t *out,
                      Py_ssize_t columns) noexcept nogil
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


def pack(const int32_t[:, ::1] b):
    """A matrix as `multiply` takes it; its numbers have 16 bits."""
    cdef Py_ssize_t depth = b.shape[0], columns = b.shape[1]
    cdef int16_t[:, :, :, ::1] panels
    made = np.empty(((columns + COLUMNS - 1) // COLUMNS, (depth + 1) // 2, COLUMNS, 2), np.int16)
    if depth and columns:
        panels = made
        with nogil:
            pack_all(&b[0, 0], depth, columns, &panels[0, 0, 0, 0])
    return made


def multiply(const int16_t[:, ::1] a, const int16_t[:, :, :, ::1] panels, int32_t[:, ::1] out):
    """``out = a @ b``.

    Args:
        a: An even number of columns.
        panels: ``b``, as `pack` gives it: `COLUMNS` at a time, pairs of rows together, and 0 where there are none.
        out: No sum of products' sizes may be beyond its dtype.
    """
    cdef Py_ssize_t rows = a.shape[0], depth = a.shape[1], columns = out.shape[1]
    if depth != 2 * panels.shape[1] or rows != out.shape[0] or panels.shape[0] != (columns + COLUMNS - 1) // COLUMNS:
        raise ValueError("shapes do not fit")
    if not rows or not depth or not columns:
        raise ValueError("there is nothing to multiply")
    with nogil:
        multiply_all(&a[0, 0], rows, depth, &panels[0, 0, 0, 0], &out[0, 0], columns)


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
