// The bar above the graph: shows to all who has paused it, and has buttons for clients that may control it.

import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { parse, visible } from "./text.js";
import { shown } from "./token.js";

const MOST_IN_FLIGHT = 1024;
/** So long is shown what became of a command, before what is the case is said again. */
const TOLD_MS = 8000;
/** While one chooses what to cancel, frames come and go. */
const FOLLOW_MS = 400;
const GONE = "the server cannot be reached";

export class ControlBar {
  #offer = { offered: false, allowed: false, saves: false };
  #busy = false;
  #told = { text: "", bad: false, until: 0 };

  constructor(model) {
    this.model = model;
    byId("pause").addEventListener("click", () => this.toggle());
    byId("step").addEventListener("click", () => this.step());
    byId("cancel").addEventListener("click", () => this.askToCancel());
    byId("save").addEventListener("click", () => this.save());
    byId("check-finite").addEventListener("change", ({ target: { value } }) => {
      this.#command("check_finite", { on: value !== "off", pause: value === "pause" });
    });
    byId("cancel-dialog").addEventListener("close", () => this.#answered());
    byId("stop-dialog").addEventListener("close", (event) => {
      if (event.target.returnValue === "yes") this.#command("stop", { stream: Number(event.target.dataset.stream) });
    });
  }

  /** Whether this reader may do more than look; known only when the server has said so. */
  get allowed() {
    return this.#offer.allowed;
  }

  /** The call whose inputs can be saved: frame, and id of the op; null if there is none. */
  get kept() {
    return (this.allowed && this.model.control?.kept) || null;
  }

  /** Whether the inputs of a call that has failed can be saved by this reader. */
  canSave({ frame, op_id: id }) {
    return this.kept?.frame === frame && this.kept.op_id === id;
  }

  /** What saves them: a graph of that call alone, to be loaded and run elsewhere. */
  saveButton({ frame }) {
    const button = element("button", { type: "button", class: "action save-call", title: "A file of this call alone, with its inputs, for af.load" }, `Save call of frame ${format.count(frame)}`);
    button.addEventListener("click", () => this.#saveCall(frame, button));
    return button;
  }

  async #saveCall(frame, button) {
    button.disabled = true;
    try {
      const headers = { "Content-Type": "application/json", ...shown() };
      const response = await fetch("api/control/call", { method: "POST", headers, body: JSON.stringify({ frame }) });
      if (response.ok) download(await response.blob(), `frame-${frame}.af`);
      else this.#tell(visible(await response.text()).replace(/^\d+: /, "").trim(), true);
    } catch {
      this.#tell(GONE, true);
    }
    button.disabled = false;
    this.refresh();
  }

  /** A connection has begun: forget what another one said, and ask what this server lets the reader do. */
  async ask() {
    this.model.control = null;
    try {
      const response = await fetch("api/control", { headers: shown() });
      if (response.ok) this.#offer = parse(await response.text());
    } catch {
      this.#offer = { offered: false, allowed: false, saves: false }; // the server has gone again
    }
    this.refresh();
  }

  toggle() {
    return this.#command(this.model.control?.paused ? "resume" : "pause");
  }

  step() {
    if (this.model.control?.paused) return this.#command("step");
  }

  async askToCancel() {
    if (!this.allowed || document.querySelector("dialog[open]")) return;
    if (!await this.#listFrames()) return;
    byId("cancel-dialog").returnValue = "";
    byId("cancel-dialog").showModal();
    while (byId("cancel-dialog").open) {
      await new Promise((go) => setTimeout(go, FOLLOW_MS));
      if (byId("cancel-dialog").open) await this.#listFrames();
    }
  }

  /** Bring the frames that may be chosen up to date; the one that is chosen stays, even when it has ended. */
  async #listFrames() {
    let frames;
    try {
      ({ frames } = parse(await (await fetch("api/control", { headers: shown() })).text()));
    } catch {
      this.#tell(GONE, true);
      this.refresh();
      return false;
    }
    const list = byId("cancel-frame"), chosen = byId("cancel-dialog").open ? list.value : "";
    const all = frames.length === 1 ? "The one frame in flight" : `All ${format.count(frames.length)} frames in flight`;
    const options = [["", frames.length ? all : "No frame is in flight"], ...frames.map((frame) => [String(frame), `Frame ${format.count(frame)}`])];
    const hasEnded = chosen !== "" && !frames.includes(Number(chosen));
    if (hasEnded) options.push([chosen, `Frame ${format.count(Number(chosen))} has ended`]);
    const known = [...list.options].map(({ value, text }) => `${value} ${text}`).join();
    if (known !== options.map(([value, text]) => `${value} ${text}`).join()) {
      list.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
      list.value = chosen;
    }
    byId("cancel-yes").disabled = !frames.length || hasEnded;
    return true;
  }

  async save() {
    setText(byId("save"), "Saving");
    await this.#command("save");
    setText(byId("save"), "Save checkpoint");
  }

  refresh() {
    const { control } = this.model, paused = control?.paused ?? null, ranks = control?.paused_ranks ?? [];
    byId("control").hidden = !this.allowed && !paused && !ranks.length;
    byId("control").classList.toggle("paused", paused !== null);
    for (const part of byId("control").querySelectorAll(".may")) part.hidden = !this.allowed;
    setText(byId("pause").lastElementChild, paused ? "Resume" : "Pause");
    byId("pause").classList.toggle("primary", paused !== null);
    byId("pause").firstElementChild.className = paused ? "icon play" : "icon hold";
    byId("pause").title = paused ? "Start frames again (Space)" : "Start no further frame; those in flight end (Space)";
    byId("step").disabled = !paused || this.#busy;
    for (const id of ["pause", "cancel", "save"]) byId(id).disabled = this.#busy;
    byId("save").hidden = !this.allowed || !this.#offer.saves;
    const check = control?.check_finite ?? null, look = byId("check-finite");
    if (document.activeElement !== look || !this.#busy) look.value = check ? (check.pause ? "pause" : "fail") : "off";
    look.disabled = this.#busy;
    this.#streams(control?.streams ?? []);
    this.#say(paused, ranks);
    const waiting = paused?.waiting ?? 0;
    byId("held").hidden = !waiting;
    if (waiting) setText(byId("held"), `${waits(waiting)} for a frame to start: the graph is ${reason(paused)}.`);
  }

  #answered() {
    if (byId("cancel-dialog").returnValue !== "yes") return;
    const frame = byId("cancel-frame").value;
    this.#command("cancel", frame ? { frame: Number(frame) } : {});
  }

  async #command(name, content = {}) {
    if (!this.allowed || this.#busy) return;
    this.#busy = true;
    this.refresh();
    try {
      const headers = { "Content-Type": "application/json", ...shown() };
      const response = await fetch(`api/control/${name}`, { method: "POST", headers, body: JSON.stringify(content) });
      const body = await response.text(), text = response.ok ? parse(body).done : visible(body).replace(/^\d+: /, "");
      if (!response.ok || (name !== "pause" && name !== "resume")) this.#tell(text.trim(), !response.ok);
    } catch {
      this.#tell(GONE, true);
    }
    this.#busy = false;
    this.refresh();
  }

  #tell(text, bad) {
    this.#told = { text, bad, until: performance.now() + TOLD_MS };
    setTimeout(() => this.refresh(), TOLD_MS + 50);
  }

  #say(paused, ranks) {
    const told = performance.now() < this.#told.until, { command } = this.model.control ?? {};
    const parts = [];
    if (told) parts.push(capital(this.#told.text));
    else if (command && !paused) parts.push(`${capital(command.text)} by ${command.by}`);
    if (paused) parts.unshift(capital(reason(paused)));
    if (paused?.steps) parts.push(`${format.count(paused.steps)} more may start`);
    else if (paused?.waiting) parts.push(waits(paused.waiting));
    for (const rank of ranks) parts.push(`rank ${rank} is paused`);
    setText(byId("control-note"), [...new Set(parts)].join(" · "));
    byId("control-note").classList.toggle("bad", told && this.#told.bad);
  }

  /** A number for each stream that runs; what is being typed is left alone. */
  #streams(streams) {
    const list = byId("streams"), known = new Map([...list.children].map((label) => [label.dataset.stream, label]));
    const labels = streams.map(({ stream, in_flight: frames }) => {
      const label = known.get(String(stream)) ?? this.#stream(stream), input = label.querySelector("input");
      setText(label.querySelector("span"), streams.length > 1 ? `Stream ${stream}: in flight` : "In flight");
      if (document.activeElement !== input) input.value = frames;
      return label;
    });
    if (labels.length !== list.children.length || labels.some((label, i) => list.children[i] !== label)) list.replaceChildren(...labels);
  }

  #stream(number) {
    const input = element("input", { type: "number", min: "1", max: String(MOST_IN_FLIGHT), inputmode: "numeric" });
    input.addEventListener("change", () => {
      const frames = input.valueAsNumber;
      if (Number.isInteger(frames) && input.checkValidity()) this.#command("in_flight", { stream: number, in_flight: frames });
      else this.#tell(`expected a whole number from 1 to ${format.count(MOST_IN_FLIGHT)}`, true);
      this.refresh();
    });
    input.addEventListener("keydown", (event) => event.key === "Enter" && input.blur());
    const label = element("label", { title: "How many frames of the stream may overlap" }, element("span"), input);
    const stop = element("button", { type: "button", class: "action", "aria-label": `Stop stream ${number}` }, "Stop…");
    stop.addEventListener("click", () => {
      const dialog = byId("stop-dialog");
      dialog.dataset.stream = String(number);
      dialog.returnValue = "";
      setText(byId("stop-title"), `Stop stream ${number}?`);
      dialog.showModal();
    });
    return element("div", { class: "stream", "data-stream": String(number) }, label, stop);
  }
}

/** Have the browser save a file that has been fetched, as a link could not show the token. */
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), TOLD_MS);
}

function reason({ reason: text }) {
  return text ? `paused ${text}` : "paused by the program";
}

function waits(number) {
  return number === 1 ? "1 run or stream waits" : `${format.count(number)} runs or streams wait`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
