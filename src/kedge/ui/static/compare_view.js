// Two points side by side: the objects that differ between them, field by field.

import { Latest, get } from "./api.js";
import { el, fill } from "./dom.js";
import { clock, count, keyText } from "./format.js";

export class CompareView {
  label = "Compare";
  #latest = new Latest();
  #shown = "";

  constructor(app) {
    this.app = app;
    this.heads = el("div", { class: "points" });
    this.content = el("div", { class: "changes" });
    this.root = el("section", { class: "full scrolls", "aria-labelledby": "compare-title" }, el("h2", { id: "compare-title" }, "Compare two points"), this.heads, this.content);
  }

  show() {
    const { point, from } = this.app;
    if (!from) {
      fill(this.heads);
      this.#shown = "";
      fill(this.content, el("p", {}, "Choose the first point with “Compare from here” (m), then move to the second one."));
      return;
    }
    this.#latest.run(async (stale) => {
      const found = await get("difference", { revision: from.revision, t: from.t, revision2: point.revision, t2: point.t });
      if (!stale()) this.#render(found);
    });
  }

  #render(found) {
    const text = JSON.stringify(found);
    if (text === this.#shown) return;
    this.#shown = text;
    fill(this.heads,
      el("p", {}, el("b", {}, "A "), `rev ${found.from.revision} at ${clock(found.from.t)}`),
      el("p", {}, el("b", {}, "B "), `rev ${found.to.revision} at ${clock(found.to.t)}`),
      el("p", { class: "muted" }, `${count(found.objects.length + found.objectsLeftOut, "object differs", "objects differ")}, after ${count(found.decisions, "decision", "decisions")}; ${count(found.backgroundObjects, "lease or event", "leases and events")} changed too and ${found.backgroundObjects === 1 ? "is" : "are"} left out.`));
    fill(this.content, found.objects.map((each) => el("details", { class: `change ${each.change}`, open: found.objects.length <= 12 },
      el("summary", {}, el("span", { class: `badge ${{ created: "ok", deleted: "bad", changed: "note" }[each.change]}` }, { created: "+ created", deleted: "− deleted", changed: "~ changed" }[each.change]), " ",
        el("b", {}, keyText(each.key)), el("span", { class: "muted" }, ` ${each.text || count(each.versions, "version", "versions")}${each.writer ? ` · last by ${each.writer}` : ""}`)),
      el("button", { type: "button", class: "link", onclick: () => this.app.openObject(each.key) }, "open the object"),
      each.change === "changed" ? el("table", { class: "sides" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "field"), el("th", { scope: "col" }, `A (${each.before})`), el("th", { scope: "col" }, `B (${each.after})`))),
        el("tbody", {}, each.fields.map((row) => el("tr", {}, el("th", { scope: "row" }, row.path), el("td", { class: "held" }, row.before ?? el("span", { class: "muted" }, "none")), el("td", { class: "truth" }, row.after ?? el("span", { class: "muted" }, "none")))))) : null,
      each.fieldsLeftOut ? el("p", { class: "muted" }, `and ${each.fieldsLeftOut} more fields`) : null)),
      found.objectsLeftOut ? el("p", { class: "muted" }, `and ${found.objectsLeftOut} more objects`) : null);
  }
}
