// What moment the page shows: now, and whether anything runs, or a frame of before.

import { byId, setText } from "./dom.js";
import * as format from "./format.js";

/** Idle for less is not worth a word, as frames come and go. */
const SHORT_S = 2;

/** What is said of a graph in which no frame runs; `since_s` is how long ago its latest call ended. */
export function idleText({ since_s: since, streamed }, { started }, { isTraining = false, failed = null } = {}) {
  if (!started) return "No frame has run yet";
  const ago = since === null ? "" : ` ${age(since)} ago`;
  if (failed !== null) return `${isTraining ? "Training" : "It"} stopped${ago}: frame ${format.count(failed)} failed`;
  if (streamed) return `${isTraining ? "Training" : "The stream"} ended${ago}`;
  return `Idle: the last frame ended${ago}`;
}

/** Seconds in words that change slowly. */
export function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export class Moment {
  #heard = 0;

  constructor(model) {
    this.model = model;
  }

  /** Vitals have come. */
  heard(now) {
    this.#heard = now;
  }

  /** What is said; nothing while frames run. */
  text(now) {
    const { model } = this, { idle } = model.vitals ?? {};
    if (model.past) return `Frame ${format.count(model.past.frame)}, ${age(model.past.ago)} back`;
    if (!idle || model.inFlight || model.control?.paused) return "";
    const since = idle.since_s === null ? null : idle.since_s + (now - this.#heard) / 1000;
    if (since !== null && since < SHORT_S) return "";
    const newest = model.failures.at(-1);
    const isLast = newest && idle.since_s !== null && model.vitals.time - idle.since_s - newest.time < 1;
    return idleText({ ...idle, since_s: since }, model.frames, { isTraining: model.hasFolded, failed: isLast ? newest.frame : null });
  }

  refresh(now) {
    const text = this.text(now);
    byId("moment").hidden = !text;
    byId("moment").classList.toggle("past", this.model.past !== null);
    byId("now").hidden = this.model.past === null;
    setText(byId("moment-text"), text);
  }
}
