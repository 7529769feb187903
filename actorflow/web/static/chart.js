// Curves of fetched scalars, one chart for each, as their ranges differ; those of other runs lie behind.
//
// All have one range of frames: what one zooms to in one chart, and points at, is shown in all.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { parse } from "./text.js";

const LEFT = 46, BOTTOM = 17, TOP = 12, RIGHT = 6;
const NEAR_PX = 4;
/** Size of a file of a run that is read. */
const MOST_BYTES = 64e6;

export class Charts {
  #charts = new Map();
  /** Runs that lie behind: name, hue, and the curves by name. @type {{name: string, hue: number, curves: Map}[]} */
  #runs = [];
  /** Frames that are shown; null for all. @type {[number, number] | null} */
  #range = null;
  /** Frame that is pointed at; null for none. */
  #pointed = null;
  #smoothing = 0;
  #isLog = false;

  constructor(model, theme) {
    Object.assign(this, { model, theme });
    byId("curve-log").addEventListener("change", (event) => {
      this.#isLog = event.target.checked;
      this.draw();
    });
    byId("curve-smooth").addEventListener("input", (event) => {
      this.#smoothing = event.target.valueAsNumber;
      setText(byId("curve-smooth-text"), String(this.#smoothing));
      this.draw();
    });
    byId("curve-reset").addEventListener("click", () => this.zoom(null));
    byId("curve-files").addEventListener("change", async (event) => {
      const files = [...event.target.files];
      event.target.value = "";
      for (const file of files) await this.#load(file);
      this.draw();
    });
  }

  zoom(range) {
    this.#range = range && range[1] > range[0] ? range : null;
    byId("curve-reset").disabled = !this.#range;
    this.draw();
  }

  point(frame) {
    this.#pointed = frame;
    this.draw();
  }

  draw() {
    const { curves } = this.model;
    const names = new Set([...curves.keys(), ...this.#runs.flatMap((run) => [...run.curves.keys()])]);
    byId("curve-none").hidden = names.size > 0;
    for (const [name, chart] of this.#charts) {
      if (names.has(name)) continue;
      chart.root.remove();
      this.#charts.delete(name);
    }
    // New ones come last, so that those which are there stay where they are.
    for (const name of names) if (!this.#charts.has(name)) this.#charts.set(name, new Chart(this, name, byId("curve-list")));
    const range = this.#range ?? wholeRange([curves, ...this.#runs.map((run) => run.curves)]);
    for (const [name, chart] of this.#charts) {
      const lines = this.#runs.map((run) => ({ curve: run.curves.get(name), colour: this.theme.hues[run.hue], name: run.name }));
      lines.push({ curve: curves.get(name), colour: this.theme.accent, name: "this run" });
      chart.draw(lines.filter(({ curve }) => curve), {
        range, pointed: this.#pointed, isLog: this.#isLog, smoothing: this.#smoothing, theme: this.theme,
      });
    }
  }

  async #load(file) {
    setText(byId("curve-note"), "");
    try {
      if (file.size > MOST_BYTES) throw new Error("it is too large");
      const { curves } = parse(await file.text());
      const read = new Map(Object.entries(curves).map(([name, [frames, values]]) => {
        if (!Array.isArray(frames) || frames.length !== values.length) throw new Error("it is not a run");
        return [name, { frames: frames.map(Number), values: values.map((each) => (each === null ? null : Number(each))) }];
      }));
      const taken = this.#runs.map((run) => run.hue), hue = this.theme.hues.findIndex((_, k) => k && !taken.includes(k));
      this.#runs.push({ name: file.name.replace(/\.json$/, ""), hue: hue < 0 ? 0 : hue, curves: read });
      this.#list();
    } catch (error) {
      setText(byId("curve-note"), `${file.name} cannot be read as a run: ${error.message}`);
    }
  }

  #list() {
    byId("curve-runs").replaceChildren(...this.#runs.map((run) => {
      const mark = element("i"), button = element("button", { type: "button", title: "Take this run away" }, mark, run.name, " ×");
      mark.style.background = this.theme.hues[run.hue];
      button.addEventListener("click", () => {
        this.#runs = this.#runs.filter((each) => each !== run);
        this.#list();
        this.draw();
      });
      return element("li", {}, button);
    }));
  }
}

export class Chart {
  #scale = null;
  #lines = [];
  #drag = null;
  /** Frame that the keys have pointed at. */
  #keyed = null;

  constructor(charts, name, list) {
    this.charts = charts;
    this.canvas = element("canvas", {
      role: "img", tabindex: "0", "aria-label": `Curve of ${name} by frame. Arrow keys point at frames, drag to zoom, double-click for all.`,
    });
    this.said = element("b");
    this.title = element("span", { title: name }, name);
    this.root = element("div", { class: "curve" }, element("div", { class: "curve-head" }, this.title, this.said), this.canvas);
    list.append(this.root);
    this.#listen();
  }

  draw(lines, { range, pointed, isLog, smoothing, theme }) {
    const { canvas } = this, context = canvas.getContext("2d");
    const ratio = Math.min(devicePixelRatio || 1, 2), width = canvas.clientWidth, height = canvas.clientHeight;
    this.#lines = lines;
    const own = lines.at(-1), bad = own ? own.curve.values.reduce((sum, each) => sum + (each === null), 0) : 0;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const [first, last] = range, drawn = lines.map((line) => ({ ...line, points: pointsOf(line.curve, range, smoothing) }));
    const [low, high] = limits(drawn.flatMap(({ points }) => points), isLog);
    const bend = isLog ? Math.log10 : (each) => each;
    const scale = this.#scale = {
      first, last, width,
      x: (frame) => LEFT + ((frame - first) / Math.max(last - first, 1)) * (width - LEFT - RIGHT),
      y: (number) => TOP + (1 - (bend(number) - bend(low)) / (bend(high) - bend(low))) * (height - TOP - BOTTOM),
    };
    axes(context, theme, { width, height, low, high, first, last, isLog, y: scale.y });
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    for (const line of drawn) stroke(context, line, scale, { isLog, smoothing });
    for (const { points } of drawn) marks(context, theme, points, scale, isLog);
    const began = own ? beganAt(drawn.at(-1).points) : null;
    if (began !== null) breakAt(context, theme, scale.x(began), height);
    if (pointed !== null) this.#cross(context, theme, drawn, scale, pointed, height, isLog);
    if (this.#drag) {
      context.fillStyle = theme.accent;
      context.globalAlpha = 0.14;
      context.fillRect(Math.min(...this.#drag), TOP, Math.abs(this.#drag[1] - this.#drag[0]), height - TOP - BOTTOM);
      context.globalAlpha = 1;
    }
    context.restore();
    setText(this.said, pointed === null ? latest(own, bad, began) : this.#at(drawn, pointed, smoothing));
    this.root.classList.toggle("has-bad", bad > 0);
  }

  #cross(context, theme, drawn, { x, y }, pointed, height, isLog) {
    context.strokeStyle = theme["line-strong"];
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x(pointed)) + 0.5, TOP);
    context.lineTo(Math.round(x(pointed)) + 0.5, height - BOTTOM);
    context.stroke();
    for (const { points, colour } of drawn) {
      const point = nearest(points, pointed);
      if (!point || point.smooth === null || (isLog && point.smooth <= 0)) continue;
      context.fillStyle = colour;
      context.beginPath();
      context.arc(x(point.frame), y(point.smooth), 3, 0, 2 * Math.PI);
      context.fill();
    }
  }

  #at(drawn, pointed, smoothing) {
    const texts = drawn.flatMap(({ points, name }) => {
      const point = nearest(points, pointed);
      if (!point) return [];
      const smooth = smoothing && point.smooth !== null ? ` (smooth ${format.value(point.smooth)})` : "";
      return [`${drawn.length > 1 ? `${name} ` : ""}${format.value(point.value)}${smooth}`];
    });
    const frame = drawn.length ? nearest(drawn.at(-1).points, pointed)?.frame ?? pointed : pointed;
    return `frame ${format.count(Math.round(frame))}: ${texts.toReversed().join(", ") || "no value"}`;
  }

  #frameAt(px) {
    const { first, last, width } = this.#scale;
    return first + (Math.max(0, Math.min(px - LEFT, width - LEFT - RIGHT)) / (width - LEFT - RIGHT)) * (last - first);
  }

  #listen() {
    const { canvas, charts } = this, at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.#scale) return;
      canvas.setPointerCapture(event.pointerId);
      this.#drag = [at(event), at(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.#scale) return;
      if (this.#drag) this.#drag[1] = at(event);
      charts.point(this.#frameAt(at(event)));
    });
    const end = () => {
      const drag = this.#drag;
      this.#drag = null;
      if (drag && Math.abs(drag[1] - drag[0]) > NEAR_PX) charts.zoom(drag.map((px) => this.#frameAt(px)).sort((a, b) => a - b));
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", () => (this.#drag = null));
    canvas.addEventListener("pointerleave", () => this.#drag || charts.point(null));
    canvas.addEventListener("blur", () => charts.point(null));
    canvas.addEventListener("dblclick", () => charts.zoom(null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("wheel", (event) => {
      if (!this.#scale || !event.ctrlKey) return; // the wheel alone moves the panel
      event.preventDefault();
      const middle = this.#frameAt(at(event)), factor = Math.exp(event.deltaY * 0.01), { first, last } = this.#scale;
      charts.zoom([middle - (middle - first) * factor, middle + (last - middle) * factor]);
    }, { passive: false });
  }

  #key(event) {
    if (!this.#scale) return;
    const { first, last } = this.#scale, step = Math.max((last - first) / 100, 1);
    const by = { ArrowLeft: -step, ArrowRight: step }[event.key];
    if (!by && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    if (!by) return void (this.charts.point(null), this.charts.zoom(null));
    this.#keyed = Math.max(first, Math.min((this.#keyed ?? last) + by, last));
    this.charts.point(this.#keyed);
  }
}

/** First and last frame of all curves. */
function wholeRange(runs) {
  let first = Infinity, last = -Infinity;
  for (const run of runs) {
    for (const { frames } of run.values()) {
      for (const frame of frames) {
        if (frame < first) first = frame;
        if (frame > last) last = frame;
      }
    }
  }
  return first > last ? [0, 1] : [first, last];
}

/**
 * Points of a curve in a range by frame, with an exponential mean of the values up to there.
 *
 * The mean is divided by the weight that its values have had so far, or it would begin near 0.
 */
export function pointsOf({ frames, values }, [first, last], smoothing) {
  const order = frames.map((_, k) => k).sort((a, b) => frames[a] - frames[b]); // frames that overlap end out of order
  const points = [];
  let sum = 0, weight = 0;
  for (const k of order) {
    const value = values[k];
    if (value !== null) {
      sum = smoothing * sum + (1 - smoothing) * value;
      weight = smoothing * weight + (1 - smoothing);
    }
    if (frames[k] >= first && frames[k] <= last) points.push({ frame: frames[k], value, smooth: value === null ? null : sum / weight });
  }
  return points;
}

function limits(points, isLog) {
  let low = Infinity, high = -Infinity;
  for (const { value } of points) {
    if (value === null || (isLog && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return isLog ? [0.1, 1] : [0, 1];
  if (low < high) return [low, high];
  return isLog ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 0.5), high + (Math.abs(high) / 10 || 0.5)];
}

/** The values pale, as a range for each column of pixels, and their mean on top. */
function stroke(context, { points, colour }, { x, y }, { isLog, smoothing }) {
  const columns = new Map();
  for (const { frame, value, smooth } of points) {
    if (value === null || (isLog && (value <= 0 || smooth <= 0))) continue;
    const at = Math.round(x(frame)), column = columns.get(at);
    if (!column) columns.set(at, { at, least: value, most: value, sum: smooth, count: 1 });
    else {
      column.least = Math.min(column.least, value);
      column.most = Math.max(column.most, value);
      column.sum += smooth;
      column.count += 1;
    }
  }
  const all = [...columns.values()];
  const line = (of) => {
    context.beginPath();
    all.forEach((column, k) => (k ? context.lineTo(column.at, y(of(column))) : context.moveTo(column.at, y(of(column)))));
    context.stroke();
  };
  context.strokeStyle = context.fillStyle = colour;
  context.lineJoin = "round";
  context.globalAlpha = 0.35;
  context.lineWidth = 1;
  context.beginPath();
  for (const { at, least, most } of all) {
    context.moveTo(at, y(most));
    context.lineTo(at, Math.max(y(least), y(most) + 1));
  }
  context.stroke();
  if (smoothing) line(({ least, most }) => (isLog ? Math.sqrt(least * most) : (least + most) / 2));
  context.globalAlpha = 1;
  context.lineWidth = 1.6;
  line(({ sum, count }) => sum / count);
  if (all.length === 1) context.fillRect(all[0].at - 1.5, y(all[0].sum / all[0].count) - 1.5, 3, 3);
}

/** What cannot be drawn is marked at the upper edge: a cross for what is not finite, a stroke for what has no logarithm. */
function marks(context, theme, points, { x }, isLog) {
  context.strokeStyle = theme.failed;
  context.lineWidth = 1.6;
  context.beginPath();
  let last = -Infinity;
  for (const { frame, value } of points) {
    if (value !== null && !(isLog && value <= 0)) continue;
    const at = x(frame);
    if (at - last < 3) continue;
    last = at;
    context.moveTo(at - 3, 2);
    context.lineTo(at + 3, value === null ? 8 : 2);
    if (value !== null) continue;
    context.moveTo(at + 3, 2);
    context.lineTo(at - 3, 8);
  }
  context.stroke();
}

/** The point whose frame is nearest; they are in order. */
function nearest(points, frame) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].frame < frame) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1], here = points[low];
  return before && Math.abs(before.frame - frame) < Math.abs(here.frame - frame) ? before : here;
}

/** The frame from which on all values of a curve are not finite; null if the last one is, or there are none. */
export function beganAt(points) {
  let began = null;
  for (let k = points.length - 1; k >= 0 && points[k].value === null; k--) began = points[k].frame;
  return began;
}

/** Where a curve has ended, as from there on it is not finite. */
function breakAt(context, theme, at, height) {
  context.strokeStyle = theme.failed;
  context.lineWidth = 1.6;
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(at, TOP);
  context.lineTo(at, height - BOTTOM);
  context.stroke();
  context.setLineDash([]);
}

function latest(own, bad, began) {
  if (!own || !own.curve.values.length) return "";
  if (began !== null) return `not finite since frame ${format.count(began)}`;
  const text = format.value(own.curve.values.at(-1));
  return bad ? `${text} · ${format.count(bad)} not finite` : text;
}

function axes(context, theme, { width, height, low, high, first, last, isLog, y }) {
  context.font = `10px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const level of [high, isLog ? Math.sqrt(low * high) : (low + high) / 2, low]) {
    const at = Math.round(y(level)) + 0.5;
    context.beginPath();
    context.moveTo(LEFT, at);
    context.lineTo(width - RIGHT, at);
    context.stroke();
    context.fillText(short(level), LEFT - 6, at);
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText(format.count(Math.ceil(first)), LEFT, height - 3);
  context.textAlign = "right";
  context.fillText(`frame ${format.count(Math.floor(last))}`, width - RIGHT, height - 3);
}

function short(number) {
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-2 || size >= 1e5)) return number.toExponential(0);
  return number.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}
