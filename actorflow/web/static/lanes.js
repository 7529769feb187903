// What the lanes do at this moment, a row for each that there has been: which op runs, and how many calls are queued.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

export class LanesCard {
  #rows = new Map();

  /** @param {(node: number) => void} choose called when the reader wants to see an op that runs */
  constructor(model, choose) {
    Object.assign(this, { model, choose });
  }

  /** Of the same moment as the states that are drawn. */
  refresh() {
    const { model } = this, load = new Map(model.load.map(([name, running, queued]) => [name, { running, queued }]));
    for (const name of [...(model.vitals?.tracks ?? []), ...load.keys()]) if (!this.#rows.has(name)) this.#add(name);
    for (const [name, row] of this.#rows) {
      const { running, queued } = load.get(name) ?? { running: [], queued: 0 };
      const nodes = running.map((id) => model.indexById.get(id)).filter((node) => node !== undefined);
      row.node = nodes[0] ?? -1;
      const more = nodes.length > 1 ? ` and ${format.count(nodes.length - 1)} more` : "";
      setText(row.op, nodes.length ? `${model.nameOf(nodes[0])}${more}` : queued ? "between calls" : "idle");
      row.item.classList.toggle("busy-lane", nodes.length > 0);
      setText(row.queued, queued ? `${format.count(queued)} queued` : "");
    }
  }

  #add(name) {
    const op = element("button", { type: "button", class: "op" }), queued = element("span", { class: "figure" });
    const item = element("li", {}, element("span", { class: "name", title: name }, name), op, queued), row = { item, op, queued, node: -1 };
    op.addEventListener("click", () => row.node >= 0 && this.choose(row.node));
    this.#rows.set(name, row);
    byId("lane-list").append(item);
  }
}
