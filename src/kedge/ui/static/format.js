// Times, keys and outcomes as people read them. A symbol and a word go with every colour.

export const OUTCOMES = {
  wrote: { symbol: "●", colour: "wrote" },
  acted: { symbol: "■", colour: "acted" },
  nothing: { symbol: "·", colour: "nothing" },
  pending: { symbol: "◆", colour: "pending" },
  refused: { symbol: "▲", colour: "refused" },
  failed: { symbol: "✕", colour: "failed" },
  "cut off": { symbol: "╳", colour: "failed" },
};

export const MARKS = {
  person: { symbol: "♦", label: "people", colour: "person" },
  fault: { symbol: "!", label: "faults", colour: "fault" },
  leader: { symbol: "▲", label: "leader changes", colour: "leader" },
  condition: { symbol: "│", label: "condition flips", colour: "condition" },
};

export const STAGES = {
  admitted: "▫", queued: "◇", scheduled: "◈", bound: "◔", starting: "◑", ready: "●", ending: "◌", succeeded: "✓", failed: "✕",
};

export function stageSymbol(stage) {
  return STAGES[stage] ?? "•";
}

/** Microseconds since the beginning, as minutes, seconds and milliseconds. */
export function clock(t) {
  const total = Math.round(t / 1000);
  const ms = total % 1000, s = Math.floor(total / 1000);
  const hours = Math.floor(s / 3600);
  const two = (n) => String(n).padStart(2, "0");
  return `${hours ? `${hours}:` : ""}${two(Math.floor(s / 60) % 60)}:${two(s % 60)}.${String(ms).padStart(3, "0")}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value >= 120) return `${(value / 60).toFixed(1)} min`;
  return value >= 10 ? `${value.toFixed(1)} s` : value >= 0.1 ? `${value.toFixed(2)} s` : `${Math.round(value * 1000)} ms`;
}

/** "Deployment.apps/risk/web" as kind and name. */
export function keyParts(key) {
  const [kind, ...rest] = key.split("/");
  return { kind: kind.split(".")[0], namespace: rest.length > 1 ? rest[0] : "", name: rest[rest.length - 1] ?? "" };
}

export function keyText(key) {
  const { kind, name } = keyParts(key);
  return `${kind} ${name}`;
}

export function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
