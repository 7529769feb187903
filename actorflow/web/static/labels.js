// Where the labels of edges go: on a straight part of their way, where they cover no card, no title and no other label.

const CELL = 96;
/** Shares of a part's length at which a label may be, best first. */
const SHARES = [0.5, 0.3, 0.7];

/**
 * @param {ArrayLike<number>[]} routes points (x, y, ...) of each edge
 * @param {number[]} widths of the labels
 * @param {number} height of each
 * @param {{x: number, y: number, width: number, height: number}[]} taken rectangles by their middles
 * @returns {({x: number, y: number, width: number, height: number} | null)[]} null where there is no place
 */
export function placeLabels(routes, widths, height, taken) {
  const grid = new Map();
  const cells = ({ x, y, width, height }, visit) => {
    for (let i = Math.floor((x - width / 2) / CELL); i <= Math.floor((x + width / 2) / CELL); i++) {
      for (let j = Math.floor((y - height / 2) / CELL); j <= Math.floor((y + height / 2) / CELL); j++) if (visit(`${i},${j}`)) return true;
    }
    return false;
  };
  const add = (box) => void cells(box, (key) => void (grid.get(key)?.push(box) ?? grid.set(key, [box])));
  const covers = (box) => cells(box, (key) => (grid.get(key) ?? []).some((other) => overlap(box, other)));
  taken.forEach(add);
  return routes.map((points, e) => {
    for (let k = 2; k < points.length; k += 2) {
      for (const share of SHARES) {
        const at = (n) => points[k - 2 + n] * (1 - share) + points[k + n] * share;
        const box = { x: at(0), y: at(1), width: widths[e], height };
        if (covers(box)) continue;
        add(box);
        return box;
      }
    }
    return null;
  });
}

export function overlap(a, b) {
  return Math.abs(a.x - b.x) < (a.width + b.width) / 2 && Math.abs(a.y - b.y) < (a.height + b.height) / 2;
}
