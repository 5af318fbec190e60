// The story: every line of the timeline, with the actor, the revision and the mark of each.

import { el, fill, setText } from "./dom.js";
import { MARKS, clock, count } from "./format.js";
import { upperBound } from "./model.js";
import { VirtualList } from "./virtual_list.js";

export class StoryView {
  label = "Story";
  #built = null;

  constructor(app) {
    this.app = app;
    this.summary = el("p", { class: "summary" });
    this.list = new VirtualList({
      label: "Lines of the timeline", id: "story",
      render: (node, line) => {
        const mark = MARKS[line.mark];
        node.classList.add(`kind-${line.kind.replace(/[^a-z]/g, "-")}`);
        node.title = line.text;
        fill(node,
          el("span", { class: "when" }, clock(line.t)), el("span", { class: "rev" }, line.revision ?? ""),
          el("span", { class: `mark ${mark ? `mark-${mark.colour}` : ""}` }, mark?.symbol ?? ""),
          el("span", { class: "lane" }, line.lane), el("span", { class: "kind" }, line.kind),
          el("span", { class: "text" }, line.text, line.count > 1 ? el("b", {}, ` ×${line.count}`) : null));
      },
      choose: (line) => this.#go(line, true),
      move: (line) => this.#go(line, false),
    });
    this.root = el("section", { class: "full", "aria-labelledby": "story-title" }, el("h2", { id: "story-title" }, "Story"), this.summary, this.list.root);
  }

  #go(line, opens) {
    this.moved = true;
    this.app.go({ rev: line.revision ? String(line.revision) : "", t: line.revision ? "" : String(line.t), ...(opens && line.decision ? { decision: line.decision, object: "" } : {}) });
  }

  show() {
    const search = this.app.state.get("search").toLowerCase();
    const key = `${search} ${this.app.model.story.length}`;
    if (key !== this.#built) {
      this.#built = key;
      const words = search.split(/\s+/).filter(Boolean);
      this.list.set(this.app.model.story.filter((each) => words.every((word) => each.words.includes(word))));
      setText(this.summary, `${count(this.list.rows.length, "line", "lines")}${search ? ` with “${search}”` : ""}, in order of revision. Enter goes to the moment of a line and opens its decision.`);
    }
    if (this.moved) {
      this.moved = false;
      return;
    }
    this.list.activate(upperBound(this.list.rows, this.app.point.t, (each) => each.t) - 1);
  }
}
