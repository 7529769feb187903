// Losses and accuracy of samples (samples, classes) with one label each; needs reduce.cuh and softmax.cuh.
//
// A kernel cannot raise: what depends on a label that is no class becomes not a number.

__device__ inline WIDE not_a_number() { return WIDE(nan("")); }

__device__ inline bool is_class(LABEL label, INDEX classes) {
  return (long long)label >= 0 && (long long)label < classes;
}

extern "C" __global__ void sample_losses(
    const SCALAR* x, const LABEL* labels, WIDE* losses, INDEX samples, INDEX classes, INDEX columns) {
  const Tile tile(1, columns);
  const INDEX sample = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = sample < samples;
  const SCALAR* row = x + (inside ? sample : 0) * classes;
  const Scores scores(tile, row, classes, 1, inside);
  if (inside && tile.along == 0) {
    const LABEL label = labels[sample];
    losses[sample] = is_class(label, classes) ? log(scores.sum) - (WIDE(row[label]) - scores.top) : not_a_number();
  }
}

extern "C" __global__ void softmax_loss_down(
    const SCALAR* g, const SCALAR* x, const LABEL* labels, SCALAR* dx, INDEX samples, INDEX classes, INDEX columns) {
  const Tile tile(1, columns);
  const INDEX sample = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = sample < samples;
  const INDEX start = (inside ? sample : 0) * classes;
  const Scores scores(tile, x + start, classes, 1, inside);
  if (!inside) return;
  const LABEL label = labels[sample];
  const WIDE factor = is_class(label, classes) ? WIDE(g[0]) / WIDE(samples) : not_a_number();
  for (INDEX k = tile.along; k < classes; k += tile.alongs) {
    const WIDE share = exp(WIDE(x[start + k]) - scores.top) / scores.sum;
    dx[start + k] = SCALAR((k == (INDEX)label ? share - 1 : share) * factor);
  }
}

// 1 where fewer than `top` classes are ahead of the label's; a tie goes to the lower class, and what is not a number is
// ahead of everything ("not below" rather than "above": comparisons with it are false).
extern "C" __global__ void hits(
    const SCALAR* x, const LABEL* labels, float* hit, INDEX samples, INDEX classes, INDEX columns, INDEX top) {
  const Tile tile(1, columns);
  const INDEX sample = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = sample < samples;
  const SCALAR* row = x + (inside ? sample : 0) * classes;
  const bool valid = inside && is_class(labels[sample], classes);
  const INDEX label = valid ? (INDEX)labels[sample] : 0;
  WIDE ahead = 0;
  if (inside) {
    const WIDE own = WIDE(row[label]);
    for (INDEX k = tile.along; k < classes; k += tile.alongs) {
      const WIDE other = WIDE(row[k]);
      ahead += k < label ? !(other < own) : k > label ? !(other <= own) : own != own;
    }
  }
  ahead = combined(tile, ahead, Add());
  if (inside && tile.along == 0) hit[sample] = valid ? (ahead < WIDE(top) ? 1.0f : 0.0f) : float(not_a_number());
}
