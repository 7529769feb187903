// What is drawn of a graph: its nodes, with the closed scopes each as one thing, the open ones as boxes around theirs.

import { BETWEEN_DEVICES, BETWEEN_RANKS, PADDING, SHARED, TITLE, UPDATE } from "./arrange.js";

export class View {
  /** Scopes that are open, or will be with the next picture. @type {Set<number>} */
  open = new Set();
  boxes = [];
  /** Rectangles of what is drawn beside the graph. */
  attached = [];
  edges = [];
  count = 0;
  subject = new Int32Array(0);
  kind = new Uint8Array(0);
  x = new Float64Array(0);
  y = this.x;
  width = this.x;
  height = this.x;
  /** Counts the pictures, for those who keep something of one. */
  version = 0;
  #isTaking = false;

  /** @param {Arranging} arranging what makes the pictures */
  constructor(model, arranging, camera) {
    Object.assign(this, { model, arranging, camera });
  }

  get #window() {
    return { width: this.camera.width, height: this.camera.height };
  }

  /**
   * Show another graph with these scopes open; null opens as many as can be read.
   *
   * @param {() => void} ready called, before the new picture is shown, when it is there: the model takes the graph then
   * @param {() => void} shown called after it
   */
  take(structure, open, ready, shown) {
    this.#isTaking = true;
    this.arranging.arrange(structure.skeleton, open, this.#window, (picture) => {
      this.#isTaking = false;
      ready();
      this.#show(picture);
      shown();
    });
  }

  /** Open these scopes and no others; for a large graph, `shown` is called a moment later. */
  build(open, shown) {
    if (this.#isTaking) return; // the scopes' numbers are about to change
    if (open) this.open = open;
    this.arranging.arrange(null, open, this.#window, (picture) => {
      this.#show(picture);
      shown();
    });
  }

  #show({ from, to, is, firstBlob, blobs, firstPoint, points, boxes, open, sideways, ...items }) {
    Object.assign(this, items);
    this.open = new Set(open);
    this.sideways = sideways[0] > 0;
    this.count = this.subject.length;
    this.version += 1;
    this.#blobs = blobs;
    this.edges = Array.from(from, (_, e) => ({
      from: from[e], to: to[e], points: points.subarray(firstPoint[e], firstPoint[e + 1]), ...this.#span(from[e], to[e], points.subarray(firstPoint[e], firstPoint[e + 1])), firstBlob: firstBlob[e], lastBlob: firstBlob[e + 1],
      update: (is[e] & UPDATE) > 0, shared: (is[e] & SHARED) > 0, rank: (is[e] & BETWEEN_RANKS) > 0, device: (is[e] & BETWEEN_DEVICES) > 0,
    }));
    this.boxes = Array.from({ length: boxes.length / 5 }, (_, k) => {
      const [scope, left, top, width, height] = boxes.subarray(5 * k, 5 * k + 5);
      return { scope, subject: this.model.count + scope, left, top, width, height };
    });
  }

  #blobs = new Int32Array(0);
  sideways = false;
  extent = [0, 0];

  /** Rectangle around an edge. */
  #span(from, to, points) {
    const { x, y } = this;
    let left = Math.min(x[from], x[to]), right = Math.max(x[from], x[to]), top = Math.min(y[from], y[to]), bottom = Math.max(y[from], y[to]);
    for (let k = 0; k < points.length; k += 2) {
      left = Math.min(left, points[k]);
      right = Math.max(right, points[k]);
      top = Math.min(top, points[k + 1]);
      bottom = Math.max(bottom, points[k + 1]);
    }
    return { left, right, top, bottom };
  }

  /** Nodes that an edge carries, each once. */
  blobsOf({ firstBlob, lastBlob }) {
    return [...new Set(this.#blobs.subarray(firstBlob, lastBlob))];
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

  /** The scopes that must be open so that a node or scope is seen, with those that are. */
  openAround(subject) {
    const { scopes, count } = this.model;
    const open = new Set(this.open);
    const first = subject < count ? scopes.of[subject] : scopes.parent[subject - count];
    for (let s = first; s > 0; s = scopes.parent[s]) open.add(s);
    return open;
  }

  /** What is drawn, with or without what is drawn beside the graph. */
  bounds(withAttached = true) {
    let left = Infinity, top = Infinity, right = -Infinity, bottom = -Infinity;
    const take = (x1, y1, x2, y2) => {
      left = Math.min(left, x1);
      top = Math.min(top, y1);
      right = Math.max(right, x2);
      bottom = Math.max(bottom, y2);
    };
    if (this.count) take(0, 0, ...this.extent);
    for (const box of withAttached ? this.attached : []) take(box.left, box.top, box.left + box.width, box.top + box.height);
    return left < right ? { left, top, right, bottom } : { left: 0, top: 0, right: 1, bottom: 1 };
  }
}
