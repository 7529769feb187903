// How full what is bounded is: streams, blobs, functions, channels between ranks. Pure.

export class Occupancy {
  #indexById;
  #inFlight = 0;
  streams = [];
  /** In how many frames a blob has a value. @type {Map<number, number>} */
  held = new Map();
  /** Calls of functions that take a bounded number at once, and frames that wait for their turn. */
  functions = new Map();
  /** Messages between ranks that wait at either end, by the blob that they carry. */
  channels = new Map();

  /** @param {Map<number, number>} indexById */
  constructor(indexById) {
    this.#indexById = indexById;
  }

  /** How many frames there may be, as far as that is bounded. */
  get most() {
    return Math.max(this.#inFlight, this.streams.reduce((sum, stream) => sum + stream.in_flight, 0));
  }

  #known(pairs) {
    return pairs.filter(([id]) => this.#indexById.has(id)).map(([id, ...rest]) => [this.#indexById.get(id), ...rest]);
  }

  /** What comes with each status, of the same moment as the states. */
  update(functions, streams) {
    this.streams = streams;
    this.functions = new Map(this.#known(functions).map(([node, used, of, more]) => [node, { used, of, more }]));
  }

  /** What is counted about once a second: `occupancy` of a vitals message. */
  count({ frames, blobs, channels }) {
    this.#inFlight = frames;
    this.held = new Map(this.#known(blobs));
    this.channels = new Map();
    for (const [node, , to, untaken, awaited] of this.#known(channels)) {
      this.channels.set(node, [...(this.channels.get(node) ?? []), { to, untaken, awaited, count: Math.max(untaken, awaited) }]);
    }
  }

  /** What is to be seen at a node at a glance, or null. @returns {{used: number, of: number, more?: number} | null} */
  of(node) {
    const calls = this.functions.get(node);
    if (calls) return calls.of > 1 || calls.more ? calls : null;
    const used = this.held.get(node);
    return used && this.most > 1 ? { used, of: this.most } : null;
  }

  /** The same in words. */
  textOf(node) {
    const calls = this.functions.get(node), used = this.held.get(node);
    if (calls) {
      const more = calls.more ? `, ${calls.more} ${calls.more > 1 ? "frames wait" : "frame waits"}` : "";
      return `${calls.used} of ${calls.of} calls at once${more}`;
    }
    return used ? `value held in ${used} of ${this.most} frames` : "";
  }

  #messagesTo(node, rank) {
    return (this.channels.get(node) ?? []).filter(({ to }) => rank === undefined || to === rank);
  }

  /** Frames in which a message with one of these blobs, to a rank, waits. */
  messages(nodes, rank) {
    return nodes.reduce((most, node) => Math.max(most, ...this.#messagesTo(node, rank).map(({ count }) => count)), 0);
  }

  /** What waits between ranks with a blob, in words; to all of them, or to one. */
  waitsOf(node, rank) {
    return this.#messagesTo(node, rank).flatMap(({ to, untaken, awaited }) => {
      // Ranks count for themselves, and may be some frames ahead of this one.
      const of = Math.max(this.most, untaken, awaited), words = [];
      if (untaken) words.push(`${untaken} of ${of} not taken by rank ${to} yet`);
      if (awaited) words.push(`awaited by rank ${to} in ${awaited} of ${of} frames`);
      return words;
    });
  }
}
