// Edges that the reader drags, or moves by arrow keys, to make the panel or the timeline larger. Kept for the next visit.

const STEP = 24;

/**
 * @param {HTMLElement} edge
 * @param {string} property of the style of the document, in pixels
 * @param {{least: number, most: () => number, first: number, from: (event: PointerEvent) => number, grows: string, shrinks: string}} limits
 *   `from` is the size at which the pointer is, `grows` and `shrinks` are the keys
 */
export function resizable(edge, property, { least, most, first, from, grows, shrinks }) {
  const root = document.documentElement;
  let size = Number(remembered(property)) || first;
  const set = (wanted) => {
    size = Math.round(Math.max(least, Math.min(wanted, most())));
    root.style.setProperty(property, `${size}px`);
    for (const [name, value] of [["now", size], ["min", least], ["max", Math.round(most())]]) edge.setAttribute(`aria-value${name}`, String(value));
  };
  const keep = () => remember(property, size);
  edge.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    edge.setPointerCapture(event.pointerId);
    edge.focus();
  });
  edge.addEventListener("pointermove", (event) => edge.hasPointerCapture(event.pointerId) && set(from(event)));
  edge.addEventListener("lostpointercapture", keep);
  edge.addEventListener("dblclick", () => (set(first), keep()));
  edge.addEventListener("keydown", (event) => {
    const by = { [grows]: STEP, [shrinks]: -STEP }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    set(size + by);
    keep();
  });
  addEventListener("resize", () => set(size));
  set(size);
}

/** What is kept between visits; a browser may refuse to keep anything. */
function remembered(name) {
  try {
    return localStorage.getItem(`actorflow${name}`);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`actorflow${name}`, String(value));
  } catch {
    // It is as it was at the next visit.
  }
}
