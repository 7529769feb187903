// What is drawn of a graph: its nodes, with the closed scopes each as one thing, the open ones as boxes around theirs.

import { layout } from "./layout.js";
import { BLOB, OP, SCOPE, VARIABLE } from "./model.js";

export const SIZES = { [OP]: [176, 46], [BLOB]: [144, 22], [VARIABLE]: [144, 22], [SCOPE]: [208, 62] };
const PADDING = 18, TITLE = 26;

export class View {
  /** Scopes that are open. @type {Set<number>} */
  open = new Set();
  boxes = [];
  /** Counts the pictures, for those who keep something of one. */
  version = 0;
  #kept = new Map();

  constructor(model) {
    this.model = model;
    this.#empty();
  }

  #empty() {
    this.count = 0;
    this.subject = new Int32Array(0);
    this.kind = new Uint8Array(0);
    this.x = this.y = this.width = this.height = new Float64Array(0);
    this.edges = [];
  }

  /** Forget the layouts of a graph that is gone. */
  reset() {
    this.#kept.clear();
  }

  /** Work out what is seen with these scopes open, and where. */
  build(open = this.open) {
    const { model } = this, { scopes } = model;
    this.open = open;
    this.version += 1;
    this.#collect(scopes);
    this.edges = this.#join();
    const inside = this.#byScope(scopes);
    const sizes = new Map();
    for (let s = scopes.count - 1; s >= 0; s--) if (this.isOpen[s]) sizes.set(s, this.#arrange(s, inside[s], sizes));
    this.boxes = [];
    this.#position(0, 0, 0, inside, sizes);
    for (const edge of this.edges) edge.back = this.y[edge.from] > this.y[edge.to];
  }

  /** Items, and which of them each node is drawn as. */
  #collect(scopes) {
    const { model } = this;
    this.isOpen = new Uint8Array(scopes.count);
    this.isOpen[0] = 1;
    const subject = [], home = [];
    this.itemOfScope = new Int32Array(scopes.count).fill(-1);
    for (let s = 1; s < scopes.count; s++) {
      if (!this.isOpen[scopes.parent[s]]) this.itemOfScope[s] = this.itemOfScope[scopes.parent[s]];
      else if (this.open.has(s)) this.isOpen[s] = 1;
      else {
        this.itemOfScope[s] = subject.length;
        subject.push(model.count + s);
        home.push(scopes.parent[s]);
      }
    }
    this.itemOfNode = new Int32Array(model.count);
    for (let i = 0; i < model.count; i++) {
      const scope = scopes.of[i];
      if (this.isOpen[scope]) {
        this.itemOfNode[i] = subject.length;
        subject.push(i);
        home.push(scope);
      } else this.itemOfNode[i] = this.itemOfScope[scope];
    }
    this.count = subject.length;
    this.subject = Int32Array.from(subject);
    this.home = Int32Array.from(home);
    this.kind = Uint8Array.from(subject, (s) => (s < model.count ? model.kind[s] : SCOPE));
    this.width = Float64Array.from(this.kind, (kind) => SIZES[kind][0]);
    this.height = Float64Array.from(this.kind, (kind) => SIZES[kind][1]);
    this.x = new Float64Array(this.count);
    this.y = new Float64Array(this.count);
  }

  /** Edges between items: those of the graph, all that connect the same two taken together. */
  #join() {
    const { model, itemOfNode } = this;
    const joined = new Map();
    for (let e = 0; e < model.edgeFrom.length; e++) {
      const a = model.edgeFrom[e], b = model.edgeTo[e];
      const from = itemOfNode[a], to = itemOfNode[b];
      if (from === to) continue;
      const key = from * this.count + to;
      let edge = joined.get(key);
      if (!edge) joined.set(key, (edge = { from, to, back: false, update: true, blobs: [], rank: false, device: false }));
      edge.update &&= model.edgeBack[e] === 1;
      const blob = model.kind[a] === OP ? b : a;
      if (edge.blobs.at(-1) !== blob) edge.blobs.push(blob);
      edge.rank ||= model.nodes[a].rank !== model.nodes[b].rank;
      edge.device ||= model.nodes[a].device !== model.nodes[b].device;
    }
    return [...joined.values()];
  }

  /** For each open scope, its cells (items, and open scopes in it) and the edges between those. */
  #byScope(scopes) {
    const inside = Array.from({ length: scopes.count }, (_, s) => this.isOpen[s] && { cells: [], at: new Map(), edges: new Map() });
    const add = (scope, cell) => {
      inside[scope].at.set(cell, inside[scope].cells.length);
      inside[scope].cells.push(cell);
    };
    for (let i = 0; i < this.count; i++) add(this.home[i], i);
    for (let s = 1; s < scopes.count; s++) if (this.isOpen[s]) add(scopes.parent[s], this.count + s);
    for (const { from, to, update } of this.edges) {
      let a = from, b = to, scopeA = this.home[from], scopeB = this.home[to];
      while (scopeA !== scopeB) {
        if (scopes.depth[scopeA] >= scopes.depth[scopeB]) {
          a = this.count + scopeA;
          scopeA = scopes.parent[scopeA];
        } else {
          b = this.count + scopeB;
          scopeB = scopes.parent[scopeB];
        }
      }
      const { at, edges } = inside[scopeA];
      const key = at.get(a) * at.size + at.get(b);
      edges.set(key, (edges.get(key) ?? true) && update);
    }
    return inside;
  }

  /** Lay out what is in one scope; the layout is kept, as opening one scope leaves most others as they were. */
  #arrange(scope, { cells, edges }, sizes) {
    const of = (cell, which) => (cell < this.count ? this[which][cell] : sizes.get(cell - this.count)[which]);
    const graph = {
      widths: cells.map((cell) => of(cell, "width")),
      heights: cells.map((cell) => of(cell, "height")),
      isBlob: cells.map((cell) => cell < this.count && (this.kind[cell] === BLOB || this.kind[cell] === VARIABLE)),
      from: [], to: [], cut: [],
    };
    for (const [key, update] of edges) {
      graph.from.push(Math.floor(key / cells.length));
      graph.to.push(key % cells.length);
      graph.cut.push(update);
    }
    const signature = `${graph.widths.join()};${graph.heights.join()};${graph.from.join()};${graph.to.join()}`;
    let kept = this.#kept.get(scope);
    if (kept?.signature !== signature) this.#kept.set(scope, (kept = { signature, placed: layout(graph) }));
    const { placed } = kept;
    return { placed, width: placed.width + 2 * PADDING, height: placed.height + TITLE + 2 * PADDING };
  }

  #position(scope, left, top, inside, sizes) {
    const { placed, width, height } = sizes.get(scope);
    if (scope) this.boxes.push({ scope, subject: this.model.count + scope, left, top, width, height });
    inside[scope].cells.forEach((cell, k) => {
      const x = left + PADDING + placed.x[k], y = top + PADDING + TITLE + placed.y[k];
      if (cell < this.count) [this.x[cell], this.y[cell]] = [x, y];
      else {
        const size = sizes.get(cell - this.count);
        this.#position(cell - this.count, x - size.width / 2, y - size.height / 2, inside, sizes);
      }
    });
  }

  /** The item that shows a node or a scope, itself or a closed scope around it; -1 for an open scope. */
  itemOf(subject) {
    return subject < this.model.count ? this.itemOfNode[subject] : this.itemOfScope[subject - this.model.count];
  }

  /** Where a node or scope is, as the middle and the size of what is drawn. */
  placeOf(subject) {
    const item = this.itemOf(subject);
    if (item >= 0) return { x: this.x[item], y: this.y[item], width: this.width[item], height: this.height[item] };
    const box = this.boxes.find((candidate) => candidate.subject === subject);
    return { x: box.left + box.width / 2, y: box.top + box.height / 2, width: box.width, height: box.height };
  }

  /** The node or closed scope at a place, else the open scope whose title is there, or -1. */
  at(x, y) {
    for (let i = 0; i < this.count; i++) {
      if (Math.abs(x - this.x[i]) <= this.width[i] / 2 && Math.abs(y - this.y[i]) <= this.height[i] / 2) return this.subject[i];
    }
    for (const box of this.boxes.toReversed()) {
      const across = x >= box.left && x <= box.left + box.width;
      if (across && y >= box.top && y <= box.top + TITLE + PADDING / 2) return box.subject;
    }
    return -1;
  }

  /** Open the scopes around a node or scope; returns whether any was closed. */
  reveal(subject) {
    const { scopes, count } = this.model;
    const open = new Set(this.open);
    const first = subject < count ? scopes.of[subject] : scopes.parent[subject - count];
    for (let s = first; s > 0; s = scopes.parent[s]) open.add(s);
    if (open.size === this.open.size) return false;
    this.build(open);
    return true;
  }

  bounds() {
    let left = Infinity, top = Infinity, right = -Infinity, bottom = -Infinity;
    const take = (x1, y1, x2, y2) => {
      left = Math.min(left, x1);
      top = Math.min(top, y1);
      right = Math.max(right, x2);
      bottom = Math.max(bottom, y2);
    };
    for (let i = 0; i < this.count; i++) {
      const w = this.width[i] / 2, h = this.height[i] / 2;
      take(this.x[i] - w, this.y[i] - h, this.x[i] + w, this.y[i] + h);
    }
    for (const box of this.boxes) take(box.left, box.top, box.left + box.width, box.top + box.height);
    return left < right ? { left, top, right, bottom } : { left: 0, top: 0, right: 1, bottom: 1 };
  }
}
