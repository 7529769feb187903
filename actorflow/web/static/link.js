// The address says what one looks at: what is selected, which scopes are open, where the camera is.

const WRITE_AFTER_MS = 300;

export class Link {
  #timer = 0;
  #written = "";

  /**
   * @param {() => Record<string, string>} read what the address should say
   * @param {(parts: Record<string, string>) => void} apply called when the reader changes it
   */
  constructor(read, apply) {
    this.read = read;
    addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== this.#written) apply(this.parts());
    });
  }

  parts() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  /** Write it soon: browsers refuse to have the address changed at every step of the camera. */
  update() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const parts = Object.entries(this.read()).filter(([, text]) => text !== "");
      this.#written = new URLSearchParams(parts).toString();
      history.replaceState(null, "", `#${this.#written}`);
    }, WRITE_AFTER_MS);
  }
}
