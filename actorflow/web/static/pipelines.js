// Data pipelines that are being iterated: what each stage does, and which one to widen.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

export class PipelinesCard {
  #shown = "";

  constructor(model) {
    this.model = model;
  }

  refresh() {
    const pipelines = this.model.vitals?.pipelines ?? [];
    byId("pipelines").hidden = !pipelines.length;
    const key = JSON.stringify(pipelines);
    if (key === this.#shown) return;
    this.#shown = key;
    setText(byId("pipeline-count"), pipelines.length > 1 ? format.count(pipelines.length) : "");
    byId("pipeline-list").replaceChildren(...pipelines.map(pipelineItem));
  }
}

function pipelineItem({ stages, delivered, bottleneck }) {
  const head = element("span", { class: "pace" }, `${format.count(delivered)} items delivered. Slowest: ${bottleneck}`);
  return element("li", {}, head, element("ol", { class: "memory" }, ...stages.map(stageItem)));
}

function stageItem(stage) {
  const bar = element("div", { class: "meter" }, element("i"));
  bar.firstChild.style.width = `${Math.min(100 * stage.busy, 100).toFixed(1)}%`;
  const isFull = stage.room > 0 && stage.queued >= stage.room;
  const full = isFull ? [element("span", { class: "tag" }, "queue full")] : [];
  return element("li", {}, ...full, element("span", { class: "name" }, stage.name), bar, element("span", { class: "pace" }, stageLines(stage).join(", ")));
}

/** What is known of a stage, in words. */
export function stageLines(stage) {
  const facts = [`${format.rate(stage.per_s)} items/s`, `${stage.running} of ${stage.concurrency} calls run`, `holds ${format.count(stage.held)}`];
  if (stage.room) facts.push(`${format.count(stage.queued)} of ${format.count(stage.room)} in its queue`);
  if (stage.p99_us) facts.push(`median ${format.duration(stage.p50_us)}, p99 ${format.duration(stage.p99_us)}`);
  if (stage.skipped) facts.push(`${format.count(stage.skipped)} left out`);
  return facts;
}
