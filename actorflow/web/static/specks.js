// Very many small rectangles, pixel by pixel: a canvas without a GPU takes more than a microsecond for each.

export class Specks {
  #context = document.createElement("canvas").getContext("2d");
  #width = 0;
  #height = 0;
  #image = null;
  #pixels = new Uint32Array(0);
  /** Bytes of each colour, in the order of an `ImageData`, without its alpha. @type {Map<string, number>} */
  #bytes = new Map();

  /** Begin a picture of so many pixels. */
  begin(width, height) {
    if (width === this.#width && height === this.#height) return void this.#pixels.fill(0);
    [this.#width, this.#height] = [this.#context.canvas.width, this.#context.canvas.height] = [width, height];
    this.#image = new ImageData(width, height);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
  }

  /** Add a rectangle; a pixel that it covers in part is so much fainter. */
  add(left, top, right, bottom, colour, alpha = 1) {
    const pixels = this.#pixels, width = this.#width;
    const bytes = this.#bytes.get(colour) ?? this.#read(colour);
    const x1 = Math.max(Math.floor(left), 0), x2 = Math.min(Math.ceil(right), width);
    const y1 = Math.max(Math.floor(top), 0), y2 = Math.min(Math.ceil(bottom), this.#height);
    for (let y = y1; y < y2; y++) {
      const strength = 255 * alpha * (Math.min(bottom, y + 1) - Math.max(top, y));
      for (let x = x1, at = y * width + x1; x < x2; x++, at++) {
        const own = Math.round(strength * (Math.min(right, x + 1) - Math.max(left, x)));
        if (own > pixels[at] >>> 24) pixels[at] = (own << 24) | bytes;
      }
    }
  }

  /** Draw the picture over what is on a canvas of its size. */
  draw(context) {
    this.#context.putImageData(this.#image, 0, 0);
    context.save();
    context.resetTransform();
    context.drawImage(this.#context.canvas, 0, 0);
    context.restore();
  }

  #read(colour) {
    this.#context.fillStyle = colour;
    const rgb = parseInt(this.#context.fillStyle.slice(1), 16); // however it was written, it is read as "#rrggbb"
    const bytes = (rgb >> 16) | (rgb & 0xff00) | ((rgb & 0xff) << 16);
    this.#bytes.set(colour, bytes);
    return bytes;
  }
}
