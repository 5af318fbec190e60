// The panel at the side: the record of a decision, or an object with its explanation.

import { act, get } from "./api.js";
import { el, fill } from "./dom.js";
import { OUTCOMES, clock, count, keyText, seconds } from "./format.js";

export class Detail {
  #shown = "";
  #turn = 0;

  constructor(app) {
    this.app = app;
    this.root = document.getElementById("detail");
  }

  async show() {
    const { state, point } = this.app;
    const decision = state.get("decision"), object = state.get("object");
    const wanted = object ? `object ${object} ${point.revision} ${point.t}` : decision ? `decision ${decision} ${this.app.model.decisions.length}` : "";
    this.root.hidden = !wanted;
    document.getElementById("body").classList.toggle("with-detail", Boolean(wanted));
    if (wanted === this.#shown) return;
    this.#shown = wanted;
    const turn = ++this.#turn;
    if (!wanted) {
      fill(this.root);
      return;
    }
    try {
      const made = object ? await this.#object(object) : await this.#decision(decision);
      if (turn === this.#turn) {
        const top = this.root.dataset.about === (object || decision) ? this.root.scrollTop : 0;
        const open = new Set([...this.root.querySelectorAll("details[open]")].map((each) => each.dataset.name));
        const within = this.root.contains(document.activeElement), id = document.activeElement.id;
        fill(this.root, made);
        if (this.#wantsFocus) this.#takeFocus();
        else if (within) this.#takeFocus(id); // the element that had it was replaced
        if (this.root.dataset.about === (object || decision)) for (const each of this.root.querySelectorAll("details")) if (open.has(each.dataset.name)) each.open = true;
        this.root.dataset.about = object || decision;
        this.root.scrollTop = top;
      }
    } catch (error) {
      if (turn === this.#turn) fill(this.root, this.#head(object || decision, "Details"), el("p", { class: "failure" }, error.message));
      if (turn === this.#turn && this.#wantsFocus) this.#takeFocus();
    }
  }

  #wantsFocus = false;

  /** Move the focus into the panel as soon as it has its content. */
  focus() {
    this.#wantsFocus = true;
    if (!this.root.hidden && this.root.dataset.about === (this.app.state.get("object") || this.app.state.get("decision"))) this.#takeFocus();
  }

  #takeFocus(id = "") {
    this.#wantsFocus = false;
    (id ? document.getElementById(id) : this.root.querySelector("h2"))?.focus({ preventScroll: true });
  }

  #head(title, kind) {
    return el("header", {}, el("p", { class: "muted" }, kind), el("h2", { tabindex: "-1" }, title),
      el("button", { type: "button", class: "close", "aria-label": "Close details", title: "Close (Esc)", onclick: () => this.app.closeDetail() }, "✕"));
  }

  #part(name, ...children) {
    return el("section", {}, el("h3", {}, name), children);
  }

  #facts(rows) {
    return el("dl", {}, rows.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  #link(text, onclick, title = "") {
    return el("button", { type: "button", class: "link", onclick, title }, text);
  }

  // -- decisions -----------------------------------------------------------------------------------

  async #decision(id) {
    const found = await get("decision", { id });
    const outcome = OUTCOMES[found.outcome];
    const cause = found.cause;
    return [
      this.#head(`${found.controller}: ${keyText(found.key)}`, `Decision ${found.id}`),
      el("p", { class: "answer" }, el("span", { class: `outcome outcome-${outcome.colour}` }, `${outcome.symbol} ${found.outcome}`), ` ${found.text}`),
      el("div", { class: "actions" },
        el("button", { type: "button", id: "recheck", onclick: (event) => this.#recheck(event.currentTarget, id), title: "Run it again on its record (r)" }, "Recheck"),
        el("button", { type: "button", id: "to-cause", disabled: !cause, onclick: () => this.app.toCause(), title: "Go to the write that woke it (c)" }, "← Cause"),
        el("button", { type: "button", id: "to-effect", disabled: !found.effects.length && !found.written, onclick: () => this.app.toEffect(), title: "Go to what it led to (e)" }, "Effect →"),
        el("button", { type: "button", onclick: () => this.app.openObject(found.key), title: "Open the object (o)" }, "Object"),
        el("output", { class: "result", id: "recheck-result", "aria-live": "polite" })),
      this.#part("When", this.#facts([
        ["began", this.#link(`${clock(found.t)}`, () => this.app.go({ rev: "", t: String(found.t) }), "go to this moment")],
        ["took", seconds(found.tookSeconds)], ["in the queue", seconds(found.waitedSeconds)], ["delayed", found.delayedSeconds ? seconds(found.delayedSeconds) : ""],
        ["attempt", found.attempt], ["generation", found.generation], ["fence", found.fence], ["result", `${found.result || found.kept}${found.requeueSeconds ? `, again in ${seconds(found.requeueSeconds)}` : ""}`], ["kept", found.kept], ["part of", found.partOf ? el("button", { type: "button", class: "link", onclick: () => this.app.openDecision(found.partOf) }, found.partOf) : ""]])),
      this.#part("Why it ran", cause ? el("p", {}, "because of ", this.#link(cause.text, () => this.app.toCause())) : el("p", { class: "muted" }, "no write is known that woke it"),
        el("ul", {}, found.wokenBy.map((each) => el("li", {}, `${each.what}${each.writer ? `, by ${each.writer}` : ""}`)))),
      found.scheduling ? this.#scheduling(found, id) : null,
      found.inputs.length ? this.#inputs(found) : null,
      found.steps.length ? this.#part("Steps", el("ol", { class: "steps" }, found.steps.map((each, at) => this.#step(each, at)))) : null,
      found.effects.length ? this.#part("What it woke", el("ul", {}, found.effects.slice(0, 50).map((each) => el("li", {}, this.#link(`${clock(each.t)} ${each.controller}: ${keyText(each.key)}`, () => this.app.openDecision(each.id)))))) : null,
    ];
  }

  #inputs(found) {
    return this.#part("Inputs",
      el("p", {}, this.#link("See its belief beside the truth", () => this.app.go({ rev: "", t: String(found.t), view: "place", component: found.component }))),
      el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["cache", "revision", "age", "newest write", "lacked"].map((each) => el("th", { scope: "col" }, each)))),
        el("tbody", {}, found.inputs.map((each) => el("tr", { class: each.lacked ? "stale" : "" },
          el("th", { scope: "row" }, each.cache), el("td", {}, each.revision), el("td", {}, seconds(each.ageSeconds)),
          el("td", {}, each.newest ? this.#link(`${keyText(each.newest.key)} at ${each.newest.revision}${each.newest.writer ? ` by ${each.newest.writer}` : ""}`, () => this.app.openObject(each.newest.key)) : ""),
          el("td", {}, each.lacked ? [el("span", { class: "not-equal" }, "≠ "), this.#link(`${keyText(each.lacked.key)} at ${each.lacked.revision}${each.lacked.writer ? ` by ${each.lacked.writer}` : ""}, ${seconds(each.lacked.lateSeconds)} before`, () => this.app.go({ rev: String(each.lacked.revision), t: "", object: each.lacked.key }))] : "nothing")))))));
  }

  #scheduling(found, id) {
    const it = found.scheduling;
    const feasible = it.nodes.filter((each) => !each.blocker);
    const changes = el("textarea", { id: "what-if-text", rows: "2", spellcheck: "false", placeholder: "quota/risk.zone-c.cpu=+2" });
    const result = el("output", { class: "result", "aria-live": "polite", id: "what-if-result" });
    return [
      this.#part("Every node", el("p", {}, it.node ? `Chose ${it.node}${it.feasible === null ? "" : ` of ${it.feasible} feasible nodes`}.` : `None of ${it.total} nodes fits.`, it.nearest ? ` Nearest: ${it.nearest.node}, but for ${it.nearest.blocker}.` : "", it.policy ? ` Policy ${it.policy}${it.canary ? ", as a canary" : ""}.` : ""),
        it.blockers.length ? el("ul", { class: "blockers" }, it.blockers.map((each) => el("li", {}, el("b", {}, each.nodes), ` ${each.blocker}`, el("span", { class: "muted" }, namesOf(it.nodes, each.blocker))))) : null,
        feasible.length ? el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["node", "score", "parts"].map((each) => el("th", { scope: "col" }, each)))),
          el("tbody", {}, feasible.filter((each) => each.score !== null).sort((a, b) => b.score - a.score).slice(0, 30).map((each) => el("tr", {}, el("th", { scope: "row" }, each.node), el("td", {}, each.score), el("td", {}, Object.entries(each.parts).map(([name, points]) => `${name} ${points}`).join(", "))))))) : null,
        this.#facts([["reserved", it.reservedNode], ["preempts", it.victims.join(", ")], ["nominated", it.nominatedNode], ["refused it before", it.excluded.join(", ")], ["tried again on", it.unblockedBy.join(", ")], ["counted as bound", Object.values(it.assumed).join(", ")]])),
      this.#part("What if", el("form", { onsubmit: (event) => { event.preventDefault(); this.#whatIf(id, changes.value, result); } },
        el("label", { for: "what-if-text" }, "Other inputs, one a line"), changes, el("button", { type: "submit" }, "Decide again")), result),
    ];
  }

  #step(step, at) {
    if (step.step === "call") {
      return el("li", { class: "call" }, el("b", {}, step.verb), " ", this.#link(keyText(step.key), () => this.app.openObject(step.key)), ` → ${step.outcome}`,
        step.revision ? [" at ", this.#link(`rev ${step.revision}`, () => this.app.go({ rev: String(step.revision), t: "" }))] : "",
        el("span", { class: "muted" }, ` ${seconds(step.tookSeconds)}${step.check ? `, if ${step.check}` : ""}${step.unansweredSeconds ? `, no answer for ${seconds(step.unansweredSeconds)}` : ""}`),
        step.error ? el("p", { class: "failure" }, step.error) : null,
        step.intent && step.intent !== "null" ? el("details", { "data-name": `intent ${at}` }, el("summary", {}, "intent"), el("pre", {}, step.intent)) : null);
    }
    if (step.step === "read") {
      return el("li", {}, `${step.verb} ${step.cache} ${step.about}`, el("span", { class: "muted" }, ` at ${step.revision}, ${seconds(step.ageSeconds)} old: ${count(step.found, "object", "objects")}`),
        step.objects.length ? el("details", { "data-name": `read ${at}` }, el("summary", {}, "objects"), el("ul", {}, step.objects.map((each) => el("li", {}, this.#link(`${keyText(each.key)} at ${each.revision}`, () => this.app.openObject(each.key)), each.writer ? ` by ${each.writer}` : "")))) : null);
    }
    return el("li", {}, step.text);
  }

  async #recheck(button, id) {
    const output = document.getElementById("recheck-result");
    fill(output, "running…");
    button.disabled = true;
    try {
      const found = await act("recheck", { decision: id });
      const good = found.agrees && !found.differences.length;
      fill(output, el("span", { class: `badge ${good ? "ok" : found.differences.length ? "bad" : "note"}` }, good ? "= the same decision" : found.differences.length ? "≠ another decision" : "not run again"), ` ${found.lines.join("; ")}`);
    } catch (error) {
      fill(output, el("span", { class: "failure" }, error.message));
    }
    button.disabled = false;
  }

  async #whatIf(id, text, output) {
    fill(output, "running…");
    try {
      fill(output, el("ul", {}, (await act("what-if", { decision: id, changes: text })).lines.map((each) => el("li", {}, each))));
    } catch (error) {
      fill(output, el("span", { class: "failure" }, error.message));
    }
  }

  // -- objects -------------------------------------------------------------------------------------

  async #object(key) {
    const { point } = this.app;
    const parameters = { key, revision: point.revision, t: point.t };
    const [found, why] = await Promise.all([get("object", parameters), get("why", parameters).catch((error) => ({ failed: error.message }))]);
    const past = [...found.decisions].reverse().map((id) => this.app.model.byId.get(id)).filter((row) => row && row.t <= point.t);
    const last = past.find((row) => row.outcome !== "nothing") ?? past[0]; // the one that a person looks for
    return [
      this.#head(keyText(key), found.object ? `${key} at revision ${found.revision}` : `${key}: not there at this point`),
      why.failed ? el("p", { class: "muted" }, why.failed) : [
        el("p", { class: `answer tier-${why.answer.tier}` }, el("span", { class: `badge ${{ fine: "ok", waiting: "warn", misconfigured: "bad", broken: "bad" }[why.answer.tier]}` }, why.answer.tier), ` ${why.answer.sentence}`),
      ],
      el("div", { class: "actions" },
        el("button", { type: "button", id: "last-decision", disabled: !last, onclick: () => this.app.openDecision(last.id, { move: false }), title: "The last decision about it (d)" }, "Last decision"),
        el("button", { type: "button", onclick: () => this.app.state.set({ view: "story", search: found.key.split("/").pop() }) }, "Its story")),
      why.failed ? null : [
        why.signals.length ? this.#part("Debug view", this.#facts(why.signals.map((each) => [each.name, each.value]))) : null,
        this.#part("Evidence", this.#facts(grouped(why.answer.evidence.filter((each) => each.label !== "debug view")))),
        why.answer.parts.map((part) => el("details", { "data-name": part.about }, el("summary", {}, part.sentence), this.#facts(grouped(part.evidence)))),
      ],
      this.#part(`Versions (${found.versions.length + found.versionsLeftOut})`, el("ul", { class: "versions" }, [...found.versions].reverse().slice(0, 60).map((each) => el("li", { "aria-current": each.revision === found.revision ? "true" : null },
        this.#link(`rev ${each.revision}`, () => this.app.go({ rev: String(each.revision), t: "" })), ` ${clock(each.t)} ${each.deleted ? "deleted" : each.writer ? `by ${each.writer}` : ""} `,
        each.decision ? this.#link("decision", () => this.app.openDecision(each.decision)) : null)))),
      found.object ? this.#part("Object", el("details", { "data-name": "object" }, el("summary", {}, "as JSON"), el("pre", {}, JSON.stringify(found.object, null, 2)))) : null,
    ];
  }
}

function grouped(evidence) {
  const made = [];
  for (const { label, text } of evidence) {
    const last = made[made.length - 1];
    if (last && last[0] === label) last[1].append(el("li", {}, text));
    else made.push([label, el("ul", {}, el("li", {}, text))]);
  }
  return made;
}

function namesOf(nodes, blocker) {
  const names = nodes.filter((each) => each.blocker === blocker).map((each) => each.node);
  return names.length ? ` ${names.slice(0, 12).join(", ")}${names.length > 12 ? `, and ${names.length - 12} more` : ""}` : "";
}
