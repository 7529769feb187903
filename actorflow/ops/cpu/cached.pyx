# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Attention to keys and values that lie in blocks: NumPy would gather them first, and fill up to the longest row."""

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

    #if defined(__GNUC__) && defined(__x86_64__) && defined(__GLIBC__)
    #define CLONED __attribute__((target_clones("avx2", "default")))
    #else
    #define CLONED
    #endif

    /* Vectors by name: compilers do not change the order of additions themselves, and store what they add up in loops. */
    #ifdef __GNUC__
    #define INLINE static inline __attribute__((always_inline))
    #define LANES 8
    typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
    typedef int32_t integers __attribute__((vector_size(4 * LANES)));
    #define AS(type, x) __builtin_convertvector(x, type)
    #define LESS(a, b) ((a) < (b))
    #else
    #define INLINE static inline
    #define LANES 1
    typedef float vector;
    typedef int32_t integers;
    #define AS(type, x) ((type)(x))
    #define LESS(a, b) (-(integers)((a) < (b)))
    #endif
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC diagnostic ignored "-Wpsabi"  /* vectors are passed inline */
    #endif
    #define AT(x) (*(vector *)(x))
    #define READ(x) (*(const vector *)(x))

    INLINE float total_of(const vector *x) {
        float lanes[LANES];
        memcpy(lanes, x, sizeof lanes);
        for (int half = LANES / 2; half; half /= 2)
            for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
        return lanes[0];
    }

    INLINE float product(const float *a, const float *b, ptrdiff_t n) {
        vector sums = {0};
        float rest = 0;
        ptrdiff_t i = 0;
        for (; i + LANES <= n; i += LANES) sums += READ(a + i) * READ(b + i);
        for (; i < n; i++) rest += a[i] * b[i];
        return rest + total_of(&sums);
    }

    /* e ** (x - most), at most 1, to 2 units in the last place, by Cephes' polynomial. */
    INLINE void exponential(float *x, float most) {
        vector least = {0}, t = READ(x) - most, whole, f;
        integers low = LESS(t, least - 87.0f), bits;
        whole = AS(vector, AS(integers, t * 1.44269504f - 0.5f));
        f = t - whole * 0.693359375f + whole * 2.12194440e-4f;
        f = 1 + f + f * f * (5.0000001201e-1f + f * (1.6666665459e-1f + f * (4.1665795894e-2f
            + f * (8.3334519073e-3f + f * (1.3981999507e-3f + f * 1.9875691500e-4f)))));
        bits = (AS(integers, whole) + 127) << 23;
        memcpy(&t, &bits, sizeof t);
        t *= f;
        memcpy(&bits, &t, sizeof t);
        bits &= ~low; /* less than what a float can be */
        memcpy(x, &bits, sizeof bits);
    }

    /* Put e ** (x - most) in the place of x; returns their sum. */
    INLINE float exponentials(float *x, ptrdiff_t n, float most) {
        vector sums = {0};
        float rest[LANES] = {0}, sum = 0;
        ptrdiff_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            exponential(x + i, most);
            sums += READ(x + i);
        }
        memcpy(rest, x + i, 4 * (n - i));
        exponential(rest, most);
        memcpy(x + i, rest, 4 * (n - i));
        for (; i < n; i++) sum += x[i];
        return sum + total_of(&sums);
    }

    /* What is at the next positions: those of a block, or the new ones. */
    INLINE const float *run_of(const float *pool, const float *own, ptrdiff_t number, ptrdiff_t first, ptrdiff_t past,
            ptrdiff_t total, ptrdiff_t block, ptrdiff_t width, ptrdiff_t *end) {
        if (first >= past) {
            *end = total;
            return own;
        }
        *end = first + block < past ? first + block : past;
        return pool + number * block * width;
    }

    /* The result of one new position of one row: `past` positions are in blocks, `own` in k and v. */
    INLINE void attend(const float *q, const float *k, const float *v, const float *keys, const float *values,
            const int64_t *table, ptrdiff_t past, ptrdiff_t own, ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups,
            ptrdiff_t features, float scale, float *shares, float *y) {
        ptrdiff_t width = groups * features, sharing = heads / groups, total = past + own, end;
        for (ptrdiff_t head = 0; head < heads; head++) {
            ptrdiff_t at = head / sharing * features, i = 0;
            const float *query = q + head * features, *row;
            float *result = y + head * features, most = -INFINITY, sum;
            for (ptrdiff_t first = 0, n = 0; first < total; n++) {
                row = at + run_of(keys, k, first < past ? table[n] : 0, first, past, total, block, width, &end);
                for (; first < end; first++, row += width) {
                    float score = product(query, row, features) * scale;
                    shares[first] = score;
                    most = score > most ? score : most;
                }
            }
            sum = exponentials(shares, total, most == -INFINITY ? 0 : most);
            for (; i < features; i += 2 * LANES) {
                ptrdiff_t rest = features - i;
                vector one = {0}, two = {0};
                for (ptrdiff_t first = 0, n = 0; first < total; n++) {
                    row = at + i + run_of(values, v, first < past ? table[n] : 0, first, past, total, block, width, &end);
                    if (rest >= 2 * LANES)
                        for (; first < end; first++, row += width) {
                            one += shares[first] * READ(row);
                            two += shares[first] * READ(row + LANES);
                        }
                    else
                        for (; first < end; first++, row += width) {
                            float both[2 * LANES] = {0};
                            memcpy(both, row, 4 * rest);
                            one += shares[first] * READ(both);
                            two += shares[first] * READ(both + LANES);
                        }
                }
                {
                    float both[2 * LANES];
                    AT(both) = one / sum;
                    AT(both + LANES) = two / sum;
                    memcpy(result + i, both, 4 * (rest < 2 * LANES ? rest : 2 * LANES));
                }
            }
        }
    }

    CLONED static void attend_all(ptrdiff_t rows, ptrdiff_t own, const float *q, const float *k, const float *v,
            const float *keys, const float *values, const int64_t *table, ptrdiff_t columns, const int64_t *used,
            ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups, ptrdiff_t features, float scale, float *shares,
            float *y) {
        for (ptrdiff_t row = 0; row < rows; row++)
            for (ptrdiff_t i = 0; i < own; i++)
                attend(q + (row * own + i) * heads * features, k + row * own * groups * features,
                       v + row * own * groups * features, keys, values, table + row * columns, used[row], i + 1, block,
                       heads, groups, features, scale, shares, y + (row * own + i) * heads * features);
    }
    """
    void attend_all(
        Py_ssize_t rows, Py_ssize_t own, const float *q, const float *k, const float *v, const float *keys,
        const float *values, const cnp.int64_t *table, Py_ssize_t columns, const cnp.int64_t *used, Py_ssize_t block,
        Py_ssize_t heads, Py_ssize_t groups, Py_ssize_t features, float scale, float *shares, float *y) nogil


def attend(
    const float[:, :, ::1] q, const float[:, :, ::1] k, const float[:, :, ::1] v, const float[:, :, ::1] keys,
    const float[:, :, ::1] values, const cnp.int64_t[:, ::1] table, const cnp.int64_t[::1] used, Py_ssize_t heads,
    float scale, float[::1] shares, float[:, :, ::1] y,
):
    """Put the results of `CachedAttention` into ``y``; ``shares`` has room for a number per position of a row."""
    cdef Py_ssize_t row, i, features = q.shape[2] // heads, block = keys.shape[1]
    with nogil:
        for row in range(q.shape[0]):
            if used[row] < 0 or used[row] > table.shape[1] * block or used[row] + q.shape[1] > shares.shape[0]:
                with gil:
                    raise IndexError(f"row {row} has {used[row]} positions, and {table.shape[1]} blocks of {block}")
            for i in range((used[row] + block - 1) // block):
                if not 0 <= table[row, i] < keys.shape[0]:
                    with gil:
                        raise IndexError(f"row {row} has block {table[row, i]}, of {keys.shape[0]}")
        if y.shape[0] and y.shape[1]:
            attend_all(
                q.shape[0], q.shape[1], &q[0, 0, 0], &k[0, 0, 0], &v[0, 0, 0], &keys[0, 0, 0], &values[0, 0, 0],
                &table[0, 0], table.shape[1], &used[0], block, heads, k.shape[2] // features, features, scale,
                &shares[0], &y[0, 0, 0],
            )
