// The keys, said once: what they do, and what the help says of them.

import { byId, element } from "./dom.js";

/**
 * @param {[string, string, (() => void)?, string?][]} keys key, what the help says, what it does, what the key is called;
 *   without the third, help alone; without the second, no help
 */
export function attachKeys(keys) {
  const actions = new Map(keys.filter(([, , act]) => act).map(([key, , act]) => [key, act]));
  byId("key-list").replaceChildren(...keys.filter(([, text]) => text).flatMap(([key, text, , name]) => [
    element("dt", {}, ...(name ?? key).split(" ").map((part) => element("kbd", {}, part))), element("dd", {}, text),
  ]));
  addEventListener("keydown", (event) => {
    const { target } = event;
    if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) return;
    if (event.key === " " && target.closest?.("button, a, summary, [role=separator]")) return; // it presses them
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const act = actions.get(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  });
}
