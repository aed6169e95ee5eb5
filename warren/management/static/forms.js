// Forms in dialogs. A field is {name, label, type, value, required, hint, options, suggestions, key}; a `key` cannot be
// changed once the thing exists.

import { make, pairsOf, plain, setText } from "./dom.js";

let ids = 0;

function parsed(text) {
  try { return JSON.parse(text); } catch { return text; }
}

/** A table of arguments: rows of a name and a value, with an empty one at the end. */
function table(field, value) {
  const suggestions = make("datalist", { id: `suggestions${ids += 1}` },
    (field.suggestions ?? []).map((name) => make("option", { value: name })));
  const rows = make("div", { class: "arguments" });
  function add(name = "", text = "") {
    const input = (what, content, more = {}) => {
      const element = make("input", { "aria-label": `${field.label}: ${what}`, placeholder: what, spellcheck: "false", ...more });
      element.value = content;
      element.addEventListener("input", () => { if (element.closest("div") === rows.lastElementChild) add(); });
      return element;
    };
    rows.append(make("div", {}, input("name", name, { list: suggestions.id, "data-table": field.name }), input("value", text)));
  }
  for (const [name, content] of pairsOf(value)) add(name, plain(content));
  add();
  const read = () => Object.fromEntries([...rows.children].map((row) => [...row.children].map((input) => input.value.trim()))
    .filter(([name]) => name).map(([name, text]) => [name, parsed(text)]));
  return { element: make("fieldset", {}, make("legend", {}, field.label), rows, suggestions,
    make("p", { class: "quiet" }, 'Numbers, true, false, ["lists"] and {"tables"} are taken as such; "5" is a text.')), read };
}

/** An input with its label, and a function that reads it. */
function control(field, value, isFixed) {
  if (field.type === "table") return table(field, value);
  const common = { name: field.name, required: field.required, disabled: isFixed };
  const labelled = (input, read) => ({ element: make("label", {}, field.label, input), read });
  if (field.type === "checkbox") {
    const input = make("input", { ...common, type: "checkbox", checked: value });
    return { element: make("label", { class: "inline" }, input, field.label), read: () => input.checked };
  }
  if (field.type === "select") {
    const options = field.options.map((option) => (Array.isArray(option) ? option : [option, option]));
    const input = make("select", common, options.map(([name, label]) => make("option", { value: name }, label)));
    if (value !== undefined && options.some(([name]) => name === value)) input.value = value;
    return labelled(input, () => input.value);
  }
  if (field.type === "file") {
    const input = make("input", { ...common, type: "file", accept: field.hint });
    return labelled(input, () => input.files[0]);
  }
  const isJson = field.type === "json";
  const input = isJson || field.type === "textarea" ? make("textarea", { ...common, spellcheck: "false" })
    : make("input", { ...common, type: field.type ?? "text", placeholder: field.hint, min: field.min, max: field.max,
      autocomplete: field.type === "password" ? "new-password" : "off", autocapitalize: "none", spellcheck: "false" });
  if (value !== undefined) input.value = isJson ? JSON.stringify(value, null, 2) : value;
  return labelled(input, () => {
    if (field.type === "number") return input.value === "" ? undefined : Number(input.value);
    if (!isJson) return input.value;
    try { return JSON.parse(input.value); } catch { throw new Error(`${field.label}: this is not JSON.`); }
  });
}

/**
 * Ask in a dialog. `submit` gets the values of `fields` by their names; its errors are shown and the dialog stays. With
 * `values`, an existing thing is changed. A `danger` begins with the focus on "Cancel" unless something has to be entered.
 */
export function ask({ title, text, fields = [], verb, danger = false, values = null }, submit) {
  const controls = fields.map((field) => [field.name, control(field, values?.[field.name] ?? field.value, values && field.key)]);
  const error = make("p", { class: "error", role: "alert" });
  const go = make("button", { class: danger ? "danger" : "main" }, verb);
  const cancel = make("button", { type: "button", autofocus: danger && !fields.some((field) => field.required), onclick: () => dialog.close() }, "Cancel");
  const form = make("form", { method: "dialog" }, text ? make("p", {}, text) : null,
    controls.map(([, { element }]) => element), error, make("div", { class: "row" }, go, cancel));
  const heading = make("h2", { id: `dialog${ids += 1}` }, title);
  const dialog = make("dialog", { "aria-labelledby": heading.id }, heading, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    setText(error, "");
    try {
      await submit(Object.fromEntries(controls.map(([name, { read }]) => [name, read()])));
      dialog.close();
    } catch (problem) {
      setText(error, problem.message);
    } finally {
      go.disabled = false;
    }
  });
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    (before?.isConnected ? before : document.getElementById("main")).focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
