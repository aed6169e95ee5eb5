// Tables, and lists that are filtered, sorted and cut into pages. A column is {label, value(row), draw(value, row), kind,
// sort, live}: `draw` makes elements of a value; `live` makes an object that draws a row and is kept.

import { get, may } from "./api.js";
import { button, make, panel, setText, tell } from "./dom.js";
import { number } from "./draw.js";
import { ask } from "./forms.js";

const PAGE = 100;
const TYPING_MS = 150;

/** The vhost that lists show, "" for all, and those that the user can see. */
export const vhosts = { chosen: "", names: [] };

export async function loadVhosts() {
  vhosts.names = (await get("vhosts?columns=name&disable_stats=true")).map((vhost) => vhost.name);
  if (!vhosts.names.includes(vhosts.chosen)) vhosts.chosen = "";
}

export const vhostField = () => ({ name: "vhost", label: "Vhost", type: "select", key: true, options: vhosts.names,
  value: vhosts.chosen || (vhosts.names.includes("/") ? "/" : vhosts.names[0]) });

/** Rows are kept by their keys and only changed, so that the focus stays where it is. */
export class Table {
  constructor(caption, columns, key, sort = null) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.heads = columns.map(({ label, kind, sort: by }) => make("th", { scope: "col", class: kind ?? "" },
      sort && by ? make("button", { type: "button", onclick: () => sort(by) }, label) : label));
    this.body = make("tbody");
    this.table = make("table", {}, make("caption", { class: "out" }, caption), make("thead", {}, make("tr", {}, this.heads)), this.body);
    this.element = make("div", { class: "scroll" }, this.table);
  }

  mark(sort, isReverse) {
    this.heads.forEach((head, index) => {
      if (sort && this.columns[index].sort === sort) head.setAttribute("aria-sort", isReverse ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  show(items) {
    const keys = new Set();
    const order = items.map((item) => {
      const key = JSON.stringify(this.key(item));
      keys.add(key);
      if (!this.rows.has(key)) this.rows.set(key, this.create());
      const row = this.rows.get(key);
      this.fill(row, item);
      return row.element;
    });
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      if (row.element.contains(document.activeElement)) document.getElementById("main").focus();
      row.element.remove();
      this.rows.delete(key);
    }
    const hasFocus = this.body.contains(document.activeElement);
    order.forEach((element, index) => {
      const there = this.body.children[index];
      if (there !== element && (!hasFocus || !element.isConnected)) this.body.insertBefore(element, there ?? null);
    });
    this.table.hidden = !items.length;
  }

  create() {
    const cells = this.columns.map(({ label, kind, live }, index) => {
      const drawing = live?.();
      const cell = make(index ? "td" : "th", index ? { class: kind ?? "", "data-label": label } : { scope: "row" }, drawing?.element);
      return { cell, drawing };
    });
    return { cells, element: make("tr", {}, cells.map(({ cell }) => cell)) };
  }

  fill(row, item) {
    row.item = item;
    this.columns.forEach(({ value, draw }, index) => {
      const entry = row.cells[index];
      if (entry.drawing) { entry.drawing.update(item); return; }
      const content = value(item);
      const text = JSON.stringify(content);
      if (entry.text === text) return;
      entry.text = text;
      entry.cell.replaceChildren(...[draw ? draw(content, item, () => row.item) : content ?? ""].flat());
      entry.cell.classList.toggle("zero", content === "0" || content === "·");
    });
  }
}

/** A list that the API filters, sorts and cuts. `where` returns its path. */
export const paged = (where) => ({
  query: (state) => `/${where(vhosts.chosen)}?${new URLSearchParams({ page: state.page, page_size: PAGE, name: state.name,
    ...(state.sort ? { sort: state.sort, sort_reverse: state.isReverse } : {}) })}`,
  cut: (answer) => ({ items: answer.items, count: answer.filtered_count }),
});

/** A list that the API answers as a whole. */
export const whole = (where) => ({
  isWhole: true,
  query: () => `/${where}`,
  cut(answer, state, columns) {
    const text = state.name.toLowerCase();
    const values = (row) => columns.map(({ value }) => value?.(row) ?? "");
    const items = answer.filter((row) => (!vhosts.chosen || row.vhost === undefined || row.vhost === vhosts.chosen)
      && (!text || values(row).some((value) => String(value).toLowerCase().includes(text))));
    const column = columns.find(({ sort }) => sort && sort === state.sort);
    if (column) {
      items.sort((a, b) => String(column.value(a)).localeCompare(String(column.value(b)), "en", { numeric: true }));
      if (state.isReverse) items.reverse();
    }
    return { items: items.slice((state.page - 1) * PAGE, state.page * PAGE), count: items.length };
  },
});

/** Perform a change that `list` describes, and report it. */
async function perform(work, done) {
  const result = await work;
  tell(typeof result === "string" ? result : done);
  document.dispatchEvent(new Event("refresh"));
}

export function openForm(list, row = null) {
  const { title, verb, fields, send, text } = list.form;
  const values = row && list.edit(row);
  ask({ title: row ? `Change ${list.name(row)}` : title, text, fields: fields(values), verb: row ? "Save" : verb, values },
    (entered) => perform(send(entered, row), row ? `${list.name(row)} was changed.` : `${entered.name ?? list.noun} was saved.`));
}

export function openRemoval(list, row) {
  const { text, verb = "Delete", fields, send } = list.remove;
  ask({ title: `${verb} ${list.name(row)}?`, text, fields, verb, danger: true },
    (entered) => perform(send(row, entered), `${list.name(row)}: ${list.done ?? "deleted"}.`));
}

/** The column of what can be done with a row. */
function actions(list) {
  const labelled = (label, row, work, kind = "") => button(label, work, { class: kind, "aria-label": `${label} ${list.name(row)}` });
  return { label: "", kind: "actions", value: (row) => [list.name(row), list.isFixed?.(row)], draw: (_, row, latest) => (list.isFixed?.(row) ? [] : [
    list.edit ? labelled("Edit…", row, () => openForm(list, latest())) : null,
    ...(list.more ?? []).map(({ label, run }) => labelled(label, row, () => run(latest()))),
    list.remove ? labelled(`${list.remove.verb ?? "Delete"}…`, row, () => openRemoval(list, latest()), "danger") : null,
  ].filter(Boolean)) };
}

/** A list as a part of a view. `tags`: those that may change it. `isLoaded`: it is read once, and after changes. */
export function listPanel(list, ...before) {
  const state = { page: 1, name: "", sort: list.sort ?? null, isReverse: Boolean(list.isReverse) };
  const mayChange = !list.tags || may(...list.tags);
  const columns = mayChange && (list.edit || list.remove || list.more) ? [...list.columns, actions(list)] : list.columns;
  let answer = null;
  let typing = 0;
  const table = new Table(list.title, columns, list.key, (by) => {
    state.isReverse = state.sort === by && !list.isSortedOneWay ? !state.isReverse : columns.find(({ sort }) => sort === by).kind === "number";
    again({ sort: by });
  });
  table.mark(state.sort, state.isReverse);
  const note = make("p", { class: "quiet", role: "status" });
  const turn = (by) => button(by < 0 ? "‹ Previous" : "Next ›", () => again({ page: state.page + by }));
  const [back, next] = [turn(-1), turn(1)];
  const place = make("span", { class: "quiet" });
  const pages = make("nav", { class: "row", "aria-label": `Pages of ${list.title}`, hidden: true }, back, place, next);
  const filter = make("input", { type: "search", "aria-label": `Filter ${list.title.toLowerCase()}`, placeholder: "filter  ( / )",
    oninput: () => { clearTimeout(typing); typing = setTimeout(() => again({ name: filter.value }), TYPING_MS); } });
  const choice = make("select", { "aria-label": `Vhost of ${list.title.toLowerCase()}`, hidden: !list.byVhost || vhosts.names.length < 2,
    onchange: () => { vhosts.chosen = choice.value; again({}); } },
  make("option", { value: "" }, "all vhosts"), vhosts.names.map((name) => make("option", { value: name }, name)));
  choice.value = vhosts.chosen;
  const add = list.form && mayChange ? button(`${list.form.title}…`, () => openForm(list)) : null;

  function again(changes) {
    Object.assign(state, { page: 1 }, changes);
    table.mark(state.sort, state.isReverse);
    if (list.isWhole && answer) draw();
    else document.dispatchEvent(new Event("refresh"));
  }

  function draw() {
    const { items, count } = list.cut(answer, state, columns);
    if (!items.length && state.page > 1) { again({}); return; }
    table.show(items);
    const last = Math.max(1, Math.ceil(count / PAGE));
    pages.hidden = last === 1;
    [back.disabled, next.disabled] = [state.page === 1, state.page >= last];
    setText(place, `page ${number(state.page)} of ${number(last)} · ${number(count)} in all`);
    setText(note, items.length ? "" : state.name ? "None of them matches the filter." : list.empty);
  }

  return {
    element: panel(list.title, [choice, filter, add], before, table.element, pages, note),
    paths: () => (list.isLoaded ? [] : [list.query(state)]),
    load: async () => { if (list.isLoaded) { answer = await get(list.query(state).slice(1)); draw(); } },
    update(body) {
      if (list.isLoaded) return "";
      answer = body;
      draw();
      return list.status?.(body);
    },
    failed(body) {
      if (state.page === 1 || body.error !== "page_out_of_range") return false;
      again({});
      return true;
    },
  };
}
