// Connections with their channels, and exchanges.

import { change, get, part } from "./api.js";
import { ask, make, Rows, setText } from "./dom.js";
import { bytes, number, rate } from "./draw.js";

function table(title, columns) {
  const body = make("tbody");
  const element = make("table", {}, make("caption", {}, title),
    make("thead", {}, make("tr", {}, ...columns.map(([label, kind]) => make("th", { scope: "col", class: kind || "" }, label)))), body);
  return { body, element: make("div", { class: "scroll" }, element) };
}

function lines(body, columns) {
  return new Rows(body, () => {
    const cells = columns.map(([label, kind], index) => make(index ? "td" : "th",
      index ? { class: kind || "", "data-label": label } : { scope: "row" }));
    return { cells, element: make("tr", {}, ...cells) };
  });
}

/** How fast a count grows, a second. */
const grows = (one, name) => rate(one.message_stats?.[`${name}_details`]?.rate ?? 0);

/** Show a name whose addresses are not broken at the end of a line. */
function setName(cell, text) {
  if (cell.textContent === text) return;
  const words = text.split(" ").map((word) => make("span", { class: word.length < 50 ? "whole" : "" }, word));
  cell.replaceChildren(...words.flatMap((word, index) => (index ? [" ", word] : [word])));
}

export function connectionsView() {
  const about = [["connection"], ["user"], ["vhost", "wide"], ["state"], ["channels", "number"], ["received", "number wide"],
    ["sent", "number wide"], ["", ""]];
  const through = [["channel"], ["mode", "wide"], ["consumers", "number"], ["unacked", "number"], ["unconfirmed", "number"],
    ["prefetch", "number wide"], ["published/s", "number"], ["delivered/s", "number"]];
  const top = table("Connections", about);
  const below = table("Channels", through);
  const connections = lines(top.body, about);
  const channels = lines(below.body, through);
  const none = make("p", { class: "quiet" });
  return {
    title: "Connections",
    element: make("div", { class: "view" },
      make("section", { class: "panel", "aria-label": "Connections" }, top.element, none),
      make("section", { class: "panel", "aria-label": "Channels" }, below.element)),
    async update() {
      const [found, open] = await Promise.all([get("connections"), get("channels")]);
      setText(none, found.length ? "" : "Nobody is connected. Programs that open the directory themselves need no connection.");
      connections.update(found, (one) => one.name, (row, one) => {
        const label = one.user_provided_name ? `${one.name} (${one.user_provided_name})` : one.name;
        const held = one.state === "blocked";
        [label, one.user, one.vhost, one.state, number(one.channels), bytes(one.recv_oct), bytes(one.send_oct)]
          .forEach((text, index) => { if (index === 0) setName(row.cells[0], text); else if (index !== 3) setText(row.cells[index], text); });
        if (row.state !== one.state) {
          row.state = one.state;
          row.cells[3].replaceChildren(make("span", { class: held ? "badge held" : "badge" }, held ? "held back" : one.state));
        }
        if (!row.cells[7].firstChild) {
          row.cells[7].append(make("button", { type: "button", "aria-label": `Close ${one.name}`, onclick: () => close(one) }, "Close…"));
        }
      });
      channels.update(open, (one) => one.name, (row, one) => {
        const mode = [one.confirm ? "confirm" : "", one.transactional ? "transactions" : ""].filter(Boolean).join(", ") || "plain";
        [one.name, mode, number(one.consumer_count), number(one.messages_unacknowledged), number(one.messages_unconfirmed),
          one.prefetch_count ? number(one.prefetch_count) : "any", grows(one, "publish"), grows(one, "deliver_get"),
        ].forEach((text, index) => (index ? setText : setName)(row.cells[index], text));
      });
      const held = found.filter((one) => one.state === "blocked").length;
      return held ? `${number(held)} connections are held back` : "";
    },
  };
}

function close(one) {
  ask(`Close ${one.name}?`, [make("p", {}, "The client is told, and what it had not acked goes back to the queues.")], "Close it",
    () => change("DELETE", `connections/${part(one.name)}`), true);
}

export function exchangesView() {
  const columns = [["exchange"], ["type"], ["vhost"], ["kind", "wide"], ["bindings", "number"],
    ["in/s", "number"], ["out/s", "number"]];
  const all = table("Exchanges", columns);
  const rows = lines(all.body, columns);
  return {
    title: "Exchanges",
    element: make("div", { class: "view" }, make("section", { class: "panel", "aria-label": "Exchanges" }, all.element)),
    async update() {
      const [found, bindings] = await Promise.all([get("exchanges"), get("bindings?columns=vhost,source")]);
      const counts = new Map();
      for (const one of bindings) {
        const key = JSON.stringify([one.vhost, one.source]);
        counts.set(key, (counts.get(key) || 0) + 1);
      }
      rows.update(found, (one) => JSON.stringify([one.vhost, one.name]), (row, one) => {
        const kind = ["durable", "auto_delete", "internal"].filter((name) => one[name]).join(", ") || "transient";
        [one.name || "(default)", one.type, one.vhost, kind, number(counts.get(JSON.stringify([one.vhost, one.name])) || 0),
          grows(one, "publish_in"), grows(one, "publish_out")].forEach((text, index) => setText(row.cells[index], text));
      });
      return "";
    },
  };
}
