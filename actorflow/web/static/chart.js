// Curves of fetched scalars, one small chart for each, as their ranges differ.

import { element, setText } from "./dom.js";
import * as format from "./format.js";

const LEFT = 44, BOTTOM = 16, TOP = 6, RIGHT = 4;

export class Charts {
  #charts = new Map();

  constructor(section, list, model, theme) {
    Object.assign(this, { section, list, model, theme });
  }

  draw() {
    const { curves } = this.model;
    this.section.hidden = !curves.size;
    for (const [name, chart] of this.#charts) {
      if (curves.has(name)) continue;
      chart.root.remove();
      this.#charts.delete(name);
    }
    for (const [name, curve] of curves) {
      if (!this.#charts.has(name)) this.#add(name);
      const { canvas, latest } = this.#charts.get(name);
      setText(latest, format.value(curve.values.at(-1)));
      plot(canvas, curve, this.theme);
    }
  }

  #add(name) {
    const canvas = element("canvas", { role: "img", "aria-label": `Curve of ${name} by frame` });
    const latest = element("b");
    const title = element("span", { title: name }, name);
    const root = element("div", { class: "curve" }, element("div", { class: "curve-head" }, title, latest), canvas);
    this.list.append(root);
    this.#charts.set(name, { root, canvas, latest });
  }
}

function plot(canvas, { frames, values }, theme) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);

  let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
  for (let k = 0; k < frames.length; k++) {
    first = Math.min(first, frames[k]);
    last = Math.max(last, frames[k]);
    if (values[k] === null) continue;
    low = Math.min(low, values[k]);
    high = Math.max(high, values[k]);
  }
  if (low > high) low = 0, high = 1;
  if (low === high) low -= Math.abs(low) / 10 || 0.5, high += Math.abs(high) / 10 || 0.5;
  const toX = (frame) => LEFT + ((frame - first) / Math.max(last - first, 1)) * (width - LEFT - RIGHT);
  const toY = (number) => TOP + (1 - (number - low) / (high - low)) * (height - TOP - BOTTOM);

  axes(context, theme, { width, height, low, high, first, last, toY });
  context.lineJoin = "round";
  context.strokeStyle = theme.accent;
  const columns = byColumn(frames, values, toX);
  context.globalAlpha = 0.35;
  context.lineWidth = 1;
  context.beginPath();
  for (const { x, least, most } of columns) {
    context.moveTo(x, toY(most));
    context.lineTo(x, Math.max(toY(least), toY(most) + 1));
  }
  context.stroke();
  context.globalAlpha = 1;
  context.lineWidth = 1.6;
  context.beginPath();
  columns.forEach(({ x, mean }, k) => (k ? context.lineTo(x, toY(mean)) : context.moveTo(x, toY(mean))));
  context.stroke();
}

/** Range and smoothed mean of the values in each column of pixels. */
function byColumn(frames, values, toX) {
  const columns = new Map();
  for (let k = 0; k < frames.length; k++) {
    if (values[k] === null) continue;
    const x = Math.round(toX(frames[k]));
    const column = columns.get(x);
    if (!column) columns.set(x, { x, least: values[k], most: values[k], sum: values[k], count: 1 });
    else {
      column.least = Math.min(column.least, values[k]);
      column.most = Math.max(column.most, values[k]);
      column.sum += values[k];
      column.count += 1;
    }
  }
  const sorted = [...columns.values()].sort((a, b) => a.x - b.x);
  // Overlapping frames end out of order and batches differ; a light smoothing shows the trend.
  let smooth = null;
  const share = sorted.length > 40 ? 0.25 : 1;
  for (const column of sorted) {
    const mean = column.sum / column.count;
    smooth = smooth === null ? mean : smooth + share * (mean - smooth);
    column.mean = smooth;
  }
  return sorted;
}

function axes(context, theme, { width, height, low, high, first, last, toY }) {
  context.font = `10px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const level of [high, (low + high) / 2, low]) {
    const y = Math.round(toY(level)) + 0.5;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width - RIGHT, y);
    context.stroke();
    context.fillText(short(level), LEFT - 6, y);
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText(format.count(first), LEFT, height - 3);
  context.textAlign = "right";
  context.fillText(`frame ${format.count(last)}`, width - RIGHT, height - 3);
}

function short(number) {
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-2 || size >= 1e5)) return number.toExponential(0);
  return number.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}
