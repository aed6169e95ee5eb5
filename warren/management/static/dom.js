// Elements. Texts are texts: nothing that comes from a message or a name is ever read as HTML.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SHOWN_MS = 10_000;
let hiding = 0;

/** Report the result of an action, also to screen readers, once the dialog that asked for it is closed. */
export function tell(text, isError = false) {
  const result = document.getElementById("result");
  setTimeout(() => { result.classList.toggle("bad", isError); result.replaceChildren(text); });
  clearTimeout(hiding);
  hiding = setTimeout(() => result.replaceChildren(), SHOWN_MS);
}

/** A button whose failures are reported. */
export function button(label, work, attributes = {}) {
  return make("button", { type: "button", ...attributes, onclick: async () => {
    try { await work(); } catch (problem) { tell(problem.message, true); }
  } }, label);
}

export const badge = (text, kind = "") => make("span", { class: `badge ${kind}` }, text);

/** Pairs of names and values; a pair without a value is left out. */
export function fillFacts(list, pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = JSON.stringify(shown);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))]));
}

/** A value of an argument, a property or a parameter as text; the text "5" has quotation marks, the number has none. */
export function plain(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  try { JSON.parse(value); return JSON.stringify(value); } catch { return value; }
}

export const pairsOf = (table) => Object.entries(Array.isArray(table) ? {} : table ?? {});
export const listed = (table) => pairsOf(table).map(([name, value]) => `${name}: ${plain(value)}`).join(", ");

/** A part of a page: its heading, what can be done, and its contents. */
export function panel(title, actions, ...contents) {
  return make("section", { class: "panel", "aria-label": title }, make("div", { class: "row spread" },
    make("h2", {}, title), make("div", { class: "row" }, actions)), contents);
}

/**
 * A view of parts; each has `element`, `paths()` and `update(...answers)`, which returns a line for the status. A path of
 * two parts is read once.
 */
export function viewOf(title, parts, ...before) {
  return {
    title,
    element: make("div", { class: "view" }, before, parts.map((part) => part.element)),
    paths: () => [...new Set(parts.flatMap((part) => part.paths()))],
    update(...answers) {
      const byPath = new Map(this.paths().map((path, index) => [path, answers[index]]));
      const lines = parts.map((part) => part.update(...part.paths().map((path) => byPath.get(path))));
      return lines.filter(Boolean).join(" · ");
    },
    load: () => Promise.all(parts.map((part) => part.load?.())),
    failed: (body) => parts.some((part) => part.failed?.(body)),
  };
}
