// Statistics for normalization, along the middle axis of (outer, length, inner), in one pass each; needs tile.cuh.

// Of some elements: how many, their mean, and the sum of squared distances from it. Nothing large is ever subtracted from
// something of its size, as the difference of the mean square and the squared mean would.
struct Moments {
  WIDE count, mean, squares;
};

struct Joined {
  __device__ Moments operator()(Moments a, Moments b) const {
    if (b.count == WIDE(0)) return a;
    if (a.count == WIDE(0)) return b;
    const WIDE count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    const Moments joined = {
        count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
    return joined;
  }
};

// Part p of a column takes the elements p, p + parts, ... in steps of the tile, and gives (parts, outer * inner). Without
// parts, `squares` becomes the variance, and `counts` is not written.
extern "C" __global__ void moments(
    const SCALAR* x, WIDE* mean, WIDE* squares, WIDE* counts, INDEX all, INDEX length, INDEX inner, INDEX parts,
    INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  Moments own = {WIDE(0), WIDE(0), WIDE(0)};
  if (c < all) {
    const SCALAR* column = x + (c / inner) * length * inner + c % inner;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs) {
      const WIDE value = WIDE(column[k * inner]), distance = value - own.mean;
      own.count += WIDE(1);
      own.mean += distance / own.count;
      own.squares += distance * (value - own.mean);
    }
  }
  own = combined(tile, own, Joined());
  if (tile.along == 0 && c < all) {
    mean[part * all + c] = own.mean;
    squares[part * all + c] = parts == 1 ? own.squares / own.count : own.squares;
    if (parts > 1) counts[part * all + c] = own.count;
  }
}

// Mean and variance of columns from their parts, (length, all).
extern "C" __global__ void join_moments(
    const WIDE* means, const WIDE* squares, const WIDE* counts, WIDE* mean, WIDE* variance, INDEX all, INDEX length,
    INDEX inner, INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const Joined join;
  Moments own = {WIDE(0), WIDE(0), WIDE(0)};
  if (c < all) {
    for (INDEX k = tile.along; k < length; k += tile.alongs) {
      const INDEX i = k * all + c;
      const Moments part = {counts[i], means[i], squares[i]};
      own = join(own, part);
    }
  }
  own = combined(tile, own, join);
  if (tile.along == 0 && c < all) {
    mean[c] = own.mean;
    variance[c] = own.squares / own.count;
  }
}

struct Pair {
  WIDE g, product;
};

struct PairPlus {
  __device__ Pair operator()(Pair a, Pair b) const {
    const Pair sum = {a.g + b.g, a.product + b.product};
    return sum;
  }
};

// Sums of g and of g * n, for the normalized n = (x - mean) * r, as (parts, 2, outer * inner). Statistics are those of
// columns or, with `across`, of the elements along them; with `weighted`, g is multiplied by `scale`, along them too.
extern "C" __global__ void sums_of_normalized(
    const SCALAR* g, const SCALAR* x, const WIDE* mean, const WIDE* r, const SCALAR* scale, WIDE* sums, INDEX all,
    INDEX length, INDEX inner, INDEX parts, INDEX columns, INDEX across, INDEX weighted) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  Pair total = {WIDE(0), WIDE(0)};
  if (c < all) {
    const INDEX start = (c / inner) * length * inner + c % inner;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs) {
      const INDEX i = start + k * inner, s = across ? k : c;
      const WIDE own = weighted ? WIDE(g[i]) * WIDE(scale[k]) : WIDE(g[i]);
      total.g += own;
      total.product += own * ((WIDE(x[i]) - mean[s]) * r[s]);
    }
  }
  total = combined(tile, total, PairPlus());
  if (tile.along == 0 && c < all) {
    sums[2 * part * all + c] = total.g;
    sums[(2 * part + 1) * all + c] = total.product;
  }
}
