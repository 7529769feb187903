// What the page knows: the graph, and the state of its ops and frames. No drawing, no DOM.

export const STATES = ["idle", "waiting", "running", "done", "failed", "cancelled"];
export const OP = 0, BLOB = 1, VARIABLE = 2;

const KINDS = { op: OP, blob: BLOB, variable: VARIABLE };
// A blob with several producers shows the state that matters most.
const URGENCY = Uint8Array.from([0, 3, 4, 2, 5, 1]);
const RATE_WINDOW_MS = 2500;
const MAX_POINTS = 10000;
const MAX_FAILURES = 50;
const NO_FRAMES = { started: 0, finished: 0, failed: 0, cancelled: 0 };

export class Model {
  name = "";
  revision = -1;
  nodes = [];
  sizes = { op: [1, 1], blob: [1, 1] };
  frames = NO_FRAMES;
  /** @type {Map<string, {frames: number[], values: (number | null)[]}>} */
  curves = new Map();
  failures = [];
  /** What is said of a node, by its id. @type {Map<number, string[]>} */
  notes = new Map();
  #rate = [];

  constructor() {
    this.#allocate(0);
  }

  #allocate(count) {
    this.count = count;
    this.kind = new Uint8Array(count);
    this.x = new Float32Array(count);
    this.y = new Float32Array(count);
    this.state = new Uint8Array(count);
    this.calls = new Uint32Array(count);
    this.meanUs = new Float32Array(count);
    this.lastUs = new Float32Array(count);
    /** Time at which an op was last seen to finish a call. */
    this.activeAt = new Float64Array(count).fill(-Infinity);
    this.writers = Array.from({ length: count }, () => []);
    this.readers = Array.from({ length: count }, () => []);
    this.indexByName = new Map();
    this.indexById = new Map();
  }

  setGraph({ name, revision, nodes, edges, sizes }) {
    this.#allocate(nodes.length);
    Object.assign(this, { name, revision, nodes, sizes });
    nodes.forEach((node, i) => {
      this.kind[i] = KINDS[node.kind];
      this.x[i] = node.x;
      this.y[i] = node.y;
      this.indexByName.set(node.name, i);
      this.indexById.set(node.id, i);
    });
    this.edgeFrom = Int32Array.from(edges, (edge) => edge[0]);
    this.edgeTo = Int32Array.from(edges, (edge) => edge[1]);
    this.edgeBack = Uint8Array.from(edges, (edge) => edge[2]);
    for (let e = 0; e < edges.length; e++) {
      this.writers[this.edgeTo[e]].push(this.edgeFrom[e]);
      this.readers[this.edgeFrom[e]].push(this.edgeTo[e]);
    }
  }

  applyStates({ full, index, calls, meanUs, lastUs, state }, now) {
    const touched = new Set();
    for (let k = 0; k < index.length; k++) {
      const i = index[k];
      if (!full && calls[k] !== this.calls[i]) this.activeAt[i] = now;
      this.calls[i] = calls[k];
      this.meanUs[i] = meanUs[k];
      this.lastUs[i] = lastUs[k];
      if (this.state[i] === state[k]) continue;
      this.state[i] = state[k];
      for (const blob of this.readers[i]) touched.add(blob);
    }
    for (const blob of touched) {
      // A variable has a value at all times; its writer's state says nothing about it.
      if (this.kind[blob] === VARIABLE) continue;
      let worst = 0;
      for (const op of this.writers[blob]) {
        if (URGENCY[this.state[op]] > URGENCY[worst]) worst = this.state[op];
      }
      this.state[blob] = worst;
    }
  }

  applyStatus({ full, frames, curves, failures, notes }, now) {
    if (full) {
      this.curves.clear();
      this.notes.clear();
      this.failures = [];
      this.#rate = [];
    }
    this.frames = frames;
    this.#rate.push([now, frames.finished]);
    for (const [name, [numbers, values]] of Object.entries(curves)) {
      const curve = this.curves.get(name) ?? { frames: [], values: [] };
      curve.frames = curve.frames.concat(numbers).slice(-MAX_POINTS);
      curve.values = curve.values.concat(values).slice(-MAX_POINTS);
      this.curves.set(name, curve);
    }
    this.failures = this.failures.concat(failures).slice(-MAX_FAILURES);
    for (const { id, text } of notes) this.notes.set(id, [...(this.notes.get(id) ?? []), text]);
  }

  get inFlight() {
    const { started, finished, failed, cancelled } = this.frames;
    return started - finished - failed - cancelled;
  }

  /** Finished frames per second, over the last seconds. */
  rate(now) {
    // The newest point before the window stays, as the value at the window's start.
    while (this.#rate.length > 1 && this.#rate[1][0] < now - RATE_WINDOW_MS) this.#rate.shift();
    if (!this.#rate.length) return 0;
    const [since, finished] = this.#rate[0];
    const done = this.frames.finished - finished;
    return done ? (1000 * done) / Math.max(now - Math.max(since, now - RATE_WINDOW_MS), 250) : 0;
  }

  totalUs(i) {
    return this.calls[i] * this.meanUs[i];
  }

  /** Ops by total time, longest first. */
  costliest(limit) {
    const ops = [];
    for (let i = 0; i < this.count; i++) if (this.calls[i]) ops.push(i);
    return ops.sort((a, b) => this.totalUs(b) - this.totalUs(a)).slice(0, limit);
  }

  totalTimeUs() {
    let total = 0;
    for (let i = 0; i < this.count; i++) total += this.totalUs(i);
    return total;
  }

  /** Indices of nodes whose name contains the text, best first. */
  search(text, limit) {
    const wanted = text.toLowerCase();
    const found = [];
    this.nodes.forEach((node, i) => {
      const name = node.name.toLowerCase();
      const at = name.indexOf(wanted);
      if (at < 0) return;
      const label = node.label.toLowerCase();
      const rank = name === wanted ? 0 : label === wanted ? 1 : label.startsWith(wanted) ? 2 : at === 0 ? 3 : 4;
      found.push([rank, name.length, i]);
    });
    found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    return found.slice(0, limit).map(([, , i]) => i);
  }

  width(i) {
    return this.kind[i] === OP ? this.sizes.op[0] : this.sizes.blob[0];
  }

  height(i) {
    return this.kind[i] === OP ? this.sizes.op[1] : this.sizes.blob[1];
  }

  /** The node drawn at a place of the drawing, or -1. */
  nodeAt(x, y) {
    for (let i = 0; i < this.count; i++) {
      if (Math.abs(x - this.x[i]) <= this.width(i) / 2 && Math.abs(y - this.y[i]) <= this.height(i) / 2) return i;
    }
    return -1;
  }

  bounds() {
    let left = Infinity, top = Infinity, right = -Infinity, bottom = -Infinity;
    for (let i = 0; i < this.count; i++) {
      left = Math.min(left, this.x[i] - this.width(i) / 2);
      right = Math.max(right, this.x[i] + this.width(i) / 2);
      top = Math.min(top, this.y[i] - this.height(i) / 2);
      bottom = Math.max(bottom, this.y[i] + this.height(i) / 2);
    }
    return this.count ? { left, top, right, bottom } : { left: 0, top: 0, right: 1, bottom: 1 };
  }
}
