// Orders pairs of a key, a whole number from 0 up, and a value. Equal keys stay in their order, whatever the timing.
//
// A round orders by one digit of the keys: it counts the digits of each tile of pairs, adds the counts up, and places the
// pairs. A thread has pairs that follow each other, and takes them one by one, so nothing is atomic.

#define DIGIT_BITS 6
#define DIGITS 64
#define SORT_THREADS 128
#define RUN 32  // pairs of a thread

__device__ inline int digit_of(long long key, INDEX shift) { return (int)(key >> shift) & (DIGITS - 1); }

// For each digit how many pairs of the tile have it: `counts` are those of each thread, then of all threads before it.
// Thread d gets what digit d has in all.
__device__ inline INDEX count_tile(const long long* keys, INDEX count, INDEX shift, unsigned short* counts) {
  unsigned short* own = counts + threadIdx.x * DIGITS;
  for (int d = 0; d < DIGITS; ++d) own[d] = 0;
  const INDEX start = ((INDEX)blockIdx.x * SORT_THREADS + threadIdx.x) * RUN;
  for (INDEX i = start; i < least(start + RUN, count); ++i) ++own[digit_of(keys[i], shift)];
  __syncthreads();
  INDEX total = 0;
  if (threadIdx.x < DIGITS) {
    for (int t = 0; t < SORT_THREADS; ++t) {
      unsigned short* its = counts + t * DIGITS + threadIdx.x;
      const unsigned short had = *its;
      *its = (unsigned short)total;
      total += had;
    }
  }
  __syncthreads();
  return total;
}

// table is (digits, tiles).
extern "C" __global__ void count_digits(const long long* keys, long long* table, INDEX count, INDEX tiles, INDEX shift) {
  __shared__ unsigned short counts[SORT_THREADS * DIGITS];
  const INDEX total = count_tile(keys, count, shift, counts);
  if (threadIdx.x < DIGITS) table[(INDEX)threadIdx.x * tiles + blockIdx.x] = total;
}

// Each count becomes the sum of all before it. One block; each thread has a part of the table.
extern "C" __global__ void add_up(long long* table, INDEX size) {
  __shared__ long long sums[SORT_THREADS];
  const INDEX part = (size + SORT_THREADS - 1) / SORT_THREADS;
  const INDEX start = least((INDEX)threadIdx.x * part, size), end = least(start + part, size);
  long long total = 0;
  for (INDEX i = start; i < end; ++i) total += table[i];
  sums[threadIdx.x] = total;
  __syncthreads();
  for (int step = 1; step < SORT_THREADS; step *= 2) {
    const long long before = (int)threadIdx.x < step ? 0 : sums[threadIdx.x - step];
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  total = sums[threadIdx.x] - total;
  for (INDEX i = start; i < end; ++i) {
    const long long had = table[i];
    table[i] = total;
    total += had;
  }
}

// To the places that the sums of all counts before give. In the first round the value of a pair is its place.
__device__ inline void place_tile(
    const long long* keys, const long long* values, long long* new_keys, long long* new_values, const long long* table,
    unsigned short* counts, INDEX count, INDEX tiles, INDEX shift) {
  unsigned short* own = counts + threadIdx.x * DIGITS;
  const INDEX start = ((INDEX)blockIdx.x * SORT_THREADS + threadIdx.x) * RUN;
  for (INDEX i = start; i < least(start + RUN, count); ++i) {
    const int digit = digit_of(keys[i], shift);
    const INDEX to = (INDEX)table[(INDEX)digit * tiles + blockIdx.x] + own[digit]++;
    new_keys[to] = keys[i];
    new_values[to] = shift ? values[i] : (long long)i;
  }
}

extern "C" __global__ void place(
    const long long* keys, const long long* values, long long* new_keys, long long* new_values, const long long* table,
    INDEX count, INDEX tiles, INDEX shift) {
  __shared__ unsigned short counts[SORT_THREADS * DIGITS];
  count_tile(keys, count, shift, counts);
  place_tile(keys, values, new_keys, new_values, table, counts, count, tiles, shift);
}

// All rounds of a single tile. The last round's pairs are in `new_keys` and `new_values` if the rounds are odd.
extern "C" __global__ void sort_tile(
    long long* keys, long long* values, long long* new_keys, long long* new_values, INDEX count, INDEX bits) {
  __shared__ unsigned short counts[SORT_THREADS * DIGITS];
  __shared__ long long table[DIGITS];
  for (INDEX shift = 0; shift < bits; shift += DIGIT_BITS) {
    const INDEX own = count_tile(keys, count, shift, counts);
    if (threadIdx.x < DIGITS) table[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      long long total = 0;
      for (int d = 0; d < DIGITS; ++d) {
        const long long had = table[d];
        table[d] = total;
        total += had;
      }
    }
    __syncthreads();
    place_tile(keys, values, new_keys, new_values, table, counts, count, 1, shift);
    __syncthreads();
    long long *old_keys = keys, *old_values = values;
    keys = new_keys, values = new_values;
    new_keys = old_keys, new_values = old_values;
  }
}
