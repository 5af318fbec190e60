// The keyboard map and the legend, shown by `?`.

import { el, fill } from "./dom.js";
import { MARKS, OUTCOMES, STAGES } from "./format.js";

const KEYS = [
  ["1 … 6", "views"], ["← →", "step back and forward"], ["Shift ← →", "step by mark"], ["Home End", "first and last point"], ["Space", "play and pause"],
  ["s", "step by commit, decision or mark"], ["[ ]", "previous and next decision"], ["c", "jump to the cause"], ["e", "jump to the effect"], ["r", "recheck the decision"],
  ["d", "the last decision about the object"], ["o", "the object of the decision"], ["m", "compare from here"], ["b", "next component of the beliefs"],
  ["p", "to the first pod that waits, or the first pod"], ["/", "search"], ["f", "fold repeats"], ["+ − 0", "zoom the lanes"], ["g", "go to a revision"], ["Esc", "close"], ["?", "this list"],
];

export function showHelp() {
  const dialog = document.getElementById("help");
  fill(dialog,
    el("h2", { id: "help-title" }, "Keyboard and legend"),
    el("div", { class: "help" },
      el("dl", { class: "keys" }, KEYS.map(([keys, text]) => [el("dt", {}, keys.split(" ").map((each) => el("kbd", {}, each))), el("dd", {}, text)])),
      el("div", {},
        el("h3", {}, "Outcome of a decision"), el("ul", {}, Object.entries(OUTCOMES).map(([name, each]) => el("li", {}, el("span", { class: `outcome outcome-${each.colour}` }, each.symbol), ` ${name}`))),
        el("h3", {}, "Stage of a pod"), el("ul", {}, Object.entries(STAGES).map(([name, symbol]) => el("li", {}, `${symbol} ${name}`))),
        el("h3", {}, "Marks"), el("ul", {}, Object.values(MARKS).map((each) => el("li", {}, el("span", { class: `mark-${each.colour}` }, each.symbol), ` ${each.label}`))))),
    el("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}
