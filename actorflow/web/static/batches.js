// Batched runs: the queue, how full frames are, how long requests wait, and how long they take.

import { byId, element } from "./dom.js";
import * as format from "./format.js";

const ENDS = ["finished", "failed", "cancelled", "expired", "refused"];

export class BatchesCard {
  #shown = "";

  constructor(model) {
    this.model = model;
  }

  refresh() {
    const batchers = this.model.vitals?.batchers ?? [];
    byId("batches").hidden = !batchers.length;
    const key = JSON.stringify(batchers);
    if (key === this.#shown) return;
    this.#shown = key;
    byId("batch-list").replaceChildren(...batchers.map((batcher) => batcherItem(batcher, batchers.length > 1)));
  }
}

function batcherItem(batcher, isNamed) {
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
    ...(batcher.sessions ? [line(`${format.count(batcher.sessions)} of ${format.count(batcher.max_sessions)} sessions`)] : []),
    ...histogram("Rows per frame", batcher.rows, rows),
    ...histogram("Wait", batcher.wait_s, seconds),
    ...histogram("Latency", batcher.latency_s, seconds),
  );
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
