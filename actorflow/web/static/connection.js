// One WebSocket that comes back: reconnects with growing pauses, and asks for a snapshot when a message is missing.

import { decode } from "./wire.js";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 8000;
// The server sends a heartbeat every 10 s, so a longer silence means that the connection is dead.
const SILENCE_MS = 30000;

export class Connection {
  #socket = null;
  #pauseMs = FIRST_PAUSE_MS;
  #watchdog = 0;
  #retry = 0;
  #seen = { states: 0, status: 0 };
  #resyncing = true;
  #onMessage;
  #onState;

  #timeline = false;

  state = "connecting";
  resyncs = 0;

  /**
   * @param {(message: object) => void} onMessage gets every message that fits what came before
   * @param {(state: "connecting" | "live" | "closed") => void} onState
   */
  constructor(onMessage, onState) {
    this.#onMessage = onMessage;
    this.#onState = onState;
    addEventListener("online", () => this.#reconnectNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.#reconnectNow());
  }

  /** Number of the newest message that was applied. */
  get seq() {
    return Math.max(this.#seen.states, this.#seen.status);
  }

  /** Whether finished calls are wanted, one by one. */
  askForTimeline(on) {
    this.#timeline = on;
    if (this.state === "live") this.#send({ type: "timeline", on });
  }

  /** Send a request if there is a connection; returns whether there is. */
  ask(request) {
    if (this.state === "live") this.#send(request);
    return this.state === "live";
  }

  open() {
    const address = new URL("stream", document.baseURI);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.#receive(decode(data));
    socket.onclose = () => this.#lost(socket);
    this.#socket = socket;
    this.#resyncing = true;
    this.#seen = { states: 0, status: 0 };
    this.#change("connecting");
    this.#feedWatchdog();
  }

  #receive(message) {
    this.#feedWatchdog();
    if (message.type === "heartbeat") {
      if (message.states > this.#seen.states || message.status > this.#seen.status) this.#resync();
      return;
    }
    if (message.type === "graph") {
      this.#seen = { states: 0, status: 0 };
      this.#resyncing = false;
      this.#pauseMs = FIRST_PAUSE_MS;
      if (this.state !== "live") {
        this.#change("live");
        if (this.#timeline) this.#send({ type: "timeline", on: true });
      }
    } else if (message.type === "states" || message.type === "status") {
      if (this.#resyncing) return;
      if (!message.full && message.base > this.#seen[message.type]) return this.#resync();
      this.#seen[message.type] = message.seq;
    }
    this.#onMessage(message);
  }

  #resync() {
    if (this.#resyncing) return;
    this.#resyncing = true;
    this.resyncs += 1;
    this.#send({ type: "resync" });
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #lost(socket) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    clearTimeout(this.#watchdog);
    this.#change("closed");
    // Pauses are spread, so that many pages do not come back in step.
    this.#retry = setTimeout(() => this.open(), this.#pauseMs * (0.75 + Math.random() / 2));
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
  }

  #reconnectNow() {
    if (this.#socket) return;
    clearTimeout(this.#retry);
    this.#pauseMs = FIRST_PAUSE_MS;
    this.open();
  }

  #feedWatchdog() {
    clearTimeout(this.#watchdog);
    const socket = this.#socket;
    this.#watchdog = setTimeout(() => {
      socket.close();
      this.#lost(socket);
    }, SILENCE_MS);
  }

  #change(state) {
    this.state = state;
    this.#onState(state);
  }
}
