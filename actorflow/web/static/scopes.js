// The tree of scopes that the names make: "net/block0/conv" is in scope "net/block0", which is in scope "net".

/** A scope with more in it than MANY has that in groups of about SOME, in the order in which it was made. */
const MANY = 84, SOME = 40;

export class Scopes {
  names = [""];
  parent = [-1];
  depth = [0];
  /** Scopes directly inside each scope. @type {number[][]} */
  children = [[]];
  /** Nodes directly inside each scope. @type {number[][]} */
  members = [[]];
  /** Ops and other nodes in each scope, at any depth. */
  ops = [0];
  blobs = [0];
  byName = new Map([["", 0]]);

  /**
   * @param {{name: string, kind: string}[]} nodes
   * @param {Map<string, number>} indexByName
   * @param {Int32Array} owner node that each node is folded into, whose scope it is in then; else -1
   */
  constructor(nodes, indexByName, owner) {
    this.of = new Int32Array(nodes.length);
    this.indexByName = indexByName;
    this.#place(nodes, owner, (name) => this.#around(name));
    const paths = this.#grouped(nodes, owner);
    if (!paths) return;
    const { names, of } = this;
    // Once more, with the groups: what is around something always has the lower number.
    Object.assign(this, { names: [""], parent: [-1], depth: [0], children: [[]], members: [[]], ops: [0], blobs: [0], byName: new Map([["", 0]]) });
    this.#groups = paths;
    this.#place(nodes, owner, (_, i) => this.#scope(names[of[i]]));
  }

  /** Groups that a thing of this name is in, outer ones first, below the scope that it is named after. @type {Map<string, string[]>} */
  #groups = new Map();
  /** The innermost of them as a scope, where there is one by now. @type {Map<string[], number>} */
  #grouping = new Map();

  /** @returns {Map<string, string[]> | null} groups by the names of nodes and scopes; null if there are none */
  #grouped(nodes, owner) {
    const paths = new Map();
    for (let scope = 0; scope < this.count; scope++) {
      const things = [
        ...this.members[scope].map((i) => ({ name: nodes[i].name, at: i, isHead: nodes[i].kind === "op" })),
        ...this.children[scope].map((s) => ({ name: this.names[s], at: this.#first(s), isHead: true })),
      ];
      if (things.length > MANY) this.#split(things.sort((a, b) => a.at - b.at), this.names[scope], [], paths);
    }
    return paths.size ? paths : null;
  }

  #first(scope) {
    return Math.min(this.members[scope][0] ?? Infinity, ...this.children[scope].map((s) => this.#first(s)));
  }

  #split(things, prefix, around, paths) {
    const each = Math.max(SOME, Math.ceil(things.length / SOME));
    const isHead = (thing) => thing.isHead;
    const label = ({ name }) => (prefix ? name.slice(prefix.length + 1) : name);
    for (let k = 0; k < things.length;) {
      let end = Math.min(k + each, things.length);
      // What an op writes stays with it.
      while (end < things.length && !things[end].isHead) end += 1;
      const group = things.slice(k, end), path = [...around, `${label(group.find(isHead) ?? group[0])} … ${label(group.findLast(isHead) ?? group.at(-1))}`];
      for (const { name } of group) paths.set(name, path);
      if (group.length > MANY) this.#split(group, prefix, path, paths);
      k = end;
    }
  }

  #place(nodes, owner, around) {
    nodes.forEach((node, i) => {
      const { name } = nodes[owner[i] < 0 ? i : owner[i]], scope = this.#inGroup(name, around(name, i));
      this.of[i] = scope;
      if (owner[i] < 0) this.members[scope].push(i);
      if (node.kind === "op") this.ops[scope] += 1;
      else this.blobs[scope] += 1;
    });
    for (let s = this.count - 1; s > 0; s--) {
      this.ops[this.parent[s]] += this.ops[s];
      this.blobs[this.parent[s]] += this.blobs[s];
    }
  }

  get count() {
    return this.names.length;
  }

  label(scope) {
    if (this.#labels.has(scope)) return this.#labels.get(scope);
    let around = this.parent[scope];
    while (this.#labels.has(around)) around = this.parent[around];
    const name = this.names[scope], parent = this.names[around];
    return parent ? name.slice(parent.length + 1) : name;
  }

  /** The scope that something of this name is in. An inferred blob, "conv/out", is beside its op, "conv". */
  #around(name) {
    let at = name.lastIndexOf("/");
    while (at > 0 && this.indexByName.has(name.slice(0, at))) at = name.lastIndexOf("/", at - 1);
    return at > 0 ? this.#scope(name.slice(0, at)) : 0;
  }

  #scope(name) {
    const known = this.byName.get(name);
    if (known !== undefined) return known;
    return this.#add(name, this.#inGroup(name, this.#around(name)));
  }

  #labels = new Map();

  /** The innermost group of something, or else the scope itself. */
  #inGroup(name, scope) {
    const path = this.#groups.get(name);
    if (!path) return scope;
    const known = this.#grouping.get(path);
    if (known !== undefined) return known;
    for (const label of path) {
      const full = `${this.names[scope]}/${label}`;
      const group = this.byName.get(full) ?? this.#add(full, scope);
      this.#labels.set(group, label);
      scope = group;
    }
    this.#grouping.set(path, scope);
    return scope;
  }

  #add(name, parent) {
    const made = this.names.length;
    this.byName.set(name, made);
    this.names.push(name);
    this.parent.push(parent);
    this.depth.push(this.depth[parent] + 1);
    for (const list of [this.children, this.members]) list.push([]);
    for (const list of [this.ops, this.blobs]) list.push(0);
    this.children[parent].push(made);
    return made;
  }
}
