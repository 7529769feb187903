// Dropout with the random stream of numpy.random.Philox: Philox4x64 with 10 rounds (Salmon et al., 2011).
//
// Block b of the stream is the cipher of the counter (b + 1, 0, frame, 0): four words of 64 bits, whose halves, the
// lower one first, are eight numbers of 32 bits. So each thread draws for eight elements, and no state is kept.

typedef unsigned long long Word;

#ifdef __CUDACC__
__device__ inline Word high_product(Word a, Word b) { return __umul64hi(a, b); }
#endif

struct Philox {
  Word words[4];
  __device__ Philox(Word block, Word frame, Word key0, Word key1) {
    Word c0 = block + 1, c1 = 0, c2 = frame, c3 = 0;
    for (int round = 0; round < 10; ++round) {
      const Word low0 = 0xD2E7470EE14C6C93ull * c0, high0 = high_product(0xD2E7470EE14C6C93ull, c0);
      const Word low1 = 0xCA5A826395121157ull * c2, high1 = high_product(0xCA5A826395121157ull, c2);
      c0 = high1 ^ c1 ^ key0;
      c1 = low1;
      c2 = high0 ^ c3 ^ key1;
      c3 = low0;
      key0 += 0x9E3779B97F4A7C15ull;
      key1 += 0xBB67AE8584CAA73Bull;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
  }
  // From 0 to 1, in steps of 2^-24.
  __device__ float uniform(int i) const {
    return float((unsigned int)(words[i / 2] >> (i % 2 * 32)) >> 8) * (1.0f / 16777216.0f);
  }
};

extern "C" __global__ void dropout(
    const SCALAR* x, SCALAR* y, unsigned char* mask, INDEX groups, INDEX size, Word frame, Word key0, Word key1,
    float rate, WIDE factor) {
  FOR_EACH(group, groups) {
    const Philox random(group, frame, key0, key1);
    const INDEX start = group * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (start + i < size) {
        const bool kept = random.uniform(i) >= rate;
        mask[start + i] = kept;
        y[start + i] = kept ? (SCALAR)(WIDE(x[start + i]) * factor) : (SCALAR)(0.0f);
      }
  }
}
