// One queue: its lists, its course, its bindings and consumers, and its messages.

import { change, get, path } from "./api.js";
import { badge, button, fillFacts, listed, make, pairsOf, panel, setText, tell, viewOf } from "./dom.js";
import { bytes, counted, legend, LISTS, ListsBar, MESSAGES, NAMES, number, Past, rate, RATES } from "./draw.js";
import { CONSUMER_COLUMNS } from "./clients.js";
import { bindings, features, openPublish } from "./exchanges.js";
import { ask } from "./forms.js";
import { fillNumbers, heldBack } from "./overview.js";
import { openRemoval, Table } from "./tables.js";

const BROWSED = 50;
const DELETION = {
  name: (row) => row.name,
  remove: {
    text: "Its messages and bindings are deleted with it, permanently.",
    fields: [{ name: "empty", label: "only if it is empty", type: "checkbox" }, { name: "unused", label: "only if it has no consumers", type: "checkbox" }],
    async send(row, { empty, unused }) {
      await change("DELETE", `${path("queues", row.vhost, row.name)}?if-empty=${empty}&if-unused=${unused}`);
      location.hash = "#/queues";
    },
  },
};

function numbers(vhost, name) {
  const bar = new ListsBar(true);
  const past = new Past([...MESSAGES, (document) => document], RATES);
  const [lists, counts] = [1, 2].map(() => make("ul", { class: "numbers" }));
  const facts = make("dl");
  const means = legend();
  const consumers = new Table("Consumers", CONSUMER_COLUMNS.filter(({ label }) => label !== "queue"), (row) => [row.consumer_tag, row.channel_details?.name]);
  const noConsumers = make("p", { class: "quiet" });
  const own = path("queues", vhost, name);
  return {
    element: panel(name, [past.choice, button("Delete…", () => openRemoval(DELETION, { vhost, name }), { class: "danger" }),
      make("a", { href: "#/queues" }, "All queues")], bar.element, means, counts, lists, past.element, facts, make("h3", {}, "Consumers"),
    consumers.element, noConsumers),
    paths: () => [`/snapshot?${new URLSearchParams({ vhost, queue: name })}`, `/${own}?${Past.query("lengths", "msg_rates")}`],
    update(snapshot, document) {
      const { queue: row, declared } = snapshot;
      const isStream = row.type === "stream";
      lists.hidden = means.hidden = isStream;
      bar.update(row, Math.max(1000, row.ready));
      fillNumbers(lists, LISTS.map((list) => [number(row[list]), NAMES[list]]));
      fillNumbers(counts, [...(isStream ? [[number(row.ready), "messages on the disk"], [number(row.gone), "first offset"]]
        : [[number(row.ready), "ready"], [number(row.unacked), "unacked"], [number(row.in_ram), "in RAM"]]),
      [number(row.consumers), "consumers"], ...(row.bytes === null ? [] : [[bytes(row.bytes), "of messages"]]),
      [rate(row.in_rate), "in/s"], ...(isStream ? [] : [[rate(row.out_rate), "out/s"]])]);
      past.update(document);
      fillFacts(facts, [["vhost", vhost], ["type", row.type], ["features", features(declared)], ["arguments", listed(declared.arguments)],
        ["policy", document.policy], ["operator policy", document.operator_policy],
        ["policy in effect", listed(document.effective_policy_definition)],
        ["state", row.reason ? `${row.state}: ${row.reason}` : row.state], ["mode", row.mode],
        ["messages allowed in RAM", row.target === null ? "any number" : number(row.target ?? 0)], ["idle since", document.idle_since],
        ["memory", bytes(document.memory ?? 0)], ["consumer capacity", row.consumers ? `${Math.round(100 * (document.consumer_capacity ?? 0))} %` : ""],
        ["exclusive to", document.owner_pid_details?.name], ["single active consumer", document.single_active_consumer_tag]]);
      consumers.show(document.consumer_details);
      setText(noConsumers, consumers.rows.size ? "" : row.consumers ? "Its consumers are in the node's own process." : "There are no consumers.");
      return heldBack(snapshot.held);
    },
  };
}

// ── messages ──

/** Where a message stands: its offset in a stream, else its number, after its priority. */
function place(message) {
  if (message.offset !== undefined) return `${message.offset}`;
  return message.level ? `${message.level}/${message.seq_id}` : `${message.seq_id}`;
}

const condition = (value, required = false) => ({ name: "where", label: "Only those of which this is true", value, required, hint: "all" });
const chosen = ({ where }) => (where.trim() ? { where: where.trim() } : {});

function messages(vhost, name) {
  const own = path("queues", vhost, name);
  const list = make("div");
  const note = make("p", { class: "quiet", role: "status" });
  const more = button("More", () => browse(next), { hidden: true });
  const where = make("input", { class: "of-queue", name: "condition", placeholder: "headers['n'] > 3 AND size > 100",
    "aria-label": "Browse only messages of which this is true", spellcheck: "false" });
  let next = null;

  async function browse(after) {
    const query = new URLSearchParams({ count: BROWSED });
    if (after) query.set("after", after);
    if (where.value.trim()) query.set("where", where.value.trim());
    const answer = await get(`${own}/browse?${query}`);
    if (!after) list.replaceChildren();
    list.append(...answer.messages.map((message) => entry(message, place(message))));
    next = answer.next;
    more.hidden = !next;
    setText(note, list.children.length ? "" : where.value.trim() ? "There are no such messages." : "There are no messages.");
  }

  /** Ask, change something, and report it. */
  const act = (question, method, what, body, report) => ask(question, async (values) => {
    const answer = await change(method, `${own}/${what}`, body(values));
    tell(report(answer, values));
  });

  const ofQueue = { class: "of-queue" };
  const actions = [
    button("Browse", () => browse()),
    button("Get…", () => act({ title: `Get messages from ${name}`, verb: "Get", fields: [
      { name: "count", label: "How many", type: "number", min: 1, max: 1000, value: 1, required: true },
      { name: "ackmode", label: "And then", type: "select", options: [["ack_requeue_true", "put them back"],
        ["ack_requeue_false", "delete them"], ["reject_requeue_false", "reject them: they become dead letters if the queue has an exchange for these"]] },
    ] }, "POST", "get", (values) => ({ ...values, encoding: "auto", truncate: 50000 }), (answer) => {
      list.replaceChildren(...answer.map((message, index) => entry(message, `got ${index + 1}`)));
      more.hidden = true;
      return answer.length ? counted(answer.length, "messages were got.") : "There was no message.";
    }), ofQueue),
    button("Publish…", () => openPublish(vhost, "", name)),
    button("Move…", () => act({ title: `Move messages from ${name}`, verb: "Move", fields: [
      { name: "to", label: "To the queue", required: true }, condition(where.value),
      { name: "count", label: "How many, from the head", type: "number", min: 1, max: 1000000, value: 100, required: true },
    ] }, "POST", "move", (values) => ({ to: values.to, count: values.count, ...chosen(values) }),
    ({ moved }, { to }) => `${counted(moved, "messages were moved")} to ${to}.`), ofQueue),
    button("Requeue…", () => act({ title: `Send dead letters of ${name} back?`, verb: "Send back", fields: [condition(where.value)],
      text: "Each goes back to the queue in which it died. Other messages stay." }, "POST", "requeue", chosen,
    ({ requeued, stayed }) => counted(requeued, "dead letters were sent back.")
      + (stayed ? ` ${number(stayed)} stayed: where they came from no longer exists.` : "")), ofQueue),
    button("Remove…", () => act({ title: `Remove messages from ${name}?`, verb: "Delete these messages", danger: true,
      fields: [condition(where.value, true)], text: "They are deleted, permanently, wherever they stand. Unacked ones stay." },
    "POST", "remove", chosen, ({ removed }) => counted(removed, "messages were deleted.")), { class: "danger of-queue" }),
    button("Purge…", () => act({ title: `Purge ${name}?`, verb: "Delete all ready messages", danger: true,
      text: "All ready messages are deleted, permanently. Unacked ones stay." }, "DELETE", "contents", () => undefined, () => {
      list.replaceChildren();
      return "The queue was purged.";
    }), { class: "danger of-queue" }),
  ];

  /** What can be done with one message that was browsed. */
  function mending(message, element) {
    if (message.id === undefined || message.unacked) return null;
    const gone = "The message is gone, or a consumer has it.";
    function report(count, text) {
      if (count) element().remove();
      return count ? text : gone;
    }
    return make("div", { class: "row" },
      button("Take it", async () => {
        element().replaceWith(entry(await change("POST", `${own}/take`, { id: message.id }), "taken"));
        tell("The message was taken off the queue.");
      }),
      button("Move it…", () => act({ title: "Move this message", verb: "Move", fields: [{ name: "to", label: "To the queue", required: true }] },
        "POST", "move", ({ to }) => ({ to, ids: [message.id] }), ({ moved }, { to }) => report(moved, `The message was moved to ${to}.`))),
      button("Delete it…", () => act({ title: "Delete this message?", verb: "Delete the message", danger: true }, "POST", "remove",
        () => ({ ids: [message.id] }), ({ removed }) => report(removed, "The message was deleted.")), { class: "danger" }));
  }

  function entry(message, at) {
    const text = message.error ?? (message.payload_encoding === "base64" ? `${message.payload} (base64)` : message.payload);
    const facts = make("dl");
    fillFacts(facts, [["exchange", message.exchange || "(default)"], ["routing key", message.routing_key],
      ...pairsOf(message.properties).map(([key, value]) => [key, value])]);
    const element = make("details", {},
      make("summary", {}, make("span", { class: "place" }, at), make("span", { class: "preview" }, text.slice(0, 200)),
        message.unacked ? badge("unacked") : null, message.redelivered ? badge("redelivered") : null,
        make("span", { class: "quiet" }, message.payload_bytes === undefined ? "" : bytes(message.payload_bytes))),
      facts, make("pre", {}, text), mending(message, () => element));
    return element;
  }

  where.addEventListener("keydown", (event) => {
    if (event.key === "Enter") browse().catch((problem) => tell(problem.message, true));
  });
  const element = panel("Messages", actions, where, note, list, more);
  return {
    element,
    paths: () => [],
    update: () => "",
    adapt(isStream) { for (const part of element.querySelectorAll(".of-queue")) part.hidden = isStream; },
  };
}

export function queueView(vhost, name) {
  const [top, below] = [numbers(vhost, name), messages(vhost, name)];
  const view = viewOf(name, [top, below, bindings("queue", vhost, name, "source")]);
  return { ...view, update(snapshot, document) {
    below.adapt(snapshot.queue.type === "stream");
    return view.update(snapshot, document);
  } };
}
