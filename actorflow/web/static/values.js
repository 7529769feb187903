// The tab "Values": what a blob or a variable holds, as far as the server lets this reader see it.
//
// Samples are asked for while the tab is shown, and of what is selected alone; the server ends its taps with that.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { Norms } from "./norms.js";
import { OP } from "./structure.js";
import { token } from "./token.js";
import { bars, drawHistogram, drawHistory, drawLine, drawPicture } from "./views.js";

/** Samples whose histograms are kept. */
const MOST_SAMPLES = 160;
/** Where the system asks for less motion, values change this often. */
const CALM_MS = 1000;
const FIGURES = [
  ["min", "Min"], ["max", "Max"], ["mean", "Mean"], ["std", "Std"], ["norm", "Norm"], ["nan", "NaN"], ["infinite", "Infinite"], ["dtype", "Dtype"], ["shape", "Shape"],
];
const COUNTS = new Set(["nan", "infinite"]);

export class Values {
  #facts = new Map();
  #offer = null;
  #node = -1;
  #isShown = false;
  #samples = [];
  #pointed = -1;
  #drawnAt = -Infinity;
  #later = 0;
  #asked = "";
  /** How the last picture was laid out. */
  layout = null;

  constructor(model, theme, connection, choose) {
    Object.assign(this, { model, theme, connection, calm: matchMedia("(prefers-reduced-motion: reduce)") });
    this.norms = new Norms(model, theme, choose);
    for (const [name, term] of FIGURES) {
      const figure = element("dd");
      byId("value-facts").append(element("div", {}, element("dt", {}, term), figure));
      this.#facts.set(name, figure);
    }
    byId("norms-on").addEventListener("change", () => this.#ask());
    byId("value-log").addEventListener("change", () => this.draw());
    document.addEventListener("visibilitychange", () => this.#ask());
    this.#listen(byId("value-histogram"));
  }

  /** The newest sample, or that of the frame of before which is shown; null before the first. */
  get sample() {
    return this.#shown.at(-1) ?? null;
  }

  /** Samples up to the frame that is shown. */
  get #shown() {
    const { past } = this.model;
    return past ? this.#samples.filter(({ frame }) => frame <= past.frame) : this.#samples;
  }

  get isAllowed() {
    return this.#offer?.allowed ?? false;
  }

  /** The tab is shown, or no longer. */
  show(isShown) {
    this.#isShown = isShown;
    this.#ask();
    this.draw();
  }

  /** Another node or scope is selected; of an op its first output is looked at. */
  select(subject) {
    const { model } = this, isNode = subject >= 0 && !model.isScope(subject);
    const blob = isNode && model.kind[subject] === OP ? (model.readers.of(subject)[0] ?? -1) : isNode ? subject : -1;
    this.#node = blob < 0 ? -1 : model.nodes[blob].id;
    if (this.sample?.id !== this.#node) this.#forget();
    setText(byId("value-name"), blob < 0 ? "" : model.nameOf(blob));
    this.norms.select(this.#node);
    this.#ask();
    this.#say();
  }

  /** A connection has begun: its server knows of nothing that was asked for. */
  connected() {
    this.#asked = "";
    this.#offer = null;
    this.norms.clear();
    this.#ask();
  }

  take(message) {
    if (message.type === "values") this.#offer = message;
    else if (message.type === "norms") this.norms.take(message);
    else if (message.type === "kept" && message.id === this.#node) this.#samples = [...message.samples, ...this.#samples].slice(-MOST_SAMPLES);
    else if (message.id === this.#node) {
      this.#samples = [...this.#samples, message].slice(-MOST_SAMPLES);
      this.draw();
    }
    this.#say();
  }

  /** Draw the newest sample: at once, or for who wants less motion, when it is time. */
  draw() {
    clearTimeout(this.#later);
    const { sample } = this, left = this.calm.matches ? this.#drawnAt + CALM_MS - performance.now() : 0;
    if (left > 0) return void (this.#later = setTimeout(() => this.draw(), left));
    if (!sample) byId("value").hidden = true;
    if (!sample || !this.#isShown || document.hidden) return;
    this.#drawnAt = performance.now();
    byId("value").hidden = false;
    setText(byId("value-frame"), sample.frame === null ? "before the first frame" : `frame ${format.count(sample.frame)}`);
    for (const [name, figure] of this.#facts) setText(figure, textOf(name, sample[name]));
    for (const name of COUNTS) this.#facts.get(name).classList.toggle("bad", sample[name] > 0);
    const { histogram, view } = sample, { theme } = this;
    byId("value-spread").hidden = !histogram;
    drawHistogram(byId("value-histogram"), histogram, theme, { isLog: byId("value-log").checked, pointed: this.#pointed });
    this.#sayBin();
    drawHistory(byId("value-history"), this.#shown, MOST_SAMPLES, theme);
    byId("value-look").hidden = !view;
    byId("value-picture").hidden = view?.kind !== "picture";
    byId("value-line").hidden = view?.kind !== "line";
    setText(byId("value-caption"), view ? captionOf(view) : "");
    if (view?.kind === "picture") this.layout = drawPicture(byId("value-picture"), view, byId("value-look").clientWidth, theme);
    if (view?.kind === "line") drawLine(byId("value-line"), view, theme);
    const name = byId("value-name").textContent;
    for (const [id, what] of [["histogram", "Histogram"], ["history", "Histograms of the last samples"], ["picture", "Picture"], ["line", "Line"]]) {
      byId(`value-${id}`).setAttribute("aria-label", `${what} of ${name}`);
    }
  }

  /** Bars of the histogram as drawn, CSS pixels. */
  get bars() {
    const { clientWidth, clientHeight } = byId("value-histogram");
    return this.sample?.histogram ? bars(this.sample.histogram, byId("value-log").checked, clientWidth, clientHeight) : [];
  }

  #ask() {
    const isOn = this.#isShown && !document.hidden;
    const of = isOn && this.#node >= 0 ? this.#node : null, norms = isOn && byId("norms-on").checked;
    const request = { type: "values", of, norms, token }, text = JSON.stringify(request);
    if (text === this.#asked || (!isOn && !this.#asked)) return;
    if (this.connection.ask(request)) this.#asked = text;
  }

  #forget() {
    this.#samples = [];
    this.#pointed = -1;
    byId("value").hidden = true;
  }

  #say() {
    const offer = this.#offer;
    byId("norms").hidden = !offer?.allowed || offer.problem !== null;
    setText(byId("value-note"), this.#why(offer));
    byId("value-note").hidden = !byId("value-note").textContent;
  }

  /** Why nothing is shown; nothing where something is. */
  #why(offer) {
    if (!offer) return "Not connected.";
    if (!offer.offered) return "This program does not show its values: it would have to be served with values=True.";
    if (!offer.allowed) return "Values are for those who have the token: open the address that the server printed, with its token, in this tab.";
    if (offer.problem) return `Nothing can be shown: ${offer.problem}.`;
    if (this.#node < 0) return "Select a blob, a variable or an op in the graph.";
    if (this.sample) return "";
    return this.model.past ? "Nothing was sampled of it up to this frame." : "It is shown with the next frame that has a value of it.";
  }

  #sayBin() {
    const { histogram } = this.sample ?? {}, at = this.#pointed;
    const isBin = histogram && at >= 0 && at < histogram.counts.length;
    if (!isBin) return setText(byId("value-bin"), "");
    const width = (histogram.high - histogram.low) / histogram.counts.length, low = histogram.low + at * width;
    setText(byId("value-bin"), `${format.value(low)} … ${format.value(low + width)}: ${format.count(histogram.counts[at])}`);
  }

  #listen(canvas) {
    const point = (bin) => {
      this.#pointed = bin;
      if (this.sample) drawHistogram(canvas, this.sample.histogram, this.theme, { isLog: byId("value-log").checked, pointed: bin });
      this.#sayBin();
    };
    const count = () => this.sample?.histogram?.counts.length ?? 0;
    canvas.addEventListener("pointermove", (event) => point(Math.floor((event.offsetX / canvas.clientWidth) * count())));
    canvas.addEventListener("pointerleave", () => point(-1));
    canvas.addEventListener("blur", () => point(-1));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      point(Math.max(0, Math.min(this.#pointed + by, count() - 1)));
    });
  }
}

function textOf(name, value) {
  if (name === "dtype") return value;
  if (name === "shape") return value.length ? `(${value.join(", ")})` : "()";
  if (value === null) return "–";
  return COUNTS.has(name) ? format.count(value) : format.value(value);
}

function captionOf(view) {
  if (view.kind === "line") return view.low.length < view.size ? `${format.count(view.size)} elements, smallest to largest of each ${Math.ceil(view.size / view.low.length)}` : `${format.count(view.size)} elements`;
  const scale = `black is ${textOf("low", view.low)}, white ${textOf("high", view.high)}, red not finite`;
  if (view.of.length === 2) {
    const [rows, columns] = view.of, step = view.steps[1];
    const parts = [rows > view.height ? `The first ${view.height} of ${format.count(rows)} rows` : `${rows} rows`];
    if (step > 1) parts.push(`each ${step}th of ${format.count(columns)} columns`);
    return `${parts.join(", ")}; ${scale}`;
  }
  const [images, , , channels] = view.of, shown = view.count / view.each;
  const parts = [shown < images ? `The first ${shown} of ${format.count(images)}` : `${images} in all`];
  if (view.each > 1) parts.push(`channels 0 to ${view.each - 1} of ${format.count(channels)} as columns`);
  if (view.steps[0] > 1) parts.push(`each ${view.steps[0]}th pixel`);
  return `${parts.join(", ")}; ${scale}`;
}
