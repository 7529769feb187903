// Resizing along one axis: a thread per element of the result. Element i of a resized axis lies at (a * i + b) / c on
// the other one, and is the weighted sum of up to 4 elements there; MODE and ROUNDING as in ops/nn/resize.py.

struct Taps {
  INDEX first, count;
  double weights[4];
  __device__ Taps(INDEX i, INDEX mode, INDEX rounding, double cubic, double a, double b, double c) {
    const double place = (a * (double)i + b) / c;
    double from = floor(place);
    const double t = place - from, k = cubic;
    count = 1 << mode;
    if (mode == 0) {
      if (rounding == 1) from = ceil(place);
      if (rounding == 2) from = ceil(place - 0.5);
      if (rounding == 3) from = floor(place + 0.5);
      weights[0] = 1;
    } else if (mode == 1) {
      weights[0] = 1 - t;
      weights[1] = t;
    } else {
      from -= 1;
      for (int n = 0; n < 4; ++n) {
        const double d = n == 0 ? 1 + t : n == 1 ? t : n == 2 ? 1 - t : 2 - t;
        weights[n] = n % 3 ? ((k + 2) * d - (k + 3)) * d * d + 1 : ((k * d - 5 * k) * d + 8 * k) * d - 4 * k;
      }
    }
    first = (INDEX)from;
  }
  __device__ INDEX element(INDEX tap, INDEX length) const { return most(0, least(first + tap, length - 1)); }
};

extern "C" __global__ void resize(
    const SCALAR* x, SCALAR* y, INDEX count, INDEX length, INDEX size, INDEX inner, INDEX mode, INDEX rounding,
    double cubic, double a, double b, double c) {
  FOR_EACH(e, count) {
    const INDEX row = e / inner, image = row / size;
    const Taps taps(row % size, mode, rounding, cubic, a, b, c);
    WIDE total = 0;
    for (INDEX tap = 0; tap < taps.count; ++tap)
      total += WIDE(taps.weights[tap]) * WIDE(x[(image * length + taps.element(tap, length)) * inner + e % inner]);
    y[e] = SCALAR(total);
  }
}

// Reads the elements that may be made of this one: those up to 2 places from it, and beyond the border, all.
extern "C" __global__ void resize_down(
    const SCALAR* g, SCALAR* dx, INDEX count, INDEX length, INDEX size, INDEX inner, INDEX mode, INDEX rounding,
    double cubic, double a, double b, double c) {
  FOR_EACH(e, count) {
    const INDEX row = e / inner, image = row / length, own = row % length;
    INDEX low = 0, high = size - 1;
    if (a > 0 && own > 0) low = most(0, (INDEX)floor(((own - 2) * c - b) / a) - 1);
    if (a > 0 && own < length - 1) high = least(size - 1, (INDEX)ceil(((own + 2) * c - b) / a) + 1);
    WIDE total = 0;
    for (INDEX i = low; i <= high; ++i) {
      const Taps taps(i, mode, rounding, cubic, a, b, c);
      for (INDEX tap = 0; tap < taps.count; ++tap)
        if (taps.element(tap, length) == own)
          total += WIDE(taps.weights[tap]) * WIDE(g[(image * size + i) * inner + e % inner]);
    }
    dx[e] = SCALAR(total);
  }
}
