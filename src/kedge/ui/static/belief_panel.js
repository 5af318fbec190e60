// Truth beside belief: the committed objects, and the content of a component's caches, with the differences.

import { Latest, get } from "./api.js";
import { el, fill } from "./dom.js";
import { clock, count, keyParts, seconds } from "./format.js";

const WORDS = {
  older: "an older version",
  missing: "nothing: it lacks the object",
  gone: "an object that was deleted",
};

const SHOWN_MAX = 20;

export class BeliefPanel {
  #latest = new Latest();
  #shown = "";

  constructor(app, marked) {
    this.app = app;
    this.marked = marked;
    this.select = el("select", { id: "component", onchange: () => app.state.set({ component: this.select.value }) });
    this.facts = el("p", { class: "summary" });
    this.content = el("div", { class: "beliefs" });
    this.root = el("section", { class: "belief", "aria-labelledby": "belief-title" },
      el("div", { class: "heading" }, el("h2", { id: "belief-title" }, "Truth beside belief"), el("label", { class: "field", for: "component" }, "of ", this.select)),
      this.facts, this.content);
  }

  show() {
    const point = this.app.point;
    const component = this.app.state.get("component");
    this.#latest.run(async (stale) => {
      const found = await get("belief", { revision: point.revision, t: point.t, component });
      if (!stale()) this.render(found);
    });
  }

  render(belief) {
    const names = belief.components.map((each) => each.name);
    if (names.join() !== [...this.select.options].map((each) => each.value).join()) {
      fill(this.select, belief.components.map((each) => el("option", { value: each.name }, optionText(each))));
    }
    this.select.value = belief.component;
    this.marked(belief.caches);
    const text = JSON.stringify([belief.component, belief.ended, belief.caches]);
    if (text === this.#shown) return; // nothing to draw: no flicker
    this.#shown = text;
    const differing = belief.caches.filter((each) => !each.heartbeats && each.objects.some((row) => row.certain));
    const since = belief.caches.filter((each) => !each.heartbeats && !differing.includes(each) && each.objects.length);
    const beats = belief.caches.filter((each) => each.heartbeats && each.objects.length);
    const rest = belief.caches.filter((each) => !each.objects.length);
    const open = new Set([...this.content.querySelectorAll("details[open]")].map((each) => each.dataset.name));
    const details = (name, ...parts) => el("details", { class: "quiet-caches", "data-name": name, open: open.has(name) }, ...parts);
    fill(this.facts, factsOf(belief, differing));
    fill(this.content,
      differing.map((each) => this.#cache(each, belief, true)),
      since.length ? details("since",
        el("summary", {}, `${count(since.length, "cache lacked", "caches lacked")} writes at the last known moment, or had writes to come`),
        el("p", { class: "muted" }, "These may have arrived by now: the records do not have the time."),
        since.map((each) => this.#cache(each, belief, false))) : null,
      beats.length ? details("beats", el("summary", {}, "heartbeats: renewed all the time, so some are always on the way"), beats.map((each) => this.#cache(each, belief, false))) : null,
      rest.length ? details("rest",
        el("summary", {}, `${count(rest.length, "other cache agrees", "other caches agree")} with the store, or ${rest.length === 1 ? "is" : "are"} not known yet`),
        el("ul", {}, rest.map((each) => el("li", {}, `${each.cache}: ${each.known ? `${count(each.same, "object", "objects")} at revision ${each.known.revision}` : "not known at this point"}`)))) : null);
  }

  #cache(cache, belief, certain) {
    const rows = cache.objects.filter((each) => each.certain === certain || !certain);
    return el("section", { class: "cache" },
      el("h3", {}, cache.cache, " ", certain ? el("span", { class: "late" }, `late by ${seconds(cache.lateSeconds)}`) : null),
      cache.known ? el("p", { class: "muted" },
        `Known at ${clock(cache.known.t)}: revision ${cache.known.revision}, ${seconds(cache.known.ageSeconds)} old, by `,
        cache.known.decision ? el("button", { type: "button", class: "link", onclick: () => this.app.openDecision(cache.known.decision) }, cache.known.decision)
          : "the times of its log: no decision has read it yet",
        cache.nextKnown ? `; next known at ${clock(cache.nextKnown.t)}: revision ${cache.nextKnown.revision}` : "",
        `. ${count(cache.same, "object is", "objects are")} the same.`) : null,
      rows.slice(0, SHOWN_MAX).map((each) => this.#object(each, belief)),
      rows.length > SHOWN_MAX ? el("details", { ontoggle: (event) => { if (event.target.open && event.target.children.length === 1) event.target.append(...rows.slice(SHOWN_MAX).map((each) => this.#object(each, belief))); } }, el("summary", {}, `${rows.length - SHOWN_MAX} more`)) : null,
      cache.objectsLeftOut ? el("p", { class: "muted" }, `and ${cache.objectsLeftOut} more`) : null);
  }

  #object(row, belief) {
    const { kind, namespace, name } = keyParts(row.key);
    return el("article", { class: `difference ${row.difference}` },
      el("header", {}, el("span", { class: "not-equal", "aria-hidden": "true" }, "≠ "),
        el("button", { type: "button", class: "link", onclick: () => this.app.openObject(row.key) }, `${kind} ${namespace ? `${namespace}/` : ""}${name}`),
        el("span", { class: "late" }, row.certain ? `late by ${seconds(row.lateSeconds)}` : row.lackedThen ? `was late by ${seconds(row.lateSeconds)}` : "written since")),
      el("table", { class: "sides" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "field"),
          el("th", { scope: "col" }, "truth", el("small", {}, ` committed at ${row.committedRevision}${row.writer ? ` by ${row.writer}` : ""}`)),
          el("th", { scope: "col" }, "belief", el("small", {}, ` of ${belief.component}: ${row.heldRevision ? `${WORDS[row.difference]}, ${row.heldRevision}` : WORDS[row.difference]}`)))),
        el("tbody", {}, row.fields.length ? row.fields.map((each) => el("tr", {},
          el("th", { scope: "row" }, each.path), el("td", { class: "truth" }, valueText(each.after)), el("td", { class: "held" }, valueText(each.before))))
          : el("tr", {}, el("td", { colspan: "3" }, "the fields are equal; only the version differs")))),
      row.fieldsLeftOut ? el("p", { class: "muted" }, `and ${row.fieldsLeftOut} more fields`) : null);
  }
}

function valueText(value) {
  return value === null ? el("span", { class: "muted" }, "none") : value === "" ? el("span", { class: "muted" }, "empty") : value;
}

function optionText(component) {
  const names = component.controllers.filter((each) => !component.name.startsWith(each));
  const ended = component.ended === null ? "" : ` ✕ crashed at ${clock(component.ended)}`;
  return `${names.length ? `${component.name} (${names.join(", ")})` : component.name}${ended}`;
}

function factsOf(belief, differing) {
  if (!belief.component) return "The records have no received logs: the content of caches is not known.";
  if (belief.ended !== null) return el("span", {}, el("span", { class: "badge" }, "✕ ended"), ` ${belief.component} crashed at ${clock(belief.ended)}: its caches are gone. Choose another component, or an earlier point.`);
  if (!belief.caches.some((each) => each.known)) return `Nothing shows the caches of ${belief.component} before this point: no decision, and no time in its logs.`;
  if (!differing.length) return el("span", {}, el("span", { class: "badge ok" }, "= agrees"), ` No belief of ${belief.component} is known to be false at this point.`);
  const rows = differing.reduce((sum, each) => sum + each.objects.filter((row) => row.certain).length, 0);
  return el("span", {}, el("span", { class: "badge bad" }, `≠ ${count(rows, "object differs", "objects differ")}`),
    ` ${belief.component} ${differing.some((each) => each.known.decision) ? "decided on" : "holds"} what is no longer true: ${differing.map((each) => each.cache).join(", ")}.`);
}
