// Lets g++ compile the CUDA C of actorflow/ops/cuda; shim.cpp runs it.

#include <cmath>
#include <cstddef>

#define __device__
#define __global__
#define __shared__ static
#define FOR_EACH_OF(i, size) for (std::ptrdiff_t i = 0; i < (size); ++i)

using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atan2;
using std::atanh;
using std::ceil;
using std::copysign;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::expm1;
using std::fabs;
using std::floor;
using std::fmod;
using std::hypot;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::pow;
using std::rint;
using std::signbit;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;

struct Dimension {
  unsigned int x;
};
extern Dimension threadIdx, blockIdx, blockDim, gridDim;  // of shim.cpp

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

typedef void (*Body)(const void*);
extern "C" int emulator_run(unsigned int grid, unsigned int block, bool cooperates, Body body, const void* what);
extern "C" void emulator_barrier();

template <typename Call> int run(unsigned int grid, unsigned int block, bool cooperates, const Call& call) {
  return emulator_run(grid, block, cooperates, [](const void* what) { (*(const Call*)what)(); }, &call);
}

}  // namespace emulator

inline void __syncthreads() {
  emulator::emulator_barrier();
}
