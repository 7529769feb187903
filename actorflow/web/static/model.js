// What the page knows: the graph, and the state of its ops and frames. No drawing, no DOM.
//
// A subject is a node or a scope, as one number: nodes come first, then scopes.

import { Occupancy } from "./occupancy.js";
import { OP, PARTS, Structure, VARIABLE } from "./structure.js";

export const STATES = ["idle", "waiting", "running", "done", "failed", "cancelled", "constant", "queued"];

// A blob with several producers, or a closed scope, shows the state that matters most.
const URGENCY = Uint8Array.from([0, 4, 6, 3, 7, 2, 1, 5]);
const RATE_WINDOW_MS = 2500;
const MAX_POINTS = 10000;
const MAX_FAILURES = 50;
const NO_FRAMES = { started: 0, finished: 0, failed: 0, cancelled: 0 };
/** What is known of each op, but for its failed calls: the columns of a message. */
const COLUMNS = ["calls", "meanUs", "lastUs", "p50Us", "p99Us", "maxUs", "state", "track"];
/** Operations that several ranks compute together. */
const COLLECTIVES = new Set(["AllReduce"]);

export class Model {
  frames = NO_FRAMES;
  /** @type {Map<string, {frames: number[], values: (number | null)[]}>} */
  curves = new Map();
  failures = [];
  /** Of each op that a check has found to make what is not finite, by its id: the newest such failure. @type {Map<number, object>} */
  found = new Map();
  /** What is said of a node, by its id. @type {Map<number, string[]>} */
  notes = new Map();
  /** The latest message on memory, the loop and old frames. */
  vitals = null;
  /** The frame of before whose states are shown, and how long before the latest call it ended; null for now. @type {{frame: number, ago: number} | null} */
  past = null;
  /** The states of now, meanwhile. */
  #aside = null;
  #rate = [];
  #callsThen = { time: 0, calls: new Uint32Array(0) };

  constructor() {
    this.adopt(new Structure());
  }

  /** Take another graph, of whose ops nothing is known yet; its parts become the model's own. */
  adopt(structure) {
    Object.assign(this, structure);
    this.past = this.#aside = null;
    const { count, scopes } = structure;
    this.state = new Uint8Array(count);
    this.calls = new Uint32Array(count);
    /** Calls that have failed, repeated or not. */
    this.failed = new Uint32Array(count);
    this.meanUs = new Float32Array(count);
    this.lastUs = new Float32Array(count);
    /** What the latest call ran on, as an index in `vitals.tracks`; 255 if that is not known. */
    this.track = new Uint8Array(count).fill(255);
    this.p50Us = new Float32Array(count);
    this.p99Us = new Float32Array(count);
    this.maxUs = new Float32Array(count);
    /** Calls per second, over the last seconds. */
    this.perSecond = new Float32Array(count);
    /** Time at which an op was last seen to finish a call. */
    this.activeAt = new Float64Array(count).fill(-Infinity);
    this.#touched = new Uint32Array(count);
    this.#callsThen = { time: 0, calls: new Uint32Array(count) };
    /** Ops of each scope in each state, their time, and when one of them was last seen to finish a call. */
    this.scopeStates = new Int32Array(scopes.count * STATES.length);
    this.scopeUs = new Float64Array(scopes.count);
    this.scopeActiveAt = new Float64Array(scopes.count).fill(-Infinity);
    for (let s = 0; s < scopes.count; s++) this.scopeStates[s * STATES.length] = scopes.ops[s];
    /** Mean times of one pass through each node and scope, with what is folded into it, by part. */
    this.passUs = new Float64Array((count + scopes.count) * PARTS);
    this.occupancy = new Occupancy(this.indexById);
    /** What runs and what is queued on the tracks that have something: name, ids of ops, calls. @type {[string, number[], number][]} */
    this.load = [];
  }

  /** Take the same graph with other parts folded; what is known of it stays. */
  refold(structure) {
    const { occupancy, load } = this, states = this.#aside ?? this.#states();
    this.adopt(structure);
    this.#apply(states, -Infinity);
    this.occupancy = occupancy;
    this.load = load;
  }

  /** States of all ops, as a message has them. */
  #states() {
    const index = [...this.kind.keys()].filter((i) => this.kind[i] === OP);
    const columns = COLUMNS.map((name) => [name, index.map((i) => this[name][i])]), failing = index.filter((i) => this.failed[i]);
    return { full: true, index, ...Object.fromEntries(columns), failing, failed: failing.map((i) => this.failed[i]) };
  }

  /**
   * Show a frame of before: what its calls left, in place of the states of now; null shows these again.
   *
   * @param {{frame: number, ago: number, ops: Map<number, {state: number, us: number}>} | null} past
   */
  showPast(past) {
    if (!past && !this.past) return;
    const now = (this.#aside ??= this.#states());
    this.past = past;
    if (!past) {
      this.#aside = null;
      return this.#apply(now, -Infinity);
    }
    const state = now.index.map((i, k) => past.ops.get(i)?.state ?? (STATES[now.state[k]] === "constant" ? now.state[k] : 0));
    this.#apply({ ...now, state, lastUs: now.index.map((i) => past.ops.get(i)?.us ?? 0) }, -Infinity);
  }

  /** Keep what comes while a frame of before is shown: one state per op, however many messages that are. */
  #keep({ index, failing, failed, ...columns }) {
    const aside = this.#aside, rows = new Map(aside.index.map((i, row) => [i, row]));
    const failures = new Map(aside.failing.map((i, k) => [i, aside.failed[k]]));
    index.forEach((i, k) => {
      for (const name of COLUMNS) aside[name][rows.get(i)] = columns[name][k];
      failures.delete(i);
    });
    failing.forEach((i, k) => failures.set(i, failed[k]));
    [aside.failing, aside.failed] = [[...failures.keys()], [...failures.values()]];
  }

  applyVitals(vitals) {
    this.vitals = vitals;
    this.occupancy.count(vitals.occupancy);
  }

  #touched = new Uint32Array(0);
  #round = 0;

  applyStates(message, now) {
    if (this.past) this.#keep(message);
    else this.#apply(message, now);
  }

  #apply({ full, index, calls, meanUs, lastUs, p50Us, p99Us, maxUs, state, track, failing, failed }, now) {
    const round = ++this.#round, blobs = [];
    const { parent, of } = this.scopes, kinds = STATES.length;
    for (let k = 0; k < index.length; k++) {
      const i = index[k], before = this.state[i], after = state[k];
      const active = !full && calls[k] !== this.calls[i];
      const moreUs = calls[k] * meanUs[k] - this.calls[i] * this.meanUs[i];
      const passUs = meanUs[k] - this.meanUs[i], part = this.part[i], owner = this.owner[i];
      this.passUs[(owner < 0 ? i : owner) * PARTS + part] += passUs;
      if (active) this.activeAt[i] = now;
      this.calls[i] = calls[k];
      this.failed[i] = 0;
      this.meanUs[i] = meanUs[k];
      this.lastUs[i] = lastUs[k];
      this.p50Us[i] = p50Us[k];
      this.p99Us[i] = p99Us[k];
      this.maxUs[i] = maxUs[k];
      this.track[i] = track[k];
      for (let s = of[i]; s >= 0; s = parent[s]) {
        this.scopeUs[s] += moreUs;
        this.passUs[(this.count + s) * PARTS + part] += passUs;
        if (active) this.scopeActiveAt[s] = now;
        if (before === after) continue;
        this.scopeStates[s * kinds + before] -= 1;
        this.scopeStates[s * kinds + after] += 1;
      }
      if (before === after) continue;
      this.state[i] = after;
      for (const blob of this.readers.of(i)) {
        // A variable has a value at all times; its writer's state says nothing about it.
        if (this.#touched[blob] === round || this.kind[blob] === VARIABLE) continue;
        this.#touched[blob] = round;
        blobs.push(blob);
      }
    }
    failing.forEach((i, k) => (this.failed[i] = failed[k]));
    for (const blob of blobs) {
      let worst = 0;
      for (const op of this.writers.of(blob)) if (URGENCY[this.state[op]] > URGENCY[worst]) worst = this.state[op];
      this.state[blob] = worst;
    }
  }

  applyStatus({ full, frames, tracks, functions, streams, curves, failures, notes }, now) {
    if (full) {
      this.curves.clear();
      this.notes.clear();
      this.failures = [];
      this.#rate = [];
    }
    this.frames = frames;
    this.load = tracks;
    this.occupancy.update(functions, streams);
    this.#rate.push([now, frames.finished]);
    for (const [name, [numbers, values]] of Object.entries(curves)) {
      const curve = this.curves.get(name) ?? { frames: [], values: [] };
      curve.frames = curve.frames.concat(numbers).slice(-MAX_POINTS);
      curve.values = curve.values.concat(values).slice(-MAX_POINTS);
      this.curves.set(name, curve);
    }
    if (full || failures.length) {
      this.failures = this.failures.concat(failures).slice(-MAX_FAILURES);
      this.found = new Map(this.failures.filter((each) => each.not_finite).map((each) => [each.op_id, each]));
    }
    for (const { id, text } of notes) this.notes.set(id, [...(this.notes.get(id) ?? []), text]);
  }

  /** Ops that have made what is not finite and are still there. @returns {[number, object][]} node, failure */
  get foundOps() {
    return [...this.found].flatMap(([id, failure]) => (this.indexById.has(id) ? [[this.indexById.get(id), failure]] : []));
  }

  /** Those of them that a node or a scope shows: itself, and what is folded into it or inside. */
  foundIn(subject) {
    const { scopes, owner, count } = this;
    const isIn = (node) => {
      if (subject < count) return node === subject || owner[node] === subject;
      let at = scopes.of[node];
      while (at > subject - count) at = scopes.parent[at];
      return at === subject - count;
    };
    return this.foundOps.filter(([node]) => isIn(node));
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

  /** Bring the calls per second of each op up to date; does it once in a window. */
  measure(now) {
    const then = this.#callsThen, seconds = (now - then.time) / 1000;
    if (seconds * 1000 < RATE_WINDOW_MS) return;
    for (let i = 0; i < this.count; i++) this.perSecond[i] = then.time ? (this.calls[i] - then.calls[i]) / seconds : 0;
    this.#callsThen = { time: now, calls: this.calls.slice() };
  }

  isScope(subject) {
    return subject >= this.count;
  }

  nameOf(subject) {
    return this.isScope(subject) ? this.scopes.names[subject - this.count] : this.nodes[subject].name;
  }

  /** A subject as text that outlives the graph's revision, and back. */
  keyOf(subject) {
    return subject < 0 ? "" : `${this.isScope(subject) ? "scope" : "node"}:${this.nameOf(subject)}`;
  }

  subjectOf(key) {
    const at = key.indexOf(":"), name = key.slice(at + 1);
    if (key.slice(0, at) === "node") return this.indexByName.get(name) ?? -1;
    const scope = key.slice(0, at) === "scope" && name ? this.scopes.byName.get(name) : undefined;
    return scope === undefined ? -1 : this.count + scope;
  }

  /** Lane on which an op's latest call ran; until then the one that it was given, or null if the plan chooses it. */
  laneOf(node) {
    const ran = this.vitals?.tracks[this.track[node]];
    if (ran !== undefined) return ran;
    const { lane, device } = this.nodes[node];
    return lane === "auto" ? null : `${device} ${lane}`;
  }

  isCollective(node) {
    return COLLECTIVES.has(this.nodes[node].operation_kind);
  }

  /** State of a node, or the most urgent one of a scope's ops. */
  stateOf(subject) {
    if (!this.isScope(subject)) return this.state[subject];
    const first = (subject - this.count) * STATES.length;
    let worst = 0;
    for (let k = 1; k < STATES.length; k++) {
      if (this.scopeStates[first + k] && URGENCY[k] > URGENCY[worst]) worst = k;
    }
    return worst;
  }

  totalUs(subject) {
    return this.isScope(subject) ? this.scopeUs[subject - this.count] : this.calls[subject] * this.meanUs[subject];
  }

  activeSince(subject) {
    return this.isScope(subject) ? this.scopeActiveAt[subject - this.count] : this.activeAt[subject];
  }

  /** Ops by total time, longest first. */
  costliest(limit) {
    const ops = [];
    for (let i = 0; i < this.count; i++) if (this.calls[i]) ops.push(i);
    return ops.sort((a, b) => this.totalUs(b) - this.totalUs(a)).slice(0, limit);
  }

  totalTimeUs() {
    return this.scopeUs?.[0] ?? 0;
  }

  /** Subjects whose name contains the text, best first. */
  search(text, limit) {
    const wanted = text.toLowerCase();
    const found = [];
    const take = (subject, fullName, label) => {
      const name = fullName.toLowerCase(), at = name.indexOf(wanted);
      if (at < 0) return;
      const last = label.toLowerCase();
      const rank = name === wanted ? 0 : last === wanted ? 1 : last.startsWith(wanted) ? 2 : at === 0 ? 3 : 4;
      found.push([rank, name.length, subject]);
    };
    this.nodes.forEach((node, i) => take(i, node.name, node.label));
    for (let s = 1; s < this.scopes.count; s++) take(this.count + s, this.scopes.names[s], this.scopes.label(s));
    found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    return found.slice(0, limit).map(([, , subject]) => subject);
  }
}
