// The whole graph, small, in a corner: shows where one looks, and takes one elsewhere.

const MAX_WIDTH = 170, MAX_HEIGHT = 230, MARGIN = 8;

export class Overview {
  #context;

  /** @param {() => void} onMove called after a click or drag has moved the camera */
  constructor(canvas, camera, model, theme, drawing, onMove) {
    Object.assign(this, { canvas, camera, model, theme, drawing });
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

  /** Take a new graph's measures. */
  reset() {
    this.bounds = this.model.bounds();
    const { left, top, right, bottom } = this.bounds;
    this.scale = Math.min(MAX_WIDTH / (right - left), MAX_HEIGHT / (bottom - top));
    const width = Math.ceil((right - left) * this.scale) + 2 * MARGIN;
    const height = Math.ceil((bottom - top) * this.scale) + 2 * MARGIN;
    this.width = Math.max(width, 40);
    this.height = Math.max(height, 40);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = 2 * this.width;
    this.canvas.height = 2 * this.height;
  }

  draw() {
    const { model, camera, theme } = this, context = this.#context;
    const view = camera.view(), { left, top, right, bottom } = this.bounds;
    // All of it is seen anyway.
    this.canvas.hidden = !model.count || (view.left <= left && view.top <= top && view.right >= right && view.bottom >= bottom);
    if (this.canvas.hidden) return;
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const at = (x, y) => [MARGIN + (x - left) * this.scale, MARGIN + (y - top) * this.scale];
    for (let i = 0; i < model.count; i++) {
      const width = Math.max(model.width(i) * this.scale, 1.2), height = Math.max(model.height(i) * this.scale, 1.2);
      const [x, y] = at(model.x[i], model.y[i]);
      context.fillStyle = this.drawing.colour(i);
      context.fillRect(x - width / 2, y - height / 2, width, height);
    }
    const [x1, y1] = at(Math.max(view.left, left), Math.max(view.top, top));
    const [x2, y2] = at(Math.min(view.right, right), Math.min(view.bottom, bottom));
    context.strokeStyle = theme.accent;
    context.lineWidth = 1.5;
    context.fillStyle = `color-mix(in srgb, ${theme.accent} 10%, transparent)`;
    context.beginPath();
    context.roundRect(x1 - 2, y1 - 2, Math.max(x2 - x1, 0) + 4, Math.max(y2 - y1, 0) + 4, 3);
    context.fill();
    context.stroke();
  }
}
