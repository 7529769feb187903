// Colours come from the style sheet, so that light and dark are said once.

import { STATES } from "./model.js";

const NAMES = [
  "page", "surface", "raised", "line", "line-strong", "text", "muted", "accent", "edge", "grid", "blob", "box",
  "channel", "copy", "track", "ink", "variable", "variable-line", "cold", "hot", "stage-line", "font", ...STATES,
];

const HUES = 8;

export class Theme {
  /** @param {() => void} onChange called when the system switches between light and dark */
  constructor(onChange) {
    this.#read();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#read();
      onChange();
    });
  }

  #read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of NAMES) this[name] = style.getPropertyValue(`--${name}`).trim();
    /** Colour of each state, by its number. */
    this.states = STATES.map((state) => this[state]);
    /** Colours that only tell things apart: lanes, devices, frames. */
    this.hues = Array.from({ length: HUES }, (_, k) => style.getPropertyValue(`--hue-${k + 1}`).trim());
    this.heat = Array.from({ length: 32 }, (_, i) => mix(this.cold, this.hot, i / 31));
  }
}

function mix(from, to, share) {
  const channel = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const at = (i) => Math.round(channel(from, i) + (channel(to, i) - channel(from, i)) * share);
  return `rgb(${at(1)} ${at(3)} ${at(5)})`;
}
