// The list of the graphs that one server shows: those that call others above these, with lines between them.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { idleText } from "./moment.js";
import { parse } from "./text.js";
import { shown, withToken } from "./token.js";

const INTERVAL_MS = 1000;
const COUNTS = [["started", "Started"], ["finished", "Finished"], ["in_flight", "In flight"], ["failed", "Failed"]];
const SVG = "http://www.w3.org/2000/svg";

let cards = new Map(), made = "", before = new Map();

/** Levels of graphs: one that is called is below all that call it. */
function levelsOf(graphs) {
  const level = new Map(graphs.map(({ path }) => [path, 0]));
  for (let round = 0; round < graphs.length; round++) {
    for (const { path, calls } of graphs) for (const call of calls) level.set(call.path, Math.max(level.get(call.path), level.get(path) + 1));
  }
  return Array.from({ length: Math.max(0, ...level.values()) + 1 }, (_, k) => graphs.filter(({ path }) => level.get(path) === k));
}

function card({ name, path, ops, calls }, names) {
  const numbers = COUNTS.map(([key, text]) => element("div", {}, element("dt", {}, text), element("dd", { "data-count": key })));
  const link = element("a", { href: withToken(`${path}/`) }, element("h2", {}, name), element("span", { class: "muted" }, `${format.count(ops)} ${ops === 1 ? "op" : "ops"}`));
  const called = calls.map(({ op, path: to }) => element("li", {}, element("span", {}, `${op} calls ${names.get(to)}`), element("b", { "data-op": op })));
  return element("article", { "data-path": path }, link, element("p", { class: "muted", "data-count": "state" }), element("dl", { class: "stats" }, ...numbers), element("ul", { class: "calls" }, ...called));
}

function show(graphs) {
  const key = JSON.stringify(graphs.map(({ path, ops, calls }) => [path, ops, calls.map(({ op, path: to }) => [op, to])]));
  if (key !== made) {
    made = key;
    const names = new Map(graphs.map(({ path, name }) => [path, name]));
    cards = new Map(graphs.map((graph) => [graph.path, card(graph, names)]));
    const rows = levelsOf(graphs).map((row) => element("div", { class: "row" }, ...row.map(({ path }) => cards.get(path))));
    const lines = document.createElementNS(SVG, "svg");
    lines.setAttribute("aria-hidden", "true");
    byId("graphs").replaceChildren(lines, ...rows);
  }
  for (const graph of graphs) fill(cards.get(graph.path), graph);
  setText(byId("graphs-count"), `${graphs.length} graphs in this process`);
  draw(graphs);
}

function fill(target, { path, frames, idle, calls }) {
  for (const [key] of COUNTS) setText(target.querySelector(`[data-count=${key}]`), format.count(frames[key]));
  target.querySelector("[data-count=failed]").classList.toggle("bad", frames.failed > 0);
  const rate = (frames.finished - (before.get(path) ?? frames.finished)) / (INTERVAL_MS / 1000);
  before.set(path, frames.finished);
  setText(target.querySelector("[data-count=state]"), idle && !rate ? idleText(idle, frames) : `Runs, ${format.rate(rate)} frames/s`);
  for (const { op, calls: number } of calls) setText(target.querySelector(`[data-op="${CSS.escape(op)}"]`), `${format.count(number)} ${number === 1 ? "call" : "calls"}`);
}

/** A line from each op that calls to the graph that it calls. */
function draw(graphs) {
  const lines = document.querySelector("#graphs svg"), origin = lines.getBoundingClientRect();
  lines.replaceChildren(...graphs.flatMap(({ path, calls }) => calls.map(({ path: to }) => {
    const from = cards.get(path).getBoundingClientRect(), at = cards.get(to).getBoundingClientRect();
    const [x1, y1, x2, y2] = [from.left + from.width / 2 - origin.left, from.bottom - origin.top, at.left + at.width / 2 - origin.left, at.top - origin.top];
    const bend = (y2 - y1) / 2, line = document.createElementNS(SVG, "path");
    line.setAttribute("d", `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2 - 1}m-5 -6l5 6l5 -6`);
    return line;
  })));
}

async function look() {
  let state = "closed";
  try {
    const response = await fetch("api/graphs", { headers: shown() });
    if (response.ok) {
      show(parse(await response.text()).graphs);
      state = "live";
    }
  } catch {
    // the server has gone; it is asked again
  }
  byId("connection").dataset.state = state;
  setText(byId("connection"), state === "live" ? "Live" : "Disconnected, trying again");
  setTimeout(look, INTERVAL_MS);
}

look();
