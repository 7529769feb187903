// Lets g++ compile the CUDA C of actorflow/ops/cuda: blocks run one after the other, threads of a block as coroutines that
// change over at __syncthreads().

#include <ucontext.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define FOR_EACH_OF(i, size) for (std::ptrdiff_t i = 0; i < (size); ++i)

using std::ceil;
using std::cos;
using std::exp;
using std::floor;
using std::log;
using std::pow;
using std::rint;
using std::sin;
using std::sqrt;
using std::tanh;

struct Dimension {
  unsigned int x;
};
static Dimension threadIdx, blockIdx, blockDim, gridDim;

struct Half {
  _Float16 value;
  Half() = default;
  explicit Half(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};

// CuPy's own half type, which elementwise kernels use.
struct float16 {
  _Float16 value;
  float16() = default;
  float16(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};

inline unsigned long long high_product(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

namespace emulator {

const std::size_t STACK_BYTES = 32 << 10;
static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static std::vector<char> stacks, finished;
static std::function<void()> body;

static void enter() {
  body();
  finished[threadIdx.x] = 1;
}

// 0, or 1 if some threads of a block ended while others waited for them.
static int run_block(unsigned int block) {
  threads.resize(block);
  stacks.resize(block * STACK_BYTES);
  finished.assign(block, 0);
  for (unsigned int t = 0; t < block; ++t) {
    getcontext(&threads[t]);
    threads[t].uc_stack.ss_sp = &stacks[t * STACK_BYTES];
    threads[t].uc_stack.ss_size = STACK_BYTES;
    threads[t].uc_link = &scheduler;
    makecontext(&threads[t], enter, 0);
  }
  for (;;) {
    unsigned int ended = 0;
    for (unsigned int t = 0; t < block; ++t) {
      threadIdx.x = t;
      swapcontext(&scheduler, &threads[t]);
      ended += finished[t];
    }
    if (ended == block) return 0;
    if (ended) return 1;
  }
}

template <typename Body> int run(unsigned int grid, unsigned int block, bool cooperates, Body call) {
  gridDim.x = grid;
  blockDim.x = block;
  body = call;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    if (cooperates) {
      if (run_block(block)) return 1;
    } else {
      for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) call();
    }
  }
  return 0;
}

}  // namespace emulator

inline void __syncthreads() {
  swapcontext(&emulator::threads[threadIdx.x], &emulator::scheduler);
}
