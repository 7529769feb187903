// Draws the edges. Very many are drawn once into a picture, which stands for them until the camera rests elsewhere.

import { TITLE } from "./arrange.js";
import * as format from "./format.js";
import { gauge } from "./gauge.js";
import { placeLabels } from "./labels.js";
import { BLOB, VARIABLE } from "./structure.js";

const SHAPE_SCALE = 0.16, ARROW_SCALE = 0.45, LABEL_SCALE = 0.62;
/** Corners are so round. */
const RADIUS = 7;
const MAX_DASHED_PX = 2500;
/** How far an edge that goes back up swings out to the right. */
const BOW = 90;
const LABEL_HEIGHT = 14;
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
      const { from, to } = edge;
      const x1 = view.x[from], y1 = view.y[from], x2 = view.x[to], y2 = view.y[to];
      if (edge.shared) continue;
      const back = edge.update;
      if (edge.bottom < seen.top || edge.top > seen.bottom || edge.right + 2 * BOW < seen.left || edge.left > seen.right) continue;
      let path = edge.points.length ? paths.near : paths.far;
      if (edge.rank) path = paths.rank;
      else if (edge.device) path = paths.device;
      else if (back) path = Math.abs(y1 - y2) + Math.abs(x1 - x2) < dashed ? paths.up : paths.farUp;
      this.#trace(path, edge, fine);
      if (camera.scale >= ARROW_SCALE && !back) this.#head(paths.heads, edge);
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
    // An edge that keeps to no layers, as there are too many, must not drown the flow.
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
    this.#label(context, labelled, strength);
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

  /** Write on edges what they carry, where that covers nothing. */
  #label(context, edges, strength) {
    const { view, theme } = this, { occupancy } = this.model;
    context.font = `500 11px ${theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const texts = edges.map((edge) => this.#carried(edge));
    const places = this.#placed(edges, texts.map((text) => context.measureText(text).width + 8));
    edges.forEach((edge, k) => {
      const used = edge.rank ? occupancy.messages(view.blobsOf(edge), this.#rankOf(edge.to)) : 0;
      if (used) gauge(context, theme, ...middleOf(edge, view), { used, of: Math.max(occupancy.most, used) });
      if (!places[k]) return;
      const { x, y, width } = places[k];
      context.globalAlpha = 0.9 * strength;
      context.fillStyle = theme.page;
      context.fillRect(x - width / 2, y - LABEL_HEIGHT / 2, width, LABEL_HEIGHT);
      context.fillStyle = edge.rank ? theme.channel : theme.muted;
      context.font = `500 11px ${theme.font}`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(texts[k], x, y + 0.5);
    });
  }

  #places = { key: "", found: [] };

  #placed(edges, widths) {
    const { view } = this, key = [view.version, edges.map(({ from, to }) => `${from}-${to}`), widths.map(Math.round)].join();
    if (key !== this.#places.key) {
      const boxes = Array.from(view.x, (x, i) => ({ x, y: view.y[i], width: view.width[i] + 4, height: view.height[i] + 6 }));
      const titles = view.boxes.map(({ left, top, width }) => ({ x: left + width / 2, y: top + TITLE / 2 + 4, width, height: TITLE }));
      this.#places = { key, found: placeLabels(edges.map(({ points }) => points), widths, LABEL_HEIGHT, [...boxes, ...titles]) };
    }
    return this.#places.found;
  }

  /** Where labels are: rectangles by their middles. */
  get labels() {
    return this.#places.found.filter((place) => place);
  }

  /** Draw some edges again, over the others. */
  highlight(context, edges, colour) {
    const { camera, view } = this;
    const path = new Path2D(), heads = new Path2D();
    for (const edge of edges) {
      this.#trace(path, edge, true);
      if (!edge.update) this.#head(heads, edge);
    }
    context.strokeStyle = context.fillStyle = colour;
    context.globalAlpha = 1;
    context.lineWidth = Math.max(2, 1.3 / camera.scale);
    context.stroke(path);
    if (camera.scale >= ARROW_SCALE) context.fill(heads);
  }

  #trace(path, { from, to, update, points }, curved) {
    const { view } = this, x1 = view.x[from], x2 = view.x[to];
    if (update) {
      // From the side of the writer to the side of what it writes, as for the next frame.
      const side1 = x1 + view.width[from] / 2, side2 = x2 + view.width[to] / 2;
      const bow = Math.max(side1, side2) + BOW;
      path.moveTo(side1, view.y[from]);
      path.bezierCurveTo(bow, view.y[from], bow, view.y[to], side2, view.y[to]);
    } else if (points.length) {
      if (curved) trace(path, points, view.sideways);
      else {
        path.moveTo(points[0], points[1]);
        for (let k = 2; k < points.length; k += 2) path.lineTo(points[k], points[k + 1]);
      }
    } else {
      path.moveTo(x1, view.y[from]);
      path.lineTo(x2, view.y[to]);
    }
  }

  #head(path, { to, points }) {
    const { view } = this, count = points.length;
    const [x, y] = count ? [points[count - 2], points[count - 1]] : [view.x[to] - (view.sideways ? view.width[to] / 2 : 0), view.y[to] - (view.sideways ? 0 : view.height[to] / 2)];
    if (view.sideways) arrow(path, x, y, Math.sign(view.x[to] - x), 0);
    else arrow(path, x, y, 0, Math.sign(view.y[to] - y));
  }
}

function middleOf({ points, from, to }, view) {
  if (!points.length) return [(view.x[from] + view.x[to]) / 2, (view.y[from] + view.y[to]) / 2];
  const at = 2 * Math.floor((points.length / 2 - 1) / 2);
  return [(points[at] + points[at + 2]) / 2, (points[at + 1] + points[at + 3]) / 2];
}

/** Through points: round corners where lines meet at right angles, an S between points that are off both ways. */
function trace(path, points, sideways) {
  path.moveTo(points[0], points[1]);
  for (let k = 2; k < points.length; k += 2) {
    const x0 = points[k - 2], y0 = points[k - 1], x = points[k], y = points[k + 1];
    if (Math.abs(x - x0) > 0.5 && Math.abs(y - y0) > 0.5) {
      const middle = sideways ? (x0 + x) / 2 : (y0 + y) / 2;
      if (sideways) path.bezierCurveTo(middle, y0, middle, y, x, y);
      else path.bezierCurveTo(x0, middle, x, middle, x, y);
      continue;
    }
    const nextX = points[k + 2], nextY = points[k + 3];
    const isCorner = nextX !== undefined && (Math.abs(x - x0) > 0.5 ? Math.abs(nextX - x) <= 0.5 : Math.abs(nextY - y) <= 0.5);
    if (isCorner) {
      const room = Math.min(Math.hypot(x - x0, y - y0), Math.hypot(nextX - x, nextY - y)) / 2;
      path.arcTo(x, y, nextX, nextY, Math.min(RADIUS, room));
    } else path.lineTo(x, y);
  }
}

function arrow(path, x, y, dx, dy) {
  path.moveTo(x, y);
  path.lineTo(x - 6.5 * dx - 3.6 * dy, y - 6.5 * dy - 3.6 * dx);
  path.lineTo(x - 6.5 * dx + 3.6 * dy, y - 6.5 * dy + 3.6 * dx);
  path.closePath();
}
