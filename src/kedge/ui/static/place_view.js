// Zones, nodes and pods at the point, and the belief of a component beside the truth.

import { Latest, get } from "./api.js";
import { BeliefPanel } from "./belief_panel.js";
import { el, fill, keyed, setAttribute, setText } from "./dom.js";
import { count, stageSymbol } from "./format.js";

const NAMED_MAX = 240;

export class PlaceView {
  label = "Place";
  #latest = new Latest();
  #differs = new Map();

  constructor(app) {
    this.app = app;
    this.belief = new BeliefPanel(app, (caches) => this.#mark(caches));
    this.summary = el("p", { class: "summary", id: "place-summary" });
    this.pending = el("div", { class: "pods named", role: "group", "aria-label": "Pods that wait for a node" });
    this.pendingBox = el("section", { class: "waiting" }, el("h3", {}, "Waiting for a node"), this.pending);
    this.zones = el("div", { class: "zones" });
    this.root = el("div", { class: "split" },
      el("section", { class: "place", "aria-labelledby": "place-title" }, el("h2", { id: "place-title" }, "Place"), this.summary, this.pendingBox, this.zones),
      this.belief.root);
    this.root.addEventListener("keydown", (event) => this.#keys(event));
  }

  show() {
    const point = this.app.point;
    this.#latest.run(async (stale) => {
      const found = await get("place", { revision: point.revision, t: point.t });
      if (!stale()) this.#render(found);
    });
    this.belief.show();
  }

  #render(place) {
    this.place = place;
    const byNode = new Map();
    const waiting = [];
    for (const pod of place.pods) {
      if (!pod.node) waiting.push(pod);
      else if (byNode.has(pod.node)) byNode.get(pod.node).push(pod);
      else byNode.set(pod.node, [pod]);
    }
    const stages = {};
    for (const pod of place.pods) stages[pod.stage] = (stages[pod.stage] ?? 0) + 1;
    const nodes = place.zones.reduce((sum, each) => sum + each.nodes.length, 0);
    const parts = Object.entries(stages).map(([stage, number]) => `${stageSymbol(stage)} ${number} ${stage}`);
    setText(this.summary, `${count(place.zones.length, "zone", "zones")}, ${count(nodes, "node", "nodes")}, ${count(place.pods.length, "pod", "pods")}${parts.length ? `: ${parts.join(", ")}` : ""}`);
    const named = place.pods.length <= NAMED_MAX;
    this.pendingBox.hidden = waiting.length === 0;
    this.#pods(this.pending, waiting, named || waiting.length <= 40);
    keyed(this.zones, place.zones, (zone) => zone.name, (zone) => this.#zone(zone), (node, zone) => {
      setText(node.count, count(zone.nodes.length, "node", "nodes"));
      this.#quotas(node.quotas, place.quotas.filter((each) => each.zone === zone.name));
      keyed(node.nodes, zone.nodes, (each) => each.key, (each) => this.#node(each), (card, each) => this.#updateNode(card, each, byNode.get(each.name) ?? [], named));
    });
    this.#mark(null);
    this.#oneTabStop();
  }

  #zone(zone) {
    const root = el("section", { class: "zone" });
    root.count = el("span", { class: "muted" });
    root.quotas = el("div", { class: "quotas" });
    root.nodes = el("div", { class: "nodes" });
    root.append(el("h3", {}, zone.name, " ", root.count), root.quotas, root.nodes);
    return root;
  }

  #quotas(target, quotas) {
    keyed(target, quotas, (each) => each.key + each.zone, (each) => {
      const button = el("button", { type: "button", class: "quota", onclick: () => this.app.openObject(each.key) });
      button.text = el("span");
      button.bars = el("span", { class: "bars" });
      button.append(button.text, button.bars);
      return button;
    }, (button, each) => {
      button.dataset.key = each.key;
      setText(button.text, `quota ${each.namespace}`);
      this.#bars(button.bars, each.room);
    });
  }

  #node(node) {
    const card = el("article", { class: "node", "data-key": node.key });
    card.name = el("button", { type: "button", class: "name", onclick: () => this.app.openObject(node.key) }, node.name);
    card.badges = el("span", { class: "badges" });
    card.bars = el("div", { class: "bars" });
    card.pods = el("div", { class: "pods", role: "group", "aria-label": `Pods on ${node.name}` });
    card.append(el("header", {}, card.name, card.badges), card.bars, card.pods);
    return card;
  }

  #updateNode(card, node, pods, named) {
    const badges = [];
    if (node.ready === "True") badges.push(["ok", "● Ready", ""]);
    else badges.push(["bad", `✕ Ready ${node.ready}`, node.why]);
    if (node.suspect) badges.push(["warn", "? Suspect", node.suspicion]);
    if (node.cordoned) badges.push(["warn", "⊘ Cordoned", ""]);
    if (node.claimsWithoutPod) badges.push(["warn", `⚑ ${count(node.claimsWithoutPod, "claim", "claims")} without a pod`, "the ledger of the node holds room for pods that do not exist"]);
    for (const taint of node.taints) badges.push(["note", `⊖ ${taint.split("/").pop()}`, taint]);
    keyed(card.badges, badges, (each) => each[1], (each) => el("span", { class: `badge ${each[0]}`, title: each[2] }, each[1]), () => {});
    this.#bars(card.bars, node.room.filter((each) => each.resource !== "pods"));
    card.pods.classList.toggle("named", named);
    this.#pods(card.pods, pods, named);
  }

  #bars(target, room) {
    keyed(target, room, (each) => each.resource, (each) => {
      const bar = el("span", { class: "bar" });
      bar.text = el("span", { class: "bar-text" });
      bar.fill = el("span", { class: "bar-fill" });
      bar.append(el("span", { class: "bar-back", "aria-hidden": "true" }, bar.fill), bar.text);
      return bar;
    }, (bar, each) => {
      setText(bar.text, `${each.resource} ${each.used} of ${each.of}`);
      const width = `${Math.min(100, each.share * 100).toFixed(1)}%`;
      if (bar.fill.style.width !== width) bar.fill.style.width = width;
      bar.fill.classList.toggle("full", each.share > 0.95);
    });
  }

  #pods(target, pods, named) {
    keyed(target, pods, (each) => each.key, (each) => {
      const chip = el("button", { type: "button", class: "pod", tabindex: "-1", onclick: () => this.app.openObject(each.key) });
      chip.symbol = el("span", { class: "symbol", "aria-hidden": "true" });
      chip.label = el("span", { class: "pod-name" });
      chip.append(chip.symbol, chip.label);
      return chip;
    }, (chip, each) => {
      if (chip.shown === each.revision + each.stage + named + each.reserved + each.claim) return;
      chip.shown = each.revision + each.stage + named + each.reserved + each.claim;
      chip.dataset.key = each.key;
      chip.dataset.stage = each.stage;
      setText(chip.symbol, stageSymbol(each.stage));
      setText(chip.label, named ? each.name : "");
      const more = [each.reserved && `reserved on ${each.reserved}`, each.claim ? `claim ${each.claim}` : each.node ? "no claim" : "", each.why].filter(Boolean).join("; ");
      setAttribute(chip, "aria-label", `pod ${each.name}, ${each.stage}${more ? `; ${more}` : ""}`);
      setAttribute(chip, "title", `${each.name}: ${each.stage}${more ? `\n${more}` : ""}`);
      chip.classList.toggle("reserved", Boolean(each.reserved));
    });
  }

  /** Mark the objects that the chosen component believes to be different. */
  #mark(caches) {
    if (caches) {
      this.#differs = new Map();
      for (const cache of caches) if (!cache.heartbeats) for (const each of cache.objects) if (each.certain) this.#differs.set(each.key, each);
    }
    for (const node of this.root.querySelectorAll(".place .differs")) if (!this.#differs.has(node.dataset.key)) node.classList.remove("differs");
    for (const key of this.#differs.keys()) this.root.querySelector(`.place [data-key="${CSS.escape(key)}"]`)?.classList.add("differs");
  }

  // One Tab stop for all pods; arrows move between them.
  #oneTabStop() {
    const chips = this.root.querySelectorAll(".pod");
    if (chips.length && !this.root.querySelector('.pod[tabindex="0"]')) chips[0].tabIndex = 0;
  }

  #keys(event) {
    if (!event.target.classList?.contains("pod")) return;
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (!(event.key in steps)) return;
    const chips = [...this.root.querySelectorAll(".pod")];
    const next = chips[chips.indexOf(event.target) + steps[event.key]];
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

export function emptyText(target, text) {
  fill(target, el("p", { class: "muted" }, text));
}
