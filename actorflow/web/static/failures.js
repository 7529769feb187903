// The failures: which op, in which frame, with what inputs, created where. New ones are announced to screen readers.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

/** Kinds of failures that are shown at first. */
const FEW = 4;

export class FailuresCard {
  #shown = "";
  #newest = 0;
  #seen = 0;
  #isWhole = false;
  /** Messages without their frames, in the order in which they came first. @type {string[]} */
  #kinds = [];

  /** @param {(node: number) => void} choose called when the reader wants to see the op that failed */
  constructor(model, tabs, choose) {
    Object.assign(this, { model, tabs, choose });
    byId("failures-more").addEventListener("click", () => {
      this.#isWhole = !this.#isWhole;
      this.#shown = "";
      this.refresh();
    });
  }

  refresh() {
    const { model } = this, newest = model.failures.at(-1);
    const key = newest ? `${model.revision} ${model.failures.length} ${newest.frame} ${newest.time}` : "";
    byId("failure-none").hidden = Boolean(newest);
    this.#badge();
    if (key === this.#shown) return;
    this.#shown = key;
    const { failed } = model.frames, kept = model.failures.length;
    setText(byId("failure-count"), newest ? `${frames(failed)} failed${failed > kept ? `; the newest ${kept} are shown` : ""}` : "");
    const kinds = this.#alike(), shown = this.#isWhole ? kinds : kinds.slice(0, FEW);
    byId("failure-list").replaceChildren(...shown.map((failure) => this.#item(failure)));
    const more = byId("failures-more");
    more.hidden = kinds.length <= FEW;
    more.setAttribute("aria-expanded", String(this.#isWhole));
    setText(more, this.#isWhole ? "Show fewer" : `Show ${format.count(kinds.length - FEW)} more`);
    if (newest && newest.time > this.#newest) {
      this.#newest = newest.time;
      setText(byId("announcement"), `Frame ${newest.frame} failed: ${this.#where(newest)}`);
    }
  }

  /** Frames that have failed since the reader last looked. */
  #badge() {
    const { failed } = this.model.frames;
    if (this.tabs.selected === "Failures" && !document.hidden) this.#seen = failed;
    this.tabs.mark("Failures", Math.max(0, failed - this.#seen));
  }

  /**
   * What fails again and again in the same way is one item: the newest, with its number. What failed last in a new way is
   * on top, and stays where it is when it fails again.
   */
  #alike() {
    const alike = new Map();
    for (const failure of this.model.failures) {
      const key = failure.message.replaceAll(/\bframe \d+/g, "frame");
      alike.set(key, { ...failure, times: (alike.get(key)?.times ?? 0) + 1 });
    }
    this.#kinds = [...this.#kinds.filter((key) => alike.has(key)), ...[...alike.keys()].filter((key) => !this.#kinds.includes(key))];
    return this.#kinds.map((key) => alike.get(key)).reverse();
  }

  #where({ op_id: id }) {
    const index = this.model.indexById.get(id);
    return index !== undefined ? this.model.nodes[index].name : id === null ? "no single op" : "an op that is gone";
  }

  #item(failure) {
    const { time, frame, op_id: id, message, times } = failure;
    const when = new Date(time * 1000).toLocaleTimeString();
    const kept = this.model.failures.length, of = this.model.frames.failed > kept ? ` of the newest ${format.count(kept)}` : "";
    const latest = times > 1 ? `${format.count(times)}${of || " times"}, latest in frame` : "frame";
    const detail = element("span", { class: "when" }, `${latest} ${format.count(frame)} at ${when}`);
    const button = element("button", { type: "button" }, element("span", { class: "where" }, this.#where(failure)), detail);
    const index = this.model.indexById.get(id);
    button.addEventListener("click", () => index !== undefined && this.choose(index));
    return element("li", {}, button, element("pre", {}, message));
  }
}

function frames(number) {
  return number === 1 ? "1 frame has" : `${format.count(number)} frames have`;
}
