// Coupling: components around a circle, an edge for each pair of which one changes the inputs of the other, cycles marked.

import { get } from "./api.js";
import { el, fill, svg } from "./dom.js";
import { count } from "./format.js";

const SIZE = 560, RADIUS = 205;

export class CouplingView {
  label = "Coupling";
  #graph = null;
  #chosen = "";

  constructor(app) {
    this.app = app;
    this.drawing = el("div", { class: "graph" });
    this.facts = el("div", { class: "facts" });
    this.root = el("section", { class: "full scrolls", "aria-labelledby": "coupling-title" },
      el("h2", { id: "coupling-title" }, "Coupling"),
      el("p", { class: "summary" }, "An arrow leads from a writer to a component whose inputs it changes without calling it. A thick arrow marked ↻ is part of a cycle; a dashed one is silent: it wakes nothing."),
      el("div", { class: "split" }, this.drawing, this.facts));
  }

  async show() {
    if (this.#graph) return;
    fill(this.facts, el("p", { class: "muted" }, "Reading the records…"));
    this.#graph = await get("coupling");
    this.#render();
  }

  #choose(name) {
    this.#chosen = this.#chosen === name ? "" : name;
    this.#render(name);
  }

  #render(focus = "") {
    const { components, edges, cycles } = this.#graph;
    const spots = new Map(components.map((name, at) => {
      const angle = (at / components.length) * 2 * Math.PI - Math.PI / 2;
      return [name, { x: SIZE / 2 + Math.cos(angle) * RADIUS, y: SIZE / 2 + Math.sin(angle) * RADIUS, angle }];
    }));
    const inCycle = new Set();
    for (const each of cycles) each.controllers.forEach((name, at) => inCycle.add(`${name} ${each.controllers[(at + 1) % each.controllers.length]}`));
    const lines = edges.filter((each) => each.writer !== each.reader && spots.has(each.writer)).map((each) => {
      const loops = inCycle.has(`${each.writer} ${each.reader}`);
      const near = !this.#chosen || each.writer === this.#chosen || each.reader === this.#chosen;
      const a = spots.get(each.writer), b = spots.get(each.reader);
      const mx = (a.x + b.x) / 2 + (SIZE / 2 - (a.x + b.x) / 2) * 0.35 + (b.y - a.y) * 0.06, my = (a.y + b.y) / 2 + (SIZE / 2 - (a.y + b.y) / 2) * 0.35 - (b.x - a.x) * 0.06;
      const length = Math.hypot(b.x - mx, b.y - my) || 1, ex = b.x - ((b.x - mx) / length) * 13, ey = b.y - ((b.y - my) / length) * 13;
      return svg("g", { class: `edge${loops ? " cycle" : ""}${each.wakes ? "" : " silent"}${near ? "" : " far"}` },
        svg("path", { d: `M${a.x} ${a.y}Q${mx} ${my} ${ex} ${ey}`, "marker-end": loops ? "url(#arrow-cycle)" : "url(#arrow)" }),
        svg("title", {}, edgeText(each)),
        loops && near ? svg("text", { x: mx, y: my, class: "loop" }, "↻") : "");
    });
    const nodes = components.map((name) => {
      const { x, y, angle } = spots.get(name), right = Math.cos(angle) > 0.15, left = Math.cos(angle) < -0.15;
      const made = svg("g", { class: `component${this.#chosen === name ? " chosen" : ""}`, tabindex: "0", role: "button", "aria-pressed": String(this.#chosen === name), "aria-label": `component ${name}`, "data-name": name,
        onclick: () => this.#choose(name), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); this.#choose(name); } } },
        svg("circle", { cx: x, cy: y, r: 8 }),
        svg("text", { x: x + (right ? 14 : left ? -14 : 0), y: y + (right || left ? 4 : Math.sin(angle) > 0 ? 26 : -16), "text-anchor": right ? "start" : left ? "end" : "middle" }, name));
      return made;
    });
    const marker = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto", markerUnits: "userSpaceOnUse" }, svg("path", { d: "M0 0L8 4L0 8z" }));
    fill(this.drawing, svg("svg", { viewBox: `-110 0 ${SIZE + 220} ${SIZE}`, role: "group", "aria-label": "Graph of coupling" }, svg("defs", {}, marker("arrow"), marker("arrow-cycle")), lines, nodes));
    const mine = edges.filter((each) => !this.#chosen || each.writer === this.#chosen || each.reader === this.#chosen);
    fill(this.facts,
      el("h3", {}, `↻ ${count(cycles.length, "cycle", "cycles")}`),
      el("ul", {}, cycles.filter((each) => !this.#chosen || each.controllers.includes(this.#chosen)).slice(0, 20).map((each) => el("li", {}, `${[...each.controllers, each.controllers[0]].join(" → ")}: turned ${count(each.turns, "time", "times")}, ${each.perMinute} a minute`))),
      el("h3", {}, this.#chosen ? `Edges of ${this.#chosen}` : `${count(edges.length, "edge", "edges")}`),
      mine.slice(0, 60).map((each) => el("details", {}, el("summary", {}, `${each.writer} → ${each.reader}: ${count(each.fields.length + each.fieldsLeftOut, "field", "fields")}${each.wakes ? "" : ", silent"}`),
        el("ul", {}, each.fields.map((row) => el("li", {}, `${row.kind} ${row.field}: ${row.waking}`))))),
      el("p", { class: "muted" }, this.#graph.coverage.join(" ")));
    if (focus) [...this.drawing.querySelectorAll(".component")].find((each) => each.dataset.name === focus)?.focus();
  }
}

function edgeText(edge) {
  return `${edge.writer} → ${edge.reader}: ${edge.fields.map((each) => `${each.kind.split(".")[0]} ${each.field}`).join(", ")}`;
}
