// Local response normalization: a thread per element, which reads the channels around it from the cache.

__device__ inline WIDE window_sum(const SCALAR* x, INDEX e, INDEX channels, INDEX before, INDEX after) {
  const INDEX channel = e % channels;
  WIDE total = 0;
  for (INDEX i = most(channel - before, 0); i <= least(channel + after, channels - 1); ++i)
    total += WIDE(x[e - channel + i]);
  return total;
}

extern "C" __global__ void channel_window_sum(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX channels, INDEX before, INDEX after) {
  FOR_EACH(e, count) y[e] = SCALAR(window_sum(x, e, channels, before, after));
}

extern "C" __global__ void lrn(
    const SCALAR* x, SCALAR* y, SCALAR* scale, INDEX count, INDEX channels, INDEX before, INDEX after, WIDE share,
    WIDE k, WIDE beta) {
  FOR_EACH(e, count) {
    const INDEX channel = e % channels;
    WIDE total = 0;
    for (INDEX i = most(channel - before, 0); i <= least(channel + after, channels - 1); ++i)
      total += WIDE(x[e - channel + i]) * WIDE(x[e - channel + i]);
    const WIDE value = k + share * total;
    scale[e] = SCALAR(value);
    y[e] = SCALAR(WIDE(x[e]) * WIDE(exp(-beta * WIDE(log(value)))));
  }
}

extern "C" __global__ void lrn_down(
    const SCALAR* g, const SCALAR* x, const SCALAR* y, const SCALAR* scale, SCALAR* dx, INDEX count, INDEX channels,
    INDEX before, INDEX after, WIDE factor, WIDE beta) {
  FOR_EACH(e, count) {
    const INDEX channel = e % channels;
    WIDE seen = 0;
    for (INDEX i = most(channel - before, 0); i <= least(channel + after, channels - 1); ++i) {
      const INDEX other = e - channel + i;
      seen += WIDE(g[other]) * WIDE(y[other]) / WIDE(scale[other]);
    }
    dx[e] = SCALAR(WIDE(g[e]) * WIDE(exp(-beta * WIDE(log(WIDE(scale[e]))))) + factor * WIDE(x[e]) * seen);
  }
}
