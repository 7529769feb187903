// Convolutions whose groups have one input channel each, and `times` output channels: output channel o sees input
// channel o / times.

extern "C" __global__ void depthwise(
    const SCALAR* x, const SCALAR* weight, SCALAR* y, INDEX count, INDEX channels, INDEX times, INDEX nd, INDEX nh,
    INDEX nw, INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd,
    INDEX ph, INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX output = take(rest, channels * times), j = take(rest, ow), i = take(rest, oh), h = take(rest, od);
    WIDE total = 0;
    for (INDEX a = 0; a < kd; ++a)
      for (INDEX b = 0; b < kh; ++b)
        for (INDEX c = 0; c < kw; ++c) {
          const INDEX r = deep.element(h, a), s = high.element(i, b), t = wide.element(j, c);
          if (!deep.sees(r) || !high.sees(s) || !wide.sees(t)) continue;
          const INDEX pixel = ((rest * nd + r) * nh + s) * nw + t, offset = (a * kh + b) * kw + c;
          total += WIDE(x[pixel * channels + output / times]) * WIDE(weight[offset * channels * times + output]);
        }
    y[e] = SCALAR(total);
  }
}

extern "C" __global__ void depthwise_down(
    const SCALAR* g, const SCALAR* weight, SCALAR* dx, INDEX count, INDEX channels, INDEX times, INDEX nd, INDEX nh,
    INDEX nw, INDEX od, INDEX oh, INDEX ow, INDEX kd, INDEX kh, INDEX kw, INDEX sd, INDEX sh, INDEX sw, INDEX pd,
    INDEX ph, INDEX pw, INDEX ld, INDEX lh, INDEX lw) {
  AXES;
  FOR_EACH(e, count) {
    INDEX rest = e;
    const INDEX channel = take(rest, channels), t = take(rest, nw), s = take(rest, nh), r = take(rest, nd);
    WIDE total = 0;
    for (INDEX h = deep.last(r); h >= deep.first(r); --h) {
      const INDEX a = deep.offset(r, h);
      for (INDEX i = high.last(s); a >= 0 && i >= high.first(s); --i) {
        const INDEX b = high.offset(s, i);
        for (INDEX j = wide.last(t); b >= 0 && j >= wide.first(t); --j) {
          const INDEX c = wide.offset(t, j);
          if (c < 0) continue;
          const INDEX window = ((rest * od + h) * oh + i) * ow + j, offset = (a * kh + b) * kw + c;
          for (INDEX m = channel * times; m < (channel + 1) * times; ++m)
            total += WIDE(g[window * channels * times + m]) * WIDE(weight[offset * channels * times + m]);
        }
      }
    }
    dx[e] = SCALAR(total);
  }
}
