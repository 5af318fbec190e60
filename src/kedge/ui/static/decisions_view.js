// Decisions: lanes over time, and below them the same decisions as a list, with search and folding.

import { el, fill, setText } from "./dom.js";
import { OUTCOMES, clock, count, keyText } from "./format.js";
import { Lanes } from "./lanes.js";
import { upperBound } from "./model.js";
import { VirtualList } from "./virtual_list.js";

export class DecisionsView {
  label = "Decisions";
  #built = "";

  constructor(app) {
    this.app = app;
    this.lanes = new Lanes(app);
    this.summary = el("p", { class: "summary", id: "decisions-summary" });
    this.fold = el("input", { type: "checkbox", id: "fold", onchange: () => app.state.set({ fold: this.fold.checked ? "1" : "" }) });
    this.lane = el("select", { id: "lane", "aria-label": "Component", onchange: () => app.state.set({ lane: this.lane.value }) });
    this.list = new VirtualList({
      label: "Decisions", id: "decisions",
      render: (node, row) => this.#row(node, row),
      choose: (row) => app.openDecision(row.id),
      move: (row) => app.openDecision(row.id, { focus: false }),
    });
    this.root = el("section", { class: "full", "aria-labelledby": "decisions-title" },
      el("div", { class: "heading" }, el("h2", { id: "decisions-title" }, "Decisions"), this.lanes.buttons,
        el("label", { class: "field" }, "component ", this.lane),
        el("label", { class: "field", for: "fold" }, this.fold, " fold repeats (f)")),
      this.summary, this.lanes.scroll, this.lanes.tip, this.list.root);
  }

  #row(node, row) {
    const outcome = OUTCOMES[row.outcome];
    node.title = row.text;
    fill(node,
      el("span", { class: "when" }, clock(row.t)), el("span", { class: "lane" }, row.lane),
      el("span", { class: `outcome outcome-${outcome.colour}` }, `${outcome.symbol} ${row.outcome}`),
      el("span", { class: "key" }, keyText(row.key)),
      el("span", { class: "text" }, row.folded > 1 ? el("b", {}, `×${row.folded} `) : null, row.text));
  }

  show() {
    const { model, state } = this.app;
    const search = state.get("search").toLowerCase(), lane = state.get("lane"), folds = state.get("fold") === "1";
    this.fold.checked = folds;
    const key = [search, lane, folds, model.decisions.length].join("|");
    if (key !== this.#built) {
      this.#built = key;
      fill(this.lane, el("option", { value: "" }, "all"), model.lanes.map((each) => el("option", { value: each.name }, each.name)));
      this.lane.value = lane;
      const words = search.split(/\s+/).filter(Boolean);
      const found = model.decisions.filter((each) => (!lane || each.lane === lane) && words.every((word) => each.words.includes(word)));
      this.lanes.set(words.length || lane ? new Set(found) : null);
      const rows = folds ? folded(found) : found.map((each) => ({ ...each, folded: 1 }));
      this.list.set(rows);
      setText(this.summary, `${count(found.length, "decision", "decisions")} of ${model.history.decisions.toLocaleString("en")}${search ? ` with “${search}”` : ""}${folds && rows.length !== found.length ? `, in ${count(rows.length, "row", "rows")}` : ""}`);
    }
    this.lanes.show();
    this.#select();
  }

  #select() {
    const wanted = this.app.state.get("decision"), rows = this.list.rows;
    let index = wanted && this.app.model.byId.has(wanted) ? rows.findIndex((each) => each.id === wanted || each.inside?.has(wanted)) : -1;
    if (index < 0) index = upperBound(rows, this.app.point.t, (each) => each.t) - 1;
    this.list.activate(index);
  }
}

/** One row for a run of decisions of one lane about one object with one outcome and text. */
function folded(rows) {
  const made = [], last = new Map();
  for (const row of rows) {
    const key = `${row.lane} ${row.key}`, run = last.get(key);
    if (run && run.outcome === row.outcome && run.text === row.text) {
      run.folded++;
      run.inside.add(row.id);
    } else {
      const next = { ...row, folded: 1, inside: new Set([row.id]) };
      last.set(key, next);
      made.push(next);
    }
  }
  return made;
}
