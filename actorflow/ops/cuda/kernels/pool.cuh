// Pooling: a thread per output element forwards, per image element backwards, so nothing is added atomically and
// neighbouring threads read neighbouring channels. Gradients are added in the order of the offsets in the window.

// An element of images, or of windows; `channels` elements lie between neighbours.
struct Place {
  INDEX channel, t, s, r, image;
  __device__ Place(INDEX rest, INDEX deep, INDEX high, INDEX wide, INDEX channels) {
    channel = take(rest, channels);
    t = take(rest, wide);
    s = take(rest, high);
    r = take(rest, deep);
    image = rest;
  }
};

// The offsets of a window that see the image, from the first to before the end.
struct Range {
  INDEX first, end;
  __device__ Range(const Axis& axis, INDEX window) {
    const INDEX start = window * axis.stride - axis.pad;
    first = start < 0 ? (axis.dilation - 1 - start) / axis.dilation : 0;
    end = start >= axis.size ? 0 : least(axis.kernel, (axis.size - 1 - start) / axis.dilation + 1);
  }
};

// How many elements of a window along one axis count; `size_after` is that of the image with its border after it.
__device__ inline INDEX extent(const Axis& axis, INDEX window, INDEX size_after, INDEX count_pad) {
  const INDEX start = window * axis.stride - axis.pad;
  if (count_pad) return least(axis.kernel, (size_after - 1 - start) / axis.dilation + 1);
  const Range seen(axis, window);
  return most(seen.end - seen.first, 0);
}

extern "C" __global__ void max_pool(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX channels, INDEX nd, INDEX nh, INDEX nw, INDEX od, INDEX oh, INDEX ow,
    INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd, INDEX ph, INDEX pw, INDEX ld, INDEX lh,
    INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    const Place at(e, od, oh, ow, channels);
    const Range as(deep, at.r), bs(high, at.s), cs(wide, at.t);
    const SCALAR* image = x + at.image * nd * nh * nw * channels + at.channel;
    WIDE best = -1 / WIDE(0);
    for (INDEX a = as.first; a < as.end; ++a)
      for (INDEX b = bs.first; b < bs.end; ++b)
        for (INDEX c = cs.first; c < cs.end; ++c) {
          const INDEX row = deep.element(at.r, a) * nh + high.element(at.s, b);
          best = larger(best, WIDE(image[(row * nw + wide.element(at.t, c)) * channels]));
        }
    y[e] = SCALAR(best);
  }
}

// An element takes the gradient of each window whose maximum it is, unless an earlier element of the window is that
// too. Only where it is equal to the maximum is the window searched.
extern "C" __global__ void max_pool_down(
    const SCALAR* g, const SCALAR* x, const SCALAR* y, SCALAR* dx, INDEX count, INDEX channels, INDEX nd, INDEX nh,
    INDEX nw, INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd,
    INDEX ph, INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    const Place at(e, nd, nh, nw, channels);
    const SCALAR* image = x + at.image * nd * nh * nw * channels + at.channel;
    const WIDE own = WIDE(x[e]);
    WIDE total = 0;
    for (INDEX h = deep.last(at.r); h >= deep.first(at.r); --h)
      for (INDEX i = high.last(at.s); i >= high.first(at.s); --i)
        for (INDEX j = wide.last(at.t); j >= wide.first(at.t); --j) {
          const INDEX a = deep.offset(at.r, h), b = high.offset(at.s, i), c = wide.offset(at.t, j);
          const INDEX window = (((at.image * od + h) * oh + i) * ow + j) * channels + at.channel;
          bool first = a >= 0 && b >= 0 && c >= 0 && WIDE(y[window]) == own;
          const Range as(deep, h), bs(high, i), cs(wide, j);
          for (INDEX p = as.first; first && p <= a; ++p)
            for (INDEX q = bs.first; first && q < (p == a ? b + 1 : bs.end); ++q)
              for (INDEX r = cs.first; first && r < (p == a && q == b ? c : cs.end); ++r) {
                const INDEX row = deep.element(h, p) * nh + high.element(i, q);
                first = WIDE(image[(row * nw + wide.element(j, r)) * channels]) != own;
              }
          if (first) total += WIDE(g[window]);
        }
    dx[e] = SCALAR(total);
  }
}

// The place of each window's first maximum, or of what is not a number, in its image; -1 where it sees no element.
extern "C" __global__ void max_pool_indices(
    const SCALAR* x, const SCALAR* y, long long* indices, INDEX count, INDEX channels, INDEX nd, INDEX nh, INDEX nw,
    INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd, INDEX ph,
    INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    const Place at(e, od, oh, ow, channels);
    const Range as(deep, at.r), bs(high, at.s), cs(wide, at.t);
    const SCALAR* image = x + at.image * nd * nh * nw * channels + at.channel;
    const WIDE best = WIDE(y[e]);
    INDEX found = -1;
    for (INDEX a = as.first; found < 0 && a < as.end; ++a)
      for (INDEX b = bs.first; found < 0 && b < bs.end; ++b)
        for (INDEX c = cs.first; found < 0 && c < cs.end; ++c) {
          const INDEX row = deep.element(at.r, a) * nh + high.element(at.s, b), place = row * nw + wide.element(at.t, c);
          const WIDE own = WIDE(image[place * channels]);
          if (own == best || own != own) found = place;
        }
    indices[e] = found;
  }
}

extern "C" __global__ void average_pool(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX channels, INDEX nd, INDEX nh, INDEX nw, INDEX od, INDEX oh, INDEX ow,
    INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd, INDEX ph, INDEX pw, INDEX ld, INDEX lh,
    INDEX lw, INDEX after_d, INDEX after_h, INDEX after_w, INDEX count_pad) {
  AXES;
  FOR_EACH(e, count) {
    const Place at(e, od, oh, ow, channels);
    const Range as(deep, at.r), bs(high, at.s), cs(wide, at.t);
    const SCALAR* image = x + at.image * nd * nh * nw * channels + at.channel;
    RunningSum<WIDE> sum;
    for (INDEX a = as.first; a < as.end; ++a)
      for (INDEX b = bs.first; b < bs.end; ++b)
        for (INDEX c = cs.first; c < cs.end; ++c) {
          const INDEX row = deep.element(at.r, a) * nh + high.element(at.s, b);
          sum.add(WIDE(image[(row * nw + wide.element(at.t, c)) * channels]));
        }
    const INDEX plane = extent(high, at.s, after_h, count_pad) * extent(wide, at.t, after_w, count_pad);
    y[e] = SCALAR(sum.value() / WIDE(most(extent(deep, at.r, after_d, count_pad) * plane, 1)));
  }
}

extern "C" __global__ void average_pool_down(
    const SCALAR* g, SCALAR* dx, INDEX count, INDEX channels, INDEX nd, INDEX nh, INDEX nw, INDEX od, INDEX oh,
    INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd, INDEX ph, INDEX pw, INDEX ld,
    INDEX lh, INDEX lw, INDEX after_d, INDEX after_h, INDEX after_w, INDEX count_pad) {
  AXES;
  FOR_EACH(e, count) {
    const Place at(e, nd, nh, nw, channels);
    WIDE total = 0;
    for (INDEX h = deep.last(at.r); h >= deep.first(at.r); --h) {
      if (deep.offset(at.r, h) < 0) continue;
      const INDEX layers = extent(deep, h, after_d, count_pad);
      for (INDEX i = high.last(at.s); i >= high.first(at.s); --i) {
        if (high.offset(at.s, i) < 0) continue;
        const INDEX rows = layers * extent(high, i, after_h, count_pad);
        for (INDEX j = wide.last(at.t); j >= wide.first(at.t); --j) {
          if (wide.offset(at.t, j) < 0) continue;
          const INDEX window = (((at.image * od + h) * oh + i) * ow + j) * channels + at.channel;
          total += WIDE(g[window]) / WIDE(rows * extent(wide, j, after_w, count_pad));
        }
      }
    }
    dx[e] = SCALAR(total);
  }
}
