// All queues and streams, live: their lists as bars, lengths and rates.

import { address, change, path } from "./api.js";
import { badge, make, viewOf } from "./dom.js";
import { legend, ListsBar, number, rate } from "./draw.js";
import { heldBack } from "./overview.js";
import { listPanel, vhostField, vhosts } from "./tables.js";

const PAGE = 100;
const TYPES = [["classic", "classic"], ["quorum", "quorum"], ["stream", "stream"]];
const ARGUMENTS = ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
  "x-dead-letter-routing-key", "x-single-active-consumer", "x-max-priority", "x-queue-mode", "x-delivery-limit", "x-max-age",
  "x-stream-max-segment-size-bytes"];

/** The bar of a row, measured by the longest queue that is shown. */
class Bar extends ListsBar {
  update(row) { super.update(row, row.capacity); }
}

export const QUEUES = {
  title: "Queues", noun: "The queue", byVhost: true, sort: "messages", isReverse: true, isSortedOneWay: true,
  empty: "There are no queues.", key: (row) => [row.vhost, row.name], name: (row) => row.name,
  query: (state) => `/snapshot?${new URLSearchParams({ sort: state.sort, page: state.page, limit: PAGE, name: state.name,
    ...(vhosts.chosen ? { vhost: vhosts.chosen } : {}) })}`,
  cut(answer) {
    const capacity = Math.max(1000, ...answer.queues.map((row) => row.ready));
    return { items: answer.queues.map((row) => ({ ...row, capacity })), count: answer.matching };
  },
  columns: [
    { label: "queue", sort: "name", value: (row) => [row.vhost, row.name, row.type, row.state, row.reason], draw([vhost, name, type, state, reason]) {
      const link = make("a", { href: address("queue", vhost, name) }, name);
      return [link, ...(type === "classic" ? [] : [badge(type)]), ...(vhost === "/" ? [] : [badge(vhost)]),
        ...(state === "running" ? [] : [make("span", { class: `badge ${state === "down" ? "bad" : ""}`, title: reason || null }, state)])]
        .flatMap((part) => [part, " "]);
    } },
    { label: "Q1 · Q2 · delta · Q3 · Q4", kind: "lists-cell", live: () => new Bar() },
    { label: "ready", sort: "messages", kind: "number", value: (row) => number(row.ready) },
    { label: "unacked", sort: "unacked", kind: "number", value: (row) => number(row.unacked) },
    { label: "in/s", sort: "in", kind: "number", value: (row) => rate(row.in_rate) },
    { label: "out/s", sort: "out", kind: "number", value: (row) => rate(row.out_rate) },
    { label: "in RAM", sort: "ram", kind: "number wide", value: (row) => number(row.in_ram) },
    { label: "consumers", kind: "number wide", value: (row) => number(row.consumers) },
  ],
  form: {
    title: "Add a queue", verb: "Declare",
    fields: () => [
      vhostField(), { name: "name", label: "Name", required: true }, { name: "type", label: "Type", type: "select", options: TYPES },
      { name: "durable", label: "durable: it survives a restart", type: "checkbox", value: true },
      { name: "auto_delete", label: "auto-delete: it goes with its last consumer", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "table", suggestions: ARGUMENTS },
    ],
    send: ({ vhost, name, type, arguments: table, ...body }) => change("PUT", path("queues", vhost, name), { ...body,
      arguments: type === "classic" ? table : { "x-queue-type": type, ...table } }),
  },
  status: (answer) => heldBack(answer.held),
};

export const queuesView = () => viewOf("Queues", [listPanel(QUEUES, legend())]);
