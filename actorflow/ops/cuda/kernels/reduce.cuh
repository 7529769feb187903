// Reductions along the middle axis of (outer, length, inner).
//
// A block is a tile of `columns` columns (outer and inner taken together) by blockDim.x / columns threads along the
// axis. Neighbouring threads read neighbouring elements: along the axis if it is the last one, else along inner.

#define TILE_THREADS 256

struct Tile {
  int columns, alongs;  // size of the tile, in threads
  int column, along;    // this thread's place in it
  __device__ Tile(INDEX inner, INDEX columns_per_block) {
    columns = (int)columns_per_block;
    alongs = blockDim.x / columns;
    column = inner == 1 ? threadIdx.x / alongs : threadIdx.x % columns;
    along = inner == 1 ? threadIdx.x % alongs : threadIdx.x / columns;
  }
};

struct Add {
  __device__ WIDE operator()(WIDE a, WIDE b) const { return a + b; }
};

struct Larger {
  __device__ WIDE operator()(WIDE a, WIDE b) const { return larger(a, b); }
};

// Combines the values of each column's threads, in an order that depends on the tile alone; all of them get the result.
// Every thread of the block must call it.
template <typename Value, typename Combine>
__device__ inline Value combined(const Tile& tile, Value value, Combine combine) {
  __shared__ Value shared[TILE_THREADS];
  Value* own = shared + tile.column;
  own[tile.along * tile.columns] = value;
  __syncthreads();
  for (int half = tile.alongs / 2; half > 0; half /= 2) {
    if (tile.along < half) {
      Value* lower = own + tile.along * tile.columns;
      *lower = combine(*lower, lower[half * tile.columns]);
    }
    __syncthreads();
  }
  const Value result = *own;
  __syncthreads();
  return result;
}

// Part p of a column adds the elements p, p + parts, ... in steps of the tile; y is (parts, outer * inner).
template <typename In, typename Out>
__device__ void sum_tile(
    const In* x, Out* y, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns, WIDE divisor) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  WIDE total = 0;
  if (c < all) {
    const In* column = x + (c / inner) * length * inner + c % inner;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs)
      total += WIDE(column[k * inner]);
  }
  total = combined(tile, total, Add());
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
