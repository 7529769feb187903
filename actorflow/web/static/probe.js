// What tests, and a curious reader in the console, may look at.

import { STATES } from "./model.js";

/** @returns {object} `window.actorflow`: what the page knows and shows, read when it is asked for */
export function probe({ model, view, camera, calls, connection, drawing, explorer, colouring, controlBar, stages, timeline, tabs, values, moment, isBusy }) {
  const nameOfCall = (i) => model.nodes[calls.node[i]]?.name;
  const flowsOf = () => {
    const flows = timeline.flows;
    return flows && { call: nameOfCall(flows.call), from: flows.from.map(nameOfCall), to: flows.to.map(nameOfCall) };
  };
  return Object.freeze({
    get connection() { return connection.state; },
    get seq() { return connection.seq; },
    get resyncs() { return connection.resyncs; },
    get name() { return model.name; },
    get revision() { return model.revision; },
    get frames() { return { ...model.frames, inFlight: model.inFlight }; },
    get rate() { return model.rate(performance.now()); },
    /** Whether a graph, or other scopes of it, have come that are not shown yet. */
    get isBusy() { return isBusy(); },
    get framesDrawn() { return drawing.framesDrawn; },
    get camera() { return { x: camera.x, y: camera.y, scale: camera.scale }; },
    get selected() { return explorer.selected < 0 ? null : model.nameOf(explorer.selected); },
    get nodes() { return model.nodes.map((node) => node.name); },
    get states() { return Object.fromEntries(model.nodes.map((node, i) => [node.name, STATES[model.state[i]]])); },
    get failed() { return Object.fromEntries(model.nodes.map((node, i) => [node.name, model.failed[i]])); },
    get calls() { return Object.fromEntries(model.nodes.map((node, i) => [node.name, model.calls[i]])); },
    get curves() { return Object.fromEntries([...model.curves].map(([name, curve]) => [name, [...curve.values]])); },
    get failures() { return model.failures.map((failure) => ({ ...failure })); },
    /** Ops that have made what is not finite, with the frames. */
    get found() { return model.foundOps.map(([node, { frame }]) => ({ name: model.nodes[node].name, frame })); },
    /** What is marked red in the picture, as in `items`, with what is written there. */
    get marks() { return Object.fromEntries([...drawing.marks].map(([item, text]) => [this.items[item], text])); },
    /** The newest sample of a value, how it is drawn, and the newest norms. */
    get values() { return { allowed: values.isAllowed, sample: values.sample, bars: values.bars, layout: values.layout, norms: values.norms.latest }; },
    get tab() { return tabs.selected; },
    get load() { return model.load.map(([name, running, queued]) => ({ name, running: running.map((id) => model.nodes[model.indexById.get(id)]?.name), queued })); },
    /** The frame of before that is shown, if one is; what is said of the moment; the frames that can be. */
    get past() { return model.past?.frame ?? null; },
    get moment() { return moment.text(performance.now()); },
    get keptFrames() { return calls.wholeFrames; },
    get colour() { return colouring.mode; },
    get control() { return { allowed: controlBar.allowed, ...model.control }; },
    /** Names of what is drawn: nodes, and closed scopes with a "/" at the end. */
    get items() { return [...view.subject].map((subject) => model.nameOf(subject) + (model.isScope(subject) ? "/" : "")); },
    get open() { return [...view.open].map((scope) => model.scopes.names[scope]); },
    get edges() { return view.edges.map((edge) => drawing.edges.describe(edge)); },
    get labels() { return drawing.edges.labels.map((label) => ({ ...label })); },
    /** Mean time of a pass through a node or scope: forward, backward, update. */
    passUs(name) {
      const scope = model.scopes.byName.get(name), subject = scope > 0 ? model.count + scope : model.indexByName.get(name);
      return [...model.passUs.slice(3 * subject, 3 * subject + 3)];
    },
    get isFolded() { return model.isFolded; },
    get boxes() { return view.boxes.map((box) => ({ ...box, name: model.scopes.names[box.scope] })); },
    get rectangles() { return [...view.x].map((x, i) => [x, view.y[i], view.width[i], view.height[i]]); },
    get stages() { return stages.boxes.map(({ stage, behind, ...box }) => ({ ...box, name: stage.name, queued: stage.queued, room: stage.room, behind })); },
    /** How full a node is, as drawn at it. */
    fullness(name) { return model.occupancy.of(model.indexByName.get(name)); },
    get critical() { return [...drawing.critical].map((item) => model.nameOf(view.subject[item])); },
    get bars() { return timeline.bars.map((bar) => ({ ...bar, node: model.nodes[bar.node]?.name })); },
    get timeline() { return { following: timeline.following, span: timeline.span, calls: calls.total, tracks: calls.tracks, summed: timeline.summed, flows: flowsOf(), requests: calls.requests.map(({ frames, outcome }) => ({ frames, outcome })) }; },
    /** Times of an op's calls as estimated, microseconds. */
    latency(name) {
      const i = model.indexByName.get(name);
      return [model.p50Us[i], model.p99Us[i]];
    },
    /** Longest and all time of an op's calls, microseconds. */
    times(name) {
      const i = model.indexByName.get(name);
      return [model.maxUs[i], model.totalUs(i)];
    },
    isLit(name) { return drawing.isLit(model.indexByName.get(name), model.activeAt[model.indexByName.get(name)]); },
    /** State that a scope shows. */
    stateOf(name) { return STATES[model.stateOf(model.count + model.scopes.byName.get(name))]; },
    toScreen(x, y) { return camera.toScreen(x, y); },
    /** Place of a node or scope on the canvas, CSS pixels. */
    placeOf(name) {
      const scope = model.scopes.byName.get(name);
      const subject = model.indexByName.get(name) ?? (scope > 0 ? model.count + scope : undefined);
      if (subject === undefined) return null;
      const place = view.placeOf(subject);
      return camera.toScreen(place.x, place.y);
    },
  });
}
