// Pooling, NHWC: a thread per output element forwards, per image element backwards, so nothing is added atomically and
// neighbouring threads read neighbouring channels. Gradients are added in the order of the offsets in the window.

struct Pixel {
  INDEX channel, column, row, image;
  __device__ Pixel(INDEX i, INDEX height, INDEX width, INDEX channels) {
    channel = i % channels;
    i /= channels;
    column = i % width;
    i /= width;
    row = i % height;
    image = i / height;
  }
};

// How many elements of a window along one axis count.
__device__ inline INDEX extent(INDEX window, INDEX size, INDEX kernel, INDEX stride, INDEX pad, INDEX count_pad) {
  const INDEX start = window * stride - pad, stop = least(start + kernel, size + pad);
  return count_pad ? stop - start : least(stop, size) - most(start, 0);
}

extern "C" __global__ void max_pool(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX height, INDEX width, INDEX channels, INDEX out_height,
    INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv, INDEX ph) {
  FOR_EACH(e, count) {
    const Pixel at(e, out_height, out_width, channels);
    const INDEX top = most(at.row * sv - pv, 0), bottom = least(at.row * sv - pv + kv, height);
    const INDEX left = most(at.column * sh - ph, 0), right = least(at.column * sh - ph + kh, width);
    const SCALAR* image = x + at.image * height * width * channels + at.channel;
    WIDE best = WIDE(image[(top * width + left) * channels]);
    for (INDEX r = top; r < bottom; ++r)
      for (INDEX s = left; s < right; ++s) best = larger(best, WIDE(image[(r * width + s) * channels]));
    y[e] = SCALAR(best);
  }
}

// An element takes the gradient of each window whose maximum it is, unless an earlier element of the window is that
// too. Only where it is equal to the maximum is the window searched.
extern "C" __global__ void max_pool_down(
    const SCALAR* g, const SCALAR* x, const SCALAR* y, SCALAR* dx, INDEX count, INDEX height, INDEX width,
    INDEX channels, INDEX out_height, INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv, INDEX ph) {
  FOR_EACH(e, count) {
    const Pixel at(e, height, width, channels);
    const SCALAR* image = x + at.image * height * width * channels + at.channel;
    const WIDE own = WIDE(x[e]);
    const Windows rows(at.row, out_height, kv, sv, pv), columns(at.column, out_width, kh, sh, ph);
    WIDE total = 0;
    for (INDEX i = rows.last; i >= rows.first; --i)
      for (INDEX j = columns.last; j >= columns.first; --j) {
        const INDEX window = ((at.image * out_height + i) * out_width + j) * channels + at.channel;
        bool first = WIDE(y[window]) == own;
        const INDEX left = most(j * sh - ph, 0), right = least(j * sh - ph + kh, width);
        for (INDEX r = most(i * sv - pv, 0); first && r <= at.row; ++r)
          for (INDEX s = left; first && s < (r == at.row ? at.column : right); ++s)
            first = WIDE(image[(r * width + s) * channels]) != own;
        if (first) total += WIDE(g[window]);
      }
    dx[e] = SCALAR(total);
  }
}

extern "C" __global__ void average_pool(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX height, INDEX width, INDEX channels, INDEX out_height,
    INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv, INDEX ph, INDEX count_pad) {
  FOR_EACH(e, count) {
    const Pixel at(e, out_height, out_width, channels);
    const INDEX top = most(at.row * sv - pv, 0), bottom = least(at.row * sv - pv + kv, height);
    const INDEX left = most(at.column * sh - ph, 0), right = least(at.column * sh - ph + kh, width);
    const SCALAR* image = x + at.image * height * width * channels + at.channel;
    WIDE total = 0;
    for (INDEX r = top; r < bottom; ++r)
      for (INDEX s = left; s < right; ++s) total += WIDE(image[(r * width + s) * channels]);
    const INDEX size = extent(at.row, height, kv, sv, pv, count_pad) * extent(at.column, width, kh, sh, ph, count_pad);
    y[e] = SCALAR(total / WIDE(size));
  }
}

extern "C" __global__ void average_pool_down(
    const SCALAR* g, SCALAR* dx, INDEX count, INDEX height, INDEX width, INDEX channels, INDEX out_height,
    INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv, INDEX ph, INDEX count_pad) {
  FOR_EACH(e, count) {
    const Pixel at(e, height, width, channels);
    const Windows rows(at.row, out_height, kv, sv, pv), columns(at.column, out_width, kh, sh, ph);
    WIDE total = 0;
    for (INDEX i = rows.last; i >= rows.first; --i) {
      const INDEX tall = extent(i, height, kv, sv, pv, count_pad);
      for (INDEX j = columns.last; j >= columns.first; --j) {
        const INDEX window = ((at.image * out_height + i) * out_width + j) * channels + at.channel;
        total += WIDE(g[window]) / WIDE(tall * extent(j, width, kh, sh, ph, count_pad));
      }
    }
    dx[e] = SCALAR(total);
  }
}
