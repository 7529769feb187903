// Images to the columns of a convolution and back. Columns are (group, window, kernel offset, channel of the group): a
// row holds what one window sees of one group. A piece is a range of windows: output elements of all images, counted in
// one go.

extern "C" __global__ void gather_columns(
    const SCALAR* x, SCALAR* columns, INDEX count, INDEX first, INDEX windows, INDEX groups, INDEX channels, INDEX nd,
    INDEX nh, INDEX nw, INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw,
    INDEX pd, INDEX ph, INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX channel = take(rest, channels), c = take(rest, kw), b = take(rest, kh), a = take(rest, kd);
    INDEX image = rest % windows + first;
    const INDEX group = rest / windows;
    const INDEX t = wide.element(take(image, ow), c), s = high.element(take(image, oh), b);
    const INDEX r = deep.element(take(image, od), a);
    const bool inside = deep.sees(r) && high.sees(s) && wide.sees(t);
    const INDEX pixel = ((image * nd + r) * nh + s) * nw + t;
    columns[e] = inside ? x[(pixel * groups + group) * channels + channel] : SCALAR(0.0f);
  }
}

// A thread per element of the images dx, which begin with image number `image`: the sum of the columns' elements that
// were copied from it, no atomics. `add` keeps what earlier pieces of the same image gave.
extern "C" __global__ void scatter_columns(
    const SCALAR* columns, SCALAR* dx, INDEX count, INDEX image, INDEX first, INDEX windows, INDEX add, INDEX groups,
    INDEX channels, INDEX nd, INDEX nh, INDEX nw, INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd,
    INDEX sh, INDEX sw, INDEX pd, INDEX ph, INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX channel = take(rest, channels), group = take(rest, groups);
    const INDEX t = take(rest, nw), s = take(rest, nh), r = take(rest, nd), n = rest + image;
    WIDE total = add ? WIDE(dx[e]) : WIDE(0);
    for (INDEX h = deep.last(r); h >= deep.first(r); --h) {
      const INDEX a = deep.offset(r, h);
      for (INDEX i = high.last(s); a >= 0 && i >= high.first(s); --i) {
        const INDEX b = high.offset(s, i);
        for (INDEX j = wide.last(t); b >= 0 && j >= wide.first(t); --j) {
          const INDEX c = wide.offset(t, j), window = ((n * od + h) * oh + i) * ow + j - first;
          if (c < 0 || window < 0 || window >= windows) continue;
          const INDEX row = group * windows + window;
          total += WIDE(columns[(((row * kd + a) * kh + b) * kw + c) * channels + channel]);
        }
      }
    }
    dx[e] = SCALAR(total);
  }
}
