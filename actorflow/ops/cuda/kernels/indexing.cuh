// Picking by index along the middle axis of (outer, length, inner), and adding to what was picked.
//
// LABEL is the type of the indices. Negative ones count from the end; what is out of range is not a number, or 0.

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

// For each index the next equal one behind it, or -1; `first` tells which ones have none before.
extern "C" __global__ void chain(const LABEL* indices, long long* next, unsigned char* first, INDEX picked, INDEX length) {
  FOR_EACH(k, picked) {
    const INDEX place = place_of(indices[k], length);
    INDEX before = k - 1, behind = k + 1;
    while (before >= 0 && place_of(indices[before], length) != place) --before;
    while (behind < picked && place_of(indices[behind], length) != place) ++behind;
    first[k] = before < 0 && place >= 0;
    next[k] = behind < picked ? behind : -1;
  }
}

// The sum of the parts of g that have one index, in their order; dx is 0 before.
extern "C" __global__ void take_down(
    const SCALAR* g, const LABEL* indices, const long long* next, const unsigned char* first, SCALAR* dx, INDEX count,
    INDEX picked, INDEX length, INDEX inner) {
  FOR_EACH(e, count) {
    INDEX k = e / inner % picked;
    if (!first[k]) continue;
    const INDEX outer = e / inner / picked, place = place_of(indices[k], length);
    const SCALAR* parts = g + outer * picked * inner + e % inner;
    ADDED total = ADDED(0);
    for (; k >= 0; k = (INDEX)next[k]) total += ADDED(parts[k * inner]);
    dx[(outer * length + place) * inner + e % inner] = (SCALAR)(total);
  }
}

extern "C" __global__ void take_along(
    const SCALAR* x, const LABEL* indices, SCALAR* y, INDEX count, INDEX picked, INDEX length, INDEX inner) {
  FOR_EACH(e, count) {
    const INDEX place = place_of(indices[e], length), outer = e / inner / picked;
    y[e] = place < 0 ? missing<SCALAR>() : x[(outer * length + place) * inner + e % inner];
  }
}

// A thread per element of dx looks for its place among the indices of its column.
extern "C" __global__ void take_along_down(
    const SCALAR* g, const LABEL* indices, SCALAR* dx, INDEX count, INDEX picked, INDEX length, INDEX inner) {
  FOR_EACH(e, count) {
    const INDEX outer = e / inner / length, start = outer * picked * inner + e % inner, own = e / inner % length;
    ADDED total = ADDED(0);
    for (INDEX k = 0; k < picked; ++k)
      if (place_of(indices[start + k * inner], length) == own) total += ADDED(g[start + k * inner]);
    dx[e] = (SCALAR)(total);
  }
}

extern "C" __global__ void one_hot(const LABEL* indices, SCALAR* y, INDEX count, INDEX depth) {
  FOR_EACH(e, count) {
    const LABEL index = indices[e / depth];
    y[e] = (SCALAR)(index >= (LABEL)(0) && (unsigned long long)index == (unsigned long long)(e % depth) ? 1.0f : 0.0f);
  }
}
