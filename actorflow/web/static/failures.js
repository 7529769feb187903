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
  /** Ops with their messages without numbers, in the order in which they came first. @type {string[]} */
  #kinds = [];

  #warned = 0;

  /**
   * @param {(node: number) => void} choose called when the reader wants to see the op that failed
   * @param {ControlBar} controlBar knows whose inputs can be saved
   */
  constructor(model, tabs, choose, controlBar) {
    Object.assign(this, { model, tabs, choose, controlBar });
    byId("failures-more").addEventListener("click", () => {
      this.#isWhole = !this.#isWhole;
      this.#shown = "";
      this.refresh();
    });
  }

  refresh() {
    const { model } = this, newest = model.failures.at(-1);
    const kept = this.controlBar.kept;
    const key = newest ? `${model.revision} ${model.failures.length} ${newest.frame} ${newest.time} ${kept?.frame} ${kept?.op_id}` : "";
    byId("failure-none").hidden = Boolean(newest);
    this.#badge();
    if (key === this.#shown) return;
    this.#shown = key;
    const { failed } = model.frames, known = model.failures.length - this.#warnings().length;
    const parts = failed ? [`${frames(failed)} failed${failed > known ? `; the newest ${known} are shown` : ""}`] : [];
    if (model.found.size) parts.push(`${model.found.size === 1 ? "1 op has" : `${format.count(model.found.size)} ops have`} made what is not finite`);
    setText(byId("failure-count"), parts.join(" · "));
    const kinds = this.#alike(), shown = this.#isWhole ? kinds : kinds.slice(0, FEW);
    byId("failure-list").replaceChildren(...shown.map((failure) => this.#item(failure)));
    const more = byId("failures-more");
    more.hidden = kinds.length <= FEW;
    more.setAttribute("aria-expanded", String(this.#isWhole));
    setText(more, this.#isWhole ? "Show fewer" : `Show ${format.count(kinds.length - FEW)} more`);
    if (newest && newest.time > this.#newest) {
      this.#newest = newest.time;
      const what = newest.not_finite?.paused ? "has a NaN or an infinity" : "failed";
      setText(byId("announcement"), `Frame ${newest.frame} ${what}: ${this.#where(newest)}`);
    }
  }

  /** What has paused the graph where a frame would have failed. */
  #warnings() {
    return this.model.failures.filter((each) => each.not_finite?.paused);
  }

  /** Frames that have failed, and have paused the graph, since the reader last looked. */
  #badge() {
    const { failed } = this.model.frames, warnings = this.#warnings();
    if (this.tabs.selected === "Failures" && !document.hidden) {
      this.#seen = failed;
      this.#warned = warnings.at(-1)?.time ?? 0;
    }
    this.tabs.mark("Failures", Math.max(0, failed - this.#seen) + warnings.filter(({ time }) => time > this.#warned).length);
  }

  /**
   * What fails again and again in the same way, but for numbers such as a frame's, is one item: the newest, with how often. What failed last in a new way is
   * on top, and stays where it is when it fails again.
   */
  #alike() {
    const alike = new Map();
    for (const failure of this.model.failures) {
      const key = `${failure.op_id} ${failure.message.replaceAll(/\d+(\.\d+)?(e[+-]?\d+)?/gi, "0")}`;
      const before = alike.get(key);
      alike.set(key, { ...(before && this.controlBar.canSave(before) ? before : failure), times: (before?.times ?? 0) + 1 });
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
    const where = element("span", { class: "where" }, this.#where(failure));
    if (failure.not_finite) where.append(" ", element("b", { class: "not-finite" }, "not finite"));
    const button = element("button", { type: "button" }, where, detail);
    const index = this.model.indexById.get(id);
    button.addEventListener("click", () => index !== undefined && this.choose(index));
    const save = this.controlBar.canSave(failure) ? [this.controlBar.saveButton(failure)] : [];
    return element("li", {}, button, element("pre", {}, message), ...save);
  }
}

function frames(number) {
  return number === 1 ? "1 frame has" : `${format.count(number)} frames have`;
}
