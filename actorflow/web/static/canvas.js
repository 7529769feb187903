// Draws the graph. What is not seen is skipped, and what is too small to read is drawn without it.

import { EdgePainter } from "./edges.js";
import * as format from "./format.js";
import { gauge } from "./gauge.js";
import { STATES } from "./model.js";
import { Specks } from "./specks.js";
import { BLOB, OP, PARTS, SCOPE, VARIABLE } from "./structure.js";
import { cut } from "./text.js";

// Below these scales text, then rounded corners and curves, cannot be told from their absence.
const TEXT_SCALE = 0.4, SHAPE_SCALE = 0.16;
const GRID = 32;
const FAINT = 0.28;
/** Before the times of the forward and the backward pass, and of updates. */
const PART_MARKS = ["→", "←", "↻"];
/** How long an op that finished a call stays lit: a short call is over before any tick could show it running. */
export const LIT_MS = 350;

export class Drawing {
  #labels = new Map();
  #picture = new Specks();
  /** Items of ops that have made what is not finite, with what that is. @type {Map<number, string>} */
  marks = new Map();
  #context;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  framesDrawn = 0;
  selected = -1;
  hovered = -1;
  /** What is drawn at full strength while the rest is faint: items, or null for all. @type {Set<number> | null} */
  focus = null;
  /** Items on the critical path. @type {Set<number>} */
  critical = new Set();
  criticalEdges = [];

  constructor(canvas, camera, model, view, colouring, theme, stages) {
    Object.assign(this, { canvas, camera, model, view, colouring, theme, stages });
    this.#context = canvas.getContext("2d", { alpha: false });
    this.edges = new EdgePainter(camera, model, view, theme);
  }

  /** Forget what was measured; for a new graph or new colours. */
  reset() {
    this.#labels.clear();
    this.edges.reset();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    this.camera.width = clientWidth;
    this.camera.height = clientHeight;
  }

  /** @returns {boolean} whether the drawing is only a sketch, as long as the camera moves */
  draw(now) {
    const context = this.#context, { camera, theme } = this;
    const ratio = this.canvas.width / Math.max(camera.width, 1);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalAlpha = 1;
    context.fillStyle = theme.page;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    camera.apply(context, ratio);
    const seen = camera.view();
    this.colouring.begin(this.view);
    this.marks = new Map(this.model.foundOps.map(([node, { not_finite: { results } }]) => [
      this.view.itemOf(node), results.some(({ nan }) => nan) ? "NaN" : "∞",
    ]));
    this.#grid(seen);
    this.#boxes(seen);
    this.stages.drawLines(context, camera.scale);
    const sketch = this.edges.draw(context, ratio, seen, now, this.focus ? FAINT : 1);
    this.edges.highlight(context, this.criticalEdges, theme.hot);
    const pointed = this.selected >= 0 ? this.selected : this.hovered;
    const item = pointed >= 0 ? this.view.itemOf(pointed) : -1;
    if (item >= 0) this.edges.highlight(context, this.view.edges.filter((e) => e.from === item || e.to === item), theme.accent);
    if (camera.scale < SHAPE_SCALE) this.#specks(seen);
    else this.#items(seen, now);
    this.stages.drawBoxes(context, camera.scale);
    this.framesDrawn += 1;
    return sketch;
  }

  #grid(seen) {
    const { scale } = this.camera;
    if (scale < 0.5) return;
    const context = this.#context;
    context.fillStyle = this.theme.grid;
    const size = 1.6 / scale;
    for (let x = Math.ceil(seen.left / GRID) * GRID; x < seen.right; x += GRID) {
      for (let y = Math.ceil(seen.top / GRID) * GRID; y < seen.bottom; y += GRID) {
        context.fillRect(x - size / 2, y - size / 2, size, size);
      }
    }
  }

  /** Open scopes, outer ones first. */
  #boxes(seen) {
    const { theme, camera, model } = this, context = this.#context;
    for (const box of this.view.boxes) {
      const { left, top, width, height } = box;
      if (left > seen.right || left + width < seen.left || top > seen.bottom || top + height < seen.top) continue;
      context.beginPath();
      context.roundRect(left, top, width, height, 12);
      context.globalAlpha = 0.55;
      context.fillStyle = theme.box;
      context.fill();
      context.globalAlpha = 1;
      const pointed = box.subject === this.selected || box.subject === this.hovered;
      context.strokeStyle = pointed ? theme.accent : theme.line;
      context.lineWidth = (pointed ? 2 : 1) / Math.min(camera.scale, 1);
      context.stroke();
      if (camera.scale < 0.3) continue;
      // The title keeps its size as one moves away, for as long as it fits.
      const size = Math.min(12.5 / Math.min(camera.scale, 1), 20);
      const font = `600 ${size}px ${theme.font}`;
      context.font = font;
      context.fillStyle = theme.muted;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(`▾ ${cut(context, model.scopes.label(box.scope), font, width - 50)}`, left + 14, top + 17);
    }
  }

  /** Far away: one rectangle per item. */
  #specks(seen) {
    const { view, focus, colouring } = this, context = this.#context, { a: scale, e: left, f: top } = context.getTransform();
    this.#picture.begin(this.canvas.width, this.canvas.height);
    for (let i = 0; i < view.count; i++) {
      if (!this.#isSeen(i, seen)) continue;
      const x = view.x[i] * scale + left, y = view.y[i] * scale + top, w = (view.width[i] * scale) / 2, h = (view.height[i] * scale) / 2;
      this.#picture.add(x - w, y - h, x + w, y + h, colouring.of(view.subject[i]), focus && !focus.has(i) ? FAINT : 1);
    }
    this.#picture.draw(context);
    for (let i = 0; i < view.count; i++) if (this.#isPointed(i)) this.#ring(i);
    for (const i of this.marks.keys()) this.#ring(i, this.theme.failed);
  }

  #items(seen, now) {
    const { view, focus, model, camera, theme } = this, context = this.#context;
    context.textBaseline = "middle";
    for (let i = 0; i < view.count; i++) {
      if (!this.#isSeen(i, seen)) continue;
      const strength = focus && !focus.has(i) ? FAINT : 1;
      context.globalAlpha = strength;
      if (this.#isPointed(i) || this.critical.has(i)) this.#ring(i);
      if (this.marks.has(i)) context.globalAlpha = 1;
      const kind = view.kind[i];
      if (kind === BLOB || kind === VARIABLE) this.#blob(i);
      else this.#card(i, now, strength);
      const fill = camera.scale >= TEXT_SCALE && kind !== SCOPE && model.occupancy.of(view.subject[i]);
      if (fill) gauge(context, theme, view.x[i], view.y[i] + view.height[i] / 2, fill);
    }
    context.globalAlpha = 1;
  }

  /** Whether a subject stands out since it runs, or has just run; that it has, only for those who bear what flashes. */
  isLit(subject, now) {
    const { model } = this;
    if (this.colouring.mode !== "state") return false;
    return model.stateOf(subject) === 2 || (!this.#calm.matches && now - model.activeSince(subject) < LIT_MS);
  }

  #isPointed(i) {
    return this.view.subject[i] === this.selected || this.view.subject[i] === this.hovered;
  }

  #isSeen(i, seen) {
    const { view } = this, w = view.width[i] / 2, h = view.height[i] / 2;
    return view.x[i] + w > seen.left && view.x[i] - w < seen.right && view.y[i] + h > seen.top && view.y[i] - h < seen.bottom;
  }

  #ring(i, colour) {
    const { view, theme, camera } = this, context = this.#context;
    const gap = 4, width = view.width[i] + 2 * gap, height = view.height[i] + 2 * gap;
    const selected = view.subject[i] === this.selected;
    context.strokeStyle = colour ?? (selected ? theme.accent : this.critical.has(i) ? theme.hot : theme["line-strong"]);
    context.lineWidth = Math.max(2, 2 / camera.scale);
    context.beginPath();
    context.roundRect(view.x[i] - width / 2, view.y[i] - height / 2, width, height, 11);
    context.stroke();
  }

  /** An op, or a closed scope. */
  #card(i, now, strength) {
    const { model, view, theme, camera } = this, context = this.#context;
    const subject = view.subject[i], isScope = view.kind[i] === SCOPE;
    const width = view.width[i], height = view.height[i];
    const left = view.x[i] - width / 2, top = view.y[i] - height / 2;
    const colour = this.colouring.of(subject), state = model.stateOf(subject);
    const lit = this.isLit(subject, now);
    if (isScope) this.#sheet(left, top, width, height);
    context.beginPath();
    context.roundRect(left, top, width, height, 8);
    context.fillStyle = theme.surface;
    context.fill();
    context.fillStyle = colour;
    context.globalAlpha = strength * (camera.scale < TEXT_SCALE ? 0.55 : lit ? 0.16 : 0.07);
    context.fill();
    context.globalAlpha = strength;
    context.strokeStyle = lit || state === 4 ? colour : theme["line-strong"];
    context.lineWidth = lit ? 2 : 1.2;
    context.stroke();
    if (!isScope && model.isCollective(subject)) {
      context.strokeStyle = theme.channel;
      context.lineWidth = 1.2;
      context.beginPath();
      context.roundRect(left + 9, top + 3, width - 12, height - 6, 6);
      context.stroke();
    }
    context.beginPath();
    context.roundRect(left, top, 6, height, [8, 0, 0, 8]);
    context.fillStyle = colour;
    context.fill();
    if (isScope) this.#shares(subject, left + 14, top + height - 9, width - 24);
    if (camera.scale >= TEXT_SCALE) this.#cardText(i, subject, left, top, width);
    if (this.marks.has(i)) this.#mark(left, top, width, height, this.marks.get(i));
  }

  /** A red border, and on it what is wrong. */
  #mark(left, top, width, height, text) {
    const context = this.#context, { theme } = this;
    context.strokeStyle = context.fillStyle = theme.failed;
    context.lineWidth = Math.max(2.5, 2 / this.camera.scale);
    context.beginPath();
    context.roundRect(left, top, width, height, 8);
    context.stroke();
    if (this.camera.scale < TEXT_SCALE) return;
    context.beginPath();
    context.roundRect(left + width - 40, top - 8, 34, 16, 8);
    context.fill();
    context.fillStyle = theme.surface;
    context.font = `700 11px ${theme.font}`;
    context.textAlign = "center";
    context.fillText(text, left + width - 23, top + 0.5);
  }

  /** What shows from behind a closed scope, so that it looks like several things. */
  #sheet(left, top, width, height) {
    const context = this.#context, { theme } = this;
    context.beginPath();
    context.roundRect(left + 5, top - 5, width - 10, height, 8);
    context.fillStyle = theme.box;
    context.fill();
    context.strokeStyle = theme["line-strong"];
    context.lineWidth = 1;
    context.stroke();
  }

  #cardText(i, subject, left, top, width) {
    const { theme } = this, context = this.#context;
    const label = this.#label(i);
    context.fillStyle = theme.text;
    context.font = label.font;
    context.textAlign = "left";
    context.fillText(label.title, left + 14, top + 14);
    context.fillStyle = theme.muted;
    context.font = label.smallFont;
    const times = this.#times(subject);
    context.fillText(cut(context, times || label.detail, label.smallFont, width - 22), left + 14, top + 30);
  }

  /** Mean time of a pass: of a training forward, backward and update. */
  #times(subject) {
    const { model } = this, parts = model.passUs.subarray(subject * PARTS, subject * PARTS + PARTS);
    if (!parts.some((us) => us > 0.0005)) return "";
    const marks = parts[1] > 0.0005 || parts[2] > 0.0005 ? PART_MARKS : ["", "", ""];
    return [...parts].flatMap((us, k) => (us > 0.0005 ? [`${marks[k]}${format.brief(us)}`] : [])).join(" ");
  }

  /** A closed scope's ops by state, as a bar. */
  #shares(subject, left, top, width) {
    const { model, theme } = this, context = this.#context;
    const scope = subject - model.count, all = model.scopes.ops[scope];
    let at = left;
    for (let k = 0; k < STATES.length && all; k++) {
      const share = (width * model.scopeStates[scope * STATES.length + k]) / all;
      context.fillStyle = theme.states[k];
      context.fillRect(at, top, share, 4);
      at += share;
    }
  }

  #blob(i) {
    const { model, view, theme, camera } = this, context = this.#context;
    const subject = view.subject[i], width = view.width[i], height = view.height[i];
    const variable = view.kind[i] === VARIABLE;
    context.beginPath();
    context.roundRect(view.x[i] - width / 2, view.y[i] - height / 2, width, height, height / 2);
    context.fillStyle = variable ? theme.variable : theme.blob;
    context.fill();
    context.lineWidth = variable ? 1.6 : 1;
    context.strokeStyle = variable ? theme["variable-line"] : theme["line-strong"];
    const { mode, isCategorical } = this.colouring;
    if ((mode === "state" && !variable && model.state[subject]) || (isCategorical && mode !== "lane")) {
      context.strokeStyle = this.colouring.of(subject);
      context.lineWidth = 1.6;
    }
    context.stroke();
    if (camera.scale < TEXT_SCALE) return;
    const label = this.#label(i);
    context.fillStyle = theme.text;
    context.font = label.font;
    context.textAlign = "center";
    context.fillText(label.title, view.x[i], view.y[i] + 0.5);
  }

  /** An item's text, cut to fit; measured once. */
  #label(i) {
    const { view } = this, subject = view.subject[i];
    let label = this.#labels.get(subject);
    if (!label) this.#labels.set(subject, (label = this.#measured(subject, view.kind[i], view.width[i])));
    return label;
  }

  #measured(subject, kind, width) {
    const { model, theme } = this, context = this.#context;
    const font = `600 12.5px ${theme.font}`, smallFont = `400 11px ${theme.font}`;
    if (kind === SCOPE) {
      const scope = subject - model.count, { scopes } = model;
        const detail = `${format.count(scopes.ops[scope])} ops`;
      return { font, smallFont, title: cut(context, `▸ ${scopes.label(scope)}`, font, width - 26), detail };
    }
    const node = model.nodes[subject];
    if (kind === OP) {
      const what = node.operation_kind === "Function" ? node.operation : node.operation_kind;
      const detail = cut(context, what, smallFont, width - 22);
      return { font, smallFont, title: cut(context, node.label, font, width - 26), detail };
    }
    // An inferred blob is called after its op, so its shape says more than its name.
    const shape = format.shape(node.shape);
    const text = kind === BLOB && /^out\d*$/.test(node.label) ? shape : `${node.label}  ${shape}`;
    return { font: smallFont, smallFont, title: cut(context, text, smallFont, width - 16), detail: "" };
  }
}
