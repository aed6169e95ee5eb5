// All queues, live: lists as bars, rates, memory and its limit, publishers that are held back.

import { get, part } from "./api.js";
import { make, Rows, setText } from "./dom.js";
import { bytes, Gauge, legend, ListsBar, number, rate } from "./draw.js";

const COLUMNS = [
  ["ready", "messages", "ready"], ["unacked", "unacked", "unacked"], ["in_rate", "in", "in/s"],
  ["out_rate", "out", "out/s"], ["in_ram", "ram", "in RAM"],
];
const PAGE = 100;

export function memoryPanel() {
  const gauge = new Gauge();
  const used = make("span");
  const line = make("div", { class: "gauge" }, make("span", { class: "quiet" }, "memory"), gauge.element, used);
  return {
    element: line,
    update(memory) {
      line.hidden = !memory;
      if (!memory) return;
      gauge.update(memory.used_bytes, memory.paging_bytes, memory.limit_bytes);
      line.classList.toggle("over", memory.used_bytes > memory.limit_bytes);
      line.classList.toggle("high", memory.used_bytes > memory.paging_bytes && memory.used_bytes <= memory.limit_bytes);
      used.replaceChildren(make("b", {}, bytes(memory.used_bytes)), ` of ${bytes(memory.limit_bytes)}`,
        memory.disk_free_bytes === null ? "" : ` · disk free ${bytes(memory.disk_free_bytes)}`);
    },
  };
}

/** What to say of alarms and of those who wait. */
export function heldBack(held) {
  const parts = held.alarms.map((alarm) => `${alarm} alarm: publishers are held back`);
  if (held.connections) parts.push(`${number(held.connections)} connections are blocked`);
  if (held.publishers) parts.push(`${number(held.publishers)} publishers wait for room`);
  return parts.join(" · ");
}

export function queuesView() {
  const memory = memoryPanel();
  const numbers = make("ul", { class: "numbers" });
  const filter = make("input", { type: "search", "aria-label": "Filter queues by name", placeholder: "filter by name  ( / )" });
  const vhosts = make("select", { "aria-label": "Vhost" }, make("option", { value: "" }, "all vhosts"));
  const body = make("tbody");
  const note = make("p", { class: "quiet" });
  let sort = "messages";
  const heads = new Map();

  function head(label, order, numeric = true) {
    const cell = make("th", { scope: "col", class: order === "ram" ? "number wide" : numeric ? "number" : "" },
      make("button", { type: "button", onclick: () => { sort = order; mark(); view.update(); } }, label));
    heads.set(order, cell);
    return cell;
  }

  function mark() {
    for (const [order, cell] of heads) {
      if (order === sort) cell.setAttribute("aria-sort", order === "name" ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
  }

  const table = make("table", {},
    make("caption", { class: "out" }, "Queues"),
    make("thead", {}, make("tr", {}, head("queue", "name", false),
      make("th", { scope: "col", class: "lists-head" }, "Q1 · Q2 · delta · Q3 · Q4"),
      ...COLUMNS.map(([, order, label]) => head(label, order)))),
    body);
  mark();

  const rows = new Rows(body, (row) => {
    const link = make("a", { href: `#/queue/${part(row.vhost)}/${part(row.name)}` }, row.name);
    const where = make("span", { class: "badge" }, row.vhost);
    const state = make("span", { class: "badge" });
    const kind = row.type === "stream" ? make("span", { class: "badge" }, "stream") : null;
    const bar = new ListsBar();
    const cells = COLUMNS.map(([key, , label]) => make("td",
      { class: key === "in_ram" ? "number wide" : "number", "data-label": label }));
    return {
      bar, cells, state, where,
      element: make("tr", {}, make("th", { scope: "row" }, link, " ", kind ?? "", where, " ", state),
        make("td", { class: "lists-cell" }, bar.element), ...cells),
    };
  });

  function fill(row, item, capacity) {
    row.bar.update(item, capacity);
    row.where.hidden = item.vhost === "/";
    row.state.hidden = item.state === "running";
    row.state.classList.toggle("bad", item.state === "down");
    setText(row.state, item.state);
    row.state.title = item.reason || "";
    COLUMNS.forEach(([key], index) => {
      const text = key.endsWith("rate") ? rate(item[key]) : number(item[key]);
      row.cells[index].classList.toggle("zero", text === "0" || text === "·");
      setText(row.cells[index], text);
    });
  }

  function fillVhosts(names) {
    const known = [...vhosts.options].slice(1).map((option) => option.value);
    if (known.join("\n") === names.join("\n")) return;
    const chosen = vhosts.value;
    vhosts.replaceChildren(make("option", { value: "" }, "all vhosts"),
      ...names.map((name) => make("option", { value: name }, name)));
    vhosts.value = names.includes(chosen) ? chosen : "";
    vhosts.hidden = names.length < 2;
  }
  vhosts.hidden = true;

  const view = {
    title: "Queues",
    element: make("div", { class: "view" },
      make("section", { class: "panel", "aria-label": "Node" }, memory.element, numbers),
      make("section", { class: "panel", "aria-label": "Queues" },
        make("div", { class: "row spread" }, make("h2", {}, "Queues"), make("div", { class: "row" }, vhosts, filter)),
        legend(), make("div", { class: "scroll" }, table), note)),
    async update() {
      const query = new URLSearchParams({ sort, limit: PAGE, name: filter.value });
      if (vhosts.value) query.set("vhost", vhosts.value);
      const found = await get(`snapshot?${query}`);
      memory.update(found.memory);
      fillVhosts(found.vhosts);
      const totals = found.totals;
      const said = [[totals.queues, "queues"], [totals.ready, "ready"], [totals.unacked, "unacked"],
        [totals.consumers, "consumers"], [found.clients.connections, "connections"], [found.clients.channels, "channels"]];
      numbers.replaceChildren(
        ...said.map(([count, what]) => make("li", {}, make("b", {}, number(count)), ` ${what}`)),
        make("li", {}, "in ", make("b", {}, rate(totals.in_rate)), "/s"),
        make("li", {}, "out ", make("b", {}, rate(totals.out_rate)), "/s"));
      const capacity = Math.max(1000, ...found.queues.map((row) => row.ready));
      rows.update(found.queues, (row) => JSON.stringify([row.vhost, row.name]), (row, item) => fill(row, item, capacity));
      setText(note, found.queues.length ? (found.left_out ? `and ${number(found.left_out)} more: filter by name` : "")
        : filter.value ? "No queue has this in its name." : "There are no queues yet.");
      return heldBack(found.held);
    },
  };
  filter.addEventListener("input", () => view.update().catch(() => {}));
  vhosts.addEventListener("change", () => view.update().catch(() => {}));
  return view;
}
