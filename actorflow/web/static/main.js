// Wires the page: messages change the model, the model is drawn once per animation frame at most.

import { Camera, attachGestures } from "./camera.js";
import { Drawing, LIT_MS } from "./canvas.js";
import { Charts } from "./chart.js";
import { Connection } from "./connection.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { BLOB, Model, OP, STATES, VARIABLE } from "./model.js";
import { Overview } from "./overview.js";
import { Panel } from "./panel.js";
import { attachSearch } from "./search.js";
import { Theme } from "./theme.js";

const PANEL_INTERVAL_MS = 250;
const CONNECTION_TEXT = { connecting: "Connecting", live: "Live", closed: "Disconnected, trying again" };

const model = new Model();
const camera = new Camera();
const theme = new Theme(() => {
  drawing.reset();
  legend();
  redraw();
  refresh();
});
const drawing = new Drawing(byId("graph"), camera, model, theme);
const overview = new Overview(byId("overview"), camera, model, theme, drawing, redraw);
const panel = new Panel(model, theme, choose);
const charts = new Charts(byId("curves"), byId("curve-list"), model, theme);
const connection = new Connection(receive, (state) => {
  byId("connection").dataset.state = state;
  setText(byId("connection"), CONNECTION_TEXT[state]);
});

let scheduled = false;
let unlight = 0;
let stale = true;

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame((now) => {
    scheduled = false;
    drawing.draw(now);
    overview.draw();
  });
}

function receive(message) {
  const now = performance.now();
  if (message.type === "graph") takeGraph(message);
  else if (message.type === "states") {
    model.applyStates(message, now);
    // One more drawing when the ops that just finished stop being lit.
    clearTimeout(unlight);
    unlight = setTimeout(redraw, LIT_MS + 20);
  } else if (message.type === "status") model.applyStatus(message, now);
  stale = true;
  redraw();
}

function takeGraph(message) {
  const isNew = message.revision !== model.revision || message.name !== model.name;
  const selected = panel.selected >= 0 ? model.nodes[panel.selected].name : null;
  const wasEmpty = !model.count;
  model.setGraph(message);
  drawing.reset();
  overview.reset();
  drawing.hovered = -1;
  byId("tooltip").hidden = true;
  byId("empty").hidden = model.count > 0;
  if (isNew && wasEmpty) camera.start(model);
  show(model.indexByName.get(selected) ?? -1);
  const ops = model.kind.filter((kind) => kind === OP).length;
  const variables = model.kind.filter((kind) => kind === VARIABLE).length;
  document.title = `${model.name} · actorflow`;
  setText(byId("graph-name"), model.name);
  const parts = [`${format.count(ops)} ops`, `${format.count(model.count - ops)} blobs`];
  if (variables) parts.push(`${format.count(variables)} of them variables`);
  setText(byId("graph-size"), parts.join(", "));
}

/** Numbers, panel and curves: read by people, so a few times a second is enough. */
function refresh() {
  const now = performance.now();
  const { started, finished, failed, cancelled } = model.frames;
  const numbers = { started, finished, failed, cancelled, "in-flight": model.inFlight };
  for (const [name, number] of Object.entries(numbers)) setText(byId(`frames-${name}`), format.count(number));
  byId("frames-failed").classList.toggle("bad", failed > 0);
  setText(byId("frames-rate"), format.rate(model.rate(now)));
  if (!stale || document.hidden) return;
  stale = false;
  panel.refresh();
  charts.draw();
  countStates();
}

/** Select a node without moving; -1 selects none. */
function show(index) {
  drawing.selected = index;
  panel.select(index);
  redraw();
}

/** Select a node and bring it into view. */
function choose(index) {
  show(index);
  if (index < 0) return;
  camera.goTo(model.x[index], model.y[index]);
  redraw();
}

function fit() {
  camera.fit(model.bounds());
  redraw();
}

function point(px, py) {
  const index = model.nodeAt(...camera.toWorld(px, py));
  byId("graph").classList.toggle("pointing", index >= 0);
  if (index !== drawing.hovered) {
    drawing.hovered = index;
    redraw();
  }
  const tooltip = byId("tooltip");
  tooltip.hidden = index < 0;
  if (index < 0) return;
  const node = model.nodes[index], isOp = model.kind[index] === OP;
  const lines = isOp
    ? [node.operation, `${STATES[model.state[index]]}, ${format.count(model.calls[index])} calls`
        + (model.calls[index] ? `, ${format.duration(model.meanUs[index])} each` : "")]
    : [`${model.kind[index] === BLOB ? "blob" : "variable"}, ${node.dtype} (${node.shape.join(", ")})`];
  tooltip.replaceChildren(element("strong", {}, node.name), ...lines.map((line) => element("span", {}, line)));
  const left = Math.min(px + 16, camera.width - tooltip.offsetWidth - 8);
  const top = py + 18 + tooltip.offsetHeight > camera.height ? py - tooltip.offsetHeight - 10 : py + 18;
  tooltip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
}

function legend() {
  const swatch = (colour) => {
    const mark = element("i");
    mark.style.background = colour;
    return mark;
  };
  const kinds = [
    element("li", {}, element("i", { class: "blob" }), "blob"),
    element("li", {}, element("i", { class: "variable" }), "variable"),
  ];
  const colours = drawing.colourBy === "time"
    ? [element("li", {}, "little", element("i", { class: "scale" }), "most of the time")]
    : STATES.map((state, i) => element("li", {}, swatch(theme.states[i]), `${state} `, element("b", { "data-state": state })));
  byId("legend").replaceChildren(...colours, ...kinds);
  countStates();
}

function countStates() {
  const counts = new Uint32Array(STATES.length);
  for (let i = 0; i < model.count; i++) if (model.kind[i] === OP) counts[model.state[i]] += 1;
  for (const target of byId("legend").querySelectorAll("b")) {
    setText(target, format.count(counts[STATES.indexOf(target.dataset.state)]));
  }
}

function colourBy(what) {
  drawing.colourBy = what;
  for (const button of document.querySelectorAll("[data-colour]")) {
    button.setAttribute("aria-checked", String(button.dataset.colour === what));
  }
  legend();
  redraw();
}

attachGestures(byId("graph"), camera, {
  moved() {
    byId("tooltip").hidden = true;
    redraw();
  },
  clicked: (px, py) => show(model.nodeAt(...camera.toWorld(px, py))),
  pointed: point,
  left: () => point(-1e9, -1e9),
  fit,
});
attachSearch(byId("search"), byId("search-results"), model, choose);
byId("zoom-in").addEventListener("click", () => (camera.zoomBy(1.4), redraw()));
byId("zoom-out").addEventListener("click", () => (camera.zoomBy(1 / 1.4), redraw()));
byId("zoom-fit").addEventListener("click", fit);
for (const button of document.querySelectorAll("[data-colour]")) {
  button.addEventListener("click", () => colourBy(button.dataset.colour));
}
addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement) return;
  if (event.key === "Escape") show(-1);
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  byId("search").focus();
});
new ResizeObserver(() => {
  drawing.resize();
  stale = true;
  redraw();
}).observe(byId("graph"));
setInterval(refresh, PANEL_INTERVAL_MS);

drawing.resize();
overview.reset();
legend();
connection.open();

// What tests, and a curious reader in the console, may look at.
window.actorflow = Object.freeze({
  get connection() { return connection.state; },
  get seq() { return connection.seq; },
  get resyncs() { return connection.resyncs; },
  get name() { return model.name; },
  get revision() { return model.revision; },
  get frames() { return { ...model.frames, inFlight: model.inFlight }; },
  get rate() { return model.rate(performance.now()); },
  get framesDrawn() { return drawing.framesDrawn; },
  get camera() { return { x: camera.x, y: camera.y, scale: camera.scale }; },
  get selected() { return panel.selected < 0 ? null : model.nodes[panel.selected].name; },
  get nodes() { return model.nodes.map((node) => node.name); },
  get states() { return Object.fromEntries(model.nodes.map((node, i) => [node.name, STATES[model.state[i]]])); },
  get calls() { return Object.fromEntries(model.nodes.map((node, i) => [node.name, model.calls[i]])); },
  get curves() { return Object.fromEntries([...model.curves].map(([name, curve]) => [name, [...curve.values]])); },
  get failures() { return model.failures.map((failure) => ({ ...failure })); },
  /** Place of a node on the canvas, CSS pixels. */
  placeOf(name) {
    const i = model.indexByName.get(name);
    return i === undefined ? null : camera.toScreen(model.x[i], model.y[i]);
  },
});
