// How windows lie on images of three spatial axes, channels last; images of fewer have leading axes of size 1. Kernels
// take, for all axes (deep, high, wide), the size n, number of windows o, kernel k, stride s, border before p and
// dilation l.

// One axis.
struct Axis {
  INDEX size, windows, kernel, stride, pad, dilation;

  // The element that a window sees at an offset; outside of the image where `sees` says so.
  __device__ INDEX element(INDEX window, INDEX offset) const { return window * stride + offset * dilation - pad; }
  __device__ bool sees(INDEX element) const { return element >= 0 && element < size; }

  // The windows that may see an element, from the first to the last, and at which offset one does (negative: at none).
  __device__ INDEX first(INDEX element) const {
    const INDEX reach = dilation * (kernel - 1) + 1, place = element + pad;
    return place < reach ? 0 : (place - reach) / stride + 1;
  }
  __device__ INDEX last(INDEX element) const { return least((element + pad) / stride, windows - 1); }
  __device__ INDEX offset(INDEX element, INDEX window) const {
    const INDEX rest = element + pad - window * stride;
    return dilation == 1 ? rest : rest % dilation ? -1 : rest / dilation;
  }
};

#define AXES                                                                                          \
  const Axis deep = {nd, od, kd, sd, pd, ld}, high = {nh, oh, kh, sh, ph, lh}, wide = {nw, ow, kw, sw, pw, lw}

// The last of the numbers that `rest` is made of, which is less than `count`; takes it off.
__device__ inline INDEX take(INDEX& rest, INDEX count) {
  if (count == 1) return 0;
  const INDEX whole = rest / count, last = rest - whole * count;
  rest = whole;
  return last;
}
