// Losses and accuracy of samples (samples, classes) with one label each; needs reduce.cuh and softmax.cuh.
//
// A kernel cannot raise: what depends on a label that is not a class becomes NaN.

__device__ inline WIDE not_a_number() { return WIDE(nan("")); }

__device__ inline bool is_class(LABEL label, INDEX classes) {
  return (long long)label >= 0 && (long long)label < classes;
}

// What a sample counts: 0 if it is ignored, else its class's weight, or 1 without weights, and 1 if its label is not a
// class: what is computed of that sample is NaN. Without weights, `weights` is any array. `ignore` and `has_ignored` are the label that does not count, and whether there is one.
__device__ inline WIDE weight_of(
    LABEL label, const SCALAR* weights, INDEX has_weights, long long ignore, INDEX has_ignored, INDEX classes) {
  if (has_ignored && (long long)label == ignore) return 0;
  return has_weights && is_class(label, classes) ? WIDE(weights[(INDEX)label]) : WIDE(1);
}

extern "C" __global__ void sample_weights(
    const LABEL* labels, const SCALAR* weights, WIDE* counts, INDEX samples, INDEX classes, INDEX has_weights,
    long long ignore, INDEX has_ignored) {
  FOR_EACH(i, samples) counts[i] = weight_of(labels[i], weights, has_weights, ignore, has_ignored, classes);
}

// The losses of the samples, times their counts.
extern "C" __global__ void sample_losses(
    const SCALAR* x, const LABEL* labels, const WIDE* counts, WIDE* losses, INDEX samples, INDEX classes,
    INDEX columns) {
  const Tile tile(1, columns);
  const INDEX sample = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = sample < samples;
  const SCALAR* row = x + (inside ? sample : 0) * classes;
  const Scores scores(tile, row, classes, 1, inside);
  if (inside && tile.along == 0) {
    const LABEL label = labels[sample];
    const WIDE count = counts[sample];
    if (count == WIDE(0)) losses[sample] = 0;
    else if (!is_class(label, classes)) losses[sample] = not_a_number();
    else losses[sample] = count * (log(scores.sum) - (WIDE(row[label]) - scores.top));
  }
}

// The factors of the samples' gradients: those of g, one or one per sample, times counts, over their total if that is
// asked for.
__device__ inline WIDE share_of(
    const SCALAR* g, LABEL label, INDEX classes, const WIDE* counts, const WIDE* total, INDEX sample, INDEX each,
    INDEX is_mean, WIDE scale) {
  const WIDE count = counts[sample];
  if (count == WIDE(0)) return 0;
  if (!is_class(label, classes)) return not_a_number();
  const WIDE factor = scale * WIDE(g[each ? sample : 0]) * count;
  return is_mean ? factor / total[0] : factor;
}

extern "C" __global__ void softmax_loss_down(
    const SCALAR* g, const SCALAR* x, const LABEL* labels, const WIDE* counts, const WIDE* total, SCALAR* dx,
    INDEX samples, INDEX classes, INDEX columns, INDEX each, INDEX is_mean, WIDE scale) {
  const Tile tile(1, columns);
  const INDEX sample = (INDEX)blockIdx.x * columns + tile.column;
  const bool inside = sample < samples;
  const INDEX start = (inside ? sample : 0) * classes;
  const Scores scores(tile, x + start, classes, 1, inside);
  if (!inside) return;
  const LABEL label = labels[sample];
  const WIDE factor = share_of(g, label, classes, counts, total, sample, each, is_mean, scale);
  for (INDEX k = tile.along; k < classes; k += tile.alongs) {
    const WIDE share = exp(WIDE(x[start + k]) - scores.top) / scores.sum;
    dx[start + k] = SCALAR((k == (INDEX)label ? share - 1 : share) * factor);
  }
}

extern "C" __global__ void nll_losses(
    const SCALAR* x, const LABEL* labels, const WIDE* counts, WIDE* losses, INDEX samples, INDEX classes) {
  FOR_EACH(i, samples) {
    const LABEL label = labels[i];
    const WIDE count = counts[i];
    if (count == WIDE(0)) losses[i] = 0;
    else if (!is_class(label, classes)) losses[i] = not_a_number();
    else losses[i] = -count * WIDE(x[i * classes + (INDEX)label]);
  }
}

extern "C" __global__ void nll_loss_down(
    const SCALAR* g, const LABEL* labels, const WIDE* counts, const WIDE* total, SCALAR* dx, INDEX elements,
    INDEX classes, INDEX each, INDEX is_mean, WIDE scale) {
  FOR_EACH(e, elements) {
    const INDEX sample = e / classes;
    const LABEL label = labels[sample];
    const WIDE factor = share_of(g, label, classes, counts, total, sample, each, is_mean, scale);
    // A sample whose label is not a class gets NaN everywhere.
    dx[e] = SCALAR(factor != factor ? factor : is_class(label, classes) && e % classes == (INDEX)label ? -factor : 0);
  }
}

// 1 where fewer than `top` classes are ahead of the label's; a tie goes to the lower class, and NaN is
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
