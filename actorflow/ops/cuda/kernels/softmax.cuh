// Softmax along the middle axis of (outer, length, inner); needs reduce.cuh. One tile of columns per block, three
// passes over it, of which the last two find it in the cache.

// Maximum of a column, and the sum of the exponentials of what its elements are below that.
struct Scores {
  WIDE top, sum;
  __device__ Scores(const Tile& tile, const SCALAR* column, INDEX length, INDEX inner, bool inside) {
    top = 0;
    if (inside) {
      top = WIDE(column[0]);
      for (INDEX k = tile.along; k < length; k += tile.alongs) top = larger(top, WIDE(column[k * inner]));
    }
    top = combined(tile, top, Larger());
    RunningSum<WIDE> own;
    if (inside)
      for (INDEX k = tile.along; k < length; k += tile.alongs) own.add(exp(WIDE(column[k * inner]) - top));
    sum = combined(tile, own.value(), Add());
  }
};

extern "C" __global__ void softmax(const SCALAR* x, SCALAR* y, INDEX all, INDEX length, INDEX inner, INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = c < all;
  const INDEX start = inside ? (c / inner) * length * inner + c % inner : 0;
  const Scores scores(tile, x + start, length, inner, inside);
  if (inside)
    for (INDEX k = tile.along; k < length; k += tile.alongs)
      y[start + k * inner] = SCALAR(exp(WIDE(x[start + k * inner]) - scores.top) / scores.sum);
}

extern "C" __global__ void softmax_down(
    const SCALAR* g, const SCALAR* y, SCALAR* dx, INDEX all, INDEX length, INDEX inner, INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = c < all;
  const INDEX start = inside ? (c / inner) * length * inner + c % inner : 0;
  RunningSum<WIDE> own;
  if (inside)
    for (INDEX k = tile.along; k < length; k += tile.alongs)
      own.add(WIDE(g[start + k * inner]) * WIDE(y[start + k * inner]));
  const WIDE dot = combined(tile, own.value(), Add());
  if (inside)
    for (INDEX k = tile.along; k < length; k += tile.alongs)
      dx[start + k * inner] = SCALAR((WIDE(g[start + k * inner]) - dot) * WIDE(y[start + k * inner]));
}

extern "C" __global__ void log_softmax(
    const SCALAR* x, SCALAR* y, INDEX all, INDEX length, INDEX inner, INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = c < all;
  const INDEX start = inside ? (c / inner) * length * inner + c % inner : 0;
  const Scores scores(tile, x + start, length, inner, inside);
  const WIDE rest = log(scores.sum);
  if (inside)
    for (INDEX k = tile.along; k < length; k += tile.alongs)
      y[start + k * inner] = SCALAR((WIDE(x[start + k * inner]) - scores.top) - rest);
}
