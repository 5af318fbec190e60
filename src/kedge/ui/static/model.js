// The history on the client: commits, marks, decisions and the story, with searches by time. It draws nothing.

import { get } from "./api.js";

/** The number of values in a sorted array that are at most `wanted`. */
export function upperBound(values, wanted, of = (each) => each) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(values[middle]) <= wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Model {
  history = null;
  decisions = [];
  lanes = [];
  byId = new Map();
  story = [];

  async load(progress) {
    this.history = await get("history");
    progress();
    await this.#loadDecisions(progress);
    await this.#loadStory();
    progress();
  }

  async #loadDecisions(progress) {
    let after = this.decisions.length;
    while (after !== null) {
      const page = await get("decisions", { after, limit: 2500 });
      for (const row of page.rows) {
        row.outcome = page.outcomes[row.outcome];
        row.place = this.decisions.length;
        row.words = `${row.lane} ${row.key} ${row.outcome} ${row.text} ${row.id}`.toLowerCase();
        this.decisions.push(row);
        this.byId.set(row.id, row);
      }
      after = page.next;
      this.lanes = lanesOf(this.decisions);
      progress();
    }
  }

  async #loadStory() {
    let after = this.story.length;
    while (after !== null) {
      const page = await get("story", { after, limit: 2000 });
      for (const line of page.lines) {
        line.words = `${line.lane} ${line.kind} ${line.text} ${line.mark}`.toLowerCase();
        this.story.push(line);
      }
      after = page.next;
    }
  }

  /** Fetch what has been added since. Returns whether there was something. */
  async refresh() {
    const next = await get("history");
    const before = this.history;
    this.history = next;
    if (next.decisions !== before.decisions || next.start !== before.start) {
      // Rows may have moved: older ones are dropped as new ones come. They are exchanged whole, so nothing flickers.
      const fresh = new Model();
      fresh.history = next;
      await fresh.#loadDecisions(() => {});
      [this.decisions, this.byId, this.lanes] = [fresh.decisions, fresh.byId, fresh.lanes];
    }
    if (next.storyLines !== this.story.length) {
      const fresh = new Model();
      await fresh.#loadStory();
      this.story = fresh.story;
    }
    return next.duration !== before.duration || next.commits.t.length !== before.commits.t.length;
  }

  get duration() {
    return this.history.duration;
  }

  /** The point of a state: by revision, by time, or the end. */
  point(rev, t) {
    const { revision, t: times } = this.history.commits;
    if (rev !== "" && /^\d+$/.test(rev)) {
      const place = upperBound(revision, Number(rev));
      const when = place ? times[place - 1] : 0;
      return { t: t !== "" && /^\d+$/.test(t) ? Math.max(Number(t), when) : when, revision: place ? revision[place - 1] : 0, place: place - 1 };
    }
    const moment = t !== "" && /^\d+$/.test(t) ? Math.min(Number(t), this.duration) : this.duration;
    const place = upperBound(times, moment);
    return { t: moment, revision: place ? revision[place - 1] : 0, place: place - 1 };
  }

  /** The state of the next or previous commit, decision or mark; null at an end. */
  step(point, by, direction, shown = () => true) {
    const { revision, t: times } = this.history.commits;
    if (by === "commit") {
      const next = direction > 0 ? point.place + 1 : point.t > (times[point.place] ?? 0) ? point.place : point.place - 1;
      return next >= 0 && next < times.length ? { rev: String(revision[next]), t: "" } : null;
    }
    const rows = by === "decision" ? this.decisions.filter(shown) : this.history.marks.filter(shown);
    const place = upperBound(rows, point.t, (each) => each.t);
    let next = null;
    if (direction > 0) next = rows[place];
    else for (let at = place - 1; at >= 0; at--) if (rows[at].t < point.t) { next = rows[at]; break; }
    if (!next) return null;
    return { rev: "", t: String(next.t), ...(by === "decision" ? { decision: next.id, object: "" } : {}) };
  }
}

function lanesOf(decisions) {
  const made = new Map();
  for (const row of decisions) {
    let lane = made.get(row.lane);
    if (!lane) made.set(row.lane, (lane = { name: row.lane, rows: [] }));
    lane.rows.push(row);
  }
  return [...made.values()].sort((a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name));
}

/** Schedulers and controllers first, agents after them. */
function rank(name) {
  return name.includes("scheduler") ? 0 : name.startsWith("agent-") ? 2 : 1;
}
