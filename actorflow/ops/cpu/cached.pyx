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

    #define LANES 8

    #if defined(__GNUC__) && defined(__x86_64__)
    #define INLINE static inline __attribute__((always_inline))
    #define FOR_AVX2 __attribute__((target("avx2,fma")))
    static int is_fast(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    #else
    #define INLINE static inline
    #define FOR_AVX2
    static int is_fast(void) { return 0; }
    #endif

    /* Sums per lane, so that compilers may use vectors: they do not change the order of additions themselves. */
    INLINE float total_of(float *sums) {
        for (int half = LANES / 2; half; half /= 2)
            for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
        return sums[0];
    }

    INLINE float sum_of(const float *x, ptrdiff_t n) {
        float sums[LANES] = {0}, sum = 0;
        ptrdiff_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane];
        for (; i < n; i++) sum += x[i];
        return sum + total_of(sums);
    }

    INLINE float product(const float *a, const float *b, ptrdiff_t n) {
        float sums[LANES] = {0}, sum = 0;
        ptrdiff_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int lane = 0; lane < LANES; lane++) sums[lane] += a[i + lane] * b[i + lane];
        for (; i < n; i++) sum += a[i] * b[i];
        return sum + total_of(sums);
    }

    /* e ** x for x <= 0, to 2 units in the last place, by Cephes' polynomial: vectors compute it, unlike expf. */
    INLINE void exponentials(float *x, ptrdiff_t n, float most) {
        for (ptrdiff_t i = 0; i < n; i++) {
            float t = x[i] - most, whole, f;
            int32_t bits;
            t = t < -87.0f ? -87.0f : t;
            whole = (float)(int32_t)(t * 1.44269504f - 0.5f);
            f = t - whole * 0.693359375f + whole * 2.12194440e-4f;
            f = 1 + f + f * f * (5.0000001201e-1f + f * (1.6666665459e-1f + f * (4.1665795894e-2f
                + f * (8.3334519073e-3f + f * (1.3981999507e-3f + f * 1.9875691500e-4f)))));
            bits = ((int32_t)whole + 127) << 23;
            memcpy(&t, &bits, 4);
            x[i] = f * t;
        }
    }

    /* The result of one new position of one row: `past` positions are in blocks, `own` in k and v. */
    INLINE void attend(const float *q, const float *k, const float *v, const float *keys, const float *values,
            const int64_t *table, ptrdiff_t past, ptrdiff_t own, ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups,
            ptrdiff_t features, float scale, float *shares, float *y) {
        ptrdiff_t width = groups * features, sharing = heads / groups, total = past + own;
        for (ptrdiff_t head = 0; head < heads; head++) {
            ptrdiff_t at = head / sharing * features;
            const float *query = q + head * features;
            float *result = y + head * features, most = -INFINITY, sum = 0;
            for (ptrdiff_t first = 0; first < total;) {
                int is_past = first < past;
                const float *row = is_past ? keys + table[first / block] * block * width : k + (first - past) * width;
                ptrdiff_t end = !is_past ? total : first + block < past ? first + block : past;
                for (row += at; first < end; first++, row += width) {
                    float score = product(query, row, features) * scale;
                    shares[first] = score;
                    most = score > most ? score : most;
                }
            }
            if (most == -INFINITY) most = 0;
            exponentials(shares, total, most);
            sum = sum_of(shares, total);
            for (ptrdiff_t i = 0; i < features; i++) result[i] = 0;
            for (ptrdiff_t first = 0; first < total;) {
                int is_past = first < past;
                const float *row = is_past ? values + table[first / block] * block * width : v + (first - past) * width;
                ptrdiff_t end = !is_past ? total : first + block < past ? first + block : past;
                for (row += at; first < end; first++, row += width)
                    for (ptrdiff_t i = 0; i < features; i++) result[i] += shares[first] * row[i];
            }
            for (ptrdiff_t i = 0; i < features; i++) result[i] /= sum;
        }
    }

    INLINE void attend_rows(ptrdiff_t rows, ptrdiff_t own, const float *q, const float *k, const float *v,
            const float *keys, const float *values, const int64_t *table, ptrdiff_t columns, const int64_t *used,
            ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups, ptrdiff_t features, float scale, float *shares,
            float *y) {
        for (ptrdiff_t row = 0; row < rows; row++)
            for (ptrdiff_t i = 0; i < own; i++)
                attend(q + (row * own + i) * heads * features, k + row * own * groups * features,
                       v + row * own * groups * features, keys, values, table + row * columns, used[row], i + 1, block,
                       heads, groups, features, scale, shares, y + (row * own + i) * heads * features);
    }

    #define ARGUMENTS ptrdiff_t rows, ptrdiff_t own, const float *q, const float *k, const float *v, \\
        const float *keys, const float *values, const int64_t *table, ptrdiff_t columns, const int64_t *used, \\
        ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups, ptrdiff_t features, float scale, float *shares, float *y
    #define GIVEN rows, own, q, k, v, keys, values, table, columns, used, block, heads, groups, features, scale, \\
        shares, y

    FOR_AVX2 static void attend_fast(ARGUMENTS) { attend_rows(GIVEN); }
    static void attend_plain(ARGUMENTS) { attend_rows(GIVEN); }

    static void attend_all(ARGUMENTS) {
        if (is_fast()) attend_fast(GIVEN);
        else attend_plain(GIVEN);
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
