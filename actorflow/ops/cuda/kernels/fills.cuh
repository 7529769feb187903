// Random numbers, each a function of the seed, the frame and its place; needs noise.cuh.
//
// A thread has the numbers of one block: eight of 32 bits, or four of 64 bits where SCALAR is double.

template <typename T> struct PerBlock { enum { count = 8 }; };
template <> struct PerBlock<double> { enum { count = 4 }; };

__device__ inline WIDE uniform_of(const Philox& random, int i, float) { return random.uniform(i); }
__device__ inline WIDE uniform_of(const Philox& random, int i, double) {
  return WIDE(random.words[i] >> 11) * WIDE(1.0 / 9007199254740992.0);
}

// Words for Box and Muller's transform, and what a word is a multiple of.
__device__ inline WIDE word_of(const Philox& random, int i, float) {
  return WIDE((unsigned int)(random.words[i / 2] >> (i % 2 * 32)));
}
__device__ inline WIDE word_of(const Philox& random, int i, double) { return WIDE(random.words[i] >> 11); }
__device__ inline WIDE unit_of(float) { return WIDE(1.0 / 4294967296.0); }
__device__ inline WIDE unit_of(double) { return WIDE(1.0 / 9007199254740992.0); }

extern "C" __global__ void uniform(
    SCALAR* y, INDEX groups, INDEX size, Word frame, Word key0, Word key1, WIDE low, WIDE width) {
  const int count = PerBlock<WIDE>::count;
  FOR_EACH(group, groups) {
    const Philox random(group, frame, key0, key1);
    const INDEX start = group * count;
    for (int i = 0; i < count; ++i)
      if (start + i < size) y[start + i] = (SCALAR)(uniform_of(random, i, WIDE()) * width + low);
  }
}

extern "C" __global__ void bernoulli(
    SCALAR* y, INDEX groups, INDEX size, Word frame, Word key0, Word key1, float probability) {
  FOR_EACH(group, groups) {
    const Philox random(group, frame, key0, key1);
    const INDEX start = group * 8;
    for (int i = 0; i < 8; ++i)
      if (start + i < size) y[start + i] = (SCALAR)(random.uniform(i) < probability ? 1.0f : 0.0f);
  }
}

extern "C" __global__ void gaussian(
    SCALAR* y, INDEX groups, INDEX size, Word frame, Word key0, Word key1, WIDE mean, WIDE std) {
  const int count = PerBlock<WIDE>::count;
  const WIDE unit = unit_of(WIDE()), turn = WIDE(6.283185307179586) * unit;
  FOR_EACH(group, groups) {
    const Philox random(group, frame, key0, key1);
    const INDEX start = group * count;
    for (int i = 0; i < count; i += 2) {
      const WIDE radius = sqrt(WIDE(-2) * log((word_of(random, i, WIDE()) + WIDE(1)) * unit));
      const WIDE angle = word_of(random, i + 1, WIDE()) * turn;
      if (start + i < size) y[start + i] = (SCALAR)(radius * cos(angle) * std + mean);
      if (start + i + 1 < size) y[start + i + 1] = (SCALAR)(radius * sin(angle) * std + mean);
    }
  }
}
