// The graph as it is, apart from what happens in it: nodes, edges and scopes of one revision. Pure.

import { Scopes } from "./scopes.js";

export const OP = 0, BLOB = 1, VARIABLE = 2, SCOPE = 3;
export const KIND_NAMES = ["op", "blob", "variable", "scope"];

const KINDS = { op: OP, blob: BLOB, variable: VARIABLE };

export class Structure {
  indexByName = new Map();
  indexById = new Map();

  /** @param {{name: string, revision: number, nodes: object[], edges: [number, number, number][]}} message */
  constructor({ name = "", revision = -1, nodes = [], edges = [] } = {}) {
    this.name = name;
    this.revision = revision;
    this.nodes = nodes;
    this.count = nodes.length;
    this.kind = Uint8Array.from(nodes, (node) => KINDS[node.kind]);
    nodes.forEach((node, i) => {
      this.indexByName.set(node.name, i);
      this.indexById.set(node.id, i);
    });
    this.edgeFrom = Int32Array.from(edges, (edge) => edge[0]);
    this.edgeTo = Int32Array.from(edges, (edge) => edge[1]);
    this.edgeBack = Uint8Array.from(edges, (edge) => edge[2]);
    this.writers = new Neighbours(this.count, this.edgeTo, this.edgeFrom);
    this.readers = new Neighbours(this.count, this.edgeFrom, this.edgeTo);
    this.scopes = new Scopes(nodes, this.indexByName);
  }

  /** What `Arranger` must know, without a name: cheap to send to a worker. */
  get skeleton() {
    const { kind, edgeFrom, edgeTo, edgeBack, nodes, scopes } = this;
    const devices = new Map();
    const number = (device) => devices.get(device) ?? (devices.set(device, devices.size), devices.size - 1);
    return {
      kind, edgeFrom, edgeTo, edgeBack,
      rank: Int32Array.from(nodes, (node) => node.rank),
      device: Int32Array.from(nodes, (node) => number(node.device)),
      scopeOf: scopes.of,
      parent: Int32Array.from(scopes.parent),
      depth: Int32Array.from(scopes.depth),
    };
  }
}

/** What each node is connected to on one side, as compressed rows. */
class Neighbours {
  constructor(count, own, other) {
    this.start = new Int32Array(count + 1);
    for (const node of own) this.start[node + 1] += 1;
    for (let i = 0; i < count; i++) this.start[i + 1] += this.start[i];
    this.nodes = new Int32Array(own.length);
    const next = this.start.slice();
    for (let e = 0; e < own.length; e++) this.nodes[next[own[e]]++] = other[e];
  }

  /** Indices of a node's neighbours, in the order of the edges. */
  of(node) {
    return this.nodes.subarray(this.start[node], this.start[node + 1]);
  }
}
