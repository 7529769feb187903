// The details of the selected node or scope.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { STATES } from "./model.js";
import { KIND_NAMES, OP, VARIABLE } from "./structure.js";
import { withToken } from "./token.js";

const MAX_NEIGHBOURS = 12, MAX_INSIDE = 6;

export class Panel {
  #live = new Map();
  #shownNotes = 0;
  #shownFound = "";

  /**
   * @param {{choose: (subject: number) => void, toggle: (scope: number) => void, isOpen: (scope: number) => boolean,
   *   showCall: (node: number) => void}} on what the reader asks for; no subject is -1
   * @param {ControlBar} controlBar knows whose inputs can be saved
   */
  constructor(model, theme, on, controlBar) {
    Object.assign(this, { model, theme, on, controlBar, selected: -1, criticalUs: 0 });
  }

  select(subject) {
    this.selected = subject;
    const section = byId("node");
    section.hidden = subject < 0;
    byId("node-none").hidden = subject >= 0;
    this.#live.clear();
    if (subject < 0) section.replaceChildren();
    else section.replaceChildren(...(this.model.isScope(subject) ? this.#scopeParts(subject) : this.#nodeParts(subject)));
    this.#shownFound = this.#foundKey(subject);
    this.refresh();
  }

  /** Bring numbers up to date. */
  refresh() {
    if (this.selected >= 0) this.#refreshSelected(this.selected);
  }

  /** The state alone, of the same moment as what is drawn. */
  refreshState() {
    if (this.selected < 0) return;
    const { model, theme, selected } = this, state = model.stateOf(selected);
    if (this.#live.has("state")) setText(this.#live.get("state"), STATES[state]);
    this.#live.get("swatch")?.style.setProperty("background", theme.states[state]);
  }

  #head(title, kind, subject) {
    const close = element("button", { type: "button", "aria-label": "Close", title: "Close (Esc)" }, "×");
    close.addEventListener("click", () => this.on.choose(-1));
    const swatch = element("i"), text = element("span");
    this.#live.set("swatch", swatch).set("state", text);
    const parts = [
      element("div", { class: "node-head" }, element("h2", {}, title), close),
      element("p", { class: "node-sub" }, `${kind} · ${this.model.nameOf(subject)}`),
    ];
    if (this.model.kind[subject] !== VARIABLE) parts.push(element("span", { class: "pill" }, swatch, text));
    return parts;
  }

  #facts() {
    const facts = element("dl", { class: "facts" });
    const fact = (term, value, live) => {
      const description = element("dd", {}, value);
      if (live) this.#live.set(live, description);
      facts.append(element("dt", {}, term), description);
    };
    return [facts, fact];
  }

  #scopeParts(subject) {
    const { model } = this, { scopes } = model, scope = subject - model.count;
    const open = this.on.isOpen(scope);
    const button = element("button", { type: "button", class: "action" }, open ? "Close scope" : "Open scope");
    button.addEventListener("click", () => this.on.toggle(scope));
    const [facts, fact] = this.#facts();
    fact("Ops", format.count(scopes.ops[scope]));
    fact("Blobs", format.count(scopes.blobs[scope]));
    fact("Total", "", "total");
    fact("Of all time", "", "share");
    const inside = [...model.costliest(Infinity)].filter((i) => this.#isIn(i, scope)).slice(0, MAX_INSIDE);
    const list = inside.length ? inside : [...scopes.children[scope].map((s) => model.count + s), ...scopes.members[scope]];
    const parts = [...this.#head(scopes.label(scope), "Scope", subject), element("div", { class: "actions" }, button), facts];
    parts.push(this.#list("Not finite inside", model.foundIn(subject).map(([node]) => node)));
    return [...parts, this.#list(inside.length ? "Costliest inside" : "Inside", list)];
  }

  #isIn(node, scope) {
    const { scopes } = this.model;
    let at = scopes.of[node];
    while (at > scope) at = scopes.parent[at];
    return at === scope;
  }

  #nodeParts(index) {
    const { model } = this, node = model.nodes[index];
    const isOp = model.kind[index] === OP;
    const kind = KIND_NAMES[model.kind[index]];
    const parts = this.#head(node.label, `${kind[0].toUpperCase()}${kind.slice(1)}`, index);
    const [facts, fact] = this.#facts();
    if (isOp) {
      const button = element("button", { type: "button", class: "action" }, "Latest call");
      button.addEventListener("click", () => this.on.showCall(index));
      parts.push(element("div", { class: "actions" }, button));
      fact("Operation", element("code", {}, node.operation));
      if (node.flops) fact("FLOPs", typeof node.flops === "number" ? format.count(node.flops) : node.flops);
      for (const [term, live] of [
        ["Calls", "calls"], ["Failed", "failed"], ["Mean", "mean"], ["Median, p99", "quantiles"], ["Max", "max"], ["Last", "last"], ["Total", "total"],
      ]) fact(term, "", live);
    } else {
      fact("Shape", node.shape.length ? `(${node.shape.join(", ")})` : "()");
      fact("Dtype", node.dtype);
      fact("Size", format.bytes(node.bytes));
    }
    fact("Fullness", "", "fullness");
    fact("Critical path", "", "critical");
    const place = node.rank ? `${node.rank}/${node.device}` : node.device;
    fact("Place", isOp ? `${place}, lane ${node.lane}` : place);
    if (isOp) fact("Ran on", "", "lane");
    if (node.calls) fact("Calls graph", element("a", { href: withToken(node.calls.path) }, node.calls.graph));
    fact("Created at", element("code", {}, node.site));
    const notes = model.notes.get(node.id) ?? [];
    for (const note of notes) fact("Note", note);
    this.#shownNotes = notes.length;
    if (isOp) parts.push(...model.foundIn(index).map(([node, failure]) => this.#found(node, failure)));
    parts.push(facts, this.#list(isOp ? "Reads" : "Written by", [...model.writers.of(index)]));
    parts.push(this.#list(isOp ? "Writes" : "Read by", [...model.readers.of(index)]));
    const scope = model.scopes.of[index];
    if (scope) parts.push(this.#list("In scope", [model.count + scope]));
    return parts;
  }

  /** What changes what is said of ops that have made what is not finite. */
  #foundKey(subject) {
    const { kept } = this.controlBar;
    return subject < 0 ? "" : [...this.model.foundIn(subject).map(([node, { time }]) => `${node} ${time}`), kept?.frame, kept?.op_id].join();
  }

  /** What an op has made that is not finite: when, where, of what. */
  #found(node, failure) {
    const { model } = this, { frame, not_finite: { inputs, results } } = failure;
    const [facts, fact] = this.#facts();
    fact("Line", element("code", {}, model.nodes[node].site));
    for (const { name, ...held } of inputs) fact("Read", element("span", {}, element("b", {}, name), `: ${format.held(held)}`));
    for (const held of results) fact("Made", format.held(held));
    const title = `Not finite in frame ${format.count(frame)}`;
    const head = element("h3", {}, node === this.selected ? title : `${model.nodes[node].label}: ${title}`);
    const { kept } = this.controlBar, isKept = kept?.op_id === model.nodes[node].id;
    const save = isKept ? [element("div", { class: "actions" }, this.controlBar.saveButton(kept))] : [];
    return element("div", { class: "found", role: "note" }, head, facts, ...save);
  }

  #list(title, subjects) {
    const { model } = this;
    const list = element("div", { class: "neighbours" });
    if (!subjects.length) return list;
    list.append(element("h3", {}, subjects.length > 1 ? `${title} (${format.count(subjects.length)})` : title));
    for (const i of subjects.slice(0, MAX_NEIGHBOURS)) {
      const button = element("button", { type: "button" }, element("span", {}, model.nameOf(i)), element("span", {}, this.#detail(i)));
      button.addEventListener("click", () => this.on.choose(i));
      list.append(button);
    }
    const hidden = subjects.length - MAX_NEIGHBOURS;
    if (hidden > 0) list.append(element("p", { class: "more" }, `and ${format.count(hidden)} more`));
    return list;
  }

  #detail(subject) {
    const { model } = this;
    if (model.isScope(subject)) return `${format.count(model.scopes.ops[subject - model.count])} ops`;
    const node = model.nodes[subject];
    return model.kind[subject] === OP ? node.operation_kind : format.shape(node.shape);
  }

  #refreshSelected(subject) {
    const { model } = this, isScope = model.isScope(subject);
    if (!isScope && (model.notes.get(model.nodes[subject].id)?.length ?? 0) !== this.#shownNotes) this.select(subject);
    if (this.#foundKey(subject) !== this.#shownFound) this.select(subject);
    this.refreshState();
    const live = (name, text) => this.#live.has(name) && setText(this.#live.get(name), text);
    if (!isScope) live("fullness", [model.occupancy.textOf(subject), ...model.occupancy.waitsOf(subject)].filter(Boolean).join(", ") || "–");
    const total = model.totalUs(subject), called = total > 0 || model.calls[subject] > 0;
    live("total", called ? format.duration(total) : "–");
    live("critical", this.criticalUs ? `${format.duration(this.criticalUs)} through it` : "–");
    if (isScope) return live("share", called ? `${((100 * total) / (model.totalTimeUs() || 1)).toFixed(1)}%` : "–");
    const perSecond = model.perSecond[subject];
    live("calls", `${format.count(model.calls[subject])}${perSecond ? `, ${format.rate(perSecond)}/s` : ""}`);
    this.#showFailed(model.failed[subject]);
    live("lane", model.laneOf(subject) ?? "–");
    live("mean", called ? format.duration(model.meanUs[subject]) : "–");
    live("max", model.maxUs[subject] ? format.duration(model.maxUs[subject]) : "–");
    live("last", called ? format.duration(model.lastUs[subject]) : "–");
    live("quantiles", model.p99Us[subject] ? `${format.duration(model.p50Us[subject])}, ${format.duration(model.p99Us[subject])}` : "–");
  }

  /** A line of its own, only where there is something to say. */
  #showFailed(count) {
    const description = this.#live.get("failed");
    if (!description) return;
    description.hidden = description.previousElementSibling.hidden = !count;
    setText(description, `${format.count(count)} ${count === 1 ? "call" : "calls"}`);
  }
}
