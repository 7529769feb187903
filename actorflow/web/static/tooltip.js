// What is said of what one points at, line by line.

import * as format from "./format.js";
import { STATES } from "./model.js";
import { BLOB, OP } from "./structure.js";

/** Of a scope. */
export function scopeLines(model, view, subject) {
  const scope = subject - model.count, first = scope * STATES.length;
  const states = STATES.flatMap((state, k) => (model.scopeStates[first + k] ? [`${format.count(model.scopeStates[first + k])} ${state}`] : []));
  return [`scope: ${states.join(", ") || "no ops"}`, view.open.has(scope) ? "double-click its title to close it" : "double-click to open it"];
}

/** Of a node. */
export function nodeLines(model, i) {
  const node = model.nodes[i], fill = [model.occupancy.textOf(i), ...model.occupancy.waitsOf(i)].filter(Boolean);
  if (model.kind[i] !== OP) {
    return [...fill, `${model.kind[i] === BLOB ? "blob" : "variable"}, ${node.dtype} (${node.shape.join(", ")}), ${format.bytes(node.bytes)}`];
  }
  const each = model.calls[i] ? `, ${format.duration(model.meanUs[i])} each` : "";
  return [...fill, node.operation, `${STATES[model.state[i]]}, ${format.count(model.calls[i])} calls${each}`];
}
