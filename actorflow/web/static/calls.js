// Calls that have ended, as they came in: a ring of the newest ones, and the frames that they belong to.

import * as format from "./format.js";
import { STATES } from "./model.js";

const CAPACITY = 1 << 17;
const MAX_LEVELS = 8;
const MAX_FRAMES = 4000;
const MAX_ERRORS = 1024;

export class Calls {
  start = new Float64Array(CAPACITY);
  end = new Float64Array(CAPACITY);
  node = new Int32Array(CAPACITY);
  frame = new Uint32Array(CAPACITY);
  track = new Uint16Array(CAPACITY);
  /** Calls of one track that overlap are on different levels. */
  level = new Uint8Array(CAPACITY);
  failed = new Uint8Array(CAPACITY);
  total = 0;
  /** Calls that were too many to be sent. */
  lost = 0;
  /** When the latest call ended, in seconds on the calls' clock. */
  latest = 0;
  tracks = [];
  /** Levels of each track. @type {number[]} */
  levels = [];
  /** @type {Map<number, {start: number, end: number, level: number}>} */
  frames = new Map();
  frameLevels = 1;
  /** Requests of batched runs that have ended, oldest first. @type {{start: number, end: number, level: number, frames: number[], outcome: string}[]} */
  requests = [];
  requestLevels = 1;
  #requestEnds = [];
  #ends = [];
  #frameEnds = [];
  /** What failed calls have raised, by their numbers, oldest first. @type {Map<number, string>} */
  #errors = new Map();
  #announced = [];
  /** Lengths of frames' open axes, in words, by their numbers, oldest first. @type {Map<number, string>} */
  #lengths = new Map();

  clear() {
    this.total = this.lost = this.latest = 0;
    this.#errors.clear();
    this.#lengths.clear();
    this.levels = [];
    this.#ends = [];
    this.frames.clear();
    this.#frameEnds = [];
    this.frameLevels = 1;
    this.requests = [];
    this.requestLevels = 1;
    this.#requestEnds = [];
  }

  get size() {
    return Math.min(this.total, CAPACITY);
  }

  /** What is said of the calls that come next. */
  announce({ names, errors, lengths, requests }) {
    for (const [start, end, frames, outcome] of requests) {
      const level = free(this.#requestEnds, start, end);
      this.requestLevels = Math.max(this.requestLevels, level + 1);
      this.requests.push({ start, end, level, frames, outcome });
    }
    this.requests = this.requests.slice(-MAX_FRAMES);
    this.tracks = names;
    this.#announced = errors;
    for (const [frame, text] of lengths) this.#lengths.set(frame, text);
    for (const frame of [...this.#lengths.keys()].slice(0, -MAX_FRAMES)) this.#lengths.delete(frame);
  }

  /** What a kept call has raised, if it has failed; by its index. */
  errorOf(i) {
    return this.#errors.get(this.total - 1 - ((this.total - 1 - i) % CAPACITY)) ?? "failed";
  }

  /** A frame, with the lengths of its open axes if it has some. */
  frameText(number) {
    const lengths = this.#lengths.get(number);
    return `frame ${format.count(number)}${lengths ? ` with ${lengths}` : ""}`;
  }

  add({ start, us, node, frame, track, failed, lost }) {
    if (this.total) this.lost += lost; // calls before the first ones are not lost
    for (const [k, text] of this.#announced) this.#errors.set(this.total + k, text);
    for (const number of [...this.#errors.keys()].slice(0, -MAX_ERRORS)) this.#errors.delete(number);
    for (let k = 0; k < start.length; k++) {
      const i = this.total++ % CAPACITY, begin = start[k], end = begin + us[k] * 1e-6;
      this.start[i] = begin;
      this.end[i] = end;
      this.node[i] = node[k];
      this.frame[i] = frame[k];
      this.track[i] = track[k];
      this.failed[i] = failed[k];
      const ends = (this.#ends[track[k]] ??= []);
      this.level[i] = free(ends, begin, end);
      this.levels[track[k]] = Math.max(this.levels[track[k]] ?? 1, this.level[i] + 1);
      this.#extend(frame[k], begin, end);
      this.latest = Math.max(this.latest, end);
    }
  }

  #extend(number, start, end) {
    const known = this.frames.get(number);
    if (known) {
      known.start = Math.min(known.start, start);
      known.end = Math.max(known.end, end);
      this.#frameEnds[known.level] = Math.max(this.#frameEnds[known.level], end);
      return;
    }
    const level = free(this.#frameEnds, start, end);
    this.frameLevels = Math.max(this.frameLevels, level + 1);
    this.frames.set(number, { start, end, level });
    if (this.frames.size > MAX_FRAMES) this.frames.delete(this.frames.keys().next().value);
  }

  /** Numbers of the frames of which all calls are kept, ascending. */
  get wholeFrames() {
    const first = this.total > CAPACITY ? this.end[this.total % CAPACITY] : -Infinity;
    return [...this.frames].filter(([, { start }]) => start >= first).map(([number]) => number).sort((a, b) => a - b);
  }

  /** What became of the ops in a frame: the state of each by node, and the time of its calls. */
  opsOf(frame) {
    const ops = new Map();
    for (const i of this.kept()) {
      if (this.frame[i] !== frame) continue;
      const us = (this.end[i] - this.start[i]) * 1e6 + (ops.get(this.node[i])?.us ?? 0);
      ops.set(this.node[i], { state: STATES.indexOf(this.failed[i] ? "failed" : "done"), us });
    }
    return ops;
  }

  /** Indices of the kept calls, oldest first. */
  *kept() {
    for (let n = this.total - this.size; n < this.total; n++) yield n % CAPACITY;
  }
}

/** The first level that is free at a time, which is then taken until another. */
function free(ends, start, end) {
  // A clock's grain must not push neighbours apart.
  const slack = 2e-7;
  let level = ends.findIndex((last) => last <= start + slack);
  if (level < 0) level = Math.min(ends.length, MAX_LEVELS - 1);
  ends[level] = Math.max(ends[level] ?? 0, end);
  return level;
}
