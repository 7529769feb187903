// What colours say: the state of an op, what it cost, or where it runs.

import { STATES } from "./model.js";
import { OP, SCOPE, VARIABLE } from "./structure.js";

export const MODES = ["state", "time", "lane", "device", "rank"];
const SEVERAL = "several";

export class Colouring {
  mode = "state";
  #heatLimit = 1;
  /** Values of the mode, in the order of their colours. @type {string[]} */
  values = [];
  #ofNode = new Int16Array(0);

  constructor(model, theme) {
    this.model = model;
    this.theme = theme;
  }

  /** Take another mode, or a new graph. */
  use(mode = this.mode) {
    const { model } = this;
    this.mode = mode;
    this.values = [];
    if (!this.isCategorical) return;
    const texts = model.nodes.map((node, i) => {
      if (mode === "lane") return model.kind[i] === OP ? model.laneOf(i) : null;
      return mode === "rank" ? `rank ${node.rank}` : node.device;
    });
    // In a fixed order, or colours would change whenever an op goes to another lane.
    this.values = [...new Set(texts)].filter((text) => text !== null).sort();
    const numbers = new Map(this.values.map((text, k) => [text, k]));
    this.#ofNode = Int16Array.from(texts, (text) => numbers.get(text) ?? -1);
    this.#ofScope = this.#joined();
  }

  #ofScope = new Int16Array(0);

  get isCategorical() {
    return this.mode !== "state" && this.mode !== "time";
  }

  /** For each scope the value that all in it share; -2 for several, -1 for none. */
  #joined() {
    const { scopes } = this.model;
    const joined = new Int16Array(scopes.count).fill(-1);
    const merge = (scope, value) => {
      if (value !== -1) joined[scope] = joined[scope] === -1 || joined[scope] === value ? value : -2;
    };
    for (let s = scopes.count - 1; s >= 0; s--) {
      for (const node of scopes.members[s]) merge(s, this.#ofNode[node]);
      if (s) merge(scopes.parent[s], joined[s]);
    }
    return joined;
  }

  /** Before a drawing: what the hottest colour stands for. */
  begin(view) {
    if (this.mode !== "time") return;
    this.#heatLimit = 1e-9;
    for (let i = 0; i < view.count; i++) {
      const kind = view.kind[i];
      if (kind === OP || kind === SCOPE) this.#heatLimit = Math.max(this.#heatLimit, this.model.totalUs(view.subject[i]));
    }
  }

  of(subject) {
    const { model, theme } = this, isScope = model.isScope(subject);
    const kind = isScope ? SCOPE : model.kind[subject];
    if (this.isCategorical) return this.colourOf(isScope ? this.#ofScope[subject - model.count] : this.#ofNode[subject]);
    if (kind === VARIABLE) return theme["variable-line"];
    if (this.mode === "state") return theme.states[model.stateOf(subject)];
    if (kind !== OP && kind !== SCOPE) return theme["line-strong"];
    // The root spreads what is short, which most ops are.
    return theme.heat[Math.min(31, Math.round(31 * Math.sqrt(Math.max(model.totalUs(subject), 0) / this.#heatLimit)))];
  }

  colourOf(value) {
    return value < 0 ? this.theme["line-strong"] : this.theme.hues[value % this.theme.hues.length];
  }

  /** What the colours mean: for states how many ops are in each, too. @returns {{colour: string, text: string, number?: number}[]} */
  legend() {
    const { model, theme } = this;
    if (this.mode === "state") {
      return STATES.map((text, k) => ({ colour: theme.states[k], text, number: model.scopeStates?.[k] ?? 0 }));
    }
    const entries = this.values.map((text, k) => ({ colour: this.colourOf(k), text }));
    return this.#ofScope.includes(-2) && this.isCategorical ? [...entries, { colour: this.colourOf(-2), text: SEVERAL }] : entries;
  }
}
