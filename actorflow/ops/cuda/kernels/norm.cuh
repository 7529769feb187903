// Statistics for normalization, along the middle axis of (outer, length, inner), in one pass each; needs tile.cuh.
//
// Where columns are cut into parts, a kernel gives (parts, outer * inner), and a second one joins the parts.

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

// Mean and variance of a column, and with `moves` the running ones, which take a share of them.
__device__ inline void finish(
    Moments own, INDEX c, WIDE* mean, WIDE* variance, const WIDE* old_mean, const WIDE* old_variance, WIDE* new_mean,
    WIDE* new_variance, WIDE kept, WIDE of_mean, WIDE of_variance, INDEX moves) {
  const WIDE spread = own.squares / own.count;
  mean[c] = own.mean;
  variance[c] = spread;
  if (moves) {
    new_mean[c] = kept * old_mean[c] + of_mean * own.mean;
    new_variance[c] = kept * old_variance[c] + of_variance * spread;
  }
}

// Part p of a column takes the elements p, p + parts, ... in steps of the tile. Without parts, it is finished.
extern "C" __global__ void moments(
    const SCALAR* x, WIDE* mean, WIDE* squares, WIDE* counts, INDEX all, INDEX length, INDEX inner, INDEX parts,
    INDEX columns, const WIDE* old_mean, const WIDE* old_variance, WIDE* new_mean, WIDE* new_variance, WIDE kept,
    WIDE of_mean, WIDE of_variance, INDEX moves) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  const Moments none = {WIDE(0), WIDE(0), WIDE(0)};
  const Joined join;
  Moments own = none, run = none;
  if (c < all) {
    const SCALAR* column = x + (c / inner) * length * inner + c % inner;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs) {
      const WIDE value = WIDE(column[k * inner]), distance = value - run.mean;
      run.count += WIDE(1);
      run.mean += distance / run.count;
      run.squares += distance * (value - run.mean);
      if (run.count < WIDE(64)) continue;
      own = join(own, run);
      run = none;
    }
  }
  own = combined(tile, join(own, run), join);
  if (tile.along || c >= all) return;
  if (parts == 1) {
    finish(
        own, c, mean, squares, old_mean, old_variance, new_mean, new_variance, kept, of_mean, of_variance, moves);
  } else {
    mean[part * all + c] = own.mean;
    squares[part * all + c] = own.squares;
    counts[part * all + c] = own.count;
  }
}

// Of the parts of columns, (length, all).
extern "C" __global__ void join_moments(
    const WIDE* means, const WIDE* squares, const WIDE* counts, WIDE* mean, WIDE* variance, INDEX all, INDEX length,
    INDEX inner, INDEX columns, const WIDE* old_mean, const WIDE* old_variance, WIDE* new_mean, WIDE* new_variance,
    WIDE kept, WIDE of_mean, WIDE of_variance, INDEX moves) {
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
  if (tile.along || c >= all) return;
  finish(own, c, mean, variance, old_mean, old_variance, new_mean, new_variance, kept, of_mean, of_variance, moves);
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

// Sums of g and of g * n, for the normalized n = (x - mean) * r. `spread` is the variances of the columns, of which r is
// made, and written. Or, with `across`, means are those of the elements along the columns, and so is `spread`, their r.
// With `weighted`, g is multiplied by `scale`, along the columns, too.
extern "C" __global__ void sums_of_normalized(
    const SCALAR* g, const SCALAR* x, const WIDE* mean, const WIDE* spread, const SCALAR* scale, WIDE* totals,
    WIDE* products, WIDE* reciprocals, WIDE epsilon, INDEX all, INDEX length, INDEX inner, INDEX parts, INDEX columns,
    INDEX across, INDEX weighted) {
  const Tile tile(inner, columns);
  const INDEX part = blockIdx.x % parts;
  const INDEX c = (INDEX)(blockIdx.x / parts) * columns + tile.column;
  RunningSum<WIDE> sum, products_sum;
  if (c < all) {
    const INDEX start = (c / inner) * length * inner + c % inner;
    const WIDE own_mean = across ? WIDE(0) : mean[c], own_r = across ? WIDE(0) : WIDE(1) / sqrt(spread[c] + epsilon);
    if (!across && part == 0 && tile.along == 0) reciprocals[c] = own_r;
    for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs) {
      const INDEX i = start + k * inner;
      const WIDE own = weighted ? WIDE(g[i]) * WIDE(scale[k]) : WIDE(g[i]);
      sum.add(own);
      products_sum.add(own * ((WIDE(x[i]) - (across ? mean[k] : own_mean)) * (across ? spread[k] : own_r)));
    }
  }
  Pair total = {sum.value(), products_sum.value()};
  total = combined(tile, total, PairPlus());
  if (tile.along || c >= all) return;
  totals[part * all + c] = total.g;
  products[part * all + c] = total.product;
}

// Of the parts of columns, (length, all).
extern "C" __global__ void join_sums(
    const WIDE* totals, const WIDE* products, WIDE* total, WIDE* product, INDEX all, INDEX length, INDEX inner,
    INDEX columns) {
  const Tile tile(inner, columns);
  const INDEX c = (INDEX)blockIdx.x * columns + tile.column;
  const PairPlus plus;
  Pair own = {WIDE(0), WIDE(0)};
  if (c < all) {
    for (INDEX k = tile.along; k < length; k += tile.alongs) {
      const Pair part = {totals[k * all + c], products[k * all + c]};
      own = plus(own, part);
    }
  }
  own = combined(tile, own, plus);
  if (tile.along || c >= all) return;
  total[c] = own.g;
  product[c] = own.product;
}
