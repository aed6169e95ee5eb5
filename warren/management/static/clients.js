// Connections and channels.

import { address, change, path } from "./api.js";
import { badge, button, fillFacts, listed, make, panel, viewOf } from "./dom.js";
import { bytes, counted, number, rate } from "./draw.js";
import { listPanel, openRemoval, paged, Table } from "./tables.js";

/** How fast a count of messages grows. */
export const growth = (document, name) => rate(document.message_stats?.[`${name}_details`]?.rate ?? 0);
const inVhost = (what) => (vhost) => (vhost ? `${path("vhosts", vhost)}/${what}` : what);

/** A link whose addresses are not broken at the end of a line. */
function link(href, text) {
  const words = text.split(" ").map((word) => make("span", { class: word.length < 50 ? "whole" : "" }, word));
  return make("a", { href }, words.flatMap((word, index) => (index ? [" ", word] : [word])));
}

const state = (name) => badge(name === "blocked" ? "held back" : name, name === "blocked" ? "held" : "");

const CONNECTIONS = {
  title: "Connections", noun: "The connection", ...paged(inVhost("connections")), byVhost: true, sort: "name",
  empty: "There are no connections. Programs that open the directory themselves need none.",
  key: (row) => row.name, name: (row) => row.name,
  columns: [
    { label: "connection", sort: "name", value: (row) => [row.name, row.user_provided_name], draw: ([name, given]) => [
      link(address("connection", name), name), given ? ` ${given}` : ""] },
    { label: "user", sort: "user", value: (row) => row.user },
    { label: "vhost", sort: "vhost", kind: "wide", value: (row) => row.vhost },
    { label: "state", sort: "state", value: (row) => row.state, draw: state },
    { label: "channels", sort: "channels", kind: "number", value: (row) => number(row.channels) },
    { label: "in/s", sort: "recv_oct_details.rate", kind: "number", value: (row) => bytes(row.recv_oct_details?.rate ?? 0) },
    { label: "out/s", sort: "send_oct_details.rate", kind: "number", value: (row) => bytes(row.send_oct_details?.rate ?? 0) },
  ],
  remove: {
    verb: "Close", text: "The client is told why. What it has not acked goes back to its queues.",
    fields: [{ name: "reason", label: "Reason", value: "Closed via management plugin" }],
    send: (row, { reason }) => change("DELETE", path("connections", row.name), undefined,
      { "x-reason": reason.replace(/[^ -~]/g, "?") }),
  },
  done: "closed",
  status(answer) {
    const held = answer.items.filter((row) => row.state === "blocked").length;
    return held ? counted(held, "connections are held back") : "";
  },
};

const CHANNEL_COLUMNS = [
  { label: "channel", sort: "name", value: (row) => row.name, draw: (name) => link(address("channel", name), name) },
  { label: "mode", kind: "wide", value: (row) => [row.confirm ? "confirm" : "", row.transactional ? "transactions" : ""]
    .filter(Boolean).join(", ") || "plain" },
  { label: "consumers", sort: "consumer_count", kind: "number", value: (row) => number(row.consumer_count) },
  { label: "unacked", sort: "messages_unacknowledged", kind: "number", value: (row) => number(row.messages_unacknowledged) },
  { label: "unconfirmed", sort: "messages_unconfirmed", kind: "number", value: (row) => number(row.messages_unconfirmed) },
  { label: "prefetch", sort: "prefetch_count", kind: "number wide", value: (row) => (row.prefetch_count ? number(row.prefetch_count) : "any") },
  { label: "published/s", kind: "number", value: (row) => growth(row, "publish") },
  { label: "delivered/s", kind: "number", value: (row) => growth(row, "deliver_get") },
];
const CHANNELS = {
  title: "Channels", ...paged(inVhost("channels")), byVhost: true, sort: "name", empty: "There are no channels.",
  key: (row) => row.name, columns: CHANNEL_COLUMNS,
};

export const CONSUMER_COLUMNS = [
  { label: "consumer", value: (row) => row.consumer_tag },
  { label: "channel", value: (row) => row.channel_details?.name ?? "", draw: (name) => (name ? link(address("channel", name), name) : "") },
  { label: "queue", value: (row) => [row.queue.vhost, row.queue.name], draw: ([vhost, name]) => make("a", { href: address("queue", vhost, name) }, name) },
  { label: "acks", value: (row) => (row.ack_required ? "manual" : "automatic") },
  { label: "prefetch", kind: "number", value: (row) => number(row.prefetch_count) },
  { label: "arguments", kind: "wide", value: (row) => listed(row.arguments) },
];

export const connectionsView = () => viewOf("Connections", [listPanel(CONNECTIONS)]);
export const channelsView = () => viewOf("Channels", [listPanel(CHANNELS)]);

export function connectionView(name) {
  const facts = make("dl");
  const client = make("dl");
  const channels = new Table("Channels of the connection", CHANNEL_COLUMNS, (row) => row.name);
  const close = button("Close…", () => openRemoval(CONNECTIONS, { name }), { class: "danger" });
  return viewOf(name, [{
    element: panel(name, [close, make("a", { href: "#/connections" }, "All connections")], facts,
      make("h3", {}, "Client"), client, make("h3", {}, "Channels"), channels.element),
    paths: () => [`/${path("connections", name)}`, `/${path("connections", name)}/channels`],
    update(document, rows) {
      const { capabilities, ...properties } = document.client_properties ?? {};
      fillFacts(facts, [["user", document.user], ["vhost", document.vhost], ["state", document.state], ["protocol", document.protocol],
        ["TLS", document.ssl ? [document.ssl_protocol, document.ssl_cipher].filter(Boolean).join(", ") : "no"],
        ["received", `${bytes(document.recv_oct)}, ${bytes(document.recv_oct_details?.rate ?? 0)}/s`],
        ["sent", `${bytes(document.send_oct)}, ${bytes(document.send_oct_details?.rate ?? 0)}/s`],
        ["heartbeat", document.timeout ? `${document.timeout} s` : "none"], ["largest frame", bytes(document.frame_max ?? 0)],
        ["connected", document.connected_at ? new Date(document.connected_at).toLocaleString("en-GB") : ""]]);
      fillFacts(client, [...Object.entries(properties), ["capabilities", Object.keys(capabilities ?? {}).join(", ")]]);
      channels.show(rows);
      return document.state === "blocked" ? "This connection is held back." : "";
    },
  }]);
}

export function channelView(name) {
  const facts = make("dl");
  const consumers = new Table("Consumers of the channel", CONSUMER_COLUMNS.filter(({ label }) => label !== "channel"),
    (row) => row.consumer_tag);
  const parent = make("a", {}, "Its connection");
  return viewOf(name, [{
    element: panel(name, [parent, make("a", { href: "#/channels" }, "All channels")], facts, make("h3", {}, "Consumers"), consumers.element),
    paths: () => [`/${path("channels", name)}`],
    update(document) {
      parent.setAttribute("href", address("connection", document.connection_details.name));
      fillFacts(facts, [["user", document.user], ["vhost", document.vhost], ["state", document.state], ["idle since", document.idle_since],
        ...CHANNEL_COLUMNS.slice(1).map(({ label, value }) => [label, String(value(document))]),
        ["prefetch of the channel", number(document.global_prefetch_count ?? 0)], ["uncommitted acks", number(document.acks_uncommitted ?? 0)],
        ["uncommitted messages", number(document.messages_uncommitted ?? 0)]]);
      consumers.show(document.consumer_details);
      return "";
    },
  }]);
}
