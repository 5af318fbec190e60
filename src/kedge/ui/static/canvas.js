// A canvas with the size of its element, sharp at every zoom, drawn at most once a frame, in the colours of the style sheet.

export class Surface {
  #canvas;
  #draw;
  #asked = false;
  #colours = {};
  #size = [1, 1]; // as the browser reports it: to ask in each frame would force a layout

  constructor(canvas, draw) {
    this.#canvas = canvas;
    this.#draw = draw;
    new ResizeObserver(([entry]) => {
      this.#size = [entry.contentRect.width, entry.contentRect.height];
      this.redraw();
    }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#colours = {};
      this.redraw();
    });
  }

  /** A colour of the style sheet by the name of its variable. */
  colour(name) {
    return (this.#colours[name] ??= getComputedStyle(this.#canvas).getPropertyValue(`--${name}`).trim() || "#888");
  }

  redraw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#paint();
    });
  }

  #paint() {
    const [wide, high] = this.#size;
    const scale = devicePixelRatio || 1;
    const width = Math.max(1, Math.round(wide * scale)), height = Math.max(1, Math.round(high * scale));
    if (this.#canvas.width !== width || this.#canvas.height !== height) {
      this.#canvas.width = width;
      this.#canvas.height = height;
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, wide, high);
    this.#draw(context, wide, high, this);
  }
}

const PAD = 3;
const sprites = new Map();

/** As `glyph`, copied from a small picture: thousands of them are drawn in one frame. */
export function stamp(context, shape, x, y, r, colour) {
  const scale = devicePixelRatio || 1, key = `${shape}${r}${colour}${scale}`;
  let found = sprites.get(key);
  if (!found) {
    const size = Math.ceil(r * 2.4 + 2 * PAD);
    found = { canvas: new OffscreenCanvas(size * scale, size * scale), size };
    const own = found.canvas.getContext("2d");
    own.scale(scale, scale);
    glyph(own, shape, size / 2, size / 2, r, colour);
    sprites.set(key, found);
  }
  context.drawImage(found.canvas, Math.round(x - found.size / 2), Math.round(y - found.size / 2), found.size, found.size);
}

/** One symbol around a point: the shape shows the outcome without its colour. */
export function glyph(context, shape, x, y, r, colour) {
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.beginPath();
  switch (shape) {
    case "nothing":
      context.arc(x, y, Math.max(1.4, r * 0.4), 0, 7);
      context.fill();
      break;
    case "acted":
      context.fillRect(x - r * 0.8, y - r * 0.8, r * 1.6, r * 1.6);
      break;
    case "pending":
    case "person":
      context.moveTo(x, y - r * 1.15);
      context.lineTo(x + r * 1.15, y);
      context.lineTo(x, y + r * 1.15);
      context.lineTo(x - r * 1.15, y);
      context.closePath();
      context.fill();
      break;
    case "refused":
    case "leader":
      context.moveTo(x, y - r);
      context.lineTo(x + r, y + r * 0.8);
      context.lineTo(x - r, y + r * 0.8);
      context.closePath();
      context.fill();
      break;
    case "failed":
    case "cut off":
      context.moveTo(x - r * 0.8, y - r * 0.8);
      context.lineTo(x + r * 0.8, y + r * 0.8);
      context.moveTo(x + r * 0.8, y - r * 0.8);
      context.lineTo(x - r * 0.8, y + r * 0.8);
      context.stroke();
      break;
    case "fault":
      context.fillRect(x - 1.3, y - r, 2.6, r * 1.15);
      context.fillRect(x - 1.3, y + r * 0.5, 2.6, r * 0.5);
      break;
    case "condition":
      context.fillRect(x - 0.6, y - r * 0.8, 1.2, r * 1.6);
      break;
    default:
      context.arc(x, y, r, 0, 7);
      context.fill();
  }
}
