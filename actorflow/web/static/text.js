// Text on a canvas.

/** Of a longer text than this only the ends are looked at: no card has room for more. */
const MOST = 400;

/** A text, shortened in the middle until there is room for it, as names of one scope begin alike. Sets the font. */
export function cut(context, text, font, room) {
  context.font = font;
  if (text.length <= MOST && context.measureText(text).width <= room) return text;
  const head = [...text.slice(0, MOST)], tail = [...text.slice(-MOST)]; // whole characters
  const keep = (length) => `${head.slice(0, Math.ceil(length / 2)).join("")}…${tail.slice(tail.length - Math.floor(length / 2)).join("")}`;
  let low = 0, high = head.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(keep(middle)).width <= room) low = middle;
    else high = middle - 1;
  }
  return keep(low);
}
