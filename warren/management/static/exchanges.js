// Exchanges and bindings; and publishing, which queues use too.

import { address, change, path } from "./api.js";
import { badge, button, fillFacts, listed, make, panel, tell, viewOf } from "./dom.js";
import { number, Past } from "./draw.js";
import { ask } from "./forms.js";
import { growth } from "./clients.js";
import { fillNumbers } from "./overview.js";
import { listPanel, openRemoval, paged, vhostField, whole } from "./tables.js";

const TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history",
  "x-delayed-message"];
/** The name of an exchange in a path. */
const inPath = (name) => name || "amq.default";

/** What has been declared of a queue or an exchange, in short. */
export const features = (row) => [row.durable ? "durable" : "transient", row.auto_delete && "auto-delete", row.exclusive && "exclusive",
  row.internal && "internal"].filter(Boolean).join(", ");

const EXCHANGES = {
  title: "Exchanges", noun: "The exchange", ...paged((vhost) => (vhost ? path("exchanges", vhost) : "exchanges")), byVhost: true,
  sort: "name", empty: "There are no exchanges.", key: (row) => [row.vhost, row.name],
  name: (row) => row.name || "(default)", isFixed: (row) => !row.name || row.name.startsWith("amq."),
  columns: [
    { label: "exchange", sort: "name", value: (row) => [row.vhost, row.name], draw: ([vhost, name]) => [
      make("a", { href: address("exchange", vhost, inPath(name)) }, name || "(default)"), vhost === "/" ? "" : badge(vhost)] },
    { label: "type", sort: "type", value: (row) => row.type },
    { label: "features", kind: "wide", value: features },
    { label: "policy", kind: "wide", sort: "policy", value: (row) => row.policy ?? "" },
    { label: "in/s", kind: "number", sort: "message_stats.publish_in_details.rate", value: (row) => growth(row, "publish_in") },
    { label: "out/s", kind: "number", sort: "message_stats.publish_out_details.rate", value: (row) => growth(row, "publish_out") },
  ],
  form: {
    title: "Add an exchange", verb: "Declare",
    fields: () => [
      vhostField(), { name: "name", label: "Name", required: true }, { name: "type", label: "Type", type: "select", options: TYPES },
      { name: "durable", label: "durable: it survives a restart", type: "checkbox", value: true },
      { name: "auto_delete", label: "auto-delete: it goes with its last binding", type: "checkbox" },
      { name: "internal", label: "internal: only exchanges publish to it", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "table", suggestions: ["alternate-exchange", "hash-header", "hash-property",
        "x-delayed-type", "x-recent-history-length"] },
    ],
    send: ({ vhost, name, ...body }) => change("PUT", path("exchanges", vhost, name), body),
  },
  remove: {
    text: "Its bindings go with it. Messages that are published to it then have nowhere to go.",
    fields: [{ name: "unused", label: "only if nothing is bound to it", type: "checkbox" }],
    send: (row, { unused }) => change("DELETE", `${path("exchanges", row.vhost, row.name)}?if-unused=${unused}`),
  },
};

export const exchangesView = () => viewOf("Exchanges", [listPanel(EXCHANGES)]);

// ── bindings ──

const bindingPath = (row) => path("bindings", row.vhost, "e", inPath(row.source), row.destination_type[0],
  row.destination_type === "queue" ? row.destination : inPath(row.destination));
const endLink = (vhost, kind, name) => make("a", { href: address(kind, vhost, kind === "exchange" ? inPath(name) : name) },
  name || "(default)");
const ENDS = {
  source: { label: "from exchange", sort: "source", value: (row) => [row.vhost, "exchange", row.source], draw: (end) => endLink(...end) },
  destination: { label: "to", sort: "destination", value: (row) => [row.vhost, row.destination_type, row.destination],
    draw: (end) => [`${end[1]} `, endLink(...end)] },
};

/** The bindings of a queue or an exchange as a part of a view. `far`: the end that they lead to, source or destination. */
export function bindings(kind, vhost, name, far) {
  const own = path(kind === "queue" ? "queues" : "exchanges", vhost, kind === "queue" ? name : inPath(name));
  const where = kind === "queue" ? `${own}/bindings` : `${own}/bindings/${far === "source" ? "destination" : "source"}`;
  const ends = far === "source" ? [{ name: "source", label: "From the exchange", required: true }] : [
    { name: "destination_type", label: "To", type: "select", options: ["queue", "exchange"] },
    { name: "destination", label: "Its name", required: true }];
  return listPanel({
    title: far === "source" ? "Bindings to it" : "Bindings from it", noun: "The binding", ...whole(where), isLoaded: true,
    empty: "There are no bindings.", key: (row) => [row.source, row.destination_type, row.destination, row.properties_key],
    name: (row) => `the binding ${row.source || "(default)"} → ${row.destination}, key ${row.routing_key || "(empty)"}`,
    isFixed: (row) => !row.source,
    columns: [ENDS[far], { label: "routing key", sort: "routing_key", value: (row) => row.routing_key },
      { label: "arguments", kind: "wide", value: (row) => listed(row.arguments) }],
    form: {
      title: "Bind", verb: "Bind",
      fields: () => [...ends, { name: "routing_key", label: "Routing key" }, { name: "arguments", label: "Arguments", type: "table" }],
      send: ({ routing_key, arguments: table, ...end }) => change("POST", bindingPath({
        vhost, source: name, destination: name, destination_type: kind, ...end }), { routing_key, arguments: table }),
    },
    remove: { verb: "Unbind", send: (row) => change("DELETE", `${bindingPath(row)}/${path(row.properties_key)}`) }, done: "unbound",
  });
}

// ── publishing ──

/** Ask for a message and publish it; with a `key`, the default exchange takes it to a queue. */
export function openPublish(vhost, exchange, key = null) {
  ask({ title: `Publish to ${key ?? (exchange || "(default)")}`, verb: "Publish", fields: [
    ...(key === null ? [{ name: "routing_key", label: "Routing key" }] : []),
    { name: "payload", label: "Message", type: "textarea" },
    { name: "payload_encoding", label: "It is", type: "select", options: [["string", "text"], ["base64", "base64"]] },
    { name: "persistent", label: "persistent", type: "checkbox", value: true },
    { name: "headers", label: "Headers", type: "table" },
    { name: "properties", label: "Properties", type: "table", suggestions: ["app_id", "content_encoding", "content_type", "correlation_id",
      "expiration", "message_id", "priority", "reply_to", "timestamp", "type", "user_id"] },
  ] }, async ({ routing_key = key, payload, payload_encoding, persistent, headers, properties }) => {
    const texts = Object.entries(properties).map(([name, value]) => [name,
      typeof value === "string" || ["priority", "timestamp"].includes(name) ? value : JSON.stringify(value)]);
    const answer = await change("POST", `${path("exchanges", vhost, inPath(exchange))}/publish`, { routing_key, payload, payload_encoding,
      properties: { ...Object.fromEntries(texts), delivery_mode: persistent ? 2 : 1, headers } });
    tell(answer.routed ? "The message was published." : "The message was published, and reached no queue.", !answer.routed);
  });
}

export function exchangeView(vhost, part) {
  const name = part === "amq.default" ? "" : part;
  const facts = make("dl");
  const numbers = make("ul", { class: "numbers" });
  const past = new Past(["Messages a second", [["in", "publish_in"], ["out", "publish_out"]], true, (document) => document.message_stats]);
  const row = { vhost, name };
  const remove = { ...EXCHANGES.remove, send: async (...entered) => { await EXCHANGES.remove.send(...entered); location.hash = "#/exchanges"; } };
  return viewOf(name || "(default)", [{
    element: panel(name || "(default)", [past.choice, button("Publish…", () => openPublish(vhost, name)),
      EXCHANGES.isFixed(row) ? null : button("Delete…", () => openRemoval({ ...EXCHANGES, remove }, row), { class: "danger" }),
      make("a", { href: "#/exchanges" }, "All exchanges")].filter(Boolean), numbers, past.element, facts),
    paths: () => [`/${path("exchanges", vhost, part)}?${Past.query("msg_rates")}`],
    update(document) {
      fillNumbers(numbers, [[growth(document, "publish_in"), "in/s"], [growth(document, "publish_out"), "out/s"],
        [number(document.message_stats?.publish_in ?? 0), "came in"], [number(document.message_stats?.publish_out ?? 0), "went out"]]);
      past.update(document);
      fillFacts(facts, [["vhost", vhost], ["type", document.type], ["features", features(document)], ["policy", document.policy],
        ["delayed", document.messages_delayed], ["arguments", listed(document.arguments)]]);
      return "";
    },
  }, ...(name ? [bindings("exchange", vhost, name, "destination"), bindings("exchange", vhost, name, "source")] : [])],
  ...(name ? [] : [make("p", { class: "quiet" }, "Every queue is bound to the default exchange, with its name as the routing key.")]));
}
