// How full something bounded is, drawn on the border of what it belongs to: a mark for each place there is.

const MARK = 7, GAP = 2, HEIGHT = 5;
/** Of more places, a bar tells as much. */
const MOST_MARKS = 10;

/**
 * @param {number} x the middle
 * @param {{used: number, of: number, more?: number}} fill how many places are taken of how many; how many wait for one
 */
export function gauge(context, theme, x, y, { used, of, more = 0 }) {
  const marks = Math.min(of, MOST_MARKS), width = marks * (MARK + GAP) + GAP, left = x - width / 2, top = y - HEIGHT / 2;
  const isFull = used >= of;
  context.fillStyle = theme.surface;
  context.strokeStyle = theme["line-strong"];
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(left, top - GAP, width, HEIGHT + 2 * GAP, 3);
  context.fill();
  context.stroke();
  const full = isFull ? theme.waiting : theme.accent;
  if (of > MOST_MARKS) {
    context.fillStyle = full;
    context.fillRect(left + GAP, top, Math.min(used / of, 1) * (width - 2 * GAP), HEIGHT);
  } else {
    for (let k = 0; k < marks; k++) {
      context.fillStyle = k < used ? full : theme.line;
      context.fillRect(left + GAP + k * (MARK + GAP), top, MARK, HEIGHT);
    }
  }
  if (!more) return;
  context.fillStyle = theme.text;
  context.font = `600 10px ${theme.font}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(`+${more}`, left + width + 4, y);
}
