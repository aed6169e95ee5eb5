// The node: its numbers, plots of the last hour, alarms, memory, addresses, versions.

import { may } from "./api.js";
import { badge, fillFacts, make, panel, viewOf } from "./dom.js";
import { after, bytes, counted, Gauge, MESSAGES, number, Past, rate, RATES } from "./draw.js";
import { Table } from "./tables.js";

/** Memory against its limit. */
function memoryLine() {
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

/** A list of numbers: [number as text, what it counts, where it leads]. */
export function fillNumbers(list, entries) {
  const items = entries.map(([count, what, href]) => [make("b", {}, count), href ? make("a", { href }, after(count, what)) : after(count, what)]);
  const text = JSON.stringify(entries);
  if (list.dataset.shown !== text) list.replaceChildren(...items.map(([count, what]) => make("li", {}, count, " ", what)));
  list.dataset.shown = text;
}

/** Alarms and blocked publishers as a line for the status. */
export function heldBack(held) {
  const lines = held.alarms.map((alarm) => `${alarm} alarm: publishers are blocked`);
  if (held.connections) lines.push(counted(held.connections, "connections are blocked"));
  if (held.publishers) lines.push(counted(held.publishers, "publishers wait for room"));
  return lines.join(" · ");
}

const overviewPath = () => `/overview?${Past.query("lengths", "msg_rates")}`;

function node() {
  const memory = memoryLine();
  const numbers = make("ul", { class: "numbers" });
  const past = new Past([...MESSAGES, (overview) => overview.queue_totals], RATES);
  return {
    element: panel("Overview", [past.choice], numbers, memory.element, past.element),
    paths: () => ["/snapshot?limit=0", overviewPath()],
    update(snapshot, overview) {
      const { object_totals: objects, queue_totals: queues, message_stats: stats } = overview;
      memory.update(snapshot.memory);
      fillNumbers(numbers, [
        [number(queues.messages_ready ?? 0), "ready"], [number(queues.messages_unacknowledged ?? 0), "unacked"],
        [rate(snapshot.totals.in_rate), "in/s"], [rate(snapshot.totals.out_rate), "out/s"],
        [number(snapshot.totals.queues), "queues", "#/queues"], [number(objects.exchanges), "exchanges", "#/exchanges"],
        [number(objects.connections), "connections", "#/connections"], [number(objects.channels), "channels", "#/channels"],
        [number(objects.consumers), "consumers"], [number(stats?.return_unroutable ?? 0), "returned"],
      ]);
      past.update(overview);
      return heldBack(snapshot.held);
    },
  };
}

const CHURN = [["connection_created", "connections opened"], ["connection_closed", "connections closed"],
  ["channel_created", "channels opened"], ["channel_closed", "channels closed"],
  ["queue_created", "queues created"], ["queue_deleted", "queues deleted"]];

function machine() {
  const facts = make("dl");
  const alarms = make("p", { class: "row" });
  const churn = make("ul", { class: "numbers later" });
  const addresses = new Table("Listeners", [
    { label: "protocol", value: (row) => row.protocol }, { label: "address", value: (row) => row.ip_address },
    { label: "port", kind: "number", value: (row) => String(row.port) },
  ], (row) => [row.protocol, row.ip_address, row.port]);
  const spent = (ms) => {
    const minutes = Math.floor(ms / 60_000), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    return days ? `${days} d ${hours % 24} h` : hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
  };
  return {
    element: panel("Node", [], alarms, facts, make("h3", {}, "Listeners"), addresses.element,
      make("h3", {}, "Since the start"), churn),
    paths: () => [overviewPath(), "/nodes"],
    update(overview, [here]) {
      const set = [here.mem_alarm && "memory alarm", here.disk_free_alarm && "disk alarm"].filter(Boolean);
      alarms.replaceChildren(...(set.length ? set.map((name) => badge(name, "bad")) : [badge("no alarms")]));
      fillFacts(facts, [["name", here.name], ["cluster", overview.cluster_name], ["speaks as RabbitMQ", overview.product_version],
        ["Python", overview.erlang_full_version], ["up", spent(here.uptime)], ["process", `${here.os_pid}, ${here.proc_used} threads`],
        ["memory", `${bytes(here.mem_used)} of ${bytes(here.mem_limit)} (${here.mem_calculation_strategy})`],
        ["free on disk", `${bytes(here.disk_free)}, alarm below ${bytes(here.disk_free_limit)}`],
        ["file descriptors", `${number(here.fd_used)} of ${number(here.fd_total)}`], ["sockets", number(here.sockets_used)],
        ["directory", here.db_dir], ["log files", here.log_files.join(", ")]]);
      addresses.show(overview.listeners ?? []);
      fillNumbers(churn, CHURN.map(([name, what]) => [number(overview.churn_rates[name] ?? 0), what]));
      return "";
    },
  };
}

export const overviewView = () => viewOf("Overview", [node(), ...(may("monitoring") ? [machine()] : [])]);
