// The slider over time, with its marks and the density of commits below it.

import { Surface, glyph } from "./canvas.js";
import { el, fill, setText } from "./dom.js";
import { MARKS, clock } from "./format.js";
import { upperBound } from "./model.js";

const ROWS = { person: 0, fault: 1, leader: 2, condition: 3 };
const PAD = 9;

export class TimeStrip {
  constructor(app) {
    this.app = app;
    this.slider = document.getElementById("slider");
    this.box = document.getElementById("strip");
    this.surface = new Surface(document.getElementById("strip-canvas"), (...args) => this.#draw(...args));
    this.slider.addEventListener("input", () => this.app.go({ rev: "", t: String(Math.round(Number(this.slider.value))) }));
    this.slider.addEventListener("keydown", (event) => {
      // The page's own keys step by commit, decision or mark; the slider's would step by microseconds.
      if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"].includes(event.key)) event.preventDefault();
    });
    this.box.addEventListener("pointermove", (event) => this.#hover(event));
    this.box.addEventListener("pointerleave", () => setText(document.getElementById("mark-text"), this.#near()));
  }

  shows(mark) {
    return !this.app.state.get("marks").split(",").includes(mark);
  }

  #shown = [];
  #picture = null;

  /** After the history has loaded, or changed. */
  loaded() {
    const counts = {};
    for (const each of this.app.model.history.marks) counts[each.mark] = (counts[each.mark] ?? 0) + 1;
    fill(document.getElementById("legend"), Object.entries(MARKS).map(([name, { symbol, label, colour }]) =>
      el("button", {
        type: "button", class: `chip mark-${colour}`, "aria-pressed": String(this.shows(name)),
        onclick: () => {
          const off = new Set(this.app.state.get("marks").split(",").filter(Boolean));
          if (!off.delete(name)) off.add(name);
          this.app.state.set({ marks: [...off].join(",") });
          this.loaded();
        },
      }, el("span", { "aria-hidden": "true", class: "symbol" }, symbol), ` ${label} `, el("span", { class: "number" }, counts[name] ?? 0))));
    const hidden = new Set(this.app.state.get("marks").split(","));
    this.#shown = this.app.model.history.marks.filter((each) => !hidden.has(each.mark));
    this.#picture = null;
    this.slider.max = String(Math.max(1, this.app.model.duration));
    this.show();
  }

  show() {
    const point = this.app.point;
    this.slider.value = String(point.t);
    this.slider.setAttribute("aria-valuetext", `revision ${point.revision}, at ${clock(point.t)}`);
    setText(document.getElementById("now"), `rev ${point.revision}  ·  ${clock(point.t)}`);
    setText(document.getElementById("mark-text"), this.#near());
    this.surface.redraw();
  }

  #x(t, width) {
    return PAD + (t / Math.max(1, this.app.model.duration)) * (width - 2 * PAD);
  }

  /** The last mark at or before the point. */
  #near() {
    const marks = this.#shown;
    const found = marks[upperBound(marks, this.app.point.t, (each) => each.t) - 1];
    return found ? this.#text(found) : "";
  }

  #text(mark) {
    return `${MARKS[mark.mark].symbol} ${clock(mark.t)} ${mark.revision ? `rev ${mark.revision} ` : ""}${mark.lane}: ${mark.text}`;
  }

  #hover(event) {
    const width = this.box.clientWidth, x = event.clientX - this.box.getBoundingClientRect().left;
    let best = null, distance = 8;
    for (const each of this.#shown) {
      const away = Math.abs(this.#x(each.t, width) - x) + (each.mark === "condition" ? 2 : 0);
      if (away < distance) [best, distance] = [each, away];
    }
    setText(document.getElementById("mark-text"), best ? this.#text(best) : this.#near());
  }

  /** Marks and density change seldom: they are drawn once into a picture, which each frame copies. */
  #draw(context, width, height, surface) {
    if (!this.app.model.history) return;
    const key = `${width} ${height} ${devicePixelRatio} ${surface.colour("bg")}`;
    if (this.#picture?.key !== key) {
      const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * devicePixelRatio)), Math.max(1, Math.round(height * devicePixelRatio)));
      const own = canvas.getContext("2d");
      own.scale(devicePixelRatio, devicePixelRatio);
      this.#drawMarks(own, width, height, surface);
      this.#picture = { key, canvas };
    }
    context.drawImage(this.#picture.canvas, 0, 0, width, height);
    const from = this.app.from;
    if (from) this.#line(context, this.#x(from.t, width), height, surface.colour("muted"), "A");
    this.#line(context, this.#x(this.app.point.t, width), height, surface.colour("accent"), from ? "B" : "");
  }

  #drawMarks(context, width, height, surface) {
    const model = this.app.model;
    const floor = height - 5;
    const bins = new Uint32Array(Math.max(1, Math.floor(width - 2 * PAD)));
    for (const t of model.history.commits.t) bins[Math.min(bins.length - 1, Math.floor((t / Math.max(1, model.duration)) * bins.length))]++;
    const most = Math.max(1, ...bins);
    context.fillStyle = surface.colour("density");
    bins.forEach((each, at) => {
      if (each) context.fillRect(PAD + at, floor - 3 - (each / most) * (height * 0.34), 1, 3 + (each / most) * (height * 0.34));
    });
    const drawn = new Set();
    for (const each of this.#shown) {
      const x = this.#x(each.t, width), spot = `${each.mark}${Math.round(x)}`;
      if (drawn.has(spot)) continue;
      drawn.add(spot);
      glyph(context, each.mark, x, 9 + ROWS[each.mark] * 11, 4.2, surface.colour(`mark-${each.mark}`));
    }
  }

  #line(context, x, height, colour, label) {
    context.fillStyle = colour;
    context.fillRect(x - 1, 0, 2, height);
    if (label) {
      context.font = "600 11px system-ui, sans-serif";
      context.fillText(label, x + 4, height - 6);
    }
  }
}
