// Runs kernels: blocks one after the other, threads of a block as coroutines that change over at __syncthreads().

#include "shim.hpp"

#include <csetjmp>
#include <ucontext.h>
#include <vector>

Dimension threadIdx, blockIdx, blockDim, gridDim;

namespace {

const std::size_t STACK_BYTES = 32 << 10;

struct Thread {
  ucontext_t start;  // a coroutine begins with this; a change over by jumps asks nothing of the system
  jmp_buf place;
  bool has_begun, has_ended;
};

jmp_buf scheduler;
std::vector<Thread> threads;
std::vector<char> stacks;
emulator::Body body;
const void* what;

void enter() {
  body(what);
  threads[threadIdx.x].has_ended = true;
  _longjmp(scheduler, 1);
}

void go_on(Thread& thread) {
  if (_setjmp(scheduler)) return;
  if (thread.has_begun) _longjmp(thread.place, 1);
  thread.has_begun = true;
  setcontext(&thread.start);
}

// 0, or 1 if some threads of a block ended while others waited for them.
int run_block(unsigned int block) {
  threads.resize(block);
  stacks.resize(block * STACK_BYTES);
  for (unsigned int t = 0; t < block; ++t) {
    Thread& thread = threads[t];
    thread.has_begun = thread.has_ended = false;
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = &stacks[t * STACK_BYTES];
    thread.start.uc_stack.ss_size = STACK_BYTES;
    makecontext(&thread.start, enter, 0);
  }
  for (;;) {
    unsigned int ended = 0;
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {
      go_on(threads[threadIdx.x]);
      ended += threads[threadIdx.x].has_ended;
    }
    if (ended == block) return 0;
    if (ended) return 1;
  }
}

}  // namespace

extern "C" int emulator::emulator_run(unsigned int grid, unsigned int block, bool cooperates, Body call, const void* with) {
  gridDim.x = grid;
  blockDim.x = block;
  body = call;
  what = with;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    if (cooperates) {
      if (run_block(block)) return 1;
    } else {
      for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) call(with);
    }
  }
  return 0;
}

extern "C" void emulator::emulator_barrier() {
  if (!_setjmp(threads[threadIdx.x].place)) _longjmp(scheduler, 1);
}
