// What the reader does with the graph: select, open and close scopes, colour, and what follows from that.

import { STATES } from "./model.js";
import { criticalPath } from "./path.js";

/** So many of the costliest ops are what is hot. */
const HOTTEST = 8;

export class Explorer {
  selected = -1;
  /** Whether the critical path is shown while nothing is selected, too. */
  showsPath = false;
  /** Where the camera was when all of the graph was brought into view. */
  #fitted = "";
  #path = { nodes: [], us: 0 };

  constructor(model, view, camera, drawing, colouring, overview, on) {
    Object.assign(this, { model, view, camera, drawing, colouring, overview, on });
  }

  /** Take a new graph, or a new revision of it, of which what is there is shown as before; `done` when it is. */
  take(structure, done, isRefolded = false) {
    const { model, view } = this, isFirst = !model.count;
    const before = new Map([...model.scopes.byName].map(([name, scope]) => [name, view.open.has(scope)]));
    let open = null;
    if (!isFirst) {
      open = new Set();
      for (const [name, scope] of structure.scopes.byName) if (scope && before.get(name)) open.add(scope);
    }
    let selected = "";
    const ready = () => {
      selected = model.keyOf(this.selected);
      if (isRefolded) model.refold(structure);
      else model.adopt(structure);
      this.drawing.hovered = -1;
    };
    view.take(structure, open, ready, () => {
      this.colouring.use();
      this.#redo();
      if (isFirst && model.count) {
        this.camera.fit(view.bounds());
        this.#fitted = this.read().at;
      }
      this.select(model.subjectOf(selected));
      done();
    });
  }

  #rebuild(open, then = () => {}) {
    this.view.build(open, () => {
      this.#redo();
      then();
    });
  }

  #redo() {
    this.drawing.reset();
    this.overview.reset();
    this.#focus();
    this.on.changed();
  }

  /** Select a node or scope without moving; -1 selects none. */
  select(subject) {
    this.selected = this.drawing.selected = subject;
    this.findPath();
    this.on.selected(subject);
    this.on.changed();
  }

  /** Select a node or scope and bring it into view. */
  choose(subject) {
    if (subject < 0) return this.select(-1);
    this.#reveal(subject, () => {
      this.select(subject);
      const place = this.view.placeOf(subject);
      const isOpen = this.view.itemOf(subject) < 0;
      if (isOpen) this.camera.fit({
        left: place.x - place.width / 2, right: place.x + place.width / 2,
        top: place.y - place.height / 2, bottom: place.y + place.height / 2,
      });
      else this.camera.goTo(place.x, place.y);
      this.on.changed();
    });
  }

  /** Whether the reader looks at all of the graph, and has not moved since. */
  get isFitted() {
    return this.#fitted === this.read().at;
  }

  /** Open the scopes around a node or scope, if any is closed. */
  #reveal(subject, then) {
    const open = this.view.openAround(subject);
    if (open.size === this.view.open.size) then();
    else this.#rebuild(open, then);
  }

  /** Work the critical path out anew, as times have changed. */
  findPath() {
    const isNode = this.selected >= 0 && !this.model.isScope(this.selected);
    this.#path = isNode || (this.showsPath && this.model.count)
      ? criticalPath(this.model, isNode ? this.selected : -1)
      : { nodes: [], us: 0 };
    this.#focus();
  }

  get pathUs() {
    return this.#path.us;
  }

  togglePath() {
    this.showsPath = !this.showsPath;
    this.findPath();
    this.on.changed();
  }

  /** The selection, its neighbours and the critical path stand out. */
  #focus() {
    const { view, selected, drawing } = this;
    const path = this.#path.nodes.map((node) => view.itemOf(node));
    drawing.critical = new Set(path);
    const steps = new Set(path.map((to, k) => path[k - 1] * view.count + to));
    drawing.criticalEdges = view.edges.filter((edge) => steps.has(edge.from * view.count + edge.to));
    const item = selected >= 0 ? view.itemOf(selected) : -1;
    if (item < 0 && !(this.showsPath && drawing.critical.size)) {
      drawing.focus = null;
      return;
    }
    drawing.focus = new Set(drawing.critical).add(item);
    for (const edge of view.edges) {
      if (edge.from === item) drawing.focus.add(edge.to);
      else if (edge.to === item) drawing.focus.add(edge.from);
    }
  }

  /** Open a closed scope or close an open one; what was under the pointer stays there. */
  toggle(scope) {
    const { view, camera, model } = this, subject = model.count + scope;
    const open = view.openAround(subject);
    if (!open.delete(scope)) open.add(scope);
    const before = view.placeOf(subject);
    this.#rebuild(open, () => {
      const after = view.placeOf(subject);
      camera.x += after.x - before.x;
      camera.y += after.y - after.height / 2 - (before.y - before.height / 2);
      if (this.selected >= 0) this.select(this.selected);
      this.on.changed();
    });
  }

  /** Close the scope around the selection, or the selected one. */
  closeAround() {
    const { model, view, selected } = this;
    if (selected < 0) return;
    const scope = model.isScope(selected) ? selected - model.count : model.scopes.of[selected];
    const target = view.open.has(scope) ? scope : model.scopes.parent[scope];
    if (target <= 0) return;
    this.select(model.count + target);
    this.toggle(target);
  }

  openSelected() {
    const scope = this.selected - this.model.count;
    if (scope > 0 && !this.view.open.has(scope)) this.toggle(scope);
  }

  setAll(isOpen) {
    const open = new Set();
    if (isOpen) for (let s = 1; s < this.model.scopes.count; s++) open.add(s);
    this.#rebuild(open, () => this.fit());
  }

  /** Open the scopes down to a depth, and close all others. */
  openTo(depth) {
    const { scopes } = this.model;
    this.#rebuild(new Set([...scopes.names.keys()].filter((s) => s && scopes.depth[s] <= depth)), () => this.fit());
  }

  /** Open what can be read with all of it in view, as at first. */
  openFitting() {
    this.#rebuild(null, () => this.fit());
  }

  /** Open the scopes around some nodes, close all others, and look at these nodes. */
  openAround(nodes) {
    if (!nodes.length) return;
    const { scopes } = this.model, open = new Set();
    for (const node of nodes) for (let s = scopes.of[node]; s > 0; s = scopes.parent[s]) open.add(s);
    this.#rebuild(open, () => {
      this.select(nodes[0]);
      this.fit();
    });
  }

  openHot() {
    this.openAround(this.model.costliest(HOTTEST));
  }

  openFailed() {
    const { model } = this;
    this.openAround([...model.kind.keys()].filter((i) => model.failed[i] || STATES[model.state[i]] === "failed"));
  }

  fit() {
    this.camera.fit(this.view.bounds());
    this.#fitted = this.read().at;
    this.on.changed();
  }

  /** Select the next card of the picture (1), or the one before (-1). */
  walk(direction) {
    const { view } = this;
    if (!view.count) return;
    const item = this.selected < 0 ? -1 : view.itemOf(this.selected);
    const next = item < 0 && direction < 0 ? view.count - 1 : (item + direction + view.count) % view.count;
    this.choose(view.subject[next]);
  }

  /** Select the first of what the selection reads (-1) or is read by (1). */
  step(direction) {
    const { model, selected } = this;
    if (selected < 0 || model.isScope(selected)) return;
    const next = (direction < 0 ? model.writers : model.readers).of(selected)[0];
    if (next !== undefined) this.choose(next);
  }

  /** For the address. */
  read() {
    const { camera, view, model } = this, { scopes } = model;
    const all = view.open.size === scopes.count - 1;
    const names = [...view.open].map((scope) => encodeURIComponent(scopes.names[scope]));
    return {
      select: model.keyOf(this.selected),
      open: all ? "*" : names.join() || "-",
      at: [camera.x.toFixed(0), camera.y.toFixed(0), camera.scale.toPrecision(3)].join(),
    };
  }

  /** Look at what an address says. */
  restore({ select = "", open = "", at = "" }) {
    const { model } = this;
    const look = () => {
      const [x, y, scale] = at.split(",").map(Number);
      if (scale > 0) Object.assign(this.camera, { x, y, scale });
      this.select(model.subjectOf(select));
    };
    if (open === "*") return this.#rebuild(new Set([...model.scopes.names.keys()].slice(1)), look);
    if (!open) return look();
    const named = open.split(",").map((name) => model.scopes.byName.get(decodeURIComponent(name)));
    this.#rebuild(new Set(named.filter((scope) => scope > 0)), look);
  }
}
