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
