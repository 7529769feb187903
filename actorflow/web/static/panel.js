// The side panel: the selected node, the ops that cost most, and the failures.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { OP, STATES, VARIABLE } from "./model.js";

const MAX_NEIGHBOURS = 12, MAX_COSTS = 8;
const KIND_NAMES = ["Op", "Blob", "Variable"];

export class Panel {
  #live = new Map();
  #shownFailures = "";
  #shownNotes = 0;
  #shownCosts = "";

  /** @param {(index: number) => void} onSelect called with the node that the reader wants, or -1 */
  constructor(model, theme, onSelect) {
    Object.assign(this, { model, theme, onSelect, selected: -1 });
  }

  select(index) {
    this.selected = index;
    const section = byId("node");
    section.hidden = index < 0;
    this.#live.clear();
    section.replaceChildren(...(index < 0 ? [] : this.#nodeParts(index)));
    this.refresh();
  }

  /** Bring numbers up to date. */
  refresh() {
    if (this.selected >= 0) this.#refreshNode(this.selected);
    this.#refreshCosts();
    this.#refreshFailures();
    byId("hint").hidden = this.model.frames.started > 0 || this.selected >= 0;
  }

  #nodeParts(index) {
    const { model } = this, node = model.nodes[index];
    const isOp = model.kind[index] === OP;
    const close = element("button", { type: "button", "aria-label": "Close", title: "Close (Esc)" }, "×");
    close.addEventListener("click", () => this.onSelect(-1));
    const parts = [
      element("div", { class: "node-head" }, element("h2", {}, node.label), close),
      element("p", { class: "node-sub" }, `${KIND_NAMES[model.kind[index]]} · ${node.name}`),
    ];
    if (model.kind[index] !== VARIABLE) {
      const swatch = element("i"), text = element("span");
      this.#live.set("swatch", swatch).set("state", text);
      parts.push(element("span", { class: "pill" }, swatch, text));
    }
    const facts = element("dl", { class: "facts" });
    const fact = (term, value, live) => {
      const description = element("dd", {}, value);
      if (live) this.#live.set(live, description);
      facts.append(element("dt", {}, term), description);
    };
    if (isOp) {
      fact("Operation", element("code", {}, node.operation));
      fact("Calls", "", "calls");
      fact("Mean time", "", "mean");
      fact("Last time", "", "last");
      fact("Total time", "", "total");
    } else {
      fact("Shape", node.shape.length ? `(${node.shape.join(", ")})` : "()");
      fact("Dtype", node.dtype);
    }
    fact("Place", isOp ? `${node.place}, lane ${node.lane}` : node.place);
    fact("Created at", element("code", {}, node.site));
    const notes = model.notes.get(node.id) ?? [];
    for (const note of notes) fact("Note", note);
    this.#shownNotes = notes.length;
    parts.push(facts, this.#neighbours(isOp ? "Reads" : "Written by", model.writers[index]));
    parts.push(this.#neighbours(isOp ? "Writes" : "Read by", model.readers[index]));
    return parts;
  }

  #neighbours(title, indices) {
    const { model } = this;
    const list = element("div", { class: "neighbours" });
    if (!indices.length) return list;
    list.append(element("h3", {}, indices.length > 1 ? `${title} (${indices.length})` : title));
    for (const i of indices.slice(0, MAX_NEIGHBOURS)) {
      const node = model.nodes[i];
      const detail = model.kind[i] === OP ? node.operation_kind : format.shape(node.shape);
      const button = element("button", { type: "button" }, element("span", {}, node.name), element("span", {}, detail));
      button.addEventListener("click", () => this.onSelect(i));
      list.append(button);
    }
    const hidden = indices.length - MAX_NEIGHBOURS;
    if (hidden > 0) list.append(element("p", { class: "more" }, `and ${format.count(hidden)} more`));
    return list;
  }

  #refreshNode(index) {
    const { model, theme } = this;
    if ((model.notes.get(model.nodes[index].id)?.length ?? 0) !== this.#shownNotes) this.select(index);
    const state = model.state[index];
    const live = (name, text) => this.#live.has(name) && setText(this.#live.get(name), text);
    live("state", STATES[state]);
    this.#live.get("swatch")?.style.setProperty("background", theme.states[state]);
    const called = model.calls[index] > 0;
    live("calls", format.count(model.calls[index]));
    live("mean", called ? format.duration(model.meanUs[index]) : "–");
    live("last", called ? format.duration(model.lastUs[index]) : "–");
    live("total", called ? format.duration(model.totalUs(index)) : "–");
  }

  #refreshCosts() {
    const { model } = this;
    const costly = model.costliest(MAX_COSTS);
    byId("costs").hidden = !costly.length;
    const total = model.totalTimeUs() || 1;
    const longest = costly.length ? model.totalUs(costly[0]) || 1 : 1;
    const rows = costly.map((i) => [i, model.totalUs(i) / total, format.duration(model.totalUs(i))]);
    const key = `${model.revision} ${rows.map(([i, share, time]) => `${i}:${share.toFixed(3)}:${time}`).join()}`;
    if (key === this.#shownCosts) return;
    this.#shownCosts = key;
    const list = byId("cost-list");
    while (list.children.length > rows.length) list.lastChild.remove();
    rows.forEach(([i, share, time], row) => {
      const item = list.children[row] ?? list.appendChild(this.#costItem());
      item.index = i;
      const [name, figure] = item.querySelectorAll("span");
      setText(name, format.tail(model.nodes[i].name, 42));
      name.title = model.nodes[i].name;
      setText(figure, `${time} · ${(100 * share).toFixed(1)}%`);
      item.querySelector("i").style.width = `${((100 * model.totalUs(i)) / longest).toFixed(1)}%`;
    });
  }

  #costItem() {
    const line = element("div", { class: "line" }, element("div", { class: "track" }, element("i")), element("span"));
    const button = element("button", { type: "button" }, element("span", { class: "name" }), line);
    const item = element("li", {}, button);
    button.addEventListener("click", () => this.onSelect(item.index));
    return item;
  }

  #refreshFailures() {
    const { model } = this;
    const newest = model.failures.at(-1);
    const key = newest ? `${model.revision} ${model.failures.length} ${newest.frame} ${newest.time}` : "";
    byId("failures").hidden = !newest;
    if (key === this.#shownFailures) return;
    this.#shownFailures = key;
    setText(byId("failure-count"), format.count(model.frames.failed));
    // An op that fails again and again in the same way is one item: the newest, with its number.
    const alike = new Map();
    for (const failure of [...model.failures].reverse()) {
      const first = alike.get(failure.message);
      if (first) first.times += 1;
      else alike.set(failure.message, { ...failure, times: 1 });
    }
    byId("failure-list").replaceChildren(...[...alike.values()].map((failure) => this.#failureItem(failure)));
  }

  #failureItem({ time, frame, op_id: id, message, times }) {
    const when = new Date(time * 1000).toLocaleTimeString();
    const index = this.model.indexById.get(id);
    const where = index !== undefined ? this.model.nodes[index].name : id === null ? "the frame" : "an op that is gone";
    const latest = times > 1 ? `${format.count(times)} times, latest in frame` : "frame";
    const detail = element("span", { class: "when" }, `${latest} ${format.count(frame)} at ${when}`);
    const button = element("button", { type: "button" }, where, detail);
    button.addEventListener("click", () => index !== undefined && this.onSelect(index));
    return element("li", {}, button, element("pre", {}, message));
  }
}
