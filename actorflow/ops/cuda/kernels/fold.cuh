// Reductions of any numbers along the middle axis of (outer, length, inner); needs tile.cuh.
//
// RESULT is what comes out. Products and sums are computed in it, or in float for half.

template <typename T> struct Exact { typedef T type; };
template <> struct Exact<Half> { typedef float type; };

typedef Exact<SCALAR>::type VALUE;
typedef Exact<RESULT>::type TOTAL;

struct Plus {
  __device__ TOTAL operator()(TOTAL a, TOTAL b) const { return a + b; }
};
struct Times {
  __device__ TOTAL operator()(TOTAL a, TOTAL b) const { return a * b; }
};
struct Most {
  __device__ TOTAL operator()(TOTAL a, TOTAL b) const { return b > a || b != b ? b : a; }
};
struct Least {
  __device__ TOTAL operator()(TOTAL a, TOTAL b) const { return b < a || b != b ? b : a; }
};
struct Same {
  __device__ TOTAL operator()(SCALAR x) const { return TOTAL(VALUE(x)); }
};
struct IsNonzero {
  __device__ TOTAL operator()(SCALAR x) const { return VALUE(x) != VALUE(0) ? TOTAL(1) : TOTAL(0); }
};

// Part p of a column takes the elements p, p + parts, ... in steps of the tile; y is (parts, outer * inner).
template <typename Combine, typename Convert>
__device__ void fold_tile(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, bool from_first,
    TOTAL neutral, Combine combine, Convert convert) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  TOTAL total = neutral;
  if (c < all) {
    const SCALAR* column = x + (c / inner) * length * inner + c % inner;
    // What has no neutral element starts with the first one, which may then be taken again.
    if (from_first) total = convert(column[0]);
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs)
      total = combine(total, convert(column[k * inner]));
  }
  total = combined(tile, total, combine);
  if (tile.along == 0 && c < all) y[part * all + c] = (RESULT)(total);
}

extern "C" __global__ void fold_sum(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, false, TOTAL(0), Plus(), Same());
}

extern "C" __global__ void fold_prod(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, false, TOTAL(1), Times(), Same());
}

extern "C" __global__ void fold_max(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, true, TOTAL(0), Most(), Same());
}

extern "C" __global__ void fold_min(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, true, TOTAL(0), Least(), Same());
}

extern "C" __global__ void count_nonzero(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, false, TOTAL(0), Plus(), IsNonzero());
}

extern "C" __global__ void fold_any(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, false, TOTAL(0), Most(), IsNonzero());
}

extern "C" __global__ void fold_all(
    const SCALAR* x, RESULT* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns) {
  fold_tile(x, y, all, length, inner, parts, columns, false, TOTAL(1), Least(), IsNonzero());
}

struct Place {
  VALUE value;
  INDEX index;
};

// The first place of the extreme, or of the first NaN.
struct Further {
  bool largest;
  __device__ bool is_ahead(VALUE a, VALUE b) const {
    if (a != a || b != b) return a != a && b == b;
    return largest ? a > b : a < b;
  }
  __device__ Place operator()(Place a, Place b) const {
    if (is_ahead(b.value, a.value)) return b;
    if (is_ahead(a.value, b.value)) return a;
    return b.index < a.index ? b : a;
  }
};

extern "C" __global__ void position(
    const SCALAR* x, long long* y, INDEX all, INDEX length, INDEX inner, INDEX columns, INDEX largest) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const Further further = {largest != 0};
  Place best = {VALUE(0), 0};
  if (c < all) {
    const SCALAR* column = x + (c / inner) * length * inner + c % inner;
    best.value = VALUE(column[0]);
    for (INDEX k = tile.along; k < length; k += tile.alongs) {
      const Place here = {VALUE(column[k * inner]), k};
      best = further(best, here);
    }
  }
  best = combined(tile, best, further);
  if (tile.along == 0 && c < all) y[c] = best.index;
}
