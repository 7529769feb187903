// Number types and indices, for all kernels.
//
// SCALAR (Half, float or double) and INDEX (int or long long) are given to the compiler. All integer parameters of
// kernels are of type INDEX, so nothing is said twice about sizes above 2^31.

#ifdef __CUDACC__
struct Half {
  unsigned short bits;
  Half() = default;
  __device__ explicit Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};
#endif

template <typename T> struct Wider { typedef float type; };
template <> struct Wider<double> { typedef double type; };

// The type that sums and exponentials are computed in: float for half and float, double for double.
typedef Wider<SCALAR>::type WIDE;

// A thread's sum: runs of 64 elements, sums of 64 runs, and the sum of those. So its error grows with the length of a
// run, and not with the number of elements.
template <typename T>
struct RunningSum {
  T run = T(0), of_runs = T(0), total = T(0);
  unsigned count = 0;
  __device__ void add(T value) {
    run += value;
    if (++count % 64) return;
    of_runs += run;
    run = T(0);
    if (count % 4096) return;
    total += of_runs;
    of_runs = T(0);
  }
  __device__ T value() const { return total + (of_runs + run); }
};

// Consecutive threads take consecutive elements; as many rounds as it needs.
#define FOR_EACH(i, count)                                                                                  \
  for (INDEX i = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (INDEX)gridDim.x * blockDim.x)

// The larger value; NaN if one is.
__device__ inline WIDE larger(WIDE a, WIDE b) { return b > a || b != b ? b : a; }

__device__ inline INDEX least(INDEX a, INDEX b) { return a < b ? a : b; }
__device__ inline INDEX most(INDEX a, INDEX b) { return a > b ? a : b; }
