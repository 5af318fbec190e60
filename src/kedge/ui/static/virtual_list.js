// A list of rows of one height, of which only those in sight exist. A listbox for screen readers and keys.

import { el } from "./dom.js";

const MORE = 6;

export class VirtualList {
  #rows = [];
  #nodes = new Map();
  #active = -1;
  #height = 28;
  #seen = 400;
  #asked = false;

  /** `render(node, row, index)` fills a row; `choose(row, index)` is called for a click or Enter. */
  constructor({ label, id, render, choose, move = () => {} }) {
    this.id = id;
    this.render = render;
    this.choose = choose;
    this.move = move;
    this.space = el("div", { class: "list-space", role: "presentation" });
    this.root = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": label, id }, this.space);
    this.root.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("click", (event) => {
      const row = event.target.closest("[data-index]");
      if (row) {
        this.activate(Number(row.dataset.index));
        this.choose(this.#rows[this.#active], this.#active);
      }
    });
    new ResizeObserver(() => {
      this.#seen = this.root.clientHeight;
      this.#drawSoon();
    }).observe(this.root);
  }

  get rows() {
    return this.#rows;
  }

  set(rows) {
    this.#rows = rows;
    this.#height = parseFloat(getComputedStyle(this.root).getPropertyValue("--row")) * parseFloat(getComputedStyle(document.documentElement).fontSize) || 28;
    this.space.style.height = `${rows.length * this.#height}px`;
    this.#active = Math.min(this.#active, rows.length - 1);
    for (const node of this.#nodes.values()) node.remove();
    this.#nodes.clear();
    this.#drawSoon();
  }

  /** Make a row the active one, and scroll so that it can be seen. */
  activate(index, { scroll = true } = {}) {
    if (index < 0 || index >= this.#rows.length) {
      this.#active = -1;
      this.root.removeAttribute("aria-activedescendant");
      this.#drawSoon();
      return;
    }
    if (index === this.#active) return;
    this.#active = index;
    this.#wanted = scroll;
    this.#drawSoon();
  }

  #wanted = false;

  /** At most one change of the rows in a frame, whatever scrolled or moved. */
  #drawSoon() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      if (this.#wanted) this.#scrollToActive();
      this.#draw();
      if (this.#active >= 0) this.root.setAttribute("aria-activedescendant", `${this.id}-${this.#active}`);
    });
  }

  #scrollToActive() {
    this.#wanted = false;
    const top = this.#active * this.#height, at = this.root.scrollTop;
    if (top < at || top + this.#height > at + this.#seen) this.root.scrollTop = Math.max(0, top - this.#seen / 2);
  }

  #draw() {
    const at = this.root.scrollTop;
    const first = Math.max(0, Math.floor(at / this.#height) - MORE);
    const last = Math.min(this.#rows.length, Math.ceil((at + this.#seen) / this.#height) + MORE);
    for (const [index, node] of this.#nodes) {
      if (index < first || index >= last) {
        node.remove();
        this.#nodes.delete(index);
      }
    }
    for (let index = first; index < last; index++) {
      let node = this.#nodes.get(index);
      if (!node) {
        node = el("div", { class: "row", role: "option", id: `${this.id}-${index}`, "data-index": index, "aria-posinset": index + 1, "aria-setsize": this.#rows.length });
        node.style.transform = `translateY(${index * this.#height}px)`;
        this.render(node, this.#rows[index], index);
        this.#nodes.set(index, node);
        this.space.append(node);
      }
      const selected = String(index === this.#active);
      if (node.getAttribute("aria-selected") !== selected) node.setAttribute("aria-selected", selected);
    }
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.root.clientHeight / this.#height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    let next;
    if (event.key in steps) next = this.#active + steps[event.key];
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = this.#rows.length - 1;
    else if (event.key === "Enter" && this.#active >= 0) {
      this.choose(this.#rows[this.#active], this.#active);
      event.preventDefault();
      event.stopPropagation();
      return;
    } else return;
    event.preventDefault();
    event.stopPropagation();
    this.activate(Math.max(0, Math.min(this.#rows.length - 1, next)));
    this.move(this.#rows[this.#active], this.#active);
  }
}
