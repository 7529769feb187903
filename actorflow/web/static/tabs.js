// The panel's tabs: each section of the panel with a name is one. Nothing moves when another one has news; a badge tells.

import { byId, element, setText } from "./dom.js";

export class Tabs {
  #tabs = new Map();
  #before = "";
  selected = "";

  /** @param {(name: string) => void} changed called when another one is shown */
  constructor(list, sections, changed) {
    this.changed = changed;
    for (const section of sections) this.#add(list, section);
    list.addEventListener("keydown", (event) => this.#move(event));
    this.show(sections[0].dataset.tab);
  }

  #add(list, section) {
    const name = section.dataset.tab, key = name.toLowerCase();
    // It has its place before there is anything to say, so that the tabs behind it stay where they are.
    const badge = element("span", "badge" in section.dataset ? { class: "badge" } : {});
    const button = element("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, "data-name": name }, name, badge);
    section.id = `panel-${key}`;
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", button.id);
    button.addEventListener("click", () => this.show(name));
    list.append(button);
    this.#tabs.set(name, { button, section, badge });
  }

  show(name) {
    if (name === this.selected) return;
    // On a phone the panel may change its place: what the reader has touched stays where it is.
    const touched = byId("tabs").contains(document.activeElement) ? byId("tabs") : byId("stage"), { top } = touched.getBoundingClientRect();
    [this.#before, this.selected] = [this.selected, name];
    for (const [each, { button, section }] of this.#tabs) {
      const isShown = each === name;
      section.hidden = !isShown;
      button.setAttribute("aria-selected", String(isShown));
      button.tabIndex = isShown ? 0 : -1;
    }
    this.changed(name);
    scrollBy(0, touched.getBoundingClientRect().top - top);
  }

  /** Go back from a tab to the one before, if it is still the one that is shown. */
  leave(name) {
    if (this.selected === name && this.#before) this.show(this.#before);
  }

  /** Say at a tab how much there is that has not been looked at; nothing for 0. */
  mark(name, count) {
    const { badge, button } = this.#tabs.get(name);
    setText(badge, count > 99 ? "99+" : count ? String(count) : "");
    if (count) button.setAttribute("aria-label", `${name}, ${count} new`);
    else button.removeAttribute("aria-label");
  }

  #move(event) {
    const names = [...this.#tabs.keys()], at = names.indexOf(this.selected);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.show(names[(to + names.length) % names.length]);
    this.#tabs.get(this.selected).button.focus();
  }
}

/** The one set of tabs of the page's panel. */
export function panelTabs(changed) {
  return new Tabs(byId("tabs"), [...document.querySelectorAll("#panel > .tab")], changed);
}
