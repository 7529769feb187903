// The choice of who arranges a graph: the page itself where that takes less than a frame, else a worker.

import { Arranger } from "./arrange.js";

/** Nodes and edges, together, of which the page makes pictures at once. */
const FEW = 3000;

export class Arranging {
  /** @type {Worker | null} */
  #worker = null;
  #hasWorker = true;
  #graph = null;
  /** What arranges on the page; null where the worker does. @type {Arranger | null} */
  #here = null;
  /** Questions that the worker has not answered yet, oldest first. */
  #asked = [];

  /** @param {() => void} changed called when the worker begins or ends */
  constructor(changed) {
    this.changed = changed;
    try {
      this.#start(); // it takes a while, in which the graph comes
    } catch {
      this.#hasWorker = false; // a frame may forbid it
    }
  }

  /** Whether a picture is being made. */
  get isBusy() {
    return this.#asked.length > 0;
  }

  /**
   * Make a picture.
   *
   * @param {object | null} graph a skeleton, if it is another graph than before
   * @param {Iterable<number> | null} open scopes; null for as many as can be read
   * @param {{width: number, height: number}} window size of what it is drawn in
   * @param {(picture: object) => void} then called with what `Arranger.arrange` returns: at once for a small graph,
   *   else later, in the order of the calls
   */
  arrange(graph, open, window, then) {
    if (graph) {
      // Of a small graph, too, no picture may overtake those of the graph before.
      const isLong = graph.kind.length + graph.edgeFrom.length > FEW || this.isBusy;
      this.#graph = graph;
      this.#here = isLong && this.#hasWorker ? null : new Arranger(graph);
    }
    if (this.#here) return void then(this.#here.arrange(open, window));
    const question = { graph, open: open && Int32Array.from(open), window };
    this.#asked.push({ ...question, then });
    this.#start().postMessage(question);
    this.changed();
  }

  #start() {
    if (this.#worker) return this.#worker;
    this.#worker = new Worker(new URL("arrange-worker.js", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => {
      this.#asked.shift().then(data);
      this.changed();
    };
    this.#worker.onerror = () => this.#doWithout();
    return this.#worker;
  }

  /** There is no worker, for instance as its script did not come through. */
  #doWithout() {
    this.#worker.terminate();
    this.#hasWorker = false;
    for (const { graph, open, window, then } of this.#asked.splice(0)) {
      if (graph || !this.#here) this.#here = new Arranger(graph ?? this.#graph);
      then(this.#here.arrange(open, window));
    }
    this.changed();
  }
}
