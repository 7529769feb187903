// Images to the columns of a convolution and back, NHWC. A row of columns holds what one window sees: (kernel row,
// kernel column, channel). A piece is a range of windows: output pixels of all images, counted in one go.

extern "C" __global__ void gather_columns(
    const SCALAR* x, SCALAR* columns, INDEX count, INDEX first, INDEX height, INDEX width, INDEX channels,
    INDEX out_height, INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv, INDEX ph) {
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX channel = rest % channels;
    rest /= channels;
    const INDEX b = rest % kh;
    rest /= kh;
    const INDEX a = rest % kv;
    rest = rest / kv + first;
    const INDEX j = rest % out_width;
    rest /= out_width;
    const INDEX r = rest % out_height * sv + a - pv, s = j * sh + b - ph;
    const bool inside = r >= 0 && r < height && s >= 0 && s < width;
    columns[e] = inside ? x[((rest / out_height * height + r) * width + s) * channels + channel] : SCALAR(0.0f);
  }
}

// A thread per element of the images dx, which begin with image number `image`: the sum of the columns' elements that
// were copied from it, no atomics. `add` keeps what earlier pieces of the same image gave.
extern "C" __global__ void scatter_columns(
    const SCALAR* columns, SCALAR* dx, INDEX count, INDEX image, INDEX first, INDEX windows, INDEX add, INDEX height,
    INDEX width, INDEX channels, INDEX out_height, INDEX out_width, INDEX kv, INDEX kh, INDEX sv, INDEX sh, INDEX pv,
    INDEX ph) {
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX channel = rest % channels;
    rest /= channels;
    const INDEX s = rest % width;
    rest /= width;
    const INDEX r = rest % height, n = rest / height + image;
    const Windows rows(r, out_height, kv, sv, pv), across(s, out_width, kh, sh, ph);
    WIDE total = add ? WIDE(dx[e]) : WIDE(0);
    for (INDEX i = rows.last; i >= rows.first; --i)
      for (INDEX j = across.last; j >= across.first; --j) {
        const INDEX window = (n * out_height + i) * out_width + j - first;
        const INDEX a = r + pv - i * sv, b = s + ph - j * sh;
        if (window >= 0 && window < windows) total += WIDE(columns[((window * kv + a) * kh + b) * channels + channel]);
      }
    dx[e] = SCALAR(total);
  }
}
