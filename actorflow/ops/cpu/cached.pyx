# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Attention to keys and values that lie in blocks, and choices by scores.

NumPy would gather keys and values first, and fill up to the longest row; and would sort all scores.
"""

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
    #ifdef __clang__
    #define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
    #else
    #define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (integers){__VA_ARGS__})
    #endif
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

    /* The total of each of so many vectors as there are lanes. */
    INLINE vector totals_of(const vector *x) {
    #ifdef SHUFFLED
        vector pairs[4], fours[2];
        for (int i = 0; i < 4; i++)
            pairs[i] = SHUFFLED(x[2 * i], x[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14)
                     + SHUFFLED(x[2 * i], x[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
        for (int i = 0; i < 2; i++)
            fours[i] = SHUFFLED(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13)
                     + SHUFFLED(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
        return SHUFFLED(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11)
             + SHUFFLED(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
    #else
        return x[0];
    #endif
    }

    /* The first n lanes of what is there, and zeros. */
    INLINE vector some_of(const float *x, ptrdiff_t n) {
        float lanes[LANES] = {0};
        memcpy(lanes, x, 4 * n);
        return READ(lanes);
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

    /* Where positions are: those of blocks, and the new ones behind them. */
    INLINE void find(const float **at, const float *pool, const float *own, const int64_t *table, ptrdiff_t past,
            ptrdiff_t total, ptrdiff_t block, ptrdiff_t width) {
        ptrdiff_t i = 0;
        for (ptrdiff_t n = 0; i < past; n++) {
            const float *row = pool + table[n] * block * width;
            for (ptrdiff_t end = i + block < past ? i + block : past; i < end; i++, row += width) at[i] = row;
        }
        for (; i < total; i++, own += width) at[i] = own;
        for (; i % LANES; i++) at[i] = at[i - 1];
    }

    /* The result of one new position of one row: `past` positions are in blocks, `own` in k and v. `shares` has room for
       all positions of each head, whole vectors of them. */
    INLINE void attend(const float *q, const float *k, const float *v, const float *keys, const float *values,
            const int64_t *table, ptrdiff_t past, ptrdiff_t own, ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups,
            ptrdiff_t features, float scale, ptrdiff_t room, const float **at, float *shares, float *sums, float *y) {
        ptrdiff_t width = groups * features, sharing = heads / groups, total = past + own;
        find(at, keys, k, table, past, total, block, width);
        for (ptrdiff_t head = 0; head < heads; head++) {
            const float *query = q + head * features;
            ptrdiff_t from = head / sharing * features;
            float most = -INFINITY, *own_shares = shares + head * room;
            for (ptrdiff_t first = 0; first < total; first += LANES) {
                vector products[LANES];
                for (int lane = 0; lane < LANES; lane++) {
                    const float *row = at[first + lane] + from;
                    vector sum = {0};
                    ptrdiff_t i = 0;
                    for (; i + LANES <= features; i += LANES) sum += READ(query + i) * READ(row + i);
                    if (i < features) sum += some_of(query + i, features - i) * some_of(row + i, features - i);
                    products[lane] = sum;
                }
                AT(own_shares + first) = totals_of(products) * scale;
            }
            for (ptrdiff_t i = 0; i < total; i++) most = own_shares[i] > most ? own_shares[i] : most;
            sums[head] = exponentials(own_shares, total, most == -INFINITY ? 0 : most);
        }
        find(at, values, v, table, past, total, block, width);
        for (ptrdiff_t head = 0; head < heads; head++) {
            ptrdiff_t from = head / sharing * features;
            const float *own_shares = shares + head * room;
            float *result = y + head * features;
            for (ptrdiff_t i = 0; i < features; i += 2 * LANES) {
                ptrdiff_t rest = features - i;
                vector one = {0}, two = {0};
                if (rest >= 2 * LANES)
                    for (ptrdiff_t n = 0; n < total; n++) {
                        one += own_shares[n] * READ(at[n] + from + i);
                        two += own_shares[n] * READ(at[n] + from + i + LANES);
                    }
                else
                    for (ptrdiff_t n = 0; n < total; n++) {
                        const float *row = at[n] + from + i;
                        one += own_shares[n] * some_of(row, rest < LANES ? rest : LANES);
                        if (rest > LANES) two += own_shares[n] * some_of(row + LANES, rest - LANES);
                    }
                {
                    float both[2 * LANES];
                    AT(both) = one / sums[head];
                    AT(both + LANES) = two / sums[head];
                    memcpy(result + i, both, 4 * (rest < 2 * LANES ? rest : 2 * LANES));
                }
            }
        }
    }

    CLONED static void attend_all(ptrdiff_t rows, ptrdiff_t own, const float *q, const float *k, const float *v,
            const float *keys, const float *values, const int64_t *table, ptrdiff_t columns, const int64_t *used,
            ptrdiff_t block, ptrdiff_t heads, ptrdiff_t groups, ptrdiff_t features, float scale, ptrdiff_t room, int64_t *at,
            float *shares, float *y) {
        for (ptrdiff_t row = 0; row < rows; row++)
            for (ptrdiff_t i = 0; i < own; i++)
                attend(q + (row * own + i) * heads * features, k + row * own * groups * features,
                       v + row * own * groups * features, keys, values, table + row * columns, used[row], i + 1, block,
                       heads, groups, features, scale, room, (const float **)at, shares, shares + heads * room,
                       y + (row * own + i) * heads * features);
    }

    /* Let the number at a place of a heap, whose greatest is first, sink to where it belongs. */
    INLINE void sink(float *heap, ptrdiff_t n, ptrdiff_t at) {
        float x = heap[at];
        for (ptrdiff_t child; (child = 2 * at + 1) < n; at = child) {
            if (child + 1 < n && heap[child + 1] > heap[child]) child++;
            if (!(heap[child] > x)) break;
            heap[at] = heap[child];
        }
        heap[at] = x;
    }

    /* Put the greatest of a heap behind the others. */
    INLINE float taken(float *heap, ptrdiff_t n) {
        float greatest = heap[0];
        heap[0] = heap[n - 1];
        heap[n - 1] = greatest;
        sink(heap, n - 1, 0);
        return greatest;
    }

    /* The least share that is chosen from: of the `most` greatest, those that make up `part` of them. */
    INLINE float least_of(const float *shares, ptrdiff_t n, int64_t most, float part, float *heap) {
        ptrdiff_t i, count = most < 1 ? 1 : most < n ? most : n;
        double total = 0, before = 0;
        float least;
        memcpy(heap, shares, 4 * n);
        for (i = n / 2; i--;) sink(heap, n, i);
        for (i = 0; i < n && count == n; i++) total += shares[i];
        for (i = 0; i < count && count < n; i++) total += taken(heap, n - i);
        if (count < n && part >= 1) return heap[n - count];
        for (i = 0, least = heap[count < n ? n - 1 : 0]; i < count && before < total * part; i++) {
            least = count < n ? heap[n - 1 - i] : taken(heap, n - i);
            before += least;
        }
        return least;
    }

    CLONED static void choose_all(ptrdiff_t rows, ptrdiff_t n, float *scores, const float *random, const float *heat,
            const int64_t *most, const float *part, float *heap, int64_t *found) {
        for (ptrdiff_t row = 0; row < rows; row++, scores += n) {
            float greatest = -INFINITY, least = 0;
            double total = 0, ends = 0, drawn = 0;
            ptrdiff_t i = 0;
            for (; i < n; i++) greatest = scores[i] > greatest ? scores[i] : greatest;
            for (i = 0; i < n; i++) scores[i] = (scores[i] - greatest) / (heat[row] > 1e-37f ? heat[row] : 1e-37f);
            exponentials(scores, n, 0);
            if (most[row] < n || part[row] < 1) least = least_of(scores, n, most[row], part[row], heap);
            for (i = 0; i < n; i++) total += scores[i] < least ? 0 : scores[i];
            if (heat[row] > 0) drawn = random[row] * total;
            for (i = 0; i + 1 < n; i++) {
                ends += scores[i] < least ? 0 : scores[i];
                if (!(ends <= drawn && ends < total)) break;
            }
            found[row] = i;
        }
    }
    """
    void choose_all(
        Py_ssize_t rows, Py_ssize_t n, float *scores, const float *random, const float *heat, const cnp.int64_t *most,
        const float *part, float *heap, cnp.int64_t *found) nogil
    void attend_all(
        Py_ssize_t rows, Py_ssize_t own, const float *q, const float *k, const float *v, const float *keys,
        const float *values, const cnp.int64_t *table, Py_ssize_t columns, const cnp.int64_t *used, Py_ssize_t block,
        Py_ssize_t heads, Py_ssize_t groups, Py_ssize_t features, float scale, Py_ssize_t room, cnp.int64_t *at,
        float *shares, float *y) nogil


def attend(
    const float[:, :, ::1] q, const float[:, :, ::1] k, const float[:, :, ::1] v, const float[:, :, ::1] keys,
    const float[:, :, ::1] values, const cnp.int64_t[:, ::1] table, const cnp.int64_t[::1] used, Py_ssize_t heads,
    float scale, cnp.int64_t[::1] at, float[::1] shares, float[:, :, ::1] y,
):
    """Put the results of `CachedAttention` into ``y``.

    ``at`` has room for all positions of a row and 7 more, ``shares`` for one number more than these for each head.
    """
    cdef Py_ssize_t row, i, features = q.shape[2] // heads, block = keys.shape[1]
    with nogil:
        for row in range(q.shape[0]):
            if used[row] < 0 or used[row] > table.shape[1] * block or used[row] + q.shape[1] + 7 > at.shape[0]:
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
                at.shape[0], &at[0], &shares[0], &y[0, 0, 0],
            )


def choose(
    float[:, ::1] scores, const float[::1] random, const float[::1] heat, const cnp.int64_t[::1] most,
    const float[::1] part, float[::1] heap, cnp.int64_t[::1] found,
):
    """Put the choices of `Sample` into ``found``; ``scores`` are written over, ``heap`` has room for those of a row."""
    if scores.shape[0]:
        with nogil:
            choose_all(
                scores.shape[0], scores.shape[1], &scores[0, 0], &random[0], &heat[0], &most[0], &part[0], &heap[0],
                &found[0],
            )
