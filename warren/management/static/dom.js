// Making elements. Texts are texts: nothing that comes from a message or a name is ever read as HTML.

export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function field(label, input) {
  return make("label", {}, label, input);
}

/** Ask in a dialog; `fields` are elements with names, `submit` gets their values. */
export function ask(title, fields, verb, submit, danger = false) {
  const error = make("p", { class: "error", role: "alert" });
  const go = make("button", { class: danger ? "danger" : "main" }, verb);
  const form = make("form", { method: "dialog" }, ...fields, error, make("div", { class: "row" },
    go, make("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
  const dialog = make("dialog", { "aria-label": title }, make("h2", {}, title), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    setText(error, "");
    try {
      await submit(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (problem) {
      setText(error, problem.message);
    } finally {
      go.disabled = false;
    }
  });
  const before = document.activeElement;
  dialog.addEventListener("close", () => { dialog.remove(); before?.focus(); });
  document.body.append(dialog);
  dialog.showModal();
}

/** Rows of a table, kept by key: what stays is only changed, so that the focus stays where it is. */
export class Rows {
  constructor(body, create) {
    this.body = body;
    this.create = create;
    this.known = new Map();
  }

  update(items, keyOf, fill) {
    const keys = new Set();
    const order = [];
    for (const item of items) {
      const key = keyOf(item);
      keys.add(key);
      let row = this.known.get(key);
      if (!row) this.known.set(key, (row = this.create(item)));
      fill(row, item);
      order.push(row.element);
    }
    for (const [key, row] of this.known) {
      if (!keys.has(key)) { row.element.remove(); this.known.delete(key); }
    }
    const stays = this.body.contains(document.activeElement);
    order.forEach((element, index) => {
      const there = this.body.children[index];
      if (there !== element && (!stays || !element.isConnected)) this.body.insertBefore(element, there ?? null);
    });
  }
}
