// Where things are drawn: a layered layout. Pure and deterministic.
//
// Longest-path layers, barycentre sweeps for the order inside each layer, then isotonic placement (pool adjacent
// violators). Edges keep their length: there are no dummy nodes, a long edge merely weighs less (1 / span). Parts that
// nothing connects are laid out one by one and packed into rows.

const GAP_X = 26, GAP_Y = 30, MAX_GAP_Y = 260, SLOPE = 0.07;
const PART_GAP = 48, ASPECT = 1.7;
const ORDER_SWEEPS = 12, PLACE_SWEEPS = 9;
const FREE_WEIGHT = 1e-3, SPINE_WEIGHT = 10;

/**
 * @param {{widths: number[], heights: number[], isBlob: boolean[], from: number[], to: number[], cut: boolean[]}} graph
 *   sizes of cells, which of them are single blobs, and edges; those that are cut are drawn but do not make layers
 * @returns {{x: Float64Array, y: Float64Array, width: number, height: number}} centres, from the top left corner
 */
export function layout({ widths, heights, isBlob, from, to, cut }) {
  const count = widths.length;
  const x = new Float64Array(count), y = new Float64Array(count);
  const parts = components(count, from, to).map((members) => {
    const local = new Map(members.map((cell, k) => [cell, k]));
    const edges = [];
    members.edges.forEach((e) => edges.push([local.get(from[e]), local.get(to[e]), cut[e]]));
    const placed = connected(members.map((i) => widths[i]), members.map((i) => heights[i]), members.map((i) => isBlob[i]), edges);
    return { members, ...placed };
  });
  const { width, height } = pack(parts);
  for (const part of parts) {
    part.members.forEach((cell, k) => {
      x[cell] = part.left + part.x[k];
      y[cell] = part.top + part.y[k];
    });
  }
  return { x, y, width, height };
}

function components(count, from, to) {
  const root = Int32Array.from({ length: count }, (_, i) => i);
  const find = (i) => {
    while (root[i] !== i) i = root[i] = root[root[i]];
    return i;
  };
  for (let e = 0; e < from.length; e++) root[find(from[e])] = find(to[e]);
  const parts = new Map();
  for (let i = 0; i < count; i++) {
    const at = find(i);
    if (!parts.has(at)) parts.set(at, Object.assign([], { edges: [] }));
    parts.get(at).push(i);
  }
  for (let e = 0; e < from.length; e++) parts.get(find(from[e])).edges.push(e);
  return [...parts.values()];
}

/** Shelves of parts, in the order in which they were made, about as wide as a screen is. */
function pack(parts) {
  const area = parts.reduce((sum, part) => sum + (part.width + PART_GAP) * (part.height + PART_GAP), 0);
  const limit = Math.max(Math.sqrt(area * ASPECT), ...parts.map((part) => part.width));
  let left = 0, top = 0, tallest = 0, width = 0;
  for (const part of parts) {
    if (left && left + part.width > limit) {
      top += tallest + PART_GAP;
      left = tallest = 0;
    }
    Object.assign(part, { left, top });
    left += part.width + PART_GAP;
    width = Math.max(width, left - PART_GAP);
    tallest = Math.max(tallest, part.height);
  }
  return { width, height: top + tallest };
}

function connected(widths, heights, isBlob, edges) {
  const count = widths.length;
  if (count === 1) return { x: [widths[0] / 2], y: [heights[0] / 2], width: widths[0], height: heights[0] };
  const { depth, rest, back } = longestPaths(count, edges);
  const down = edges.filter((_, e) => !back[e]);
  const layer = pullSources(depth, isBlob, down);
  const rows = makeRows(layer);
  const weights = spines(depth, rest, down, count).map((spine, e) => (spine ? SPINE_WEIGHT : 1) / (layer[down[e][1]] - layer[down[e][0]]));
  const above = sides(count, down, weights, 1, 0), below = sides(count, down, weights, 0, 1);
  const x = order(rows, widths, above, below);
  place(rows, x, widths, above, below, rest);
  const y = stack(rows, x, heights, layer, down);
  let left = Infinity, right = -Infinity;
  for (let i = 0; i < count; i++) {
    left = Math.min(left, x[i] - widths[i] / 2);
    right = Math.max(right, x[i] + widths[i] / 2);
  }
  for (let i = 0; i < count; i++) x[i] -= left;
  return { x, y: y.centres, width: right - left, height: y.height };
}

/** Length of the longest path to each cell and from each cell, and the edges that these paths leave out. */
function longestPaths(count, edges) {
  const leaving = Array.from({ length: count }, () => []);
  const missing = new Int32Array(count);
  const back = edges.map(([, , isCut]) => Boolean(isCut));
  edges.forEach(([from, to, isCut], e) => {
    if (isCut) return;
    if (from === to) return void (back[e] = true);
    leaving[from].push(e);
    missing[to] += 1;
  });
  const depth = new Int32Array(count), placed = new Uint8Array(count);
  const ready = [], done = [];
  for (let i = count - 1; i >= 0; i--) if (!missing[i]) ready.push(i);
  let stuck = 0;
  while (done.length < count) {
    while (ready.length) {
      const cell = ready.pop();
      if (placed[cell]) continue;
      placed[cell] = 1;
      done.push(cell);
      for (const e of leaving[cell]) {
        const reader = edges[e][1];
        if (placed[reader]) {
          back[e] = true;
          continue;
        }
        depth[reader] = Math.max(depth[reader], depth[cell] + 1);
        if (!--missing[reader]) ready.push(reader);
      }
    }
    // A cycle, which scopes can make even where ops cannot: open it at its oldest cell.
    while (stuck < count && placed[stuck]) stuck += 1;
    if (stuck < count) ready.push(stuck);
  }
  const rest = new Int32Array(count);
  for (const cell of done.reverse()) {
    for (const e of leaving[cell]) if (!back[e]) rest[cell] = Math.max(rest[cell], rest[edges[e][1]] + 1);
  }
  return { depth, rest, back };
}

/** Layers: the depths, but what depends on nothing (fed blobs, constants) sits directly above its first reader. */
function pullSources(depth, isBlob, down) {
  const layer = Int32Array.from(depth);
  const written = new Uint8Array(depth.length), readsMade = new Uint8Array(depth.length);
  for (const [, to] of down) written[to] = 1;
  for (const [from, to] of down) if (written[from] || isBlob[from]) readsMade[to] = 1;
  const move = (group) => {
    const first = new Int32Array(depth.length).fill(0x7fffffff);
    for (const [from, to] of down) first[from] = Math.min(first[from], layer[to]);
    for (let i = 0; i < depth.length; i++) if (group(i) && first[i] < 0x7fffffff) layer[i] = first[i] - 1;
  };
  move((i) => written[i] && depth[i] === 1 && isBlob[i] && !readsMade[i]);
  move((i) => !written[i]);
  return layer;
}

function makeRows(layer) {
  const rows = [];
  layer.forEach((row, i) => (rows[row] ??= []).push(i));
  for (let row = 0; row < rows.length; row++) rows[row] ??= [];
  return rows;
}

/** Edges on which the longest paths through both ends go on; kept straight, so that a chain does not drift. */
function spines(depth, rest, down, count) {
  const bestIn = new Int32Array(count).fill(-1), bestOut = new Int32Array(count).fill(-1);
  down.forEach(([from, to], e) => {
    if (bestIn[to] < 0 || depth[from] > depth[down[bestIn[to]][0]]) bestIn[to] = e;
    if (bestOut[from] < 0 || rest[to] > rest[down[bestOut[from]][1]]) bestOut[from] = e;
  });
  return down.map(([from, to], e) => bestIn[to] === e && bestOut[from] === e);
}

/** What each cell is connected to on one side, as compressed rows. */
function sides(count, down, weights, own, other) {
  const start = new Int32Array(count + 1);
  for (const edge of down) start[edge[own] + 1] += 1;
  for (let i = 0; i < count; i++) start[i + 1] += start[i];
  const next = start.slice(), cells = new Int32Array(down.length), weight = new Float64Array(down.length);
  down.forEach((edge, e) => {
    const at = next[edge[own]]++;
    cells[at] = edge[other];
    weight[at] = weights[e];
  });
  const total = new Float64Array(count);
  for (let i = 0; i < count; i++) for (let k = start[i]; k < start[i + 1]; k++) total[i] += weight[k];
  return { start, cells, weight, total };
}

/** Weighted mean of the neighbours' positions; a cell without any stays where it is. */
function wanted(i, x, { start, cells, weight, total }) {
  if (!total[i]) return x[i];
  let sum = 0;
  for (let k = start[i]; k < start[i + 1]; k++) sum += weight[k] * x[cells[k]];
  return sum / total[i];
}

/** Centres of a row's cells side by side, from 0. */
function abreast(row, widths) {
  const at = new Float64Array(row.length);
  for (let k = 1; k < row.length; k++) at[k] = at[k - 1] + (widths[row[k - 1]] + widths[row[k]]) / 2 + GAP_X;
  return at;
}

/** Order each row, in place, by the weighted mean of its cells' neighbours; returns positions side by side. */
function order(rows, widths, above, below) {
  const x = new Float64Array(widths.length);
  const spread = (row) => {
    const at = abreast(row, widths), middle = (at.at(-1) ?? 0) / 2;
    row.forEach((cell, k) => (x[cell] = at[k] - middle));
  };
  rows.forEach(spread);
  const aim = new Float64Array(widths.length);
  for (let sweep = 0; sweep < ORDER_SWEEPS; sweep++) {
    const up = sweep % 2, side = up ? below : above;
    for (let k = 0; k < rows.length; k++) {
      const row = rows[up ? rows.length - 1 - k : k];
      if (row.length < 2) continue;
      for (const cell of row) aim[cell] = wanted(cell, x, side);
      row.sort((a, b) => aim[a] - aim[b]);
      spread(row);
    }
  }
  return x;
}

/**
 * Move cells towards their neighbours, in place, keeping each row's order and distances. Where they push each other,
 * the less important gives way: a short side branch, not the long chain beside it.
 */
function place(rows, x, widths, above, below, rest) {
  const offsets = rows.map((row) => abreast(row, widths));
  for (let sweep = 0; sweep < PLACE_SWEEPS; sweep++) {
    const up = sweep % 2, side = up ? below : above;
    for (let k = 0; k < rows.length; k++) {
      const at = up ? rows.length - 1 - k : k, row = rows[at], offset = offsets[at];
      const values = Float64Array.from(row, (cell, n) => wanted(cell, x, side) - offset[n]);
      const masses = Float64Array.from(row, (cell) => (side.total[cell] || FREE_WEIGHT) * (rest[cell] + 1) ** 2);
      isotonic(values, masses);
      row.forEach((cell, n) => (x[cell] = values[n] + offset[n]));
    }
  }
}

/** Makes values the non-decreasing sequence nearest to them by weighted least squares. */
function isotonic(values, masses) {
  const means = [], weights = [], sizes = [];
  for (let k = 0; k < values.length; k++) {
    let mean = values[k], mass = masses[k], size = 1;
    while (means.length && means.at(-1) > mean) {
      const other = weights.pop();
      mean = (means.pop() * other + mean * mass) / (other + mass);
      mass += other;
      size += sizes.pop();
    }
    means.push(mean);
    weights.push(mass);
    sizes.push(size);
  }
  let k = 0;
  means.forEach((mean, block) => {
    for (let n = 0; n < sizes[block]; n++) values[k++] = mean;
  });
}

/** Height of each row; rows are further apart where edges between them run far sideways. */
function stack(rows, x, heights, layer, down) {
  const gaps = new Float64Array(rows.length).fill(GAP_Y);
  for (const [from, to] of down) {
    if (layer[to] !== layer[from] + 1) continue;
    const gap = Math.min(SLOPE * Math.abs(x[from] - x[to]), MAX_GAP_Y);
    gaps[layer[from]] = Math.max(gaps[layer[from]], gap);
  }
  const centres = new Float64Array(x.length);
  let top = 0;
  rows.forEach((row, k) => {
    const tallest = row.reduce((most, cell) => Math.max(most, heights[cell]), 0);
    for (const cell of row) centres[cell] = top + tallest / 2;
    top += tallest + (k < rows.length - 1 ? gaps[k] : 0);
  });
  return { centres, height: top };
}
