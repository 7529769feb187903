// Sums along the middle axis of (outer, length, inner); needs tile.cuh.

struct Add {
  __device__ WIDE operator()(WIDE a, WIDE b) const { return a + b; }
};

struct Larger {
  __device__ WIDE operator()(WIDE a, WIDE b) const { return larger(a, b); }
};

// Part p of a column adds the elements p, p + parts, ... in steps of the tile; y is (parts, outer * inner).
template <typename In, typename Out>
__device__ void sum_tile(
    const In* x, Out* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, WIDE divisor) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  RunningSum<WIDE> sum;
  if (c < all) {
    const In* column = x + (c / inner) * length * inner + c % inner;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs)
      sum.add(WIDE(column[k * inner]));
  }
  const WIDE total = combined(tile, sum.value(), Add());
  if (tile.along == 0 && c < all) y[part * all + c] = Out(total / divisor);
}

extern "C" __global__ void sum(
    const SCALAR* x, SCALAR* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, WIDE divisor) {
  sum_tile(x, y, all, length, inner, parts, columns, divisor);
}

extern "C" __global__ void sum_widening(
    const SCALAR* x, WIDE* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, WIDE divisor) {
  sum_tile(x, y, all, length, inner, parts, columns, divisor);
}

extern "C" __global__ void sum_narrowing(
    const WIDE* x, SCALAR* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, WIDE divisor) {
  sum_tile(x, y, all, length, inner, parts, columns, divisor);
}
