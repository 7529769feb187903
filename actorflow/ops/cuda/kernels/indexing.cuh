// Picking by index along the middle axis of (outer, length, inner), and putting things where they were picked.
//
// LABEL is the type of the indices. Negative ones count from the end; an index out of range gives NaN, or 0.

template <typename T> __device__ inline T missing() { return T(0); }
template <> __device__ inline Half missing<Half>() { return Half(nanf("")); }
template <> __device__ inline float missing<float>() { return nanf(""); }
template <> __device__ inline double missing<double>() { return nan(""); }

// Sums of integers are computed in their own type.
template <typename T> struct Added { typedef T type; };
template <> struct Added<Half> { typedef float type; };
typedef Added<SCALAR>::type ADDED;

// The place that an index means, -1 if there is none.
__device__ inline INDEX place_of(LABEL index, INDEX length) {
  if (index < (LABEL)(0)) {
    const long long place = (long long)index + length;
    return place < 0 ? -1 : (INDEX)place;
  }
  return (unsigned long long)index < (unsigned long long)length ? (INDEX)index : -1;
}

extern "C" __global__ void take(
    const SCALAR* x, const LABEL* indices, SCALAR* y, INDEX count, INDEX picked, INDEX length, INDEX inner) {
  FOR_EACH(e, count) {
    const INDEX place = place_of(indices[e / inner % picked], length);
    const INDEX outer = e / inner / picked;
    y[e] = place < 0 ? missing<SCALAR>() : x[(outer * length + place) * inner + e % inner];
  }
}

// Where each index of (outer, picked, inner) means an element of (outer, length, inner); `nowhere` if there is none.
extern "C" __global__ void places(
    const LABEL* indices, long long* keys, INDEX count, INDEX picked, INDEX length, INDEX inner, INDEX nowhere) {
  FOR_EACH(e, count) {
    const INDEX place = place_of(indices[e], length), outer = e / inner / picked;
    keys[e] = place < 0 ? nowhere : (outer * length + place) * inner + e % inner;
  }
}

// The end of the run of equal keys that begins at k: in twice the logarithm of its length, so that what is taken of the
// parts between does not wait for one key after the other.
__device__ inline INDEX end_of_run(const long long* keys, INDEX k, INDEX picked) {
  const long long key = keys[k];
  INDEX step = 1;
  while (step < picked - k && keys[k + step] == key) step = least(2 * step, picked - k);
  INDEX low = k + step / 2, high = k + step;  // the end is behind `low`, and at `high` at the latest
  while (high - low > 1) {
    const INDEX middle = low + (high - low) / 2;
    if (keys[middle] == key) low = middle; else high = middle;
  }
  return high;
}

// All parts of g, (outer, picked, inner), that have one key are combined with y, (outer, length, inner), in their order.
// A thread for the first of them takes them all; keys are sorted, and `parts` says which part had each.
template <typename Total, typename Combine>
__device__ void combine_equal(
    const SCALAR* g, const long long* keys, const long long* parts, SCALAR* y, INDEX count, INDEX picked, INDEX length,
    INDEX inner, Combine combine) {
  FOR_EACH(e, count) {
    const INDEX first = e / inner % picked, outer = e / inner / picked;
    const long long key = keys[first];
    if (key >= length || (first > 0 && keys[first - 1] == key)) continue;
    const SCALAR* column = g + outer * picked * inner + e % inner;
    SCALAR* place = y + (outer * length + (INDEX)key) * inner + e % inner;
    const INDEX end = end_of_run(keys, first, picked);
    Total total = Total(*place);
#pragma unroll 8
    for (INDEX k = first; k < end; ++k) total = combine(total, column[(INDEX)parts[k] * inner]);
    *place = (SCALAR)(total);
  }
}

// Rounded once, at the end.
struct AddWide {
  __device__ ADDED operator()(ADDED a, SCALAR b) const { return (ADDED)(a + ADDED(b)); }
};

extern "C" __global__ void sum_equal(
    const SCALAR* g, const long long* keys, const long long* parts, SCALAR* y, INDEX count, INDEX picked, INDEX length,
    INDEX inner) {
  combine_equal<ADDED>(g, keys, parts, y, count, picked, length, inner, AddWide());
}

// Rounded at each step.
struct Last {
  __device__ SCALAR operator()(SCALAR, SCALAR b) const { return b; }
};
struct Plus {
  __device__ SCALAR operator()(SCALAR a, SCALAR b) const { return (SCALAR)(ADDED(a) + ADDED(b)); }
};
struct Times {
  __device__ SCALAR operator()(SCALAR a, SCALAR b) const { return (SCALAR)(ADDED(a) * ADDED(b)); }
};
struct Smaller {
  __device__ SCALAR operator()(SCALAR a, SCALAR b) const { return b < a || b != b ? b : a; }
};
struct Greater {
  __device__ SCALAR operator()(SCALAR a, SCALAR b) const { return b > a || b != b ? b : a; }
};

extern "C" __global__ void put_equal(
    const SCALAR* g, const long long* keys, const long long* parts, SCALAR* y, INDEX count, INDEX picked, INDEX length,
    INDEX inner, INDEX mode) {
  switch (mode) {
    case 0: return combine_equal<SCALAR>(g, keys, parts, y, count, picked, length, inner, Last());
    case 1: return combine_equal<SCALAR>(g, keys, parts, y, count, picked, length, inner, Plus());
    case 2: return combine_equal<SCALAR>(g, keys, parts, y, count, picked, length, inner, Times());
    case 3: return combine_equal<SCALAR>(g, keys, parts, y, count, picked, length, inner, Smaller());
    case 4: return combine_equal<SCALAR>(g, keys, parts, y, count, picked, length, inner, Greater());
  }
}

extern "C" __global__ void take_along(
    const SCALAR* x, const LABEL* indices, SCALAR* y, INDEX count, INDEX picked, INDEX length, INDEX inner) {
  FOR_EACH(e, count) {
    const INDEX place = place_of(indices[e], length), outer = e / inner / picked;
    y[e] = place < 0 ? missing<SCALAR>() : x[(outer * length + place) * inner + e % inner];
  }
}

extern "C" __global__ void one_hot(const LABEL* indices, SCALAR* y, INDEX count, INDEX depth) {
  FOR_EACH(e, count) {
    const LABEL index = indices[e / depth];
    y[e] = (SCALAR)(index >= (LABEL)(0) && (unsigned long long)index == (unsigned long long)(e % depth) ? 1.0f : 0.0f);
  }
}
