// Numbers as people read them.

/** A whole number in groups of three digits. `Intl` would do that, after 50 ms in which the page waits for it. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function duration(us) {
  if (us < 1) return us > 0 ? `${(us * 1000).toFixed(0)} ns` : "0 µs";
  if (us < 1000) return `${us.toFixed(us < 10 ? 1 : 0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
  if (us < 1.2e8) return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
  return `${Math.floor(us / 6e7)} min ${Math.round((us % 6e7) / 1e6)} s`;
}

/** A duration in few letters, for a card. */
export function brief(us) {
  const [scale, unit] = us < 1000 ? [1, "µs"] : us < 1e6 ? [1e3, "ms"] : [1e6, "s"], size = us / scale;
  return `${size.toFixed(size < 10 ? 1 : 0)} ${unit}`;
}

/** @param {number | null} size null where it depends on the length of an open axis */
export function bytes(size) {
  if (size === null) return "open";
  if (size < 1000) return `${Math.round(size)} B`;
  const power = Math.min(Math.floor(Math.log10(size) / 3), 4);
  const scaled = size / 1000 ** power;
  return `${scaled.toFixed(scaled < 10 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function rate(perSecond) {
  return perSecond < 10 ? perSecond.toFixed(perSecond ? 1 : 0) : count(Math.round(perSecond));
}

export function value(number) {
  if (number === null) return "not finite";
  const size = Math.abs(number);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? number.toExponential(2) : number.toFixed(size < 10 ? 4 : 2);
}

/** What an array held, in words. */
export function held({ shape: axes, dtype, nan, infinite, minimum, maximum, mean, std }) {
  const bad = [[nan, "NaN"], [infinite, "infinite"]].filter(([number]) => number).map(([number, what]) => `${count(number)} ${what}`);
  const figures = minimum === null ? [] : [["min", minimum], ["max", maximum], ["mean", mean], ["std", std]];
  const said = figures.map(([name, number]) => `${name} ${number === null ? "–" : Number(number.toPrecision(4))}`);
  return [`${dtype} ${shape(axes)}`, ...bad, ...said].join(", ");
}

/** The end of a long name, which tells it from its neighbours. */
export function tail(name, length) {
  return name.length <= length ? name : `…${name.slice(1 - length)}`;
}

export function shape(axes) {
  return axes.length ? axes.join("×") : "scalar";
}
