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
   */
  constructor(nodes, indexByName) {
    this.of = new Int32Array(nodes.length);
    this.indexByName = indexByName;
    nodes.forEach((node, i) => {
      const scope = this.#around(node.name);
      this.of[i] = scope;
      this.members[scope].push(i);
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

  /** The scopes to open at first: all of a small graph, of a large one as many as still make a picture. */
  firstOpen(few, enough) {
    const open = new Set();
    if (this.of.length <= few) {
      for (let s = 1; s < this.count; s++) open.add(s);
      return open;
    }
    let shown = this.members[0].length + this.children[0].length;
    let level = [...this.children[0]];
    while (level.length) {
      const next = [];
      for (const scope of level) {
        const inside = this.members[scope].length + this.children[scope].length;
        if (shown + inside > enough) continue;
        shown += inside - 1;
        open.add(scope);
        next.push(...this.children[scope]);
      }
      level = next;
    }
    return open;
  }
}
