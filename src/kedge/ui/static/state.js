// The state of the page, which is its URL hash: every state is a link. Views subscribe to changes.

const DEFAULTS = { view: "place", rev: "", t: "", component: "", decision: "", object: "", from: "", search: "", fold: "1", lane: "", marks: "" };

export class State {
  #listeners = [];
  #values = { ...DEFAULTS };

  constructor() {
    this.#values = this.#read();
    addEventListener("hashchange", () => {
      const next = this.#read();
      if (JSON.stringify(next) !== JSON.stringify(this.#values)) {
        this.#values = next;
        this.#notify();
      }
    });
  }

  get(name) {
    return this.#values[name];
  }

  /** Change some values. `replace` adds no entry to the history of the browser: for steps in time. */
  set(changes, { replace = false } = {}) {
    const next = { ...this.#values, ...changes };
    if (JSON.stringify(next) === JSON.stringify(this.#values)) return;
    this.#values = next;
    const parts = new URLSearchParams();
    for (const [name, value] of Object.entries(next)) if (value !== DEFAULTS[name]) parts.set(name, value);
    const url = `#${parts}`;
    if (replace) this.#replaceSoon(url);
    else {
      clearTimeout(this.#soon);
      this.#soon = null;
      history.pushState(null, "", url);
    }
    this.#notify();
  }

  onChange(listener) {
    this.#listeners.push(listener);
  }

  #soon = null;
  // Browsers refuse more than a few changes of the address in a second.
  #replaceSoon(url) {
    this.#wanted = url;
    this.#soon ??= setTimeout(() => {
      this.#soon = null;
      history.replaceState(null, "", this.#wanted);
    }, 200);
  }
  #wanted = "";

  #notify() {
    for (const each of this.#listeners) each(this);
  }

  #read() {
    const found = { ...DEFAULTS };
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in DEFAULTS) found[name] = value;
    return found;
  }
}
