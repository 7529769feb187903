// The graph as it is, apart from what happens in it: nodes, edges and scopes of one revision. Pure.

import * as format from "./format.js";
import { Scopes } from "./scopes.js";

export const OP = 0, BLOB = 1, VARIABLE = 2, SCOPE = 3;
export const KIND_NAMES = ["op", "blob", "variable", "scope"];

/** Parts of a training. */
export const FORWARD = 0, BACKWARD = 1, UPDATE = 2, PARTS = 3;

const LETTERS_OF_TIME = 7;

const KINDS = { op: OP, blob: BLOB, variable: VARIABLE };

export class Structure {
  indexByName = new Map();
  indexById = new Map();

  /** @param {{name: string, revision: number, nodes: object[], edges: [number, number, number][]}} message */
  constructor({ name = "", revision = -1, nodes = [], edges = [], folded = [], others = false } = {}, isFolded = true) {
    this.name = name;
    /** Whether pages of other graphs are served beside this one. */
    this.hasOthers = others;
    this.revision = revision;
    this.nodes = nodes;
    this.count = nodes.length;
    this.kind = Uint8Array.from(nodes, (node) => KINDS[node.kind]);
    nodes.forEach((node, i) => {
      this.indexByName.set(node.name, i);
      this.indexById.set(node.id, i);
    });
    this.edgeFrom = new Int32Array(edges.length);
    this.edgeTo = new Int32Array(edges.length);
    this.edgeBack = new Uint8Array(edges.length);
    edges.forEach((edge, e) => ([this.edgeFrom[e], this.edgeTo[e], this.edgeBack[e]] = edge));
    this.writers = new Neighbours(this.count, this.edgeTo, this.edgeFrom);
    this.readers = new Neighbours(this.count, this.edgeFrom, this.edgeTo);
    /** What a node is done for, and its part in that: the forward pass, the backward one, an update. */
    this.owner = new Int32Array(this.count).fill(-1);
    this.part = new Uint8Array(this.count);
    const made = new Int32Array(this.count).fill(-1);
    for (const [node, of, isUpdate] of folded) {
      made[node] = of;
      this.part[node] = isUpdate ? UPDATE : BACKWARD;
    }
    this.hasFolded = folded.length > 0;
    this.isFolded = isFolded;
    if (isFolded) this.owner.forEach((_, i) => (this.owner[i] = lastOwner(made, i)));
    this.scopes = new Scopes(nodes, this.indexByName, this.owner);
  }

  /** Lengths of what is written on nodes and scopes: names, or the times of their parts. */
  #letters() {
    const { nodes, scopes, count, owner, part } = this;
    const letters = [...nodes.map(lettersOf), ...scopes.names.map((_, s) => scopes.label(s).length + 2)];
    const parts = new Uint8Array(count + scopes.count);
    for (let i = 0; i < count; i++) {
      if (owner[i] < 0) continue;
      parts[owner[i]] |= 1 << part[i];
      for (let s = scopes.of[i]; s > 0; s = scopes.parent[s]) parts[count + s] |= 1 << part[i];
    }
    return Uint16Array.from(letters, (length, subject) => {
      const several = parts[subject] && (subject >= count || nodes[subject].kind === "op") ? 1 + (parts[subject] >> 1 & 1) + (parts[subject] >> 2) : 0;
      return Math.min(Math.max(length, several > 1 ? LETTERS_OF_TIME * several : 0), 200);
    });
  }

  /** What `Arranger` must know, without a name: cheap to send to a worker. */
  get skeleton() {
    const { kind, edgeFrom, edgeTo, edgeBack, nodes, scopes, owner } = this;
    const inside = Int32Array.from(scopes.children, (children, s) => children.length + scopes.members[s].length);
    const devices = new Map();
    const number = (device) => devices.get(device) ?? (devices.set(device, devices.size), devices.size - 1);
    return {
      kind, edgeFrom, edgeTo, edgeBack, owner, inside,
      letters: this.#letters(),
      rank: Int32Array.from(nodes, (node) => node.rank),
      device: Int32Array.from(nodes, (node) => number(node.device)),
      scopeOf: scopes.of,
      parent: Int32Array.from(scopes.parent),
      depth: Int32Array.from(scopes.depth),
    };
  }
}

/** What a node is made for in the end: of a gradient's gradient, the op that there was first. */
function lastOwner(made, node) {
  let owner = made[node];
  for (let steps = 0; steps < made.length && owner >= 0 && made[owner] >= 0; steps++) owner = made[owner];
  return owner;
}

/** Length of what is written on a node. */
function lettersOf(node) {
  if (node.kind === "op") return node.label.length;
  const shape = format.shape(node.shape).length;
  return /^out\d*$/.test(node.label) ? shape : node.label.length + shape + 2;
}

/** What each node is connected to on one side, as compressed rows. */
class Neighbours {
  constructor(count, own, other) {
    this.start = new Int32Array(count + 1);
    for (let e = 0; e < own.length; e++) this.start[own[e] + 1] += 1;
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
