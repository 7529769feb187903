// Views of one value: histogram, histograms over time, pictures, a line. Each draws on a canvas that it is given.

import * as format from "./format.js";

const GAP = 4;
/** CSS pixels: what a picture of several may be wide, one alone high, and what a chart is high below its upper edge. */
const TILE = 84, TALLEST = 280, BOTTOM = 16;

/** Set a canvas up to be drawn on in CSS pixels. */
function begin(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2), width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

function ends(context, theme, { left, right, width, height }) {
  context.font = `10px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.textAlign = "left";
  context.fillText(left, 0, height - 3);
  context.textAlign = "right";
  context.fillText(right, width, height - 3);
}

/** A label over what is drawn. */
function label(context, theme, text, y) {
  context.textAlign = "left";
  context.fillStyle = theme.surface;
  context.globalAlpha = 0.8;
  context.fillRect(0, y - 9, context.measureText(text).width + 5, 12);
  context.globalAlpha = 1;
  context.fillStyle = theme.muted;
  context.fillText(text, 2, y);
}

/** Place of each bar of a histogram, CSS pixels. */
export function bars({ counts }, isLog, width, height) {
  const bend = isLog ? Math.log1p : (count) => count;
  const most = Math.max(...counts.map(bend), 1), step = width / counts.length, floor = height - BOTTOM;
  return counts.map((count, i) => {
    const size = (bend(count) / most) * (floor - 4);
    return { x: i * step, y: floor - size, width: Math.max(step - 1, 1), height: size };
  });
}

export function drawHistogram(canvas, histogram, theme, { isLog, pointed }) {
  const { context, width, height } = begin(canvas);
  if (!width || !histogram) return;
  context.fillStyle = theme.line;
  context.fillRect(0, height - BOTTOM, width, 1);
  bars(histogram, isLog, width, height).forEach((bar, i) => {
    context.fillStyle = i === pointed ? theme.hot : theme.accent;
    context.fillRect(bar.x, bar.y, bar.width, bar.height);
  });
  ends(context, theme, { left: format.value(histogram.low), right: format.value(histogram.high), width, height });
}

/** A column per sample, the newest on the right: the darker, the more elements are there. */
export function drawHistory(canvas, samples, most, theme) {
  const { context, width, height } = begin(canvas);
  const drawn = samples.filter(({ histogram }) => histogram);
  if (!width || !drawn.length) return;
  const low = Math.min(...drawn.map(({ histogram }) => histogram.low)), high = Math.max(...drawn.map(({ histogram }) => histogram.high));
  const rows = height - BOTTOM, image = new ImageData(most, rows);
  const colour = [1, 3, 5].map((at) => parseInt(theme.accent.slice(at, at + 2), 16));
  drawn.forEach(({ histogram }, k) => {
    const column = most - drawn.length + k, { counts } = histogram, peak = Math.max(...counts, 1);
    const scale = counts.length / (histogram.high - histogram.low);
    for (let row = 0; row < rows; row++) {
      const value = high - ((row + 0.5) / rows) * (high - low), bin = Math.floor((value - histogram.low) * scale);
      const count = counts[bin] ?? 0, at = 4 * (row * most + column);
      image.data.set(colour, at);
      image.data[at + 3] = count ? 40 + 215 * Math.sqrt(count / peak) : 0;
    }
  });
  context.imageSmoothingEnabled = false;
  context.drawImage(asCanvas(image), 0, 0, width, rows);
  context.fillStyle = theme.line;
  context.fillRect(0, rows, width, 1);
  ends(context, theme, { left: `frame ${format.count(drawn[0].frame)}`, right: format.count(drawn.at(-1).frame), width, height });
  label(context, theme, format.value(high), 10);
  label(context, theme, format.value(low), rows - 3);
}

/** The brightness of a level from 1 to 255. */
export function grey(level) {
  return Math.round(((level - 1) * 255) / 254);
}

/** Pictures side by side, the channels of an image in a row; each element a square of whole pixels; red is what is not finite. */
export function drawPicture(canvas, view, room, theme) {
  const { count, each, height, width, channels } = view, levels = Uint8Array.from(atob(view.levels), (letter) => letter.charCodeAt(0));
  const wide = each > 1 ? (room + GAP) / each - GAP : count > 1 ? Math.min(TILE, room) : room;
  const scale = Math.max(1, Math.min(Math.floor(wide / width), Math.floor(TALLEST / height)));
  const columns = each > 1 ? each : Math.max(1, Math.min(count, Math.floor((room + GAP) / (scale * width + GAP))));
  canvas.width = columns * (scale * width + GAP) - GAP;
  canvas.height = Math.ceil(count / columns) * (scale * height + GAP) - GAP;
  canvas.style.width = `${Math.min(canvas.width, room)}px`;
  const bad = [1, 3, 5].map((at) => parseInt(theme.failed.slice(at, at + 2), 16));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  for (let k = 0; k < count; k++) {
    const image = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const at = (k * width * height + i) * channels, own = [0, 1, 2].map((c) => levels[at + (channels === 3 ? c : 0)]);
      image.data.set(own.includes(0) ? bad : own.map(grey), 4 * i);
      image.data[4 * i + 3] = 255;
    }
    const x = (k % columns) * (scale * width + GAP), y = Math.floor(k / columns) * (scale * height + GAP);
    context.drawImage(asCanvas(image), x, y, scale * width, scale * height);
  }
  return { scale, columns, gap: GAP };
}

/** A vector from left to right; of a long one, what lies between the smallest and the largest elements of its parts. */
export function drawLine(canvas, { low, high, size }, theme) {
  const { context, width, height } = begin(canvas);
  const known = [...low, ...high].filter((each) => each !== null);
  if (!width || !known.length) return;
  const least = known.reduce((a, b) => Math.min(a, b)), most = known.reduce((a, b) => Math.max(a, b));
  const x = (i) => ((i + 0.5) / low.length) * width, y = (value) => 4 + (1 - (value - least) / (most - least || 1)) * (height - BOTTOM - 6);
  context.strokeStyle = context.fillStyle = theme.accent;
  context.lineWidth = 1.3;
  context.lineJoin = "round";
  context.beginPath();
  let isDown = false;
  low.forEach((value, i) => {
    if (value === null) return void (isDown = false);
    context[isDown ? "lineTo" : "moveTo"](x(i), y((value + high[i]) / 2));
    isDown = true;
  });
  context.stroke();
  context.globalAlpha = 0.35;
  low.forEach((value, i) => value === null || context.fillRect(x(i) - width / low.length / 2, y(high[i]), width / low.length, y(value) - y(high[i])));
  context.globalAlpha = 1;
  ends(context, theme, { left: "0", right: format.count(size - 1), width, height });
  label(context, theme, format.value(most), 10);
  label(context, theme, format.value(least), height - BOTTOM - 3);
}

function asCanvas(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
