// One step of a long short-term memory: a thread per element of the state. Gates lie side by side in a row of 4 * width:
// input, forget, cell, output.

__device__ inline WIDE sigmoid(WIDE x) { return WIDE(1) / (WIDE(1) + WIDE(exp(-x))); }

// The gates before activation are `gates` plus, with `has_more`, `more`; their activations may be written over `gates`.
extern "C" __global__ void lstm_gates(
    const SCALAR* gates, const SCALAR* more, const SCALAR* cell, SCALAR* hidden, SCALAR* new_cell, SCALAR* activations,
    INDEX count, INDEX width, INDEX has_more) {
  FOR_EACH(e, count) {
    const INDEX first = e / width * 4 * width + e % width;
    WIDE value[4];
    for (int k = 0; k < 4; ++k) {
      const INDEX at = first + k * width;
      const WIDE sum = WIDE(gates[at]) + (has_more ? WIDE(more[at]) : WIDE(0));
      value[k] = k == 2 ? WIDE(tanh(sum)) : sigmoid(sum);
      activations[at] = SCALAR(value[k]);
    }
    const WIDE c = value[1] * WIDE(cell[e]) + value[0] * value[2];
    new_cell[e] = SCALAR(c);
    hidden[e] = SCALAR(value[3] * WIDE(tanh(c)));
  }
}

// The gradient by the hidden state is `g_hidden` plus, with `has_more`, `more`. dcell may be written over g_cell.
extern "C" __global__ void lstm_gates_down(
    const SCALAR* g_hidden, const SCALAR* more, const SCALAR* g_cell, const SCALAR* cell, const SCALAR* new_cell,
    const SCALAR* activations, SCALAR* dgates, SCALAR* dcell, INDEX count, INDEX width, INDEX has_more) {
  FOR_EACH(e, count) {
    const INDEX first = e / width * 4 * width + e % width;
    const WIDE i = WIDE(activations[first]), f = WIDE(activations[first + width]);
    const WIDE z = WIDE(activations[first + 2 * width]), o = WIDE(activations[first + 3 * width]);
    const WIDE g = WIDE(g_hidden[e]) + (has_more ? WIDE(more[e]) : WIDE(0));
    const WIDE t = WIDE(tanh(WIDE(new_cell[e])));
    const WIDE total = g * o * (WIDE(1) - t * t) + WIDE(g_cell[e]);
    dgates[first] = SCALAR(total * z * i * (WIDE(1) - i));
    dgates[first + width] = SCALAR(total * WIDE(cell[e]) * f * (WIDE(1) - f));
    dgates[first + 2 * width] = SCALAR(total * i * (WIDE(1) - z * z));
    dgates[first + 3 * width] = SCALAR(g * t * o * (WIDE(1) - o));
    dcell[e] = SCALAR(total * f);
  }
}
