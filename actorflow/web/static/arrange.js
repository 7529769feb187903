// What is seen of a graph with some scopes open, and where. Pure: runs on the page or in a worker.

import { layout } from "./layout.js";
import { BLOB, OP, SCOPE, VARIABLE } from "./structure.js";

export const SIZES = { [OP]: [176, 46], [BLOB]: [144, 22], [VARIABLE]: [144, 22], [SCOPE]: [208, 62] };
export const PADDING = 18, TITLE = 26;
/** What an edge of a picture is, as bits. */
export const UPDATE = 1, BETWEEN_RANKS = 2, BETWEEN_DEVICES = 4;

/** Makes pictures of one graph. Layouts of scopes are kept, as opening one leaves most others as they were. */
export class Arranger {
  #kept = new Map();

  /** @param {Structure["skeleton"]} graph */
  constructor(graph) {
    this.graph = graph;
  }

  /**
   * @param {Iterable<number>} open scopes
   * @returns {object} columns of items (`subject`, `kind`, `x`, `y`, `width`, `height`), of edges between items
   *   (`from`, `to`, `is`, and `firstBlob` in `blobs`), of open scopes' boxes, and which item shows a node or a scope
   */
  arrange(open) {
    const items = this.#collect(new Set(open));
    const edges = this.#join(items);
    const inside = this.#byScope(items, edges);
    const sizes = new Map();
    for (let s = inside.length - 1; s >= 0; s--) if (items.isOpen[s]) sizes.set(s, this.#arrangeScope(s, inside[s], items, sizes));
    const boxes = [];
    position(0, 0, 0, inside, sizes, items, boxes);
    return { ...items, ...edges, boxes: Float64Array.from(boxes.flat()) };
  }

  /** Items, and which of them each node is drawn as. */
  #collect(open) {
    const { kind, scopeOf, parent } = this.graph, nodes = kind.length;
    const isOpen = new Uint8Array(parent.length);
    isOpen[0] = 1;
    const subject = [], home = [];
    const itemOfScope = new Int32Array(parent.length).fill(-1);
    for (let s = 1; s < parent.length; s++) {
      if (!isOpen[parent[s]]) itemOfScope[s] = itemOfScope[parent[s]];
      else if (open.has(s)) isOpen[s] = 1;
      else {
        itemOfScope[s] = subject.length;
        subject.push(nodes + s);
        home.push(parent[s]);
      }
    }
    const itemOfNode = new Int32Array(nodes);
    for (let i = 0; i < nodes; i++) {
      const scope = scopeOf[i];
      if (isOpen[scope]) {
        itemOfNode[i] = subject.length;
        subject.push(i);
        home.push(scope);
      } else itemOfNode[i] = itemOfScope[scope];
    }
    const kinds = Uint8Array.from(subject, (s) => (s < nodes ? kind[s] : SCOPE));
    return {
      isOpen, itemOfScope, itemOfNode,
      subject: Int32Array.from(subject), home: Int32Array.from(home), kind: kinds,
      width: Float64Array.from(kinds, (k) => SIZES[k][0]), height: Float64Array.from(kinds, (k) => SIZES[k][1]),
      x: new Float64Array(subject.length), y: new Float64Array(subject.length),
    };
  }

  /** Edges between items: those of the graph, all that connect the same two taken together. */
  #join({ itemOfNode, subject }) {
    const { kind, edgeFrom, edgeTo, edgeBack, rank, device } = this.graph;
    const joined = new Map(), edges = [];
    for (let e = 0; e < edgeFrom.length; e++) {
      const a = edgeFrom[e], b = edgeTo[e], from = itemOfNode[a], to = itemOfNode[b];
      if (from === to) continue;
      const key = from * subject.length + to;
      let edge = joined.get(key);
      if (!edge) {
        joined.set(key, (edge = { from, to, is: UPDATE, blobs: [] }));
        edges.push(edge);
      }
      if (!edgeBack[e]) edge.is &= ~UPDATE;
      if (rank[a] !== rank[b]) edge.is |= BETWEEN_RANKS;
      if (device[a] !== device[b]) edge.is |= BETWEEN_DEVICES;
      const blob = kind[a] === OP ? b : a;
      if (edge.blobs.at(-1) !== blob) edge.blobs.push(blob);
    }
    const firstBlob = new Int32Array(edges.length + 1);
    edges.forEach((edge, e) => (firstBlob[e + 1] = firstBlob[e] + edge.blobs.length));
    return {
      from: Int32Array.from(edges, (edge) => edge.from), to: Int32Array.from(edges, (edge) => edge.to),
      is: Uint8Array.from(edges, (edge) => edge.is), firstBlob, blobs: Int32Array.from(edges.flatMap((edge) => edge.blobs)),
    };
  }

  /** For each open scope, its cells (items, and open scopes in it) and the edges between those. */
  #byScope({ isOpen, home }, { from, to, is }) {
    const { parent, depth } = this.graph, count = home.length;
    const inside = Array.from(parent, (_, s) => isOpen[s] && { cells: [], at: new Map(), edges: new Map() });
    const add = (scope, cell) => {
      inside[scope].at.set(cell, inside[scope].cells.length);
      inside[scope].cells.push(cell);
    };
    for (let i = 0; i < count; i++) add(home[i], i);
    for (let s = 1; s < parent.length; s++) if (isOpen[s]) add(parent[s], count + s);
    for (let e = 0; e < from.length; e++) {
      let a = from[e], b = to[e], scopeA = home[a], scopeB = home[b];
      while (scopeA !== scopeB) {
        if (depth[scopeA] >= depth[scopeB]) {
          a = count + scopeA;
          scopeA = parent[scopeA];
        } else {
          b = count + scopeB;
          scopeB = parent[scopeB];
        }
      }
      const { at, edges } = inside[scopeA];
      const key = at.get(a) * at.size + at.get(b);
      edges.set(key, (edges.get(key) ?? true) && (is[e] & UPDATE) > 0);
    }
    return inside;
  }

  #arrangeScope(scope, { cells, edges }, items, sizes) {
    const { kind } = items, count = items.subject.length;
    const of = (cell, which) => (cell < count ? items[which][cell] : sizes.get(cell - count)[which]);
    const graph = {
      widths: cells.map((cell) => of(cell, "width")),
      heights: cells.map((cell) => of(cell, "height")),
      isBlob: cells.map((cell) => cell < count && (kind[cell] === BLOB || kind[cell] === VARIABLE)),
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
}

/** Places of what is in a scope, and in the open scopes in it. */
function position(scope, left, top, inside, sizes, items, boxes) {
  const { placed, width, height } = sizes.get(scope), count = items.subject.length;
  if (scope) boxes.push([scope, left, top, width, height]);
  inside[scope].cells.forEach((cell, k) => {
    const x = left + PADDING + placed.x[k], y = top + PADDING + TITLE + placed.y[k];
    if (cell < count) [items.x[cell], items.y[cell]] = [x, y];
    else {
      const size = sizes.get(cell - count);
      position(cell - count, x - size.width / 2, y - size.height / 2, inside, sizes, items, boxes);
    }
  });
}
