// Picking by index along the middle axis of (outer, length, inner), and adding to what was picked.
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

// The sum of the parts of g, (outer, picked, inner), that have one key, in their order; dx is 0 before. A thread for the
// first of them takes them all; keys are sorted, and `parts` says which part had each.
extern "C" __global__ void sum_equal(
    const SCALAR* g, const long long* keys, const long long* parts, SCALAR* dx, INDEX count, INDEX picked, INDEX length,
    INDEX inner) {
  FOR_EACH(e, count) {
    INDEX k = e / inner % picked;
    const long long key = keys[k];
    if (key >= length || (k > 0 && keys[k - 1] == key)) continue;
    const INDEX outer = e / inner / picked;
    const SCALAR* column = g + outer * picked * inner + e % inner;
    ADDED total = ADDED(0);
    for (; k < picked && keys[k] == key; ++k) total += ADDED(column[(INDEX)parts[k] * inner]);
    dx[(outer * length + (INDEX)key) * inner + e % inner] = (SCALAR)(total);
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
