// Batched runs: the queue, how full frames are, how long requests wait, and how long they take.

import { byId, element } from "./dom.js";
import * as format from "./format.js";

const ENDS = ["finished", "failed", "cancelled", "expired", "refused"];

export class BatchesCard {
  #shown = "";
  #steps = new Map();

  constructor(model) {
    this.model = model;
  }

  refresh() {
    const batchers = this.model.vitals?.batchers ?? [];
    byId("batches").hidden = !batchers.length;
    const key = JSON.stringify(batchers);
    if (key === this.#shown) return;
    this.#shown = key;
    byId("batch-list").replaceChildren(...batchers.map((batcher) => batcherItem(batcher, batchers.length > 1, this.#pace(batcher))));
  }

  /** Steps per second of a batcher since its figures came before; null for the first ones. */
  #pace({ number, steps }) {
    const now = performance.now() / 1000, before = this.#steps.get(number);
    this.#steps.set(number, { steps, now });
    return before && steps >= before.steps ? (steps - before.steps) / (now - before.now) : null;
  }
}

function batcherItem(batcher, isNamed, pace) {
  const { waiting_rows: waiting, queue_rows: room } = batcher;
  const ends = ENDS.filter((end) => batcher[end]).map((end) => `${format.count(batcher[end])} ${end}`);
  const head = isNamed ? [element("span", { class: "name" }, `Batcher ${batcher.number}`)] : [];
  const bar = element("div", { class: waiting >= room ? "meter full" : "meter" }, element("i"));
  bar.firstChild.style.width = `${Math.min((100 * waiting) / room, 100).toFixed(1)}%`;
  const seconds = (value) => format.duration(value * 1e6), rows = (value) => format.rate(value);
  const queue = `${format.count(waiting)} of ${format.count(room)} rows wait, ${format.count(batcher.in_flight)} frames in flight`;
  return element("li", {},
    ...head,
    bar,
    line(queue),
    line(`Requests: ${ends.join(", ") || "none has ended"}`),
    ...histogram("Rows per frame", batcher.rows, rows),
    ...histogram("Wait", batcher.wait_s, seconds),
    ...histogram("Latency", batcher.latency_s, seconds),
    ...(batcher.sessions || batcher.steps ? sessions(batcher, pace) : []),
    ...histogram("First step", batcher.first_step_s, seconds),
    ...histogram("Between steps", batcher.between_steps_s, seconds),
  );
}

/** The sessions whose steps were asked for longest ago, a row each. */
function sessions(batcher, pace) {
  const facts = `${format.count(batcher.sessions)} of ${format.count(batcher.max_sessions)} sessions, ${format.count(batcher.steps)} steps`;
  const text = line(pace === null ? facts : `${facts}, ${format.rate(pace)} per second`);
  if (!batcher.longest.length) return [text];
  const rows = batcher.longest.map(({ number, steps, doing, for_s: time }) => element("tr", {},
    element("th", { scope: "row" }, `Session ${format.count(number)}`), element("td", {}, `${format.count(steps)} steps`),
    element("td", {}, `${doing} ${format.brief(time * 1e6)}`)));
  return [text, element("div", { class: "norm-table" }, element("table", {}, element("tbody", {}, ...rows)))];
}

function line(text) {
  return element("span", { class: "pace" }, text);
}

/** A bar per bucket that has values, or lies between such. */
function histogram(name, { limits, counts, mean, p50, p99 }, text) {
  const first = counts.findIndex(Boolean), last = counts.findLastIndex(Boolean);
  if (first < 0) return [];
  const most = Math.max(...counts);
  const bars = counts.slice(first, last + 1).map((count, at) => {
    const limit = limits[first + at];
    const until = limit === undefined ? `more than ${text(limits.at(-1))}` : `up to ${text(limit)}`;
    const bar = element("i", { title: `${until}: ${format.count(count)}` });
    bar.style.height = `${((100 * count) / most).toFixed(1)}%`;
    return bar;
  });
  const facts = `${name}: mean ${text(mean)}, median ${text(p50)}, p99 ${text(p99)}`;
  return [element("div", { class: "bars", role: "img", "aria-label": facts }, ...bars), line(facts)];
}
