// The tree of scopes that the names make: "net/block0/conv" is in scope "net/block0", which is in scope "net".

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
    nodes.forEach((node, i) => {
      const scope = this.#around(nodes[owner[i] < 0 ? i : owner[i]].name);
      this.of[i] = scope;
      if (owner[i] < 0) this.members[scope].push(i);
      for (let s = scope; s >= 0; s = this.parent[s]) this[node.kind === "op" ? "ops" : "blobs"][s] += 1;
    });
  }

  get count() {
    return this.names.length;
  }

  label(scope) {
    const name = this.names[scope], parent = this.names[this.parent[scope]];
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
    const parent = this.#around(name), made = this.names.length;
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
