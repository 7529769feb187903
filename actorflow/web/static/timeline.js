// The timeline: what ran when, on which lane, in which frame. It follows the latest call until one drags it.

import { element } from "./dom.js";
import * as format from "./format.js";
import { cut } from "./text.js";

const AXIS = 20, BAR = 15, LANE_GAP = 7;
const MIN_SPAN_S = 2e-6, MAX_SPAN_S = 600;
const CLICK_SLOP_PX = 4;
/** Width of a failed call, at least, and what its stripes are apart, in pixels. */
const MIN_FAILED = 3, STRIPE = 5;
/** What names have, of a wide and of a narrow screen. */
const WIDE_GUTTER = 132, NARROW_GUTTER = 76, NARROW = 560;
/** Share of the width that is left free behind the latest call. */
const MARGIN = 0.02;
/** Frames that are shown at first, however long they take and however far they are apart. */
const FEW_FRAMES = 6;
/** Sums that are shown of a range. */
const MOST_SUMS = 12;
/** Calls that an arrow is looked for in: those of one frame lie close together. */
const MOST_LOOKED_AT = 20000;

export class Timeline {
  #context;
  /** Seconds that are shown, and the time at the right end; following, that is where the latest call ended. */
  span = 1;
  #right = 0;
  following = true;
  /** Whether dragging sums up a range, and does not move. */
  picks = false;
  selected = -1;
  #drawn = [];
  #requests = { top: 0, height: 0 };
  #fitted = false;
  #scroll = 0;
  #contentHeight = 0;
  #gutter = WIDE_GUTTER;
  /** Seconds between which calls are summed up; null for none. @type {[number, number] | null} */
  #range = null;
  /** Call that was clicked, by its number; its inputs and what reads its outputs are pointed out by arrows. */
  #call = -1;

  /**
   * @param {{canvas: HTMLCanvasElement, tooltip: HTMLElement, live: HTMLElement, sums: HTMLElement}} parts
   * @param {{changed: () => void, chosen: (node: number) => void}} on
   */
  constructor({ canvas, tooltip, live, sums }, calls, model, theme, on) {
    Object.assign(this, { canvas, tooltip, live, sums, calls, model, theme, on });
    this.#context = canvas.getContext("2d");
    this.#listen();
    live.addEventListener("click", () => this.follow());
  }

  follow() {
    this.following = true;
    this.live.setAttribute("aria-pressed", "true");
    this.on.changed();
  }

  #stop() {
    this.#fitted = true;
    this.#right = this.right;
    this.following = false;
    this.live.setAttribute("aria-pressed", "false");
  }

  get right() {
    return this.following ? this.calls.latest + MARGIN * this.span : this.#right;
  }

  get left() {
    return this.right - this.span;
  }

  /** A first look at a few of the newest frames, until there are so many, or the reader has zoomed. */
  #fit() {
    const { calls } = this;
    if (this.#fitted || !calls.frames.size) return;
    this.#fitted = calls.frames.size > FEW_FRAMES;
    const newest = [...calls.frames.values()].slice(-FEW_FRAMES);
    const seconds = calls.latest - Math.min(...newest.map((frame) => frame.start));
    this.span = Math.min(Math.max(seconds / (1 - MARGIN), 1e-4), MAX_SPAN_S);
  }

  /** Bring a frame into view. */
  lookAt({ start, end }) {
    this.#stop();
    this.span = Math.max(this.span, 1.2 * (end - start));
    this.#right = (start + end + this.span) / 2;
    this.on.changed();
  }

  /** Show the time of a node's newest call; for -1 none. */
  select(node) {
    this.selected = node;
    if (this.#call >= 0 && this.calls.node[this.#call % this.calls.start.length] !== node) this.#call = -1;
    this.on.changed();
  }

  /** Bring a node's newest call into view. @returns {boolean} whether there is one */
  show(node) {
    const { calls } = this;
    for (let n = calls.total - 1; n >= calls.total - calls.size; n--) {
      const i = n % calls.start.length;
      if (calls.node[i] !== node) continue;
      this.#stop();
      this.span = Math.max(8 * (calls.end[i] - calls.start[i]), MIN_SPAN_S);
      this.#right = (calls.start[i] + calls.end[i]) / 2 + this.span / 2;
      this.#call = n;
      this.select(node);
      return true;
    }
    return false;
  }

  draw() {
    const { canvas, theme } = this, context = this.#context;
    const ratio = Math.min(devicePixelRatio || 1, 2), width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    this.#gutter = width < NARROW ? NARROW_GUTTER : WIDE_GUTTER;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.#fit();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const lanes = this.#lanes();
    context.save();
    context.beginPath();
    context.rect(0, AXIS, width, height - AXIS);
    context.clip();
    context.translate(0, -this.#scroll);
    this.#rows(lanes, width);
    this.#bars(lanes, width);
    this.#arrows(lanes, width);
    context.restore();
    this.#shade(width, height);
    this.#axis(width, height);
    if (!this.calls.size) {
      context.fillStyle = theme.muted;
      context.textAlign = "center";
      context.font = `12px ${theme.font}`;
      context.fillText("No call has ended yet", width / 2, height / 2);
    }
  }

  /** Where each track begins, and how high it is; frames first. */
  #lanes() {
    const { calls } = this;
    let top = AXIS + LANE_GAP;
    const lane = (name, levels) => {
      const made = { name, top, height: levels * BAR };
      top += levels ? made.height + LANE_GAP : 0;
      return made;
    };
    this.#requests = lane("requests", calls.requests.length ? calls.requestLevels : 0);
    const lanes = [lane("frames", calls.frameLevels), ...calls.tracks.map((name, track) => lane(name, calls.levels[track] ?? 1))];
    this.#contentHeight = top;
    this.#scroll = Math.max(0, Math.min(this.#scroll, top - this.canvas.clientHeight));
    return lanes;
  }

  #rows(lanes, width) {
    const context = this.#context, { theme } = this;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const { name, top, height } of [this.#requests, ...lanes]) {
      if (!height) continue;
      context.fillStyle = theme.track;
      context.fillRect(this.#gutter, top, width - this.#gutter, height);
      context.fillStyle = theme.muted;
      context.fillText(cut(context, name, `500 11px ${theme.font}`, this.#gutter - 18), 12, top + height / 2);
    }
  }

  #x(seconds, width) {
    return this.#gutter + ((seconds - this.left) / this.span) * (width - this.#gutter);
  }

  #bars(lanes, width) {
    const context = this.#context, { calls, theme, left, right } = this;
    this.#drawn = [];
    context.save();
    context.beginPath();
    context.rect(this.#gutter, 0, width - this.#gutter, this.#contentHeight);
    context.clip();
    for (const { start, end, level, frames, outcome } of calls.requests) {
      if (end < left || start > right) continue;
      const error = outcome === "finished" ? null : outcome;
      this.#bar(start, end, this.#requests.top + level * BAR, frames[0] ?? 0, requestText(frames, outcome), -1, width, error);
    }
    for (const [number, frame] of calls.frames) {
      if (frame.end < left || frame.start > right) continue;
      this.#bar(frame.start, frame.end, lanes[0].top + frame.level * BAR, number, calls.frameText(number), -1, width);
    }
    // Of calls that are all within one pixel, one is drawn.
    const filled = lanes.map(() => new Float64Array(16).fill(-1));
    for (const i of calls.kept()) {
      if (calls.end[i] < left || calls.start[i] > right) continue;
      const lane = lanes[calls.track[i] + 1], level = calls.level[i], node = calls.node[i];
      const pixel = Math.floor(this.#x(calls.end[i], width));
      const marks = filled[calls.track[i] + 1], failed = calls.failed[i] > 0;
      // Where one of them has failed, that is the one.
      if (pixel === Math.floor(marks[level]) && node !== this.selected && (!failed || marks[level] > pixel)) continue;
      marks[level] = failed ? pixel + 0.5 : pixel;
      const error = failed ? calls.errorOf(i) : null;
      this.#bar(calls.start[i], calls.end[i], lane.top + level * BAR, calls.frame[i], this.model.nodes[node]?.label ?? "", node, width, error, i);
    }
    context.globalAlpha = 1;
    context.restore();
    context.fillStyle = theme.text;
  }

  #bar(start, end, top, frame, text, node, width, error = null, index = -1) {
    const context = this.#context, { theme } = this;
    const hasFailed = error !== null;
    const x1 = this.#x(start, width), x2 = Math.max(this.#x(end, width), x1 + (hasFailed ? MIN_FAILED : 1));
    const seen1 = Math.max(x1, this.#gutter), seen2 = Math.min(x2, width), room = seen2 - seen1;
    const isSelected = node >= 0 && node === this.selected;
    context.globalAlpha = this.selected >= 0 && node >= 0 && !isSelected ? 0.35 : 1;
    context.fillStyle = hasFailed ? theme.failed : isSelected ? theme.accent : theme.hues[frame % theme.hues.length];
    context.fillRect(seen1, top + 1, room > 3 ? room - 0.5 : room, BAR - 2);
    if (node >= 0) this.#drawn.push({ x1, x2, top, node, frame, start, end, error, index });
    if (room < 34) {
      if (hasFailed) this.#hatch(seen1, top + 1, room, BAR - 2);
      return;
    }
    context.fillStyle = hasFailed ? theme.surface : theme.ink;
    context.font = `10.5px ${theme.font}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    if (hasFailed) text = `✕ ${text}`;
    const share = (room - 8) / context.measureText(text).width;
    const shown = share < 1 ? `${text.slice(0, Math.max(Math.floor(text.length * share) - 1, 1))}…` : text;
    context.fillText(shown, seen1 + 4, top + BAR / 2 + 0.5);
  }

  /** From the calls that have made the inputs of the chosen call, and to those that have read its outputs. */
  #arrows(lanes, width) {
    const { calls, theme } = this, context = this.#context;
    const flows = this.flows;
    if (!flows) return;
    const place = (i, side) => [this.#x(calls[side][i], width), lanes[calls.track[i] + 1].top + calls.level[i] * BAR + BAR / 2];
    context.save();
    context.beginPath();
    context.rect(this.#gutter, 0, width - this.#gutter, this.#contentHeight);
    context.clip();
    context.strokeStyle = context.fillStyle = theme.text;
    context.lineWidth = 1.3;
    for (const [from, to] of [...flows.from.map((i) => [i, flows.call]), ...flows.to.map((i) => [flows.call, i])]) {
      const [x1, y1] = place(from, "end"), [x2, y2] = place(to, "start"), bend = Math.max(Math.abs(x2 - x1) / 2, 18);
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
      context.stroke();
      context.beginPath();
      context.moveTo(x2 + 1, y2);
      context.lineTo(x2 - 6, y2 - 3.5);
      context.lineTo(x2 - 6, y2 + 3.5);
      context.fill();
    }
    context.restore();
  }

  /** Indices of the chosen call, of those before it and of those behind it in its frame; null if none is chosen. */
  get flows() {
    const { calls, model } = this, capacity = calls.start.length;
    if (this.#call < Math.max(0, calls.total - calls.size) || this.#call >= calls.total) return null;
    const call = this.#call % capacity, node = calls.node[call], frame = calls.frame[call];
    const around = (near, far) => new Set([...near.of(node)].flatMap((blob) => [...far.of(blob)]));
    const makers = around(model.writers, model.writers), readers = around(model.readers, model.readers);
    const from = new Map(), to = new Map();
    const first = Math.max(calls.total - calls.size, this.#call - MOST_LOOKED_AT);
    for (let n = first; n < Math.min(calls.total, this.#call + MOST_LOOKED_AT); n++) {
      const i = n % capacity;
      if (calls.frame[i] !== frame || i === call || calls.failed[i]) continue;
      if (makers.has(calls.node[i]) && calls.end[i] <= calls.start[call] + 1e-6) from.set(calls.node[i], i);
      else if (readers.has(calls.node[i]) && calls.start[i] >= calls.end[call] - 1e-6 && !to.has(calls.node[i])) to.set(calls.node[i], i);
    }
    return { call, from: [...from.values()], to: [...to.values()] };
  }

  /** The range whose calls are summed up. */
  #shade(width, height) {
    if (!this.#range) return;
    const context = this.#context, [x1, x2] = this.#range.map((at) => Math.max(this.#gutter, Math.min(this.#x(at, width), width)));
    context.fillStyle = this.theme.accent;
    context.globalAlpha = 0.13;
    context.fillRect(x1, AXIS, x2 - x1, height - AXIS);
    context.globalAlpha = 1;
    context.fillRect(x1, AXIS, 1, height - AXIS);
    context.fillRect(x2, AXIS, 1, height - AXIS);
  }

  /** Sum up what ran between two times; null for nothing. */
  choose(range) {
    this.#range = range && range[1] > range[0] ? range : null;
    this.#showSums();
    this.on.changed();
  }

  /** Time by op and by lane within the range, longest first. */
  get summed() {
    const { calls, model } = this;
    if (!this.#range) return null;
    const [since, until] = this.#range, ops = new Map(), lanes = new Map();
    const add = (sums, name, seconds) => {
      const sum = sums.get(name) ?? { name, seconds: 0, calls: 0 };
      sum.seconds += seconds;
      sum.calls += 1;
      sums.set(name, sum);
    };
    for (const i of calls.kept()) {
      const seconds = Math.min(calls.end[i], until) - Math.max(calls.start[i], since);
      if (seconds < 0 || calls.start[i] >= until) continue;
      add(ops, model.nodes[calls.node[i]]?.name ?? "", seconds);
      add(lanes, calls.tracks[calls.track[i]], seconds);
    }
    const sorted = (sums) => [...sums.values()].sort((a, b) => b.seconds - a.seconds);
    return { seconds: until - since, ops: sorted(ops), lanes: sorted(lanes) };
  }

  #showSums() {
    const summed = this.summed;
    this.sums.hidden = !summed;
    if (!summed) return;
    const table = (title, sums) => {
      const rows = sums.slice(0, MOST_SUMS).map(({ name, seconds, calls }) => element("tr", {},
        element("th", { scope: "row", title: name }, name), element("td", {}, format.duration(seconds * 1e6)),
        element("td", {}, `${((100 * seconds) / summed.seconds).toFixed(0)}%`), element("td", {}, format.count(calls))));
      const head = element("tr", {}, ...[title, "time", "of range", "calls"].map((text) => element("th", { scope: "col" }, text)));
      const more = sums.length > MOST_SUMS ? [element("tr", {}, element("td", { colspan: "4" }, `and ${format.count(sums.length - MOST_SUMS)} more`))] : [];
      return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows, ...more));
    };
    const close = element("button", { type: "button", "aria-label": "Close the sums" }, "×");
    close.addEventListener("click", () => this.choose(null));
    const head = element("div", { class: "node-head" }, element("h3", {}, format.duration(summed.seconds * 1e6)), close);
    this.sums.replaceChildren(head, table("lane", summed.lanes), table("op", summed.ops));
  }

  /** Stripes where no cross has room: the colour alone says nothing to many, and is not far from that of some frame. */
  #hatch(left, top, width, height) {
    const context = this.#context;
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.strokeStyle = this.theme.surface;
    context.globalAlpha *= 0.6;
    context.lineWidth = 1.5;
    context.beginPath();
    for (let x = left - height; x < left + width; x += STRIPE) {
      context.moveTo(x, top + height);
      context.lineTo(x + height, top);
    }
    context.stroke();
    context.restore();
  }

  #axis(width, height) {
    const context = this.#context, { theme, left, span } = this;
    const room = width - this.#gutter, step = niceStep((span * 90) / room);
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, width, AXIS);
    context.font = `10px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    for (let at = Math.ceil(left / step) * step; at < left + span; at += step) {
      const x = Math.round(this.#x(at, width)) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, height);
      context.globalAlpha = 0.5;
      context.stroke();
      context.globalAlpha = 1;
      context.fillStyle = theme.muted;
      context.fillText(stamp(at, step), x, AXIS / 2);
    }
    context.textAlign = "left";
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, this.#gutter, AXIS);
    context.fillStyle = theme.muted;
    context.fillText(format.duration(span * 1e6), 12, AXIS / 2);
  }

  #timeAt(px) {
    return this.left + ((Math.max(px, this.#gutter) - this.#gutter) / (this.canvas.clientWidth - this.#gutter)) * this.span;
  }

  #at(px, py) {
    const y = py + this.#scroll;
    return this.#drawn.findLast(({ x1, x2, top }) => px >= x1 - 1 && px <= x2 + 1 && y >= top && y < top + BAR);
  }

  #zoomBy(factor, px) {
    const pointed = px === undefined ? 0.5 : (px - this.#gutter) / (this.canvas.clientWidth - this.#gutter);
    // Near the latest call, or by key while following, one goes on following.
    const share = this.following && (px === undefined || pointed > 0.97) ? 1 : pointed;
    const at = this.left + share * this.span;
    this.#fitted = true;
    if (share < 1) this.#stop();
    this.span = Math.min(Math.max(this.span / factor, MIN_SPAN_S), MAX_SPAN_S);
    this.#right = at + (1 - share) * this.span;
  }

  #point(px, py) {
    const found = px === null ? undefined : this.#at(px, py);
    this.canvas.classList.toggle("pointing", Boolean(found));
    this.tooltip.hidden = !found;
    if (!found) return;
    const name = this.model.nodes[found.node]?.name ?? "";
    const detail = `${format.duration((found.end - found.start) * 1e6)}, ${this.calls.frameText(found.frame)}`;
    const parts = [element("strong", {}, name), element("span", {}, detail)];
    if (found.error !== null) parts.push(element("span", { class: "bad" }, found.error));
    this.tooltip.replaceChildren(...parts);
    const left = Math.min(px + 14, this.canvas.clientWidth - this.tooltip.offsetWidth - 8);
    const top = Math.max(py - this.tooltip.offsetHeight - 10, 4);
    this.tooltip.style.transform = `translate(${Math.max(left, 8)}px, ${top}px)`;
  }

  #listen() {
    const { canvas } = this;
    let last = null, travelled = 0, begun = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      [last, travelled] = [place(event), 0];
      begun = event.shiftKey || this.picks ? this.#timeAt(last[0]) : null;
      if (begun !== null && this.following) this.#stop();
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      if (!last) return this.#point(...now);
      const [dx, dy] = [now[0] - last[0], now[1] - last[1]];
      travelled += Math.abs(dx) + Math.abs(dy);
      if (travelled < CLICK_SLOP_PX) return;
      if (begun !== null) {
        last = now;
        return this.choose([begun, this.#timeAt(now[0])].sort((a, b) => a - b));
      }
      if (this.following) this.#stop();
      this.#right -= (dx / (canvas.clientWidth - this.#gutter)) * this.span;
      this.#scroll -= dy;
      last = now;
      this.on.changed();
    });
    const release = (event) => {
      if (last && event.type === "pointerup" && travelled < CLICK_SLOP_PX) {
        const found = this.#at(...last);
        if (found) {
          if (this.following) this.#stop(); // or the call would be gone before one has seen what it feeds
          const newest = this.calls.total - 1, capacity = this.calls.start.length;
          this.#call = newest - ((newest - found.index) % capacity);
          this.on.chosen(found.node);
        } else if (begun !== null) this.choose(null);
      }
      last = null;
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1);
      this.#zoomBy(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0016)), place(event)[0]);
      this.on.changed();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const keys = { "+": () => this.#zoomBy(1.4), "=": () => this.#zoomBy(1.4), "-": () => this.#zoomBy(1 / 1.4), l: () => this.follow(), s: () => this.choose([this.left, this.right]), Escape: () => this.#range && this.choose(null) };
      const pan = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey || !(pan || keys[event.key])) return;
      event.preventDefault();
      event.stopPropagation();
      if (pan) {
        if (this.following) this.#stop();
        this.#right += pan * this.span;
      } else keys[event.key]();
      this.on.changed();
    });
  }

  /** For tests: what is drawn, and where. */
  get bars() {
    return this.#drawn.map(({ x1, x2, top, node, frame, error }) => ({
      x: (Math.max(x1, this.#gutter) + Math.min(x2, this.canvas.clientWidth)) / 2, y: top - this.#scroll + BAR / 2, node, frame, error,
    }));
  }
}

function requestText(frames, outcome) {
  const where = frames.length > 1 ? `request in frames ${frames.join(", ")}` : frames.length ? `request in frame ${format.count(frames[0])}` : "request";
  return outcome === "finished" ? where : `${where}: ${outcome}`;
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((step) => step * power >= least) * power;
}

function stamp(seconds, step) {
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step))));
  return `${seconds.toFixed(digits)} s`;
}
