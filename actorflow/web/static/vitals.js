// How the process is: what old frames wait for, memory of each device, how late the loop is.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

export class VitalsCards {
  #shown = "";

  constructor(model) {
    this.model = model;
  }

  refresh() {
    const { vitals } = this.model;
    const stalled = vitals?.stalled_s ?? null;
    byId("stalled").hidden = stalled === null;
    if (!vitals) return;
    if (stalled !== null) setText(byId("stalled"), `No call has ended for ${format.duration(stalled * 1e6)}.`);
    const key = JSON.stringify([vitals.memory, vitals.lag_ms, vitals.waiting]);
    if (key === this.#shown) return;
    this.#shown = key;
    this.#lag(vitals.lag_ms);
    byId("memory-list").replaceChildren(...vitals.memory.map(memoryItem));
    byId("waiting-list").replaceChildren(...vitals.waiting.map(waitingItem));
  }

  #lag(lag) {
    const ms = (value) => format.duration(value * 1000);
    setText(byId("loop-lag"), lag ? `median ${ms(lag.p50)}, p99 ${ms(lag.p99)}, most ${ms(lag.max)}` : "–");
    byId("loop-lag").classList.toggle("bad", lag !== null && lag.p99 > 100);
  }
}

function memoryItem({ place, held, used, peak, budget }) {
  const whole = budget ?? Math.max(peak, 1);
  const bar = element("div", { class: "meter" }, element("i"), element("b"));
  bar.firstChild.style.width = `${Math.min((100 * used) / whole, 100).toFixed(1)}%`;
  bar.lastChild.style.width = `${Math.min((100 * (held - used)) / whole, 100).toFixed(1)}%`;
  const limit = budget === null ? `peak ${format.bytes(peak)}, no budget` : `of ${format.bytes(budget)}, peak ${format.bytes(peak)}`;
  const text = `${format.bytes(used)} used, ${format.bytes(held - used)} free to reuse, ${limit}`;
  return element("li", {}, element("span", { class: "name" }, place), bar, element("span", { class: "pace" }, text));
}

function waitingItem({ frame, lengths, seconds, waits }) {
  const name = `Frame ${format.count(frame)}${lengths ? ` with ${lengths}` : ""}`;
  const head = element("span", { class: "when" }, `${name} has not moved for ${format.duration(seconds * 1e6)}`);
  return element("li", {}, head, element("pre", {}, waits));
}
