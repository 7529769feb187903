// Text that others have written.

/** What is hidden or turns text around: all that Python does not call printable, but for the space. */
const HIDDEN = /[\p{C}\p{Z}]/gu;
const SHORT = { "\t": "\\t", "\r": "\\r" };

/** The text with those characters written as in Python's `repr`; ends of lines are kept. As `visible` in actorflow/errors.py. */
export function visible(text) {
  return text.replace(HIDDEN, (one) => (one === " " || one === "\n" ? one : SHORT[one] ?? escaped(one.codePointAt(0))));
}

function escaped(code) {
  const [letter, length] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(length, "0")}`;
}

/** What JSON may have so that there is something to do; the server writes no other escapes, and nothing but ASCII. */
const MAY_HIDE = /\\(?!["\\n])|[^ -~]/;

/** JSON with nothing hidden in its texts. */
export function parse(json) {
  return JSON.parse(json, MAY_HIDE.test(json) ? (_, value) => (typeof value === "string" ? visible(value) : value) : undefined);
}

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
