// Where one looks at the drawing from, and the gestures that move it: drag, wheel, pinch, keys.

import { roomIn } from "./arrange.js";

const MIN_SCALE = 0.004, MAX_SCALE = 4;
const CLICK_SLOP_PX = 5;

export class Camera {
  scale = 1;
  /** World coordinates of the middle of the screen. */
  x = 0;
  y = 0;
  width = 1;
  height = 1;

  toWorld(px, py) {
    return [this.x + (px - this.width / 2) / this.scale, this.y + (py - this.height / 2) / this.scale];
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, (y - this.y) * this.scale + this.height / 2];
  }

  /** The part of the world that is seen. */
  view() {
    const [left, top] = this.toWorld(0, 0);
    const [right, bottom] = this.toWorld(this.width, this.height);
    return { left, top, right, bottom };
  }

  panBy(dx, dy) {
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
  }

  /** Zoom so that the place under (px, py) stays there. */
  zoomBy(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.toWorld(px, py);
    this.scale = Math.min(Math.max(this.scale * factor, MIN_SCALE), MAX_SCALE);
    this.x = x - (px - this.width / 2) / this.scale;
    this.y = y - (py - this.height / 2) / this.scale;
  }

  fit({ left, top, right, bottom }) {
    const room = roomIn(this);
    const scale = Math.min(room.width / (right - left), room.height / (bottom - top));
    this.scale = Math.min(Math.max(scale, MIN_SCALE), 1.25);
    this.x = (left + right) / 2 + (this.width / 2 - room.x) / this.scale;
    this.y = (top + bottom) / 2 + (this.height / 2 - room.y) / this.scale;
  }

  /** Draw in world coordinates from now on. */
  apply(context, ratio) {
    const zoom = ratio * this.scale;
    context.setTransform(
      zoom, 0, 0, zoom,
      ratio * (this.width / 2 - this.x * this.scale), ratio * (this.height / 2 - this.y * this.scale),
    );
  }

  /** Bring a place into the middle, near enough to read it. */
  goTo(x, y) {
    this.x = x;
    this.y = y;
    this.scale = Math.min(Math.max(this.scale, 0.9), 1.6);
  }
}

/**
 * Lets the pointer and the keys move a camera.
 *
 * @param {HTMLElement} element
 * @param {Camera} camera
 * @param {{moved: () => void, clicked: (px: number, py: number) => void, pointed: (px: number, py: number) => void,
 *   opened: (px: number, py: number) => void, left: () => void}} on
 */
export function attachGestures(element, camera, on) {
  const pointers = new Map();
  let travelled = 0;

  const place = (event) => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const spread = () => {
    const [a, b] = pointers.values();
    return { distance: Math.hypot(a.x - b.x, a.y - b.y), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  };

  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, place(event));
  });

  element.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) return on.pointed(now.x, now.y);
    travelled += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (pointers.size === 1) {
      pointers.set(event.pointerId, now);
      if (travelled < CLICK_SLOP_PX) return;
      element.classList.add("dragging");
      camera.panBy(now.x - before.x, now.y - before.y);
    } else if (pointers.size === 2) {
      const old = spread();
      pointers.set(event.pointerId, now);
      const pinch = spread();
      camera.panBy(pinch.x - old.x, pinch.y - old.y);
      if (old.distance > 0) camera.zoomBy(pinch.distance / old.distance, pinch.x, pinch.y);
    }
    on.moved();
  });

  const release = (event) => {
    const last = pointers.get(event.pointerId);
    if (!pointers.delete(event.pointerId)) return;
    element.classList.remove("dragging");
    if (event.type === "pointerup" && !pointers.size && travelled < CLICK_SLOP_PX) on.clicked(last.x, last.y);
  };
  element.addEventListener("pointerup", release);
  element.addEventListener("pointercancel", release);
  element.addEventListener("pointerleave", on.left);
  element.addEventListener("dblclick", (event) => {
    const { x, y } = place(event);
    on.opened(x, y);
  });

  element.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, y } = place(event);
    const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1);
    // A trackpad's pinch arrives as a wheel with ctrlKey, in finer steps.
    camera.zoomBy(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0016)), x, y);
    on.moved();
  }, { passive: false });

  const keys = {
    ArrowLeft: () => camera.panBy(60, 0),
    ArrowRight: () => camera.panBy(-60, 0),
    ArrowUp: () => camera.panBy(0, 60),
    ArrowDown: () => camera.panBy(0, -60),
    "+": () => camera.zoomBy(1.3),
    "=": () => camera.zoomBy(1.3),
    "-": () => camera.zoomBy(1 / 1.3),
  };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
    on.moved();
  });
}
