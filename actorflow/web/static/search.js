// The search box: type, choose with the arrows, jump with Enter.

import { element } from "./dom.js";
import { KIND_NAMES, OP } from "./structure.js";

const MAX_RESULTS = 12;

/** @param {(index: number) => void} onChoose */
export function attachSearch(input, list, model, onChoose) {
  let found = [];
  let current = 0;

  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const choose = (index) => {
    close();
    input.blur();
    onChoose(index);
  };
  const mark = () => {
    [...list.children].forEach((item, k) => item.setAttribute("aria-selected", String(k === current && found.length > 0)));
    if (!found.length) return;
    input.setAttribute("aria-activedescendant", `result-${current}`);
    list.children[current].scrollIntoView({ block: "nearest" });
  };
  const show = () => {
    const text = input.value.trim();
    if (!text) return close();
    found = model.search(text, MAX_RESULTS);
    current = 0;
    list.replaceChildren(...found.map((index, k) => {
      const kind = model.isScope(index) ? "scope" : KIND_NAMES[model.kind[index]];
      const detail = model.kind[index] === OP ? model.nodes[index].operation_kind : kind;
      const item = element("li", { role: "option", id: `result-${k}` },
        element("span", {}, model.nameOf(index)), element("span", {}, detail));
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        choose(index);
      });
      return item;
    }));
    if (!found.length) list.append(element("li", { class: "none" }, "Nothing has this in its name"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark();
  };

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      close();
      input.blur();
    } else if (event.key === "Enter" && found.length && !list.hidden) choose(found[current]);
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
      event.preventDefault();
      current = (current + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
      mark();
    }
  });
}
