// Lanes of decisions on a canvas: one row a controller, people and faults above, causes and effects as arrows.

import { Surface, stamp } from "./canvas.js";
import { el, setText } from "./dom.js";
import { clock, keyText } from "./format.js";
import { upperBound } from "./model.js";

const ROW = 24;
const HEAD = 20;
const WORST = ["failed", "cut off", "refused", "pending", "wrote", "acted", "nothing"];
const ANCESTORS_MAX = 200;

export class Lanes {
  constructor(app) {
    this.app = app;
    this.window = null;
    this.canvas = el("canvas", { class: "lanes-canvas", tabindex: "0", role: "img" });
    this.scroll = el("div", { class: "lanes-scroll" }, this.canvas);
    this.tip = el("p", { class: "mark-text" });
    this.surface = new Surface(this.canvas, (...args) => this.#draw(...args));
    this.buttons = el("div", { class: "group", role: "group", "aria-label": "Zoom" },
      el("button", { type: "button", onclick: () => this.zoom(0.5), title: "Zoom in (+)", "aria-label": "Zoom in" }, "+"),
      el("button", { type: "button", onclick: () => this.zoom(2), title: "Zoom out (-)", "aria-label": "Zoom out" }, "−"),
      el("button", { type: "button", onclick: () => this.zoom(Infinity), title: "Show everything (0)" }, "All"));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.#t(event.offsetX));
      else this.#pan((event.deltaY || event.deltaX) / 600);
    }, { passive: false });
    this.canvas.addEventListener("pointermove", (event) => {
      const found = this.#at(event.offsetX, event.offsetY);
      this.canvas.classList.toggle("over", Boolean(found));
      setText(this.tip, found ? describe(found) : this.#selectedText());
    });
    this.canvas.addEventListener("click", (event) => {
      const found = this.#at(event.offsetX, event.offsetY);
      if (found?.id) this.app.openDecision(found.id);
      else if (found) this.app.go({ rev: found.revision ? String(found.revision) : "", t: found.revision ? "" : String(found.t) });
      else this.app.go({ rev: "", t: String(Math.round(this.#t(event.offsetX))) });
    });
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** The rows to draw: those of the search. */
  set(shown) {
    this.shown = shown;
    const marks = this.app.model.history.marks;
    this.rows = [
      { name: "people", rows: marks.filter((each) => each.mark === "person") },
      { name: "faults", rows: marks.filter((each) => each.mark === "fault") },
      ...this.app.model.lanes.map((lane) => ({ name: lane.name, rows: shown ? lane.rows.filter((row) => shown.has(row)) : lane.rows })),
    ].filter((each, at) => each.rows.length || (at >= 2 && !shown));
    this.places = new Map(this.rows.map((each, at) => [each.name, at]));
    this.canvas.style.height = `${HEAD + this.rows.length * ROW + 4}px`;
    this.canvas.setAttribute("aria-label", `Lanes of ${this.rows.length} components over time. The list below has the same decisions.`);
    this.show();
  }

  show() {
    if (!this.window) {
      this.whole = Math.max(1, this.app.model.duration);
      this.window = [0, this.whole];
    }
    const { t } = this.app.point, [low, high] = this.window;
    if (t < low || t > high) this.#moveTo(t - (high - low) / 2);
    setText(this.tip, this.#selectedText());
    this.surface.redraw();
  }

  /** The history has become longer: a window that showed everything still does. */
  grown() {
    const all = Math.max(1, this.app.model.duration);
    if (this.window && this.window[0] === 0 && this.window[1] >= (this.whole ?? 0)) this.window = [0, all];
    this.whole = all;
  }

  zoom(factor, around = this.app.point.t) {
    if (!this.window) return;
    const all = Math.max(1, this.app.model.duration), [low, high] = this.window;
    const width = Math.min(all, Math.max(1000, (high - low) * factor));
    const share = Number.isFinite(width) ? (around - low) / (high - low) : 0;
    this.window = [low, low + width];
    this.#moveTo(around - share * width);
    this.surface.redraw();
  }

  #pan(share) {
    this.#moveTo(this.window[0] + share * (this.window[1] - this.window[0]));
    this.surface.redraw();
  }

  #moveTo(low) {
    const width = this.window[1] - this.window[0];
    const first = Math.max(0, Math.min(Math.max(1, this.app.model.duration) - width, low));
    this.window = [first, first + width];
  }

  // The width as of the last drawing: to ask the browser for each symbol would be slow.
  #width = 600;

  #gutter() {
    return Math.min(150, this.#width * 0.3);
  }

  #x(t) {
    const left = this.#gutter(), [low, high] = this.window;
    return left + 6 + ((t - low) / (high - low)) * (this.#width - left - 14);
  }

  #t(x) {
    const left = this.#gutter(), [low, high] = this.window;
    return Math.max(0, Math.min(this.app.model.duration, low + ((x - left - 6) / (this.#width - left - 14)) * (high - low)));
  }

  #y(lane) {
    return HEAD + (this.places.get(lane) ?? 0) * ROW + ROW / 2;
  }

  #at(x, y) {
    const lane = this.rows?.[Math.floor((y - HEAD) / ROW)];
    if (!lane || x < this.#gutter()) return null;
    const from = this.#t(x - 7), to = this.#t(x + 7);
    let best = null;
    for (let at = upperBound(lane.rows, from - 1, (each) => each.t); at < lane.rows.length && lane.rows[at].t <= to; at++) {
      const row = lane.rows[at];
      if (!best || rankOf(row) < rankOf(best) || (rankOf(row) === rankOf(best) && Math.abs(this.#x(row.t) - x) < Math.abs(this.#x(best.t) - x))) best = row;
    }
    return best;
  }

  #selectedText() {
    const row = this.app.model.byId.get(this.app.state.get("decision"));
    return row ? describe(row) : "Ctrl and the wheel zoom, Shift and the wheel move. Arrow keys go from decision to decision.";
  }

  #key(event) {
    const row = this.app.model.byId.get(this.app.state.get("decision"));
    const lane = this.rows[this.places.get(row?.lane) ?? this.rows.findIndex((each) => each.rows[0]?.id)];
    if (!lane) return;
    let next = null;
    const near = (rows) => rows[Math.max(0, upperBound(rows, this.app.point.t, (each) => each.t) - 1)];
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const at = row ? lane.rows.indexOf(row) : -1;
      next = at < 0 ? near(lane.rows) : lane.rows[at + (event.key === "ArrowRight" ? 1 : -1)];
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      for (let at = this.rows.indexOf(lane) + step; at >= 0 && at < this.rows.length && !next; at += step) if (this.rows[at].rows[0]?.id) next = near(this.rows[at].rows);
    } else return;
    event.preventDefault();
    event.stopPropagation();
    if (next) this.app.openDecision(next.id, { focus: false });
  }

  // -- drawing -------------------------------------------------------------------------------------

  #draw(context, width, height, surface) {
    if (!this.rows) return;
    this.#width = width;
    const left = this.#gutter();
    context.drawImage(this.#lanesPicture(width, height, surface), 0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    this.#links(context, surface);
    const x = this.#x(this.app.point.t);
    context.fillStyle = surface.colour("accent");
    context.fillRect(x - 0.75, 0, 1.5, height);
    context.restore();
  }

  #picture = null;

  /** The symbols change with the window, the rows and the size only: a step in time copies them. */
  #lanesPicture(width, height, surface) {
    const key = `${this.window} ${width} ${height} ${devicePixelRatio} ${surface.colour("bg")}`;
    if (this.#picture?.key !== key || this.#picture.rows !== this.rows) {
      const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * devicePixelRatio)), Math.max(1, Math.round(height * devicePixelRatio)));
      const context = canvas.getContext("2d");
      context.scale(devicePixelRatio, devicePixelRatio);
      this.#drawLanes(context, width, height, surface);
      this.#picture = { key, rows: this.rows, canvas };
    }
    return this.#picture.canvas;
  }

  #drawLanes(context, width, height, surface) {
    const left = this.#gutter(), [low, high] = this.window;
    this.#axis(context, width, height, surface, left);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.rows.forEach((lane, at) => {
      const y = HEAD + at * ROW + ROW / 2;
      context.fillStyle = surface.colour("line");
      context.fillRect(left, y, width - left - 6, 1);
      context.fillStyle = surface.colour("muted");
      context.fillText(fit(context, lane.name, left - 12), 6, y);
      this.#lane(context, lane, y, low, high, surface);
    });
  }

  #axis(context, width, height, surface, left) {
    const [low, high] = this.window, span = high - low;
    const steps = [1e3, 1e4, 1e5, 1e6, 5e6, 1e7, 3e7, 6e7, 3e8, 6e8, 18e8, 36e8];
    const step = steps.find((each) => span / each <= Math.max(2, (width - left) / 110)) ?? span / 4;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) {
      const x = this.#x(t);
      context.fillStyle = surface.colour("line");
      context.fillRect(x, HEAD - 6, 1, height - HEAD + 6);
      context.fillStyle = surface.colour("muted");
      if (x + 60 < width) context.fillText(clock(t), x + 3, 9);
    }
  }

  /** Decisions closer than three pixels are one symbol: that of the worst outcome, taller for more of them. */
  #lane(context, lane, y, low, high, surface) {
    const rows = lane.rows;
    let at = upperBound(rows, low - 1, (each) => each.t), bucket = null, worst = null, number = 0;
    const flush = () => {
      if (!worst) return;
      const shape = worst.outcome ?? worst.mark;
      const x = this.#x(worst.t);
      if (number > 1) {
        context.fillStyle = surface.colour("density");
        const tall = Math.min(ROW - 4, 4 + Math.log2(number) * 4);
        context.fillRect(bucket * 3, y - tall / 2, 3, tall);
      }
      stamp(context, shape, x, y, 4.4, surface.colour(worst.outcome ? `outcome-${shape.replace(" ", "-")}` : `mark-${shape}`));
    };
    for (; at < rows.length && rows[at].t <= high; at++) {
      const row = rows[at], place = Math.floor(this.#x(row.t) / 3);
      if (place !== bucket) {
        flush();
        bucket = place;
        worst = null;
        number = 0;
      }
      number++;
      if (!worst || rankOf(row) < rankOf(worst)) worst = row;
    }
    flush();
  }

  /** The chain of causes back from the selected decision, and the decisions that it woke. */
  #links(context, surface) {
    const { decisions, byId } = this.app.model;
    const chosen = byId.get(this.app.state.get("decision"));
    if (!chosen) return;
    let row = chosen;
    for (let steps = 0; row.cause >= 0 && steps < ANCESTORS_MAX; steps++) {
      const cause = decisions[row.cause];
      if (!cause || cause === row) break;
      this.#arrow(context, cause, row, surface.colour("cause"), []);
      row = cause;
    }
    if (chosen.effects) for (let at = chosen.place + 1, left = chosen.effects; at < decisions.length && left; at++) {
      if (decisions[at].cause === chosen.place) {
        left--;
        this.#arrow(context, chosen, decisions[at], surface.colour("effect"), [5, 3]);
      }
    }
    if (!this.places.has(chosen.lane)) return;
    context.strokeStyle = surface.colour("accent");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(this.#x(chosen.t), this.#y(chosen.lane), 8, 0, 7);
    context.stroke();
  }

  #arrow(context, from, to, colour, dash) {
    if (!this.places.has(to.lane)) return;
    const x2 = this.#x(to.t), y2 = this.#y(to.lane);
    // A cause whose lane the search hides is a short arrow out of nowhere: no other lane has it.
    const hidden = !this.places.has(from.lane);
    const x1 = hidden ? x2 - 26 : this.#x(from.t), y1 = hidden ? y2 - ROW / 2 : this.#y(from.lane);
    const bend = Math.max(14, Math.abs(x2 - x1) * 0.4);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.6;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - 5, y2);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(x2 - 4, y2);
    context.lineTo(x2 - 10, y2 - 3.5);
    context.lineTo(x2 - 10, y2 + 3.5);
    context.fill();
  }
}

function rankOf(row) {
  return row.outcome ? WORST.indexOf(row.outcome) : 0;
}

function describe(row) {
  return row.id ? `${clock(row.t)} ${row.lane} · ${keyText(row.key)} · ${row.outcome}: ${row.text}` : `${clock(row.t)} ${row.lane}: ${row.text}`;
}

function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}
