// Where the time goes: ops, scopes or kinds of operation, a row each. Rows keep their places until the reader sorts.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";

const MOST = 60;

const calls = { name: "Calls", of: (row) => row.calls, text: format.count, says: "Calls that have ended well" };
const mean = { name: "Mean", of: (row) => (row.calls ? row.totalUs / row.calls : 0), text: time, says: "Mean time of a call" };
const p99 = { name: "p99", of: (row) => row.p99Us, text: time, says: "Time that 99 % of the calls do not exceed, estimated" };
const most = { name: "Max", of: (row) => row.maxUs, text: time, says: "Longest call since the page was opened, and of the newest ones before" };
const self = { name: "Self", of: (row) => row.selfUs, text: time, says: "Time of the ops that lie in the scope itself, not in scopes in it" };
const total = { name: "Total", of: (row) => row.totalUs, text: time, says: "Time of all calls" };
const share = { name: "Share", of: (row) => row.totalUs, text: (us, whole) => `${((100 * us) / whole).toFixed(1)}%`, says: "Of the time of all ops" };

const COLUMNS = {
  op: [calls, mean, p99, most, total, share],
  scope: [calls, mean, most, self, total, share],
  kind: [calls, mean, most, total, share],
};

export class CostTable {
  #order = [];
  #rows = [];
  #key = "";
  #sortBy = total;
  #columns = COLUMNS.op;
  #count = 0;

  /** @param {(subject: number) => void} choose called when the reader wants to see an op or a scope */
  constructor(model, choose) {
    Object.assign(this, { model, choose });
    this.group = "op";
    byId("cost-group").append(...Object.keys(COLUMNS).map((name) => element("option", { value: name }, name)));
    byId("cost-group").addEventListener("change", (event) => {
      this.group = event.target.value;
      this.sort();
    });
    byId("cost-sort").addEventListener("click", () => this.sort());
  }

  /** Take the order anew. */
  sort() {
    this.#key = "";
    this.refresh();
  }

  refresh() {
    const rows = this.#collect(), key = `${this.model.revision} ${this.group} ${this.#sortBy.name}`;
    byId("hint").hidden = rows.size > 0;
    byId("cost-table").hidden = !rows.size;
    const sorted = [...rows.values()].sort((a, b) => this.#sortBy.of(b) - this.#sortBy.of(a)).slice(0, MOST).map((row) => row.key);
    // In its first moments a run shows ever more ops; from then on only the reader moves rows.
    if (key !== this.#key || rows.size !== this.#count) {
      if (key !== this.#key) this.#build();
      this.#key = key;
      this.#count = rows.size;
      this.#order = sorted;
      this.#arrange();
    }
    byId("cost-sort").disabled = sorted.every((each, k) => each === this.#order[k]);
    const whole = this.model.totalTimeUs() || 1;
    const longest = this.#order.reduce((most, each) => Math.max(most, this.#sortBy.of(rows.get(each))), 0) || 1;
    this.#order.forEach((each, k) => this.#fill(this.#rows[k], rows.get(each), whole, longest));
  }

  /** Figures by op, by scope, or by kind of operation. @returns {Map<string, object>} */
  #collect() {
    const { model, group } = this, rows = new Map(), { of, parent } = model.scopes;
    const add = (key, subject, name, i, isOwn) => {
      const row = rows.get(key) ?? rows.set(key, { key, subject, name, calls: 0, totalUs: 0, selfUs: 0, maxUs: 0, p99Us: model.p99Us[i] }).get(key);
      const us = model.totalUs(i);
      row.calls += model.calls[i];
      row.totalUs += us;
      row.selfUs += isOwn ? us : 0;
      row.maxUs = Math.max(row.maxUs, model.maxUs[i]);
    };
    for (let i = 0; i < model.count; i++) {
      if (!model.calls[i]) continue;
      if (group === "op") add(i, i, model.nodes[i].name, i, true);
      else if (group === "kind") add(model.nodes[i].operation_kind, -1, model.nodes[i].operation_kind, i, true);
      else for (let s = of[i]; s >= 0; s = parent[s]) add(s, s ? model.count + s : -1, s ? model.scopes.names[s] : "the whole graph", i, s === of[i]);
    }
    return rows;
  }

  #build() {
    this.#columns = COLUMNS[this.group];
    if (!this.#columns.includes(this.#sortBy)) this.#sortBy = total;
    const heads = this.#columns.map((column) => {
      const sorted = column === this.#sortBy;
      const button = element("button", { type: "button", title: column.says }, column.name);
      button.addEventListener("click", () => {
        this.#sortBy = column;
        this.sort();
        byId("cost-table").querySelector("[aria-sort] button").focus();
      });
      return element("span", { role: "columnheader", ...(sorted ? { "aria-sort": "descending" } : {}) }, button);
    });
    const head = element("div", { class: "heads", role: "row" }, ...heads);
    head.style.setProperty("--columns", String(heads.length));
    this.#rows = [];
    byId("cost-table").replaceChildren(head);
  }

  #arrange() {
    const table = byId("cost-table");
    while (this.#rows.length > this.#order.length) this.#rows.pop().item.remove();
    while (this.#rows.length < this.#order.length) {
      const row = this.#make();
      this.#rows.push(row);
      table.append(row.item);
    }
  }

  #make() {
    const name = element("button", { type: "button", class: "name" }), bar = element("i");
    const figures = this.#columns.map(() => element("span", { role: "cell" }));
    const line = element("div", { class: "figures" }, ...figures);
    line.style.setProperty("--columns", String(figures.length));
    const item = element("div", { class: "cost", role: "row" }, element("span", { role: "rowheader" }, name), element("div", { class: "meter" }, bar), line);
    const row = { item, name, bar, figures, subject: -1 };
    name.addEventListener("click", () => row.subject >= 0 && this.choose(row.subject));
    return row;
  }

  #fill(row, figures, whole, longest) {
    row.subject = figures.subject;
    setText(row.name, figures.name);
    row.name.title = figures.name;
    row.bar.style.width = `${((100 * this.#sortBy.of(figures)) / longest).toFixed(1)}%`;
    this.#columns.forEach((column, k) => {
      setText(row.figures[k], column.text(column.of(figures), whole));
      row.figures[k].classList.toggle("sorted", column === this.#sortBy);
    });
  }
}

function time(us) {
  return us ? format.duration(us) : "–";
}
