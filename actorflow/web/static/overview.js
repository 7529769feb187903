// The whole graph, small, in a corner: shows where one looks, and takes one elsewhere.

import { Specks } from "./specks.js";

const MAX_WIDTH = 170, MAX_HEIGHT = 230, MARGIN = 8, SHARPNESS = 2;
/** The picture behind the frame is drawn anew at most so often. */
const INTERVAL_MS = 400;

export class Overview {
  #context;
  #picture = document.createElement("canvas");
  #specks = new Specks();
  #drawnAt = -Infinity;

  /** @param {() => void} onMove called after a click or drag has moved the camera */
  constructor(canvas, camera, view, colouring, theme, onMove) {
    Object.assign(this, { canvas, camera, view, colouring, theme });
    this.#context = canvas.getContext("2d");
    const go = (event) => {
      if (!(event.buttons & 1)) return;
      const box = canvas.getBoundingClientRect();
      const { left, top } = this.bounds;
      camera.x = left + (event.clientX - box.left - MARGIN) / this.scale;
      camera.y = top + (event.clientY - box.top - MARGIN) / this.scale;
      onMove();
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    canvas.addEventListener("pointermove", go);
  }

  /** Take a new picture's measures. */
  reset() {
    this.bounds = this.view.bounds();
    const { left, top, right, bottom } = this.bounds;
    this.scale = Math.min(MAX_WIDTH / (right - left), MAX_HEIGHT / (bottom - top));
    this.width = Math.max(Math.ceil((right - left) * this.scale) + 2 * MARGIN, 40);
    this.height = Math.max(Math.ceil((bottom - top) * this.scale) + 2 * MARGIN, 40);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    for (const canvas of [this.canvas, this.#picture]) {
      canvas.width = SHARPNESS * this.width;
      canvas.height = SHARPNESS * this.height;
    }
    this.#drawnAt = -Infinity;
  }

  draw(now) {
    const { view, camera, theme } = this, context = this.#context;
    const seen = camera.view(), { left, top, right, bottom } = this.bounds;
    // All of it is seen anyway.
    this.canvas.hidden = !view.count || (seen.left <= left && seen.top <= top && seen.right >= right && seen.bottom >= bottom);
    if (this.canvas.hidden) return;
    if (now - this.#drawnAt > INTERVAL_MS) {
      this.#drawnAt = now;
      this.#paint();
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.#picture, 0, 0);
    context.setTransform(SHARPNESS, 0, 0, SHARPNESS, 0, 0);
    const [x1, y1] = this.#at(Math.max(seen.left, left), Math.max(seen.top, top));
    const [x2, y2] = this.#at(Math.min(seen.right, right), Math.min(seen.bottom, bottom));
    context.strokeStyle = theme.accent;
    context.lineWidth = 1.5;
    context.fillStyle = `color-mix(in srgb, ${theme.accent} 10%, transparent)`;
    context.beginPath();
    context.roundRect(x1 - 2, y1 - 2, Math.max(x2 - x1, 0) + 4, Math.max(y2 - y1, 0) + 4, 3);
    context.fill();
    context.stroke();
  }

  #paint() {
    const { view, theme } = this, context = this.#picture.getContext("2d");
    context.setTransform(SHARPNESS, 0, 0, SHARPNESS, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.fillStyle = theme.box;
    context.strokeStyle = theme.line;
    for (const box of view.boxes) {
      const [x, y] = this.#at(box.left, box.top);
      context.fillRect(x, y, box.width * this.scale, box.height * this.scale);
      context.strokeRect(x, y, box.width * this.scale, box.height * this.scale);
    }
    context.fillStyle = theme["stage-line"];
    for (const { left, top, width, height } of view.attached) {
      const [x, y] = this.#at(left, top);
      context.fillRect(x, y, Math.max(width * this.scale, 1.2), Math.max(height * this.scale, 1.2));
    }
    this.#specks.begin(SHARPNESS * this.width, SHARPNESS * this.height);
    for (let i = 0; i < view.count; i++) {
      const w = SHARPNESS * Math.max((view.width[i] * this.scale) / 2, 0.6), h = SHARPNESS * Math.max((view.height[i] * this.scale) / 2, 0.6);
      const [x, y] = this.#at(view.x[i], view.y[i]).map((place) => SHARPNESS * place);
      this.#specks.add(x - w, y - h, x + w, y + h, this.colouring.of(view.subject[i]));
    }
    this.#specks.draw(context);
  }

  #at(x, y) {
    return [MARGIN + (x - this.bounds.left) * this.scale, MARGIN + (y - this.bounds.top) * this.scale];
  }
}
