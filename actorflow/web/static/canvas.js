// Draws the graph. What is not seen is skipped, and what is too small to read is drawn without it.

import { BLOB, OP, VARIABLE } from "./model.js";
import * as format from "./format.js";

// Below these scales text, then rounded corners and curves, cannot be told from their absence.
const TEXT_SCALE = 0.4, SHAPE_SCALE = 0.16;
const ARROW_SCALE = 0.45;
const GRID = 32;
/** How long an op that finished a call stays lit: a short call is over before any tick could show it running. */
export const LIT_MS = 350;
const LONG_EDGE = 420;
const MAX_DASHED_PX = 2500;
/** How far an edge to a variable swings out to the right. */
const BOW = 90;

export class Drawing {
  #labels = [];
  #context;
  framesDrawn = 0;
  selected = -1;
  hovered = -1;
  colourBy = "state";

  constructor(canvas, camera, model, theme) {
    this.canvas = canvas;
    this.camera = camera;
    this.model = model;
    this.theme = theme;
    this.#context = canvas.getContext("2d", { alpha: false });
  }

  /** Forget what was measured; for a new graph. */
  reset() {
    this.#labels = [];
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    this.camera.width = clientWidth;
    this.camera.height = clientHeight;
  }

  draw(now) {
    const context = this.#context, { camera, theme } = this;
    const ratio = this.canvas.width / Math.max(camera.width, 1);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const zoom = ratio * camera.scale;
    context.setTransform(
      zoom, 0, 0, zoom,
      ratio * (camera.width / 2 - camera.x * camera.scale), ratio * (camera.height / 2 - camera.y * camera.scale),
    );
    const view = camera.view();
    this.#heatLimit = this.colourBy === "time" ? Math.max(...this.model.costliest(1).map((i) => this.model.totalUs(i)), 1e-9) : 0;
    this.#grid(view);
    this.#edges(view);
    const focus = this.selected >= 0 ? this.selected : this.hovered;
    if (focus >= 0 && focus < this.model.count) this.#focusEdges(focus);
    if (camera.scale < SHAPE_SCALE) this.#specks(view);
    else this.#nodes(view, now);
    this.framesDrawn += 1;
  }

  #heatLimit = 0;

  /** The colour that says what a node does, or what it cost. */
  colour(i) {
    const { model, theme } = this;
    if (this.colourBy === "time") {
      if (model.kind[i] !== OP) return model.kind[i] === VARIABLE ? theme["variable-line"] : theme["line-strong"];
      // The root spreads what is short, which most ops are.
      return theme.heat[Math.min(31, Math.round(31 * Math.sqrt(model.totalUs(i) / this.#heatLimit)))];
    }
    if (model.kind[i] === VARIABLE) return theme["variable-line"];
    return theme.states[model.state[i]];
  }

  #grid(view) {
    const { scale } = this.camera;
    if (scale < 0.5) return;
    const context = this.#context;
    context.fillStyle = this.theme.grid;
    const size = 1.6 / scale;
    for (let x = Math.ceil(view.left / GRID) * GRID; x < view.right; x += GRID) {
      for (let y = Math.ceil(view.top / GRID) * GRID; y < view.bottom; y += GRID) {
        context.fillRect(x - size / 2, y - size / 2, size, size);
      }
    }
  }

  #edges(view) {
    const { model, camera, theme } = this, context = this.#context;
    const fine = camera.scale >= SHAPE_SCALE;
    const near = new Path2D(), far = new Path2D(), back = new Path2D(), farBack = new Path2D(), heads = new Path2D();
    // A dash costs as much as a line, seen or not: what is too small to show dashes or far too long gets none.
    const dashed = fine ? MAX_DASHED_PX / camera.scale : 0;
    const count = model.edgeFrom?.length ?? 0;
    for (let e = 0; e < count; e++) {
      const from = model.edgeFrom[e], to = model.edgeTo[e];
      const x1 = model.x[from], y1 = model.y[from], x2 = model.x[to], y2 = model.y[to];
      if (Math.max(y1, y2) < view.top || Math.min(y1, y2) > view.bottom) continue;
      const isBack = model.edgeBack[e];
      if (Math.max(x1, x2) + (isBack ? 2 * BOW : 0) < view.left || Math.min(x1, x2) > view.right) continue;
      const path = isBack ? (y1 - y2 < dashed ? back : farBack) : y2 - y1 > LONG_EDGE ? far : near;
      this.#trace(path, e, fine);
      if (camera.scale >= ARROW_SCALE && !isBack) arrow(heads, x2, y2 - model.height(to) / 2);
    }
    context.strokeStyle = context.fillStyle = theme.edge;
    context.lineWidth = Math.max(1.3, 0.55 / camera.scale);
    context.globalAlpha = fine ? 0.85 : 0.4;
    context.stroke(near);
    context.fill(heads);
    // An edge across many layers ties a weight to its update, say: it must not drown the flow.
    context.globalAlpha = fine ? 0.3 : 0.15;
    context.stroke(far);
    context.strokeStyle = theme["variable-line"];
    context.stroke(farBack);
    context.setLineDash([5 / camera.scale, 4 / camera.scale]);
    context.stroke(back);
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  #focusEdges(focus) {
    const { model, camera, theme } = this, context = this.#context;
    const path = new Path2D(), heads = new Path2D();
    for (let e = 0; e < model.edgeFrom.length; e++) {
      if (model.edgeFrom[e] !== focus && model.edgeTo[e] !== focus) continue;
      this.#trace(path, e, true);
      const to = model.edgeTo[e];
      if (!model.edgeBack[e]) arrow(heads, model.x[to], model.y[to] - model.height(to) / 2);
    }
    context.strokeStyle = context.fillStyle = theme.accent;
    context.lineWidth = Math.max(2, 1.3 / camera.scale);
    context.stroke(path);
    if (camera.scale >= ARROW_SCALE) context.fill(heads);
  }

  #trace(path, e, curved) {
    const { model } = this;
    const from = model.edgeFrom[e], to = model.edgeTo[e];
    const x1 = model.x[from], x2 = model.x[to];
    if (model.edgeBack[e]) {
      // From the side of the writer up to the side of what it writes for the next frame.
      const side1 = x1 + model.width(from) / 2, side2 = x2 + model.width(to) / 2;
      const bow = Math.max(side1, side2) + BOW;
      path.moveTo(side1, model.y[from]);
      path.bezierCurveTo(bow, model.y[from], bow, model.y[to], side2, model.y[to]);
      return;
    }
    const y1 = model.y[from] + model.height(from) / 2, y2 = model.y[to] - model.height(to) / 2;
    path.moveTo(x1, y1);
    if (!curved || x1 === x2) path.lineTo(x2, y2);
    else {
      const bend = Math.min(Math.max((y2 - y1) / 2, 12), 140);
      path.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
    }
  }

  /** Far away: one rectangle per node, filled colour by colour. */
  #specks(view) {
    const { model } = this, context = this.#context;
    const byColour = new Map();
    for (let i = 0; i < model.count; i++) {
      if (!this.#seen(i, view)) continue;
      const colour = this.colour(i);
      if (!byColour.has(colour)) byColour.set(colour, []);
      byColour.get(colour).push(i);
    }
    for (const [colour, nodes] of byColour) {
      context.fillStyle = colour;
      for (const i of nodes) {
        const width = model.width(i), height = model.height(i);
        context.fillRect(model.x[i] - width / 2, model.y[i] - height / 2, width, height);
      }
    }
    for (const i of [this.hovered, this.selected]) if (i >= 0 && i < model.count) this.#ring(i);
  }

  #nodes(view, now) {
    const { model } = this, context = this.#context;
    context.textBaseline = "middle";
    for (let i = 0; i < model.count; i++) {
      if (!this.#seen(i, view)) continue;
      if (i === this.selected || i === this.hovered) this.#ring(i);
      if (model.kind[i] === OP) this.#op(i, now);
      else this.#blob(i);
    }
  }

  #seen(i, view) {
    const { model } = this;
    const halfWidth = model.width(i) / 2, halfHeight = model.height(i) / 2;
    return model.x[i] + halfWidth > view.left && model.x[i] - halfWidth < view.right
      && model.y[i] + halfHeight > view.top && model.y[i] - halfHeight < view.bottom;
  }

  #ring(i) {
    const { model, theme, camera } = this, context = this.#context;
    const gap = 4, width = model.width(i) + 2 * gap, height = model.height(i) + 2 * gap;
    context.strokeStyle = i === this.selected ? theme.accent : theme["line-strong"];
    context.lineWidth = Math.max(2, 2 / camera.scale);
    context.beginPath();
    context.roundRect(model.x[i] - width / 2, model.y[i] - height / 2, width, height, 11);
    context.stroke();
  }

  #op(i, now) {
    const { model, theme, camera } = this, context = this.#context;
    const [width, height] = model.sizes.op;
    const left = model.x[i] - width / 2, top = model.y[i] - height / 2;
    const colour = this.colour(i);
    const lit = this.colourBy === "state" && (model.state[i] === 2 || now - model.activeAt[i] < LIT_MS);
    context.beginPath();
    context.roundRect(left, top, width, height, 8);
    context.fillStyle = theme.surface;
    context.fill();
    context.fillStyle = colour;
    context.globalAlpha = camera.scale < TEXT_SCALE ? 0.55 : lit ? 0.2 : 0.07;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = lit || model.state[i] === 4 ? colour : theme["line-strong"];
    context.lineWidth = lit ? 2 : 1.2;
    context.stroke();
    context.beginPath();
    context.roundRect(left, top, 6, height, [8, 0, 0, 8]);
    context.fillStyle = colour;
    context.fill();
    if (camera.scale < TEXT_SCALE) return;
    const label = this.#label(i);
    context.fillStyle = theme.text;
    context.font = label.font;
    context.textAlign = "left";
    context.fillText(label.title, left + 15, top + 16);
    context.fillStyle = theme.muted;
    context.font = label.smallFont;
    context.fillText(label.detail, left + 15, top + 33);
    if (!model.calls[i]) return;
    context.textAlign = "right";
    context.fillText(format.duration(model.meanUs[i]), left + width - 10, top + 33);
  }

  #blob(i) {
    const { model, theme, camera } = this, context = this.#context;
    const [width, height] = model.sizes.blob;
    const left = model.x[i] - width / 2, top = model.y[i] - height / 2;
    const variable = model.kind[i] === VARIABLE;
    context.beginPath();
    context.roundRect(left, top, width, height, height / 2);
    context.fillStyle = variable ? theme.variable : theme.blob;
    context.fill();
    context.lineWidth = variable ? 1.6 : 1;
    context.strokeStyle = variable ? theme["variable-line"] : theme["line-strong"];
    if (!variable && model.state[i] && this.colourBy === "state") {
      context.strokeStyle = this.colour(i);
      context.lineWidth = 1.4;
    }
    context.stroke();
    if (camera.scale < TEXT_SCALE) return;
    const label = this.#label(i);
    context.fillStyle = theme.text;
    context.font = label.font;
    context.textAlign = "center";
    context.fillText(label.title, model.x[i], model.y[i] + 0.5);
  }

  /** A node's text, cut to fit; measured once. */
  #label(i) {
    const known = this.#labels[i];
    if (known) return known;
    const { model, theme } = this, node = model.nodes[i];
    const smallFont = `400 11px ${theme.font}`;
    let label;
    if (model.kind[i] === OP) {
      const font = `600 12.5px ${theme.font}`, room = model.sizes.op[0] - 26;
      label = {
        font,
        smallFont,
        title: this.#cut(node.label, font, room),
        detail: this.#cut(node.operation_kind === "Function" ? node.operation : node.operation_kind, smallFont, room - 62),
      };
    } else {
      // An inferred blob is called after its op, so its shape says more than its name.
      const shape = format.shape(node.shape);
      const text = model.kind[i] === BLOB && /^out\d*$/.test(node.label) ? shape : `${node.label}  ${shape}`;
      label = { font: smallFont, smallFont, title: this.#cut(text, smallFont, model.sizes.blob[0] - 16), detail: "" };
    }
    this.#labels[i] = label;
    return label;
  }

  #cut(text, font, room) {
    const context = this.#context;
    context.font = font;
    if (context.measureText(text).width <= room) return text;
    // Both ends stay: names of one scope begin alike.
    const keep = (length) => `${text.slice(0, Math.ceil(length / 2))}…${text.slice(text.length - Math.floor(length / 2))}`;
    let low = 0, high = text.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(keep(middle)).width <= room) low = middle;
      else high = middle - 1;
    }
    return keep(low);
  }
}

function arrow(path, x, y) {
  path.moveTo(x, y);
  path.lineTo(x - 3.6, y - 6.5);
  path.lineTo(x + 3.6, y - 6.5);
  path.closePath();
}
