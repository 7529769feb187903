// The keys, said once: what they do, and what the help says of them.

import { byId, element } from "./dom.js";

/** @param {[string, string, () => void][]} keys key, what the help says if anything, what it does; without the last, help alone */
export function attachKeys(keys) {
  const actions = new Map(keys.filter(([, , act]) => act).map(([key, , act]) => [key, act]));
  byId("key-list").replaceChildren(...keys.filter(([, text]) => text).flatMap(([key, text]) => [
    element("dt", {}, ...key.split(" ").map((part) => element("kbd", {}, part))), element("dd", {}, text),
  ]));
  addEventListener("keydown", (event) => {
    const { target } = event;
    if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const act = actions.get(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  });
}
