// The page: its views, its keys and its one point in time. `state` is the URL, `model` is the history.

import { CompareView } from "./compare_view.js";
import { CouplingView } from "./coupling_view.js";
import { DecisionsView } from "./decisions_view.js";
import { Detail } from "./detail.js";
import { el, fill, setText } from "./dom.js";
import { clock } from "./format.js";
import { showHelp } from "./help.js";
import { Model } from "./model.js";
import { PlaceView } from "./place_view.js";
import { QueuesView } from "./queues_view.js";
import { State } from "./state.js";
import { StoryView } from "./story_view.js";
import { TimeStrip } from "./time_strip.js";

const PLAY_MS = 220;
const LIVE_MS = 2000;
const byId = (name) => document.getElementById(name);

class App {
  state = new State();
  model = new Model();
  #playing = null;

  async start() {
    this.views = { place: new PlaceView(this), story: new StoryView(this), decisions: new DecisionsView(this), compare: new CompareView(this), coupling: new CouplingView(this) };
    this.strip = new TimeStrip(this);
    this.detail = new Detail(this);
    this.#tabs();
    this.#listen();
    let first = true;
    await this.model.load(() => {
      if (!this.model.history) return;
      if (first) {
        first = false;
        if (this.model.history.live) {
          this.views.queues = new QueuesView(this);
          this.#tabs();
        }
        this.strip.loaded();
        setText(byId("title"), this.model.history.title);
        document.title = `${this.model.history.title} · kedge`;
        setText(byId("coverage"), this.model.history.coverage.join("  ·  "));
        this.state.onChange(() => this.show());
      }
      this.show();
    });
    if (this.model.history.live) this.#follow();
    document.documentElement.dataset.ready = "true";
  }

  #tabs() {
    fill(byId("tabs"), Object.entries(this.views).map(([name, view], at) =>
      el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "main", title: `${view.label} (${at + 1})`, onclick: () => this.state.set({ view: name }) }, view.label)));
  }

  /** Fetch new history again and again. A point that is not the end stays where it is. */
  async #follow() {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, LIVE_MS));
      if (document.hidden) continue;
      try {
        const changed = await this.model.refresh();
        byId("failure").hidden = true;
        if (changed) {
          this.strip.loaded();
          this.views.decisions.lanes.grown();
          setText(byId("coverage"), this.model.history.coverage.join("  ·  "));
        }
        if (changed || this.view === "queues") this.show();
      } catch (error) {
        if (error.code === 401) throw error;
        this.fail(error);
      }
    }
  }

  get point() {
    return this.model.point(this.state.get("rev"), this.state.get("t"));
  }

  /** The first of two points to compare; null without one. */
  get from() {
    const [rev, t] = this.state.get("from").split("@");
    return rev ? this.model.point(rev, t ?? "") : null;
  }

  get view() {
    return this.views[this.state.get("view")] ? this.state.get("view") : "place";
  }

  show() {
    const view = this.views[this.view];
    const main = byId("main");
    if (main.firstChild !== view.root) main.replaceChildren(view.root);
    for (const name of Object.keys(this.views)) {
      const tab = byId(`tab-${name}`), on = name === this.view;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    main.setAttribute("aria-label", view.label);
    const search = byId("search");
    if (document.activeElement !== search) search.value = this.state.get("search");
    setText(byId("pin"), this.from ? `Compare from rev ${this.from.revision} ✕` : "Compare from here");
    this.strip.show();
    this.#try(view.show());
    this.#try(this.detail.show());
  }

  async #try(work) {
    try {
      await work;
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    const box = byId("failure");
    box.hidden = false;
    fill(box, error.message, " ", el("button", { type: "button", onclick: () => (box.hidden = true) }, "Dismiss"));
  }

  // -- moving --------------------------------------------------------------------------------------

  /** Move to a point; steps in time add nothing to the history of the browser. */
  go(changes) {
    const replaces = !("decision" in changes) && !("object" in changes) && !("view" in changes);
    this.state.set(changes, { replace: replaces });
  }

  step(direction, by = byId("step-by").value) {
    const next = this.model.step(this.point, by, direction, by === "mark" ? (each) => this.strip.shows(each.mark) : undefined);
    if (!next) {
      this.pause();
      return;
    }
    this.state.set(next, { replace: true });
    this.announce();
  }

  announce() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => setText(byId("announce"), `revision ${this.point.revision}, ${clock(this.point.t)}`), 400);
  }

  play() {
    if (this.#playing) {
      this.pause();
      return;
    }
    if (this.point.t >= this.model.duration) this.state.set({ rev: "", t: "0" }, { replace: true });
    this.#playing = setInterval(() => this.step(1), PLAY_MS);
    this.#showPlaying();
  }

  pause() {
    clearInterval(this.#playing);
    this.#playing = null;
    this.#showPlaying();
  }

  #showPlaying() {
    const button = byId("play"), on = Boolean(this.#playing);
    setText(button, on ? "❚❚ Pause" : "▶ Play");
    button.setAttribute("aria-pressed", String(on));
    button.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  openDecision(id, { focus = true, move = true } = {}) {
    const row = this.model.byId.get(id);
    this.state.set({ decision: id, object: "", ...(row && move ? { rev: "", t: String(row.t) } : {}) });
    if (focus) this.detail.focus();
  }

  openObject(key) {
    this.state.set({ object: key });
    this.detail.focus();
  }

  closeDetail() {
    if (this.state.get("object")) this.state.set({ object: "" });
    else this.state.set({ decision: "" });
    byId("main").focus();
  }

  /** From a decision to the write that woke it: the decision behind it, or the commit of a person. */
  toCause() {
    const row = this.model.byId.get(this.state.get("decision"));
    if (!row) return;
    const cause = this.model.decisions[row.cause];
    if (cause) this.openDecision(cause.id);
    else if (row.causeRevision) {
      this.state.set({ rev: String(row.causeRevision), t: "", view: "story", search: "" });
      this.announce();
    }
  }

  toEffect() {
    const row = this.model.byId.get(this.state.get("decision"));
    if (!row) return;
    const effect = row.effects ? this.model.decisions.slice(row.place + 1).find((each) => each.cause === row.place) : null;
    if (effect) this.openDecision(effect.id);
    else if (row.revision) this.go({ rev: String(row.revision), t: "", view: "place" });
  }

  pin() {
    const { revision, t } = this.point;
    this.state.set(this.from ? { from: "" } : { from: `${revision}@${t}` });
  }

  // -- keys ----------------------------------------------------------------------------------------

  #listen() {
    const commands = { first: () => this.go({ rev: "", t: "0" }), last: () => this.go({ rev: "", t: "" }), back: () => this.step(-1), forward: () => this.step(1), play: () => this.play(), pin: () => this.pin() };
    for (const button of document.querySelectorAll("[data-command]")) button.addEventListener("click", () => commands[button.dataset.command]());
    byId("help-button").addEventListener("click", showHelp);
    byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
    byId("search").addEventListener("input", (event) => {
      const searched = ["story", "decisions"].includes(this.view) ? {} : { view: "decisions" };
      this.state.set({ search: event.target.value, ...searched }, { replace: true });
    });
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.target.value = ""; this.state.set({ search: "" }); event.target.blur(); }
      if (event.key === "Enter" || event.key === "ArrowDown") { byId("main").querySelector(".list")?.focus(); event.preventDefault(); }
      event.stopPropagation();
    });
    byId("tabs").addEventListener("keydown", (event) => {
      const names = Object.keys(this.views), at = names.indexOf(this.view);
      const next = { ArrowRight: names[(at + 1) % names.length], ArrowLeft: names[(at + names.length - 1) % names.length] }[event.key];
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();
      this.state.set({ view: next });
      byId(`tab-${next}`).focus();
    });
    addEventListener("keydown", (event) => this.#key(event, commands));
  }

  #key(event, commands) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const typing = event.target.matches?.('input:not([type="range"]):not([type="checkbox"]), textarea, select');
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === " " && event.target.matches?.("button, summary, input, [role=button]")) return;
    const names = Object.keys(this.views);
    const keys = {
      ArrowLeft: () => this.step(-1, event.shiftKey ? "mark" : undefined), ArrowRight: () => this.step(1, event.shiftKey ? "mark" : undefined),
      Home: commands.first, End: commands.last, " ": () => this.play(),
      "[": () => this.step(-1, "decision"), "]": () => this.step(1, "decision"),
      c: () => this.toCause(), e: () => this.toEffect(), r: () => byId("recheck")?.click(), d: () => byId("last-decision")?.click(),
      o: () => { const row = this.model.byId.get(this.state.get("decision")); if (row) this.openObject(row.key); },
      m: () => this.pin(), "/": () => byId("search").focus(), f: () => this.state.set({ fold: this.state.get("fold") ? "" : "1" }),
      s: () => { const select = byId("step-by"); select.selectedIndex = (select.selectedIndex + 1) % select.options.length; setText(byId("announce"), `step by ${select.value}`); },
      b: () => { const select = byId("component"); if (select?.options.length) { select.selectedIndex = (select.selectedIndex + 1) % select.options.length; select.dispatchEvent(new Event("change")); } },
      p: () => this.#firstPod(), g: () => this.#goTo(), "?": showHelp,
      "+": () => this.views.decisions.lanes.zoom(0.5), "-": () => this.views.decisions.lanes.zoom(2), 0: () => this.views.decisions.lanes.zoom(Infinity),
      Escape: () => { if (this.state.get("object") || this.state.get("decision")) this.closeDetail(); },
    };
    const run = /^[1-9]$/.test(event.key) && names[event.key - 1] ? () => this.state.set({ view: names[event.key - 1] }) : keys[event.key];
    if (!run || !this.model.history) return;
    event.preventDefault();
    run();
  }

  #firstPod() {
    this.state.set({ view: "place" });
    setTimeout(() => (document.querySelector(".waiting .pod") ?? document.querySelector(".pod"))?.focus(), 80);
  }

  /** Type a revision, then Enter. */
  #goTo() {
    const input = el("input", { type: "text", inputmode: "numeric", class: "go-to", "aria-label": "Revision", placeholder: "revision" });
    const now = byId("now");
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" && /^\d+$/.test(input.value)) this.go({ rev: input.value, t: "" });
      if (event.key === "Enter" || event.key === "Escape") input.remove();
    });
    input.addEventListener("blur", () => input.remove());
    now.after(input);
    input.focus();
  }
}

const app = new App();
addEventListener("unhandledrejection", (event) => app.fail(event.reason));
app.start().catch((error) => app.fail(error));
