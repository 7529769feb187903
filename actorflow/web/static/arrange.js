// What is seen of a graph with some scopes open, and where. Pure: runs on the page or in a worker.

import { layout } from "./layout.js";
import { BLOB, OP, SCOPE, VARIABLE } from "./structure.js";

/** Heights of items; widths are those of their texts, at most. */
const HEIGHTS = { [OP]: 42, [BLOB]: 22, [VARIABLE]: 22, [SCOPE]: 50 };
const NARROWEST = { [OP]: 116, [BLOB]: 72, [VARIABLE]: 72, [SCOPE]: 136 }, WIDEST = { [OP]: 200, [BLOB]: 168, [VARIABLE]: 168, [SCOPE]: 208 };
const CHARACTER = 7.3, BESIDE_TEXT = 30, STEP = 8;
export const PADDING = 14, TITLE = 24;
/** The least scale at which all can be read: titles of 12.5 px are then 11 px. */
const READABLE = 0.88;
/** Around the drawing, for what lies over it: the legend has several lines in a narrow window. */
const MARGIN = { top: 58, bottom: 76, left: 18, right: 18 };
/** In a narrow window, with what lies on the drawing there made for fingers. */
const NARROW = 700, NARROW_MARGIN = { ...MARGIN, top: 66, bottom: 94 };
/** So many items are shown at first, if they can be read; else fewer. */
const FIRST = [150, 120, 100, 86, 76, 68, 60, 53, 47, 41, 35, 30, 25, 20, 15, 10, 0];
/** So many more scopes are tried one by one then; fewer in a large graph, by its nodes and edges. */
const MOST_TRIES = 60, WORK = 200_000;
/** A window that is so much wider than high has its flow to the right. */
const LANDSCAPE = 1.15;
/** What an edge of a picture is, as bits. */
export const UPDATE = 1, BETWEEN_RANKS = 2, BETWEEN_DEVICES = 4, SHARED = 8;

/** Makes pictures of one graph. Layouts of scopes are kept, as opening one leaves most others as they were. */
export class Arranger {
  #kept = new Map();

  /** @param {Structure["skeleton"]} graph */
  constructor(graph) {
    this.graph = graph;
    for (let s = 1; s < graph.parent.length; s++) this.#top[s] = graph.parent[s] ? this.#top[graph.parent[s]] : s;
  }

  /** Outermost scope around each scope. */
  #top = [0];

  /**
   * @param {Iterable<number> | null} open scopes; null opens as many as can be read with all of it in view
   * @param {{width: number, height: number}} window size of what it is drawn in
   * @returns {object} columns of items (`subject`, `kind`, `x`, `y`, `width`, `height`), of edges between items
   *   (`from`, `to`, `is`, `firstBlob` in `blobs`, and `firstPoint` in `points`), of open scopes' boxes, which item shows
   *   a node or a scope, and the scopes that are `open`
   */
  arrange(open, window) {
    const { width, height } = roomIn(window);
    const room = { width, height, sideways: width > LANDSCAPE * height };
    if (open) return this.#picture(open, room);
    const fits = ({ extent }) => Math.min(width / extent[0], height / extent[1]) >= READABLE;
    let picture = null, chosen = null;
    const work = this.graph.kind.length + this.graph.edgeFrom.length, stride = work > WORK / MOST_TRIES ** 0.5 ? 4 : 1;
    for (const enough of FIRST.filter((_, k) => k % stride === 0)) {
      const before = chosen?.length;
      chosen = this.#upTo(enough);
      if (chosen.length === before) continue;
      picture = this.#picture(chosen, room);
      if (fits(picture)) break;
    }
    return fits(picture) ? this.#fill(picture, chosen, room, fits) : picture;
  }

  /** Open more scopes, one by one, for as long as all can be read. */
  #fill(picture, chosen, room, fits) {
    const { parent, kind, edgeFrom, inside } = this.graph;
    let tries = Math.min(MOST_TRIES, Math.floor(WORK / (kind.length + edgeFrom.length)));
    const open = new Set([0, ...chosen]);
    for (let s = 1; s < parent.length && tries > 0; s++) {
      if (open.has(s) || !open.has(parent[s]) || picture.subject.length + inside[s] > FIRST[0]) continue;
      tries -= 1;
      const tried = this.#picture([...open, s].filter((scope) => scope), room);
      if (!fits(tried)) continue;
      picture = tried;
      open.add(s);
    }
    return picture;
  }

  /** Scopes to open, level by level, so that no more than so many items are shown. */
  #upTo(enough) {
    const { parent, inside } = this.graph, open = [];
    const children = Array.from(parent, () => []);
    for (let s = 1; s < parent.length; s++) children[parent[s]].push(s);
    let shown = inside[0], level = children[0];
    while (level.length) {
      const next = [];
      for (const scope of level) {
        if (shown + inside[scope] - 1 > enough) continue;
        shown += inside[scope] - 1;
        open.push(scope);
        next.push(...children[scope]);
      }
      level = next;
    }
    return open;
  }

  #picture(open, room) {
    const items = this.#collect(new Set(open));
    const edges = this.#join(items);
    const inside = this.#byScope(items, edges);
    const sizes = new Map();
    for (let s = inside.length - 1; s >= 0; s--) if (items.isOpen[s]) sizes.set(s, this.#arrangeScope(s, inside[s], items, sizes, room));
    const boxes = [], origins = new Map();
    position(0, 0, 0, inside, sizes, items, boxes, origins);
    const points = edges.inside.map(({ scope, edge, update }, e) => (update ? [] : this.#route(sizes, origins, inside, items, scope, edge, edges.from[e], edges.to[e], room)));
    const firstPoint = new Int32Array(points.length + 1);
    points.forEach((route, e) => (firstPoint[e + 1] = firstPoint[e] + route.length));
    const { inside: _, ...columns } = edges, { width, height } = sizes.get(0);
    return {
      ...items, ...columns, firstPoint, points: Float64Array.from(points.flat()), boxes: Float64Array.from(boxes.flat()),
      open: Int32Array.from(open), extent: Float64Array.of(width, height), sideways: Uint8Array.of(room.sideways),
    };
  }

  /** Items, and which of them each node is drawn as. */
  #collect(open) {
    const { kind, scopeOf, parent, owner, letters } = this.graph, nodes = kind.length;
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
      if (owner[i] >= 0) continue;
      if (isOpen[scope]) {
        itemOfNode[i] = subject.length;
        subject.push(i);
        home.push(scope);
      } else itemOfNode[i] = itemOfScope[scope];
    }
    for (let i = 0; i < nodes; i++) if (owner[i] >= 0) itemOfNode[i] = itemOfNode[owner[i]];
    const kinds = Uint8Array.from(subject, (s) => (s < nodes ? kind[s] : SCOPE));
    return {
      isOpen, itemOfScope, itemOfNode,
      subject: Int32Array.from(subject), home: Int32Array.from(home), kind: kinds,
      width: Float64Array.from(kinds, (k, i) => widthOf(k, letters[subject[i]])), height: Float64Array.from(kinds, (k) => HEIGHTS[k]),
      x: new Float64Array(subject.length), y: new Float64Array(subject.length),
    };
  }

  /** Edges between items: those of the graph, all that connect the same two taken together. */
  #join({ itemOfNode, subject }) {
    const { kind, edgeFrom, edgeTo, edgeBack, rank, device, owner, scopeOf } = this.graph;
    const joined = new Map(), edges = [];
    const topOf = (node) => this.#top[scopeOf[node]];
    for (let e = 0; e < edgeFrom.length; e++) {
      const a = edgeFrom[e], b = edgeTo[e], from = itemOfNode[a], to = itemOfNode[b];
      // What is folded goes along the edges of that which it is folded into.
      if (from === to || ((owner[a] >= 0 || owner[b] >= 0) && rank[a] === rank[b])) continue;
      const key = from * subject.length + to;
      let edge = joined.get(key);
      if (!edge) {
        joined.set(key, (edge = { from, to, is: UPDATE | SHARED, blobs: [] }));
        edges.push(edge);
      }
      if (!edgeBack[e]) edge.is &= ~UPDATE;
      // Variables of a closed scope that another part of the network reads, too: shared weights, which are no flow.
      if (kind[a] !== VARIABLE || scopeOf[a] === 0 || topOf(a) === topOf(b)) edge.is &= ~SHARED;
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
  #byScope({ isOpen, home }, joined) {
    const { from, to, is } = joined;
    const { parent, depth } = this.graph, count = home.length;
    const inside = Array.from(parent, (_, s) => isOpen[s] && { cells: [], at: new Map(), edges: new Map() });
    joined.inside = [];
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
      const { at, edges } = inside[scopeA], update = (is[e] & (UPDATE | SHARED)) > 0;
      const key = at.get(a) * at.size + at.get(b);
      const edge = edges.get(key) ?? { number: edges.size, update: true };
      edge.update &&= update;
      edges.set(key, edge);
      joined.inside.push({ scope: scopeA, edge: edge.number, update });
    }
    return inside;
  }

  /** Points of an edge: its way through the layers of the scope that both ends are in, and in the open scopes around them. */
  #route(sizes, origins, inside, items, scope, edge, from, to, { sideways }) {
    const way = sizes.get(scope).placed.routes[edge];
    if (!way) return [];
    const { x, y, width, height, home } = items, count = home.length, [left, top] = origins.get(scope);
    const points = way.map((at, n) => at + (n % 2 ? top : left));
    // One end after the other, from the inside out; with the flow along the first coordinate.
    const through = (item, direction) => {
      const found = [], along = sideways ? [x, width] : [y, height], across = sideways ? y : x;
      let cell = item, at = along[0][item] + (direction * along[1][item]) / 2, beside = across[item];
      found.push([at, beside]);
      for (let s = home[item]; s !== scope; s = this.graph.parent[s]) {
        const size = sizes.get(s), origin = origins.get(s), number = sideways ? 0 : 1;
        const { before, after, aside } = size.placed.ways[inside[s].at.get(cell)], gap = direction > 0 ? after : before;
        const begin = origin[number] - size.padding - (sideways ? 0 : size.title), end = begin + (sideways ? size.width : size.height);
        const middle = origin[1 - number] - size.padding - (sideways ? size.title : 0) + (sideways ? size.height : size.width) / 2;
        const edge = direction > 0 ? end : begin, inner = edge - (direction * size.padding) / 2;
        if (gap !== null) {
          const lane = aside + origin[1 - number], turn = gap + origin[number];
          found.push([turn, beside], [turn, lane]);
          beside = lane;
        }
        found.push([inner, beside], [inner, middle], [edge, middle]);
        [at, beside] = [edge, middle];
        cell = count + s;
      }
      return found.map((point) => (sideways ? point : point.toReversed()));
    };
    // What goes against the layers leaves a cell where others enter it.
    const nearest = (item, px, py) => {
      if (home[item] === scope) return [];
      const far = (found) => Math.hypot(found.at(-1)[0] - px, found.at(-1)[1] - py), [out, into] = [through(item, 1), through(item, -1)];
      return far(out) < far(into) ? out : into;
    };
    const start = nearest(from, points[0], points[1]), end = nearest(to, points.at(-2), points.at(-1)).toReversed();
    return [...start.flat(), ...points, ...end.flat()];
  }

  #arrangeScope(scope, { cells, edges }, items, sizes, room) {
    const { kind } = items, count = items.subject.length;
    const of = (cell, which) => (cell < count ? items[which][cell] : sizes.get(cell - count)[which]);
    const graph = {
      widths: cells.map((cell) => of(cell, "width")),
      heights: cells.map((cell) => of(cell, "height")),
      isBlob: cells.map((cell) => cell < count && (kind[cell] === BLOB || kind[cell] === VARIABLE)),
      from: [], to: [], cut: [],
    };
    for (const [key, { update }] of edges) {
      graph.from.push(Math.floor(key / cells.length));
      graph.to.push(key % cells.length);
      graph.cut.push(update);
    }
    const signature = `${graph.widths.join()};${graph.heights.join()};${graph.from.join()};${graph.to.join()};${Object.values(room)}`;
    let kept = this.#kept.get(scope);
    if (kept?.signature !== signature) this.#kept.set(scope, (kept = { signature, placed: layout(graph, room) }));
    const { placed } = kept;
    const title = scope ? TITLE : 0, padding = scope ? PADDING : 0;
    return { placed, width: placed.width + 2 * padding, height: placed.height + title + 2 * padding, padding, title };
  }
}

/** The part of a window that the drawing may take: its middle and its size. */
export function roomIn({ width, height }) {
  const { top, bottom, left, right } = width < NARROW ? NARROW_MARGIN : MARGIN;
  return {
    x: (left + width - right) / 2, y: (top + height - bottom) / 2,
    width: Math.max(width - left - right, 100), height: Math.max(height - top - bottom, 100),
  };
}

function widthOf(kind, letters) {
  const width = Math.ceil((CHARACTER * letters + BESIDE_TEXT) / STEP) * STEP;
  return Math.min(Math.max(width, NARROWEST[kind]), WIDEST[kind]);
}

/** Places of what is in a scope, and in the open scopes in it. */
function position(scope, left, top, inside, sizes, items, boxes, origins) {
  const { placed, width, height, padding, title } = sizes.get(scope), count = items.subject.length;
  origins.set(scope, [left + padding, top + padding + title]);
  if (scope) boxes.push([scope, left, top, width, height]);
  inside[scope].cells.forEach((cell, k) => {
    const x = left + padding + placed.x[k], y = top + padding + title + placed.y[k];
    if (cell < count) [items.x[cell], items.y[cell]] = [x, y];
    else {
      const size = sizes.get(cell - count);
      position(cell - count, x - size.width / 2, y - size.height / 2, inside, sizes, items, boxes, origins);
    }
  });
}
