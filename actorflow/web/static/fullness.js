// The list of what is bounded and how full it is, fullest first.

import { byId, element } from "./dom.js";
import * as format from "./format.js";

const MAX_ITEMS = 8;

export class FullnessCard {
  #shown = "";

  /** @param {(node: number) => void} choose called when the reader wants to see a node */
  constructor(model, choose) {
    Object.assign(this, { model, choose });
  }

  refresh() {
    const rows = this.#rows().slice(0, MAX_ITEMS);
    const key = JSON.stringify(rows);
    if (key === this.#shown) return;
    this.#shown = key;
    byId("fullness-list").replaceChildren(...rows.map((row) => this.#item(row)));
  }

  /** What others wait for comes first. */
  #rows() {
    const { model } = this, { streams, functions, held, channels, most } = model.occupancy;
    const rows = streams.map(({ number, held: used, in_flight: of }) => (
      { node: -1, name: `Stream ${number}`, text: `${used} of ${of} frames`, share: used / of, rank: 2 }
    ));
    for (const [node, { used, of, more }] of functions) {
      if (of > 1 || more) rows.push({ node, name: model.nameOf(node), text: model.occupancy.textOf(node), share: used / of, rank: more ? 0 : 3 });
    }
    for (const node of channels.keys()) {
      const count = channels.get(node).reduce((sum, channel) => sum + channel.count, 0);
      rows.push({ node, name: model.nameOf(node), text: model.occupancy.waitsOf(node).join(", "), share: count / Math.max(most, count), rank: 1 });
    }
    if (most > 1) {
      for (const [node, used] of held) {
        if (used >= most) rows.push({ node, name: model.nameOf(node), text: model.occupancy.textOf(node), share: used / most, rank: 4 });
      }
    }
    return rows.sort((a, b) => a.rank - b.rank || b.share - a.share || a.node - b.node);
  }

  #item({ node, name, text, share, rank }) {
    const bar = element("div", { class: rank === 0 ? "meter full" : "meter" }, element("i"));
    bar.firstChild.style.width = `${Math.min(100 * share, 100).toFixed(1)}%`;
    const title = element("span", { class: "name", title: name }, format.tail(name, 42));
    const parts = [title, bar, element("span", { class: "pace" }, text)];
    if (node < 0) return element("li", {}, ...parts);
    const button = element("button", { type: "button" }, ...parts);
    button.addEventListener("click", () => this.choose(node));
    return element("li", {}, button);
  }
}
