// The critical path: of all chains of calls that must follow each other, the one that takes longest.

import { OP } from "./structure.js";

/**
 * The nodes on the longest path, by mean times of calls, through a node; through any for -1. Updates of variables are
 * for the next frame, so that paths end there.
 *
 * @returns {{nodes: number[], us: number}} from its begin to its end; empty while no times are known
 */
export function criticalPath(model, through = -1) {
  const { count, edgeFrom, edgeTo, edgeBack } = model;
  const readers = Array.from({ length: count }, () => []), missing = new Int32Array(count);
  for (let e = 0; e < edgeFrom.length; e++) {
    if (edgeBack[e]) continue;
    readers[edgeFrom[e]].push(edgeTo[e]);
    missing[edgeTo[e]] += 1;
  }
  const order = [];
  for (let i = 0; i < count; i++) if (!missing[i]) order.push(i);
  const before = new Float64Array(count), from = new Int32Array(count).fill(-1);
  for (let k = 0; k < order.length; k++) {
    const node = order[k], us = before[node] + cost(model, node);
    for (const reader of readers[node]) {
      if (from[reader] < 0 || us > before[reader]) [before[reader], from[reader]] = [us, node];
      if (!--missing[reader]) order.push(reader);
    }
  }
  const after = new Float64Array(count), to = new Int32Array(count).fill(-1);
  for (const node of order.toReversed()) {
    for (const reader of readers[node]) {
      const us = after[reader] + cost(model, reader);
      if (to[node] < 0 || us > after[node]) [after[node], to[node]] = [us, reader];
    }
  }
  const length = (node) => before[node] + cost(model, node) + after[node];
  const start = through >= 0 ? through : order.reduce((best, node) => (best < 0 || length(node) > length(best) ? node : best), -1);
  const nodes = [];
  if (start < 0 || !length(start)) return { nodes, us: 0 };
  for (let node = start; node >= 0; node = from[node]) nodes.unshift(node);
  for (let node = to[start]; node >= 0; node = to[node]) nodes.push(node);
  return { nodes, us: length(start) };
}

function cost(model, node) {
  return model.kind[node] === OP && model.calls[node] ? model.meanUs[node] : 0;
}
