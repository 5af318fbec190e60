// The work queues and caches of a running cluster, as they are now.

import { Latest, get } from "./api.js";
import { el, fill } from "./dom.js";
import { count, seconds } from "./format.js";

export class QueuesView {
  label = "Queues";
  #latest = new Latest();
  #shown = "";

  constructor(app) {
    this.app = app;
    this.content = el("div", {});
    this.root = el("section", { class: "full scrolls", "aria-labelledby": "queues-title" }, el("h2", { id: "queues-title" }, "Queues and caches, now"), this.content);
  }

  show() {
    this.#latest.run(async (stale) => {
      const [queues, caches] = await Promise.all([get("queues"), get("caches")]);
      if (!stale()) this.#render(queues, caches);
    });
  }

  #render(queues, caches) {
    const open = new Set([...this.content.querySelectorAll("details[open]")].map((each) => each.dataset.name));
    const text = JSON.stringify([queues.queues, caches.caches, caches.storeRevision]);
    if (text === this.#shown) return;
    this.#shown = text;
    const head = (...names) => el("thead", {}, el("tr", {}, names.map((each) => el("th", { scope: "col" }, each))));
    fill(this.content,
      el("h3", {}, "Queues"),
      el("div", { class: "wide" }, el("table", {}, head("controller", "leads", "keys", "ready", "waiting", "running", "failing", "oldest", "keys"),
        el("tbody", {}, queues.queues.map((each) => el("tr", {}, el("th", { scope: "row" }, each.controller), el("td", {}, each.leading ? "● yes" : "○ no"), [each.depth, each.ready, each.waiting, each.running].map((number) => el("td", {}, number)),
          el("td", { class: each.failing ? "failure" : "" }, each.failing ? `✕ ${each.failing}` : 0), el("td", {}, seconds(each.oldestSeconds)),
          el("td", {}, each.keys.length ? el("details", { "data-name": each.controller, open: open.has(each.controller) }, el("summary", {}, count(each.keys.length + each.keysLeftOut, "key", "keys")),
            el("ul", {}, each.keys.map((key) => el("li", {}, el("button", { type: "button", class: "link", onclick: () => this.app.openObject(key.key) }, key.key), ` ${key.state}: ${key.reason}${key.lastError ? `; ${key.lastError}` : ""}`)))) : "")))))),
      el("h3", {}, `Caches; the store is at revision ${caches.storeRevision}`),
      el("div", { class: "wide" }, el("table", {}, head("cache", "objects", "revision", "lag", "age", "relists", "watch"),
        el("tbody", {}, caches.caches.map((each) => el("tr", {}, el("th", { scope: "row" }, each.cache), [each.objects, each.revision, each.lagRevisions, seconds(each.ageSeconds), each.relists].map((value) => el("td", {}, value)),
          el("td", {}, each.healthy ? `● ${each.watch}` : `✕ ${each.watch} ${each.lastError}`)))))),
      el("p", { class: "muted" }, [...queues.coverage, ...caches.coverage].join("; ")));
  }
}
