// Norms of weights, gradients and updates, layer by layer: curves of all of them, and the newest numbers in a table.

import { Chart } from "./chart.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

const KINDS = { weight: "Weights", gradient: "Gradients", update: "Updates" };
const MOST_POINTS = 2000;

export class Norms {
  /** Curves of each layer, by the id of its variable. @type {Map<number, Record<string, {frames: number[], values: (number | null)[]}>>} */
  #layers = new Map();
  #rows = new Map();
  #charts = null;
  #range = null;
  #pointed = null;
  #chosen = -1;

  constructor(model, theme, choose) {
    Object.assign(this, { model, theme, choose });
    byId("norm-log").addEventListener("change", () => this.draw());
  }

  /** The layer of a variable stands out. */
  select(id) {
    if (this.#layers.has(id)) this.#chosen = id;
    this.draw();
  }

  clear() {
    this.#layers.clear();
    this.#rows.clear();
    byId("norm-rows").replaceChildren();
  }

  take({ frame, layers, left_out: leftOut }) {
    const note = leftOut ? `${format.count(leftOut)} further variables are left out, as they are too large` : "";
    setText(byId("norm-note"), layers.length ? note : "No variable of this graph is written by its frames.");
    if (!layers.some(({ id }) => id === this.#chosen)) this.#chosen = layers[0]?.id ?? -1;
    for (const { id, ...norms } of layers) {
      if (!this.#layers.has(id)) this.#layers.set(id, Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, { frames: [], values: [] }])));
      for (const [kind, value] of Object.entries(norms)) {
        const curve = this.#layers.get(id)[kind];
        curve.frames = [...curve.frames, frame].slice(-MOST_POINTS);
        curve.values = [...curve.values, value].slice(-MOST_POINTS);
      }
      this.#row(id, norms);
    }
    this.draw();
  }

  get latest() {
    return Object.fromEntries([...this.#layers].map(([id, curves]) => [
      this.#name(id), Object.fromEntries(Object.entries(curves).map(([kind, { values }]) => [kind, values.at(-1)])),
    ]));
  }

  zoom(range) {
    this.#range = range && range[1] > range[0] ? range : null;
    this.draw();
  }

  point(frame) {
    this.#pointed = frame;
    this.draw();
  }

  draw() {
    byId("norm-parts").hidden = !this.#layers.size;
    if (!this.#layers.size || !byId("norm-parts").checkVisibility()) return;
    this.#charts ??= Object.entries(KINDS).map(([kind, name]) => [kind, new Chart(this, name, byId("norm-curves"))]);
    const order = [...this.#layers.keys()].sort((a, b) => (a === this.#chosen) - (b === this.#chosen));
    const frames = [...this.#layers.values()].flatMap((curves) => [curves.weight.frames[0], curves.weight.frames.at(-1)]).filter((each) => each !== undefined);
    const range = this.#range ?? [Math.min(...frames), Math.max(...frames)];
    for (const [kind, chart] of this.#charts) {
      const lines = order.map((id) => ({ curve: this.#layers.get(id)[kind], colour: this.#colour(id), name: this.#name(id) }));
      setText(chart.title, `${KINDS[kind]}: ${this.#name(this.#chosen)}`);
      chart.root.hidden = !lines.some(({ curve }) => curve.values.length);
      chart.draw(lines.filter(({ curve }) => curve.values.length), {
        range, pointed: this.#pointed, isLog: byId("norm-log").checked, smoothing: 0, theme: this.theme,
      });
    }
    for (const [id, { row, mark }] of this.#rows) {
      row.toggleAttribute("data-chosen", id === this.#chosen);
      mark.style.background = this.#colour(id);
    }
  }

  #colour(id) {
    const { hues, accent } = this.theme;
    return id === this.#chosen ? accent : hues[[...this.#rows.keys()].indexOf(id) % hues.length];
  }

  #name(id) {
    const node = this.model.indexById.get(id);
    return node === undefined ? "" : this.model.nameOf(node);
  }

  #row(id, { weight, gradient, update }) {
    if (!this.#rows.has(id)) {
      const mark = element("i"), name = element("button", { type: "button" }, this.#name(id)), cells = Array.from({ length: 4 }, () => element("td"));
      name.addEventListener("click", () => this.choose(this.model.indexById.get(id) ?? -1));
      const row = element("tr", {}, element("th", { scope: "row", title: this.#name(id) }, mark, name), ...cells);
      byId("norm-rows").append(row);
      this.#rows.set(id, { row, mark, cells });
    }
    const share = weight && update !== undefined && update !== null ? update / weight : undefined;
    [weight, gradient, update, share].forEach((value, k) => setText(this.#rows.get(id).cells[k], value === undefined ? "–" : short(value)));
  }
}

function short(value) {
  if (value === null) return "not finite";
  return value !== 0 && (value < 1e-3 || value >= 1e4) ? value.toExponential(1) : value.toPrecision(3);
}
