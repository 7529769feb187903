// Stages of the data pipelines that feed the graph, drawn above the blobs that they feed.

import * as format from "./format.js";
import { cut } from "./text.js";
import { gauge } from "./gauge.js";

const WIDTH = 208, HEIGHT = 54, GAP_X = 30, GAP_Y = 40, DISTANCE = 64;
const TEXT_SCALE = 0.4;

export class Stages {
  /** What is drawn: a box for each stage. */
  boxes = [];
  #lines = [];
  #placed = "";

  constructor(model, view, theme) {
    Object.assign(this, { model, view, theme });
  }

  /** Bring places and numbers up to date. @returns {boolean} whether there are others than before, or elsewhere */
  refresh() {
    const { model, view } = this;
    const pipelines = (model.vitals?.pipelines ?? []).map((pipeline) => ({ ...pipeline, items: this.#fed(pipeline) }));
    const feeding = pipelines.filter(({ items }) => items.length);
    const key = JSON.stringify([view.version, feeding.map(({ items, stages }) => [items, stages.map(({ name, behind }) => [name, behind])])]);
    const isNew = key !== this.#placed, had = this.boxes.length;
    this.#placed = key;
    this.#place(feeding);
    view.attached = this.boxes;
    return isNew && had + this.boxes.length > 0;
  }

  /** Items that show the blobs that a pipeline feeds. */
  #fed({ feeds }) {
    const { model, view } = this;
    const nodes = feeds.map((id) => model.indexById.get(id)).filter((node) => node !== undefined);
    return [...new Set(nodes.map((node) => view.itemOf(node)))].filter((item) => item >= 0);
  }

  #place(feeding) {
    const { view } = this, { top } = view.bounds(false);
    this.boxes = [];
    this.#lines = [];
    let free = -Infinity;
    const middle = ({ items }) => items.reduce((sum, item) => sum + view.x[item], 0) / items.length;
    for (const pipeline of feeding.toSorted((a, b) => middle(a) - middle(b))) {
      const rows = rowsOf(pipeline.stages), widest = Math.max(...rows.map((row) => row.length));
      const half = (widest * (WIDTH + GAP_X)) / 2, x = Math.max(middle(pipeline), free + half);
      free = x + half;
      const boxOf = [];
      rows.forEach((row, level) => row.forEach((number, k) => {
        const left = x + (k - row.length / 2) * (WIDTH + GAP_X) + GAP_X / 2;
        const box = { stage: pipeline.stages[number], left, top: top - DISTANCE - HEIGHT - level * (HEIGHT + GAP_Y), width: WIDTH, height: HEIGHT };
        boxOf[number] = box;
        this.boxes.push(box);
      }));
      pipeline.stages.forEach(({ behind }, number) => {
        for (const source of behind) this.#lines.push([bottomOf(boxOf[source]), [boxOf[number].left + WIDTH / 2, boxOf[number].top]]);
      });
      const last = bottomOf(boxOf.at(-1));
      for (const item of pipeline.items) this.#lines.push([last, [view.x[item], view.y[item] - view.height[item] / 2]]);
      boxOf.at(-1).behind = { used: pipeline.queued, of: pipeline.room };
    }
  }

  /** The stage at a place, or null. */
  at(x, y) {
    return this.boxes.find(({ left, top, width, height }) => x >= left && x <= left + width && y >= top && y <= top + height)?.stage ?? null;
  }

  /** Beneath the graph. */
  drawLines(context, scale) {
    const { theme } = this;
    context.strokeStyle = theme["stage-line"];
    context.lineWidth = Math.max(1.6, 0.8 / scale);
    context.beginPath();
    for (const [[x1, y1], [x2, y2]] of this.#lines) {
      const bend = (y2 - y1) / 2;
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
    }
    context.stroke();
  }

  drawBoxes(context, scale) {
    for (const box of this.boxes) this.#box(context, box, scale);
  }

  #box(context, { stage, left, top, width, height, behind }, scale) {
    const { theme } = this;
    context.beginPath();
    context.roundRect(left, top, width, height, 8);
    context.fillStyle = theme.surface;
    context.fill();
    if (scale < TEXT_SCALE) {
      // Too small for anything else, the colour alone says that a queue is full.
      context.globalAlpha = 0.4;
      context.fillStyle = stage.room && stage.queued >= stage.room ? theme.waiting : theme["stage-line"];
      context.fill();
      context.globalAlpha = 1;
    }
    context.strokeStyle = theme["stage-line"];
    context.lineWidth = 1.4;
    context.stroke();
    context.fillStyle = theme.line;
    context.fillRect(left + 12, top + height - 11, width - 24, 4);
    context.fillStyle = theme["stage-line"];
    context.fillRect(left + 12, top + height - 11, (width - 24) * Math.min(stage.busy, 1), 4);
    if (scale < TEXT_SCALE) return;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = theme.text;
    context.fillText(cut(context, stage.name, `600 12.5px ${theme.font}`, width - 24), left + 12, top + 15);
    context.font = `400 11px ${theme.font}`;
    context.fillStyle = theme.muted;
    context.fillText(stage.kind, left + 12, top + 32);
    context.textAlign = "right";
    context.fillText(`${format.rate(stage.per_s)}/s`, left + width - 12, top + 32);
    if (stage.room) gauge(context, theme, left + width / 2, top, { used: stage.queued, of: stage.room });
    if (behind?.of) gauge(context, theme, left + width / 2, top + height, behind);
  }
}

/** Numbers of stages by their distance from the last one, which is alone. */
function rowsOf(stages) {
  const level = new Array(stages.length).fill(0);
  for (let number = stages.length - 1; number >= 0; number--) {
    for (const source of stages[number].behind) level[source] = Math.max(level[source], level[number] + 1);
  }
  const rows = [];
  level.forEach((at, number) => (rows[at] ??= []).push(number));
  return rows;
}

function bottomOf({ left, top, width, height }) {
  return [left + width / 2, top + height];
}
