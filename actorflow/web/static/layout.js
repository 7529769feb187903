// Where things are drawn: a layered layout. Pure and deterministic.
//
// Longest-path layers, dummy cells where edges pass layers by (those of one source share theirs), barycentre sweeps for
// the order inside each layer, then isotonic placement (pool adjacent violators). A long flow wraps as text does: its
// layers are cut into bands side by side, where few edges cross, and these go round through the gutter between two bands.
// Parts that nothing connects are laid out one by one and packed into rows. All of it is written for a flow that goes
// down; one that goes to the right is the same with x and y exchanged.

const GAP = 20, LAYER_GAP = 30, SIDEWAYS_LAYER_GAP = 44, MAX_LAYER_GAP = 110, SLOPE = 0.06;
const PART_GAP = 40, GUTTER = 22, LANE = 7;
const ORDER_SWEEPS = 12, PLACE_SWEEPS = 9;
const FREE_WEIGHT = 1e-3, SPINE_WEIGHT = 10, DUMMY_WEIGHT = 4, DUMMY_WIDTH = 6;
/** Of cells there may be so many times as many dummies, and these besides; longer edges then go straight. */
const MOST_DUMMIES = 3, FEW_DUMMIES = 1500, SHORT = 4;
/** A flow is cut into at most so many bands; each costs a little, as the eye has to find the next one. */
const MOST_BANDS = 14, BAND_COST = 0.03, ROWS_IN_BAND = 2.5;
const MANY = 120;
/** Lengths of bands, as shares of the room's, that are tried besides: all that can be read, or a little less. */
const FILLINGS = [0.9, 1, 1.1];

/**
 * @param {{widths: number[], heights: number[], isBlob: boolean[], from: number[], to: number[], cut: boolean[]}} graph
 *   sizes of cells, which of them are single blobs, and edges; those that are cut are drawn but do not make layers
 * @param {{width: number, height: number, sideways: boolean}} room shape that the drawing should have, and whether it
 *   flows to the right; without it, the drawing flows down and is never wrapped
 * @returns {{x: Float64Array, y: Float64Array, width: number, height: number, routes: (number[] | null)[], ways: object[]}}
 *   centres, from the top left corner, for each edge that keeps to the layers the points (x, y, ...) that it goes through,
 *   and for each cell how something gets in and out: `before` and `after` it there is a gap between two layers, which
 *   leads to a gutter at `aside`; null where nothing is in front of it or behind it
 */
export function layout(graph, { width, height, sideways } = { width: 1.7, height: 1, sideways: false }) {
  const isWrapped = arguments.length > 1;
  const { isBlob, from, to, cut } = graph;
  const [widths, heights] = sideways ? [graph.heights, graph.widths] : [graph.widths, graph.heights];
  const [across, along] = sideways ? [height, width] : [width, height];
  const gap = sideways ? SIDEWAYS_LAYER_GAP : LAYER_GAP;
  const parts = components(widths.length, from, to).map((members) => {
    const local = new Map(members.map((cell, k) => [cell, k])), own = members.edges;
    const edges = own.map((e) => [local.get(from[e]), local.get(to[e]), cut[e]]);
    return { members, own, layers: layered(members.map((i) => widths[i]), members.map((i) => heights[i]), members.map((i) => isBlob[i]), edges, gap) };
  });
  const longest = Math.max(0, ...parts.map(({ layers }) => layers.length));
  const lengths = [longest];
  if (isWrapped) {
    const most = Math.max(...parts.map(({ layers }) => layers.rows.length)) / ROWS_IN_BAND;
    for (let bands = 2; bands <= Math.min(MOST_BANDS, most); bands++) lengths.push(longest / bands);
    lengths.push(...FILLINGS.map((share) => along * share).filter((length) => length < longest));
  }
  let best = null;
  // Of many cells, a layout takes its time.
  for (const length of lengths.filter((_, k) => widths.length < MANY || k % 4 === 0)) {
    const placed = parts.map((part) => ({ ...part, ...wrapped(part.layers, length) }));
    const bands = Math.max(0, ...placed.map((part) => part.bands));
    for (const limit of [1, 1.4, 2, 2.8]) {
      const size = pack(placed, across / along, limit);
      const fit = Math.min(across / size.width, along / size.height) * (1 - BAND_COST * (bands - 1));
      if (!best || fit > best.fit * 1.001) best = { fit, ...size, placed: placed.map((part) => ({ ...part })) };
    }
  }
  return assembled(best, widths.length, from.length, sideways);
}

function assembled({ placed, width, height }, count, edges, sideways) {
  const x = new Float64Array(count), y = new Float64Array(count), routes = new Array(edges).fill(null), ways = [];
  for (const part of placed) {
    part.members.forEach((cell, k) => {
      x[cell] = part.left + part.x[k];
      y[cell] = part.top + part.y[k];
      const { before, after, aside } = part.wayOf(k);
      ways[cell] = { before: before === null ? null : part.top + before, after: after === null ? null : part.top + after, aside: part.left + aside };
    });
    const { left, top } = part;
    part.own.forEach((e, k) => {
      const route = part.routeOf(k);
      if (route) routes[e] = route.map((at, n) => at + (n % 2 ? top : left));
    });
  }
  if (!sideways) return { x, y, width, height, routes, ways };
  const turned = routes.map((route) => route?.map((_, n) => route[n ^ 1]) ?? null);
  return { x: y, y: x, width: height, height: width, routes: turned, ways };
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

/** Shelves of parts, in the order in which they were made. */
function pack(parts, aspect, factor) {
  const area = parts.reduce((sum, part) => sum + (part.width + PART_GAP) * (part.height + PART_GAP), 0);
  const limit = Math.max(factor * Math.sqrt(area * aspect), ...parts.map((part) => part.width));
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

/** Layers of a connected part: cells and, after them, dummies, in ordered rows; segments of edges between rows. */
function layered(widths, heights, isBlob, edges, gap) {
  const count = widths.length;
  const { depth, rest, back } = longestPaths(count, edges);
  // What closes a cycle goes through the layers, too, against their order.
  const isTurned = edges.map(([a, b, isCut], e) => back[e] && !isCut && a !== b);
  const ordered = edges.map(([a, b], e) => (isTurned[e] ? [b, a] : [a, b]));
  const isLeftOut = back.map((isBack, e) => isBack && !isTurned[e]);
  const kept = ordered.filter((_, e) => !isLeftOut[e]);
  const layer = [...pullSources(depth, isBlob, kept)];
  const spine = spines(depth, rest, kept, count);
  const size = [...widths], thickness = [...heights], reach = [...rest], source = [...layer.keys()];
  const spans = kept.reduce((sum, [a, b]) => sum + layer[b] - layer[a] - 1, 0);
  const most = spans > MOST_DUMMIES * count + FEW_DUMMIES ? SHORT : Infinity;
  const dummies = new Map(), segments = [], weights = [], known = new Map();
  const join = (a, b, weight) => {
    const key = `${a},${b}`;
    if (!known.has(key)) {
      known.set(key, segments.length);
      segments.push([a, b]);
      weights.push(weight);
    }
  };
  const dummy = (of, row) => {
    const key = `${of},${row}`;
    if (!dummies.has(key)) {
      dummies.set(key, size.length);
      size.push(DUMMY_WIDTH);
      thickness.push(0);
      layer.push(row);
      reach.push(0);
      source.push(of);
    }
    return dummies.get(key);
  };
  let at = 0;
  const chains = ordered.map(([a, b], e) => {
    if (isLeftOut[e]) return null;
    const isSpine = spine[at++], span = layer[b] - layer[a], chain = [a];
    if (span - 1 > most) {
      join(a, b, 1 / span);
      return null;
    }
    for (let row = layer[a] + 1; row < layer[b]; row++) chain.push(dummy(a, row));
    chain.push(b);
    for (let k = 1; k < chain.length; k++) join(chain[k - 1], chain[k], span > 1 ? (k > 1 && k < chain.length - 1 ? DUMMY_WEIGHT : 1) / 2 : isSpine ? SPINE_WEIGHT : 1);
    return chain;
  });
  const rows = makeRows(layer);
  const above = sides(size.length, segments, weights, 1, 0), below = sides(size.length, segments, weights, 0, 1);
  const x = order(rows, size, above, below);
  place(rows, x, size, above, below, reach);
  const tall = rows.map((row) => row.reduce((most, cell) => Math.max(most, thickness[cell]), 0));
  const gaps = new Float64Array(rows.length).fill(gap);
  for (const [a, b] of segments) {
    if (layer[b] === layer[a] + 1) gaps[layer[a]] = Math.max(gaps[layer[a]], Math.min(SLOPE * Math.abs(x[a] - x[b]), MAX_LAYER_GAP));
  }
  const length = tall.reduce((sum, one, k) => sum + one + gaps[k], 0);
  return { count, size, thickness, layer, reach, source, segments, weights, chains, isTurned, rows, x, tall, gaps, length };
}

/** Cut rows into bands of about a length, where few edges cross. @returns {number[]} band of each row */
function cuts({ rows, tall, gaps, segments, layer, source }, length) {
  const crossing = rows.map(() => new Set());
  for (const [a, b] of segments) for (let row = layer[a]; row < layer[b]; row++) crossing[row].add(source[a]);
  const band = new Int32Array(rows.length);
  let number = 0, first = 0;
  while (first < rows.length) {
    let last = first, sum = tall[first];
    while (last + 1 < rows.length && sum + gaps[last] + tall[last + 1] <= length * 1.02) sum += gaps[last] + tall[++last];
    if (last < rows.length - 1) {
      const least = first + Math.floor(0.65 * (last - first));
      let chosen = last;
      for (let row = last; row >= least; row--) if (crossing[row].size < crossing[chosen].size) chosen = row;
      last = chosen;
    }
    band.fill(number++, first, last + 1);
    first = last + 1;
  }
  return band;
}

/** Bands side by side. @returns {object} centres, size, and how edges go */
function wrapped(layers, length) {
  const { count, size, thickness, layer, reach, source, segments, weights, chains, isTurned, rows, tall, gaps } = layers;
  const band = layers.length > length ? cuts(layers, length) : new Int32Array(rows.length);
  const bands = (band.at(-1) ?? 0) + 1, x = layers.x.slice();
  if (bands > 1) {
    // What is in other bands does not draw it there.
    const near = segments.map(([a, b], s) => (band[layer[a]] === band[layer[b]] ? weights[s] : 0));
    const above = sides(size.length, segments, near, 1, 0), below = sides(size.length, segments, near, 0, 1);
    place(rows, x, size, above, below, reach);
  }
  const left = new Float64Array(bands).fill(Infinity), right = new Float64Array(bands).fill(-Infinity);
  const top = new Float64Array(rows.length), end = new Float64Array(bands);
  rows.forEach((row, k) => {
    top[k] = k && band[k] === band[k - 1] ? top[k - 1] + tall[k - 1] + gaps[k - 1] : 0;
    end[band[k]] = top[k] + tall[k];
    for (const cell of row) {
      left[band[k]] = Math.min(left[band[k]], x[cell] - size[cell] / 2);
      right[band[k]] = Math.max(right[band[k]], x[cell] + size[cell] / 2);
    }
  });
  // Lanes through each gutter, one for each source whose edges go on in the next band.
  const lanes = Array.from({ length: bands }, () => new Map());
  for (const [a] of segments.filter(([a, b]) => band[layer[a]] < band[layer[b]])) lanes[band[layer[a]]].set(source[a], a);
  lanes.forEach((lane) => [...lane].sort(([, a], [, b]) => x[b] - x[a]).forEach(([of], k) => lane.set(of, k)));
  const most = Math.max(0, ...lanes.map((lane) => lane.size));
  const margin = bands > 1 ? GUTTER / 2 + LANE * most : 0;
  const gutter = new Float64Array(bands);
  let at = 0;
  for (let k = 0; k < bands; k++) {
    const width = right[k] - left[k], shift = at - left[k];
    rows.forEach((row, r) => {
      if (band[r] === k) for (const cell of row) x[cell] += shift;
    });
    gutter[k] = at + width + GUTTER / 2;
    at += width + (k < bands - 1 ? GUTTER + LANE * Math.max(lanes[k].size, 1) : 0);
  }
  const y = new Float64Array(size.length);
  for (let i = 0; i < size.length; i++) y[i] = margin + top[layer[i]] + tall[layer[i]] / 2;
  const rowTop = (cell) => margin + top[layer[cell]], rowEnd = (cell) => rowTop(cell) + tall[layer[cell]];
  const turn = (points, a, b) => {
    const k = band[layer[a]], lane = lanes[k].get(source[a]), others = lanes[k].size - 1 - lane;
    const low = margin + end[k] + GUTTER / 2 + LANE * lane, aside = gutter[k] + LANE * lane, high = margin - GUTTER / 2 - LANE * others;
    points.push(x[a], low, aside, low, aside, high, x[b], high);
  };
  const routeOf = (e) => {
    const chain = chains[e];
    if (!chain) return null;
    const points = [];
    chain.forEach((cell, k) => {
      if (k) {
        if (band[layer[chain[k - 1]]] < band[layer[cell]]) turn(points, chain[k - 1], cell);
        points.push(x[cell], rowTop(cell));
        if (k === chain.length - 1 && thickness[cell] < tall[layer[cell]]) points.push(x[cell], y[cell] - thickness[cell] / 2);
      }
      if (k < chain.length - 1) {
        if (!k && thickness[cell] < tall[layer[cell]]) points.push(x[cell], y[cell] + thickness[cell] / 2);
        points.push(x[cell], rowEnd(cell));
      }
    });
    return isTurned[e] ? reversed(points) : points;
  };
  const wayOf = (cell) => {
    const row = layer[cell], k = band[row];
    return {
      before: row && band[row - 1] === k ? rowTop(cell) - gaps[row - 1] / 2 : null,
      after: row < rows.length - 1 && band[row + 1] === k ? rowEnd(cell) + gaps[row] / 2 : null,
      aside: gutter[k],
    };
  };
  return { x: x.subarray(0, count), y: y.subarray(0, count), width: at, height: Math.max(...end) + 2 * margin, bands, routeOf, wayOf };
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

function reversed(points) {
  return points.map((_, n) => points[points.length - 2 - n + 2 * (n % 2)]);
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
  for (let k = 1; k < row.length; k++) at[k] = at[k - 1] + (widths[row[k - 1]] + widths[row[k]]) / 2 + GAP;
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
