// Building and updating the page without markup from strings: text stays text, whatever a model or a node is called.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes by name (`on…` are listeners, `data` a dataset, false and null leave out), then children. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Set text only when it differs, so that a selection and a screen reader are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A keyed list: one element an item, made once by `make(item)`, brought up to date by `update(element, item)`. */
export function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    known.delete(key);
    if (!element) {
      element = make(item);
      element.dataset.key = key;
    }
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
    update(element, item);
  }
  for (const gone of known.values()) gone.remove();
}
