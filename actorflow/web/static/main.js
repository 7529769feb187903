// Wires the page: messages change the model, the model is drawn once per animation frame at most.

import { Arranging } from "./arranging.js";
import { BatchesCard } from "./batches.js";
import { Calls } from "./calls.js";
import { Camera, attachGestures } from "./camera.js";
import { Drawing, LIT_MS } from "./canvas.js";
import { Charts } from "./chart.js";
import { Colouring, MODES } from "./colouring.js";
import { Connection } from "./connection.js";
import { CostTable } from "./costs.js";
import { ControlBar } from "./control.js";
import { byId, element, setText } from "./dom.js";
import { Explorer } from "./explore.js";
import { FailuresCard } from "./failures.js";
import * as format from "./format.js";
import { FullnessCard } from "./fullness.js";
import { attachKeys } from "./keys.js";
import { LanesCard } from "./lanes.js";
import { Link } from "./link.js";
import { Model } from "./model.js";
import { Moment } from "./moment.js";
import { Overview } from "./overview.js";
import { Panel } from "./panel.js";
import { PipelinesCard, stageLines } from "./pipelines.js";
import { probe } from "./probe.js";
import { resizable } from "./resize.js";
import { attachSearch } from "./search.js";
import { Stages } from "./stages.js";
import { OP, Structure, VARIABLE } from "./structure.js";
import { panelTabs } from "./tabs.js";
import { Theme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { withToken } from "./token.js";
import { Values } from "./values.js";
import { nodeLines, scopeLines } from "./tooltip.js";
import { View } from "./view.js";
import { VitalsCards } from "./vitals.js";

const PANEL_INTERVAL_MS = 250;
const MANY_NODES = 2000;
const CONNECTION_TEXT = { connecting: "Connecting", live: "Live", closed: "Disconnected, trying again" };

/** There, curves stand above the graph. */
const phone = matchMedia("(max-width: 760px)");

let stale = true;
let isStarted = false;
const model = new Model(), calls = new Calls(), camera = new Camera();
const arranging = new Arranging(() => {
  byId("busy").hidden = !arranging.isBusy;
  byId("stage").setAttribute("aria-busy", String(arranging.isBusy));
});
const view = new View(model, arranging, camera);
const theme = new Theme(() => {
  drawing.reset();
  legend();
  redraw();
  refresh();
});
const colouring = new Colouring(model, theme);
const stages = new Stages(model, view, theme);
const drawing = new Drawing(byId("graph"), camera, model, view, colouring, theme, stages);
const overview = new Overview(byId("overview"), camera, view, colouring, theme, moved);
const explorer = new Explorer(model, view, camera, drawing, colouring, overview, { changed: moved, selected: showSelected });
const controlBar = new ControlBar(model);
const panel = new Panel(model, theme, {
  choose: (subject) => explorer.choose(subject),
  toggle: (scope) => explorer.toggle(scope),
  isOpen: (scope) => view.open.has(scope),
  showCall,
}, controlBar);
const charts = new Charts(model, theme), moment = new Moment(model);
const costs = new CostTable(model, (subject) => explorer.choose(subject));
const lanes = new LanesCard(model, (node) => explorer.choose(node));
const vitals = new VitalsCards(model), pipelines = new PipelinesCard(model), batches = new BatchesCard(model);
const fullness = new FullnessCard(model, (node) => explorer.choose(node));
const tabs = panelTabs((name) => {
  stale = true;
  document.body.dataset.tab = name;
  if (isStarted) values.show(name === "Values");
  if (isStarted) refresh();
});
const failures = new FailuresCard(model, tabs, (node) => explorer.choose(node), controlBar);
const timeline = new Timeline(
  { canvas: byId("timeline"), tooltip: byId("timeline-tooltip"), live: byId("timeline-live"), sums: byId("timeline-sums") }, calls, model, theme,
  { changed: redraw, chosen: (node) => explorer.choose(node) },
);
const link = new Link(
  () => ({ ...explorer.read(), colour: colouring.mode === "state" ? "" : colouring.mode, timeline: isTimelineOpen() ? "1" : "" }),
  restore,
);
const connection = new Connection(receive, (state) => {
  byId("connection").dataset.state = state;
  setText(byId("connection"), CONNECTION_TEXT[state]);
  if (state === "live") {
    controlBar.ask();
    values.connected();
  }
});
const values = new Values(model, theme, connection, (node) => explorer.choose(node));

/** Messages about values, which belong to no snapshot. */
const VALUES = new Set(["values", "sample", "norms", "kept"]);

/** What the menu of openings offers. */
const OPENINGS = {
  fitting: () => explorer.openFitting(),
  one: () => explorer.openTo(1),
  two: () => explorer.openTo(2),
  three: () => explorer.openTo(3),
  hot: () => explorer.openHot(),
  failed: () => explorer.openFailed(),
};

let scheduled = false;
let isFolded = true;
let lastGraph = null;
let unlight = 0;
/** Messages since the last drawing, and how many of the first are whole snapshots: a status, and the states before it. */
let news = [];
let whole = 0;
/** Messages that have come while the graph that they are about is being arranged. */
let held = null;

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame((now) => {
    scheduled = false;
    takeNews(now);
    paint(now);
  });
}

function paint(now) {
  const sketch = drawing.draw(now);
  overview.draw(now);
  if (isTimelineOpen()) timeline.draw();
  if (sketch) redraw();
}

/** The reader has moved or changed something. */
function moved() {
  placeStages();
  byId("tooltip").hidden = true;
  link.update();
  redraw();
}

/** Pipelines come and go, and what they feed moves. */
function placeStages() {
  const had = stages.boxes.length;
  if (!stages.refresh()) return;
  if (!had && explorer.isFitted) explorer.fit();
  overview.reset();
  legend();
}

/** Picture, legend and panel change together, in the browser's turn to draw, or they would not agree in between. */
function receive(message) {
  if (VALUES.has(message.type)) return values.take(message);
  if (held) return void held.push(message);
  if (message.type === "graph") {
    news = [];
    whole = 0;
    return takeGraph(message);
  }
  news.push(message);
  if (message.type !== "states") whole = news.length;
  if (document.hidden) takeNews(performance.now());
  else if (whole) redraw();
}

function takeNews(now) {
  if (!whole) return;
  const messages = news.splice(0, whole);
  whole = 0;
  const { found } = model;
  for (const message of messages) apply(message, now);
  if (model.found.size !== found.size) legend();
  stale = true;
  panel.refreshState();
  lanes.refresh();
  fullness.refresh();
  countFrames();
  if (colouring.mode !== "lane") countStates();
}

function apply(message, now) {
  if (message.type === "states") {
    model.applyStates(message, now);
    // One more drawing when the ops that just finished stop being lit.
    clearTimeout(unlight);
    unlight = setTimeout(redraw, LIT_MS + 20);
  } else if (message.type === "status") model.applyStatus(message, now);
  else if (message.type === "vitals") {
    model.applyVitals(message);
    moment.heard(now);
    placeStages();
  }
  else if (message.type === "control") {
    model.control = message;
    controlBar.refresh();
    stale = true;
  } else if (message.type === "tracks") calls.announce(message);
  else if (message.type === "calls" && message.revision === model.revision) calls.add(message);
}

function takeGraph(message) {
  calls.clear(); // the newest ones are sent again
  held = [];
  // To read a long message has taken a while; the page draws before it goes on.
  if (message.nodes.length > MANY_NODES) setTimeout(showGraph, 0, message);
  else showGraph(message);
}

function showGraph(message) {
  const isFirst = !model.count;
  lastGraph = message;
  byId("fold").hidden = !message.folded.length;
  explorer.take(new Structure(message, isFolded), () => {
    byId("empty").hidden = model.count > 0;
    if (isFirst && model.count) restore(link.parts());
    describeGraph();
    stale = true;
    const since = held;
    held = null;
    since.forEach(receive);
    redraw();
  });
}

function describeGraph() {
  const ops = model.kind.filter((kind) => kind === OP).length;
  const variables = model.kind.filter((kind) => kind === VARIABLE).length;
  document.title = `${model.name} · actorflow`;
  byId("all-graphs").hidden = !model.hasOthers;
  byId("all-graphs").href = withToken("../");
  setText(byId("graph-name"), model.name);
  const parts = [`${format.count(ops)} ops`, `${format.count(model.count - ops)} blobs`];
  if (variables) parts.push(`${format.count(variables)} of them variables`);
  setText(byId("graph-size"), parts.join(", "));
  legend();
}

function restore(parts) {
  if (parts.open || parts.select || parts.at) explorer.restore(parts);
  if (MODES.includes(parts.colour)) colourBy(parts.colour);
  if (parts.timeline && !isTimelineOpen()) toggleTimeline();
}

function countFrames() {
  const { started, finished, failed, cancelled } = model.frames;
  const numbers = { started, finished, failed, cancelled, "in-flight": model.inFlight };
  for (const [name, number] of Object.entries(numbers)) setText(byId(`frames-${name}`), format.count(number));
  byId("frames-failed").classList.toggle("bad", failed > 0);
}

/** Times, rates and curves: read by people, so a few times a second is enough, and of the tab that is shown. */
function refresh() {
  const now = performance.now();
  setText(byId("frames-rate"), format.rate(model.rate(now)));
  model.measure(now);
  moment.refresh(now);
  offerPast();
  if (model.curves.size && !document.body.classList.contains("curves-first")) {
    document.body.classList.add("curves-first");
    if (phone.matches && tabs.selected === "Now") {
      tabs.show("Curves");
      scrollTo(0, 0);
    }
  }
  if (calls.lost) setText(byId("timeline-note"), `${format.count(calls.lost)} calls are left out, as there are too many`);
  if (!stale || document.hidden) return;
  stale = false;
  if ((explorer.selected >= 0 || explorer.showsPath) && !explorer.pathUs) explorer.findPath();
  panel.criticalUs = explorer.pathUs;
  failures.refresh();
  TABS[tabs.selected]();
  if (colouring.mode === "lane") {
    colouring.use();
    legend();
    redraw();
  }
}

/** What each tab of the panel shows besides states. */
const TABS = {
  Now: () => vitals.refresh(),
  Ops: () => costs.refresh(),
  Curves: () => charts.draw(),
  Values: () => {},
  Failures: () => {},
  Data: () => {
    pipelines.refresh();
    batches.refresh();
    byId("data-none").hidden = !byId("pipelines").hidden || !byId("batches").hidden;
  },
  Node: () => panel.refresh(),
};

function showSelected(subject) {
  panel.criticalUs = explorer.pathUs;
  panel.select(subject);
  values.select(subject);
  if (subject >= 0 && tabs.selected !== "Values") tabs.show("Node"); // there, one looks at one after the other
  else if (subject < 0) tabs.leave("Node");
  timeline.select(subject >= 0 && !model.isScope(subject) ? subject : -1);
}

function showCall(node) {
  if (!isTimelineOpen()) toggleTimeline();
  if (!timeline.show(node)) setText(byId("timeline-note"), "No call of it is in the timeline yet.");
}

/** Show backward and update parts in their layers, or apart. */
function toggleFolding() {
  if (!lastGraph?.folded.length || held) return;
  isFolded = !isFolded;
  byId("fold").setAttribute("aria-pressed", String(isFolded));
  held = [];
  explorer.take(new Structure(lastGraph, isFolded), () => {
    const since = held;
    held = null;
    explorer.openFitting();
    stale = true;
    since.forEach(receive);
  }, true);
}

function isTimelineOpen() {
  return !byId("dock").hidden;
}

function toggleTimeline() {
  const dock = byId("dock");
  dock.hidden = byId("dock-edge").hidden = !dock.hidden;
  byId("timeline-toggle").setAttribute("aria-pressed", String(!dock.hidden));
  calls.clear();
  showPast(null);
  connection.askForTimeline(!dock.hidden);
  link.update();
}

/** The slider has a place for each frame of which all calls are known. */
function offerPast() {
  if (!isTimelineOpen()) return;
  const frames = calls.wholeFrames, slider = byId("past"), shown = model.past?.frame ?? frames.at(-1);
  slider.disabled = !frames.length;
  slider.min = frames[0] ?? 0;
  slider.max = frames.at(-1) ?? 0;
  if (document.activeElement !== slider || !model.past) slider.value = shown ?? 0;
  setText(byId("past-frame"), shown === undefined ? "" : format.count(shown));
}

/** Show the kept frame that is nearest to a number, in graph, timeline, curves and values; null for what is now. */
function showPast(number) {
  const frames = calls.wholeFrames;
  if (number === null || !frames.length) {
    if (!model.past) return;
    model.showPast(null);
    timeline.follow();
  } else {
    const frame = frames.reduce((best, each) => (Math.abs(each - number) < Math.abs(best - number) ? each : best));
    const span = calls.frames.get(frame);
    model.showPast({ frame, ago: calls.latest - span.end, ops: calls.opsOf(frame) });
    timeline.lookAt(span);
  }
  charts.point(model.past?.frame ?? null);
  values.draw();
  moment.refresh(performance.now());
  offerPast();
  countStates();
  panel.refresh();
  stale = true;
  redraw();
}

/** Go back or forth by frames that are kept. */
function stepPast(by) {
  if (!isTimelineOpen()) return toggleTimeline();
  const frames = calls.wholeFrames, at = model.past ? frames.indexOf(model.past.frame) : frames.length;
  if (at + by >= frames.length) showPast(null);
  else showPast(frames[Math.max(at + by, 0)] ?? null);
}

function point(px, py) {
  const place = camera.toWorld(px, py), subject = view.at(...place), stage = subject < 0 ? stages.at(...place) : null;
  byId("graph").classList.toggle("pointing", subject >= 0 || stage !== null);
  if (subject !== drawing.hovered) {
    drawing.hovered = subject;
    redraw();
  }
  const tooltip = byId("tooltip");
  tooltip.hidden = subject < 0 && !stage;
  if (tooltip.hidden) return;
  const lines = stage ? stageLines(stage) : model.isScope(subject) ? scopeLines(model, view, subject) : nodeLines(model, subject);
  tooltip.replaceChildren(element("strong", {}, stage ? stage.name : model.nameOf(subject)), ...lines.map((line) => element("span", {}, line)));
  const left = Math.min(px + 16, camera.width - tooltip.offsetWidth - 8);
  const top = py + 18 + tooltip.offsetHeight > camera.height ? py - tooltip.offsetHeight - 10 : py + 18;
  tooltip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
}

function legend() {
  const item = ({ colour, text, number }) => {
    const mark = element("i");
    mark.style.background = colour;
    return element("li", {}, mark, element("span", { title: text }, text), ...(number === undefined ? [] : [" ", element("b", { "data-state": text })]));
  };
  const time = element("li", {}, "little", element("i", { class: "scale" }), "most of the time");
  const kind = (name, text) => element("li", {}, element("i", { class: name }), text);
  const kinds = [kind("blob", "blob"), kind("variable", "variable")];
  if (model.found.size) kinds.push(kind("not-finite", "made what is not finite"));
  if (stages.boxes.length) kinds.push(kind("stage-mark", "pipeline stage"));
  if (view.edges.some((edge) => edge.rank)) kinds.push(kind("channel", "between ranks"));
  if (view.edges.some((edge) => edge.device && !edge.rank)) kinds.push(kind("copy", "between devices"));
  byId("legend").replaceChildren(...(colouring.mode === "time" ? [time] : colouring.legend().map(item)), ...kinds);
  countStates();
}

function countStates() {
  const numbers = new Map(colouring.legend().map(({ text, number }) => [text, number]));
  for (const target of byId("legend").querySelectorAll("b")) {
    const number = numbers.get(target.dataset.state) ?? 0;
    setText(target, format.count(number));
    target.parentElement.classList.toggle("none", !number);
  }
}

function colourBy(mode) {
  colouring.use(mode);
  byId("colour").value = mode;
  legend();
  overview.reset();
  moved();
}

attachGestures(byId("graph"), camera, {
  moved,
  clicked: (px, py) => {
    const place = camera.toWorld(px, py), subject = view.at(...place);
    if (subject < 0 && stages.at(...place)) tabs.show("Data");
    else explorer.select(subject);
  },
  opened: (px, py) => {
    const subject = view.at(...camera.toWorld(px, py));
    if (model.isScope(subject)) explorer.toggle(subject - model.count);
  },
  pointed: point,
  left: () => point(-1e9, -1e9),
});
attachSearch(byId("search"), byId("search-results"), model, (subject) => explorer.choose(subject));
attachKeys([
  ["/", "Find a node or a scope", () => byId("search").focus()],
  ["f", "Show the whole graph", () => explorer.fit()],
  ["o", "Open the selected scope", () => explorer.openSelected()],
  ["c", "Close the scope around the selection", () => explorer.closeAround()],
  ["O", "Open all scopes", () => explorer.setAll(true)],
  ["1", "Open scopes to this depth; 2 to 9 likewise", () => explorer.openTo(1)],
  ...[2, 3, 4, 5, 6, 7, 8, 9].map((depth) => [String(depth), "", () => explorer.openTo(depth)]),
  ["0", "Open as many scopes as can be read at once", () => explorer.openFitting()],
  ["w", "Open what takes longest", () => explorer.openHot()],
  ["e", "Open what has failed", () => explorer.openFailed()],
  ["b", "Fold backward and update parts into their layers, or show them apart", toggleFolding],
  ["C", "Close all scopes", () => explorer.setAll(false)],
  ["p", "Show or hide the critical path", () => explorer.togglePath()],
  ["[", "Go to what the selection reads", () => explorer.step(-1)],
  ["]", "Go to what reads the selection", () => explorer.step(1)],
  ["j", "Select the next card", () => explorer.walk(1)],
  ["J", "Select the card before", () => explorer.walk(-1)],
  ["k", "Colour by the next thing", () => colourBy(MODES[(MODES.indexOf(colouring.mode) + 1) % MODES.length])],
  ["t", "Show or hide the timeline", toggleTimeline],
  [",", "Show the frame before; . the next one, and at last what is now", () => stepPast(-1)],
  [".", "", () => stepPast(1)],
  [" ", "Where you may control: pause the graph, or resume", () => controlBar.toggle(), "Space"],
  ["n", "Where you may control: let the next frame of a paused graph start", () => controlBar.step()],
  ["x", "Where you may control: cancel frames", () => controlBar.askToCancel()],
  ["Escape", "Select nothing", () => explorer.select(-1)],
  ["h", "Show this help, as ? does", () => byId("help").showModal()],
  ["?", "", () => byId("help").showModal()],
  ["← → ↑ ↓", "Move; in the timeline, go back and forth"],
  ["+ -", "Zoom in and out"],
  ["l", "In the timeline: follow the latest call"],
  ["s", "In the timeline: sum up what is shown"],
]);
byId("zoom-in").addEventListener("click", () => (camera.zoomBy(1.4), moved()));
byId("zoom-out").addEventListener("click", () => (camera.zoomBy(1 / 1.4), moved()));
byId("zoom-fit").addEventListener("click", () => explorer.fit());
byId("open-all").addEventListener("click", () => explorer.setAll(true));
byId("close-all").addEventListener("click", () => explorer.setAll(false));
byId("open-some").addEventListener("change", ({ target }) => {
  OPENINGS[target.value]?.();
  target.value = "";
});
byId("fold").addEventListener("click", toggleFolding);
byId("timeline-range").addEventListener("click", (event) => {
  timeline.picks = !timeline.picks;
  event.currentTarget.setAttribute("aria-pressed", String(timeline.picks));
});
byId("timeline-toggle").addEventListener("click", toggleTimeline);
byId("past").addEventListener("input", (event) => showPast(event.target.valueAsNumber));
for (const id of ["now", "timeline-live"]) byId(id).addEventListener("click", () => showPast(null));
byId("help-button").addEventListener("click", () => byId("help").showModal());
byId("colour").append(...MODES.map((mode) => element("option", { value: mode }, mode)));
byId("colour").addEventListener("change", (event) => colourBy(event.target.value));
new ResizeObserver(() => {
  const wasFitted = explorer.isFitted;
  drawing.resize();
  if (wasFitted) explorer.fit();
  stale = true;
  paint(performance.now()); // at once, as a canvas of another size is black
}).observe(byId("graph"));
resizable(byId("panel-edge"), "--panel", {
  least: 300, most: () => innerWidth / 2, first: 404, from: (event) => innerWidth - event.clientX, grows: "ArrowLeft", shrinks: "ArrowRight",
});
resizable(byId("dock-edge"), "--dock", {
  least: 120, most: () => innerHeight * 0.7, first: 264, from: (event) => innerHeight - event.clientY, grows: "ArrowUp", shrinks: "ArrowDown",
});
setInterval(refresh, PANEL_INTERVAL_MS);
isStarted = true;

drawing.resize();
overview.reset();
legend();
connection.open();

window.actorflow = probe({
  model, view, camera, calls, connection, drawing, explorer, colouring, controlBar, stages, timeline, tabs, values, moment,
  isBusy: () => held !== null || arranging.isBusy,
});
