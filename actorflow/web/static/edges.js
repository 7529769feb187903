// Draws the edges. Very many are drawn once into a picture, which stands for them until the camera rests elsewhere.

import * as format from "./format.js";
import { gauge } from "./gauge.js";
import { BLOB, VARIABLE } from "./structure.js";

const SHAPE_SCALE = 0.16, ARROW_SCALE = 0.45, LABEL_SCALE = 0.62;
const LONG_EDGE = 420;
const MAX_DASHED_PX = 2500;
/** How far an edge that goes back up swings out to the right. */
const BOW = 90;
/** Fewer are drawn anew each time. */
const FEW = 2500;
/** For so long the camera must rest before many edges are drawn anew. */
const REST_MS = 120;

export class EdgePainter {
  #picture = document.createElement("canvas");
  #drawnFor = "";
  #drawnFrom = null;
  #wanted = "";
  #wantedSince = 0;

  constructor(camera, model, view, theme) {
    Object.assign(this, { camera, model, view, theme });
  }

  reset() {
    this.#drawnFor = "";
  }

  /** @returns {boolean} whether a picture from elsewhere stands for the edges, so that it should be drawn again soon */
  draw(context, ratio, seen, now, strength) {
    const { view, camera } = this;
    if (view.edges.length <= FEW) {
      this.#paint(context, seen, strength);
      return false;
    }
    const { width, height } = context.canvas;
    // Labels say what waits, of which there is news now and then.
    const news = camera.scale >= LABEL_SCALE ? this.model.vitals?.time : 0;
    const key = [view.version, camera.x, camera.y, camera.scale, width, height, strength, news].join();
    if (key !== this.#drawnFor) {
      if (key !== this.#wanted) [this.#wanted, this.#wantedSince] = [key, now];
      const known = this.#drawnFor && this.#drawnFor.split(",", 1)[0] === String(view.version);
      if (!known || now - this.#wantedSince >= REST_MS) this.#take(key, width, height, ratio, seen, strength);
    }
    const from = this.#drawnFrom;
    const zoom = camera.scale / from.scale;
    context.setTransform(
      zoom, 0, 0, zoom,
      (width / 2) * (1 - zoom) + ratio * (from.x - camera.x) * camera.scale,
      (height / 2) * (1 - zoom) + ratio * (from.y - camera.y) * camera.scale,
    );
    context.drawImage(this.#picture, 0, 0);
    camera.apply(context, ratio);
    return key !== this.#drawnFor;
  }

  #take(key, width, height, ratio, seen, strength) {
    const { camera } = this;
    if (this.#picture.width !== width) this.#picture.width = width;
    if (this.#picture.height !== height) this.#picture.height = height;
    const context = this.#picture.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    camera.apply(context, ratio);
    this.#paint(context, seen, strength);
    this.#drawnFor = key;
    this.#drawnFrom = { x: camera.x, y: camera.y, scale: camera.scale };
  }

  #paint(context, seen, strength) {
    const { view, camera, theme } = this;
    const fine = camera.scale >= SHAPE_SCALE;
    const paths = Object.fromEntries(["near", "far", "up", "farUp", "heads", "rank", "device"].map((name) => [name, new Path2D()]));
    // A dash costs as much as a line, seen or not: what is too small to show dashes or far too long gets none.
    const dashed = fine ? MAX_DASHED_PX / camera.scale : 0;
    const labelled = [];
    for (const edge of view.edges) {
      const { from, to, back } = edge;
      const x1 = view.x[from], y1 = view.y[from], x2 = view.x[to], y2 = view.y[to];
      if (Math.max(y1, y2) < seen.top || Math.min(y1, y2) > seen.bottom) continue;
      if (Math.max(x1, x2) + (back ? 2 * BOW : 0) < seen.left || Math.min(x1, x2) > seen.right) continue;
      let path = y2 - y1 > LONG_EDGE ? paths.far : paths.near;
      if (edge.rank) path = paths.rank;
      else if (edge.device) path = paths.device;
      else if (back) path = y1 - y2 < dashed ? paths.up : paths.farUp;
      this.#trace(path, edge, fine);
      if (camera.scale >= ARROW_SCALE && !back) arrow(paths.heads, x2, y2 - view.height[to] / 2);
      // A blob says its shape itself.
      const isSilent = [view.kind[from], view.kind[to]].some((kind) => kind === BLOB || kind === VARIABLE);
      if (camera.scale >= LABEL_SCALE && (edge.rank || !isSilent)) labelled.push(edge);
    }
    const pen = (colour, alpha, width) => {
      context.strokeStyle = context.fillStyle = colour;
      context.globalAlpha = alpha * strength;
      context.lineWidth = width;
    };
    const thin = Math.max(1.3, 0.55 / camera.scale);
    pen(theme.edge, fine ? 0.85 : 0.4, thin);
    context.stroke(paths.near);
    context.fill(paths.heads);
    // An edge across many layers ties, for instance, a weight to its update: it must not drown the flow.
    pen(theme.edge, fine ? 0.3 : 0.15, thin);
    context.stroke(paths.far);
    pen(theme["variable-line"], fine ? 0.3 : 0.15, thin);
    context.stroke(paths.farUp);
    context.setLineDash([5 / camera.scale, 4 / camera.scale]);
    context.stroke(paths.up);
    pen(theme.copy, 0.9, thin);
    context.stroke(paths.device);
    context.setLineDash([]);
    pen(theme.channel, 0.9, 2 * thin);
    context.stroke(paths.rank);
    for (const edge of labelled) this.#label(context, edge, strength);
    context.globalAlpha = 1;
  }

  /** What an edge carries, and who waits for it. */
  describe(edge) {
    const waits = edge.rank ? this.view.blobsOf(edge).flatMap((blob) => this.model.occupancy.waitsOf(blob, this.#rankOf(edge.to))) : [];
    return [this.#carried(edge), ...waits].join(", ");
  }

  /** Shape and size of what an edge carries. */
  #carried(edge) {
    const { from, to, rank } = edge, { nodes } = this.model;
    const carried = this.view.blobsOf(edge);
    const sizes = carried.map((blob) => nodes[blob].bytes), isOpen = sizes.includes(null);
    const bytes = format.bytes(isOpen ? null : sizes.reduce((sum, size) => sum + (size ?? 0), 0));
    const what = carried.length === 1 ? format.shape(nodes[carried[0]].shape) : `${format.count(carried.length)} blobs`;
    const ranks = rank ? `rank ${this.#rankOf(from)} → ${this.#rankOf(to)}, ` : "";
    return `${ranks}${what}, ${bytes}`;
  }

  #rankOf(item) {
    const { model, view } = this;
    let subject = view.subject[item];
    while (model.isScope(subject)) {
      const scope = subject - model.count, inner = model.scopes.children[scope][0];
      subject = model.scopes.members[scope][0] ?? model.count + inner;
    }
    return model.nodes[subject].rank;
  }

  #label(context, edge, strength) {
    const { view, theme } = this;
    const x1 = view.x[edge.from], x2 = view.x[edge.to];
    const y1 = view.y[edge.from] + view.height[edge.from] / 2, y2 = view.y[edge.to] - view.height[edge.to] / 2;
    const bow = Math.max(x1 + view.width[edge.from] / 2, x2 + view.width[edge.to] / 2) + BOW * 0.75;
    const { occupancy } = this.model, used = edge.rank ? occupancy.messages(view.blobsOf(edge), this.#rankOf(edge.to)) : 0;
    // With a gauge below it, both fit between two rows.
    const x = edge.back ? bow : (x1 + x2) / 2, y = (y1 + y2) / 2 - (used ? 5 : 0);
    const text = this.#carried(edge);
    context.font = `500 10px ${theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const width = context.measureText(text).width + 8;
    context.globalAlpha = 0.9 * strength;
    context.fillStyle = theme.page;
    context.fillRect(x - width / 2, y - 7, width, 14);
    context.fillStyle = edge.rank ? theme.channel : theme.muted;
    context.fillText(text, x, y + 0.5);
    if (used) gauge(context, theme, x, y + 14, { used, of: Math.max(occupancy.most, used) });
  }

  /** Draw some edges again, over the others. */
  highlight(context, edges, colour) {
    const { camera, view } = this;
    const path = new Path2D(), heads = new Path2D();
    for (const edge of edges) {
      this.#trace(path, edge, true);
      if (!edge.back) arrow(heads, view.x[edge.to], view.y[edge.to] - view.height[edge.to] / 2);
    }
    context.strokeStyle = context.fillStyle = colour;
    context.globalAlpha = 1;
    context.lineWidth = Math.max(2, 1.3 / camera.scale);
    context.stroke(path);
    if (camera.scale >= ARROW_SCALE) context.fill(heads);
  }

  #trace(path, { from, to, back }, curved) {
    const { view } = this;
    const x1 = view.x[from], x2 = view.x[to];
    if (back) {
      // From the side of the writer up to the side of what it writes, as for the next frame.
      const side1 = x1 + view.width[from] / 2, side2 = x2 + view.width[to] / 2;
      const bow = Math.max(side1, side2) + BOW;
      path.moveTo(side1, view.y[from]);
      path.bezierCurveTo(bow, view.y[from], bow, view.y[to], side2, view.y[to]);
      return;
    }
    const y1 = view.y[from] + view.height[from] / 2, y2 = view.y[to] - view.height[to] / 2;
    path.moveTo(x1, y1);
    if (!curved || x1 === x2) path.lineTo(x2, y2);
    else {
      const bend = Math.min(Math.max((y2 - y1) / 2, 12), 140);
      path.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
    }
  }
}

function arrow(path, x, y) {
  path.moveTo(x, y);
  path.lineTo(x - 3.6, y - 6.5);
  path.lineTo(x + 3.6, y - 6.5);
  path.closePath();
}
