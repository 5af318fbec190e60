// Elements made from data. Text is always a text node: no string here is ever read as HTML.

/** An element with properties, listeners (`onclick`), data and aria attributes, and children that are nodes or text. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  set(made, properties);
  add(made, children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  add(made, children);
  return made;
}

function set(target, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) target.addEventListener(name.slice(2), value);
    else if (name === "class") target.className = value;
    else if (name === "dataset") Object.assign(target.dataset, value);
    else target.setAttribute(name, value === true ? "" : value);
  }
}

function add(target, children) {
  for (const each of children.flat(Infinity)) {
    if (each === null || each === undefined || each === false) continue;
    target.append(each instanceof Node ? each : String(each));
  }
}

/** Replace the children of an element. */
export function fill(target, ...children) {
  target.replaceChildren();
  add(target, children);
}

/** Change a text only if it differs, so that nothing flickers and no reader repeats it. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function setAttribute(target, name, value) {
  if (value === null || value === false) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Make the children of `parent` those of `items`, keeping the element of each key: focus and scroll stay. */
export function keyed(parent, items, keyOf, create, update) {
  const known = parent.keyedChildren ?? (parent.keyedChildren = new Map());
  const wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let node = known.get(key);
    if (!node) {
      node = create(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}
