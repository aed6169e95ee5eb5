// One queue: its lists, its course, its messages; look, publish, get, take, move, delete, send back.

import { change, get, part } from "./api.js";
import { ask, field, make, setText } from "./dom.js";
import { bytes, History, legend, LISTS, ListsBar, NAMES, number, rate } from "./draw.js";
import { heldBack } from "./queues.js";

const BROWSED = 50;

export function queueView(vhost, name) {
  const path = `queues/${part(vhost)}/${part(name)}`;
  const bar = new ListsBar(true);
  const history = new History("ready messages");
  const numbers = make("ul", { class: "numbers" });
  const lists = make("ul", { class: "numbers" });
  const means = legend();
  const about = make("dl");
  const messages = make("div");
  const said = make("p", { class: "quiet", role: "status" });
  const more = make("button", { type: "button", hidden: true }, "More");
  const where = make("input", { class: "of-queue", name: "condition", placeholder: "headers['n'] > 3 AND size > 100",
    "aria-label": "Browse only messages of which this is true", spellcheck: "false" });
  let next = null;
  let begun = false;

  function tell(text) { setText(said, text); }

  async function browse(after) {
    const query = new URLSearchParams({ count: BROWSED });
    if (after) query.set("after", after);
    if (where.value.trim()) query.set("where", where.value.trim());
    const found = await get(`${path}/browse?${query}`);
    if (!after) messages.replaceChildren();
    messages.append(...found.messages.map((one) => message(one, place(one))));
    next = found.next;
    more.hidden = !next;
    if (!after) tell(found.messages.length ? "" : where.value.trim() ? "There are no such messages." : "There are no messages.");
  }

  async function fetchMessages(values) {
    const found = await change("POST", `${path}/get`,
      { count: Number(values.count), ackmode: values.ackmode, encoding: "auto", truncate: 50000 });
    messages.replaceChildren(...found.map((one, index) => message(one, `got ${index + 1}`)));
    more.hidden = true;
    tell(found.length ? "" : "There was no message.");
  }

  const actions = make("div", { class: "row" },
    action("Browse", () => browse()),
    action("Get…", () => ask(`Get messages from ${name}`, [
      field("How many", make("input", { name: "count", type: "number", min: 1, max: 1000, value: 1 })),
      field("And then", make("select", { name: "ackmode" },
        make("option", { value: "ack_requeue_true" }, "put them back"),
        make("option", { value: "ack_requeue_false" }, "delete them"),
        make("option", { value: "reject_requeue_false" }, "reject them: dead letters, where the queue has an exchange for them"))),
    ], "Get", fetchMessages), "of-queue"),
    action("Publish…", () => ask(`Publish to ${name}`, [
      field("Message", make("textarea", { name: "payload" })),
      field("Headers, as JSON", make("input", { name: "headers", placeholder: "{}" })),
      make("label", { class: "inline" }, make("input", { name: "persistent", type: "checkbox", checked: true }), "persistent"),
    ], "Publish", publish)),
    action("Move…", () => ask(`Move messages from ${name}`, [
      field("To the queue", make("input", { name: "to", required: true })),
      condition(),
      field("How many, from the head", make("input", { name: "count", type: "number", min: 1, max: 1000000, value: 100 })),
    ], "Move", async (values) => {
      const found = await change("POST", `${path}/move`, { to: values.to, count: Number(values.count), ...those(values) });
      tell(`${number(found.moved)} messages were moved to ${values.to}.`);
    }), "of-queue"),
    action("Requeue…", () => ask(`Send dead letters of ${name} back?`, [
      make("p", {}, "Each goes back to the queue that it died in, as it was there. Other messages stay."),
      condition(),
    ], "Send back", async (values) => {
      const found = await change("POST", `${path}/requeue`, those(values));
      tell(`${number(found.requeued)} dead letters were sent back.` + (found.stayed ? ` ${number(found.stayed)} stayed: where they came from is gone.` : ""));
    }), "of-queue"),
    action("Remove…", () => ask(`Remove messages from ${name}?`, [
      make("p", {}, "They are deleted, permanently, wherever they stand. Those that consumers have stay."),
      condition(true),
    ], "Delete these messages", async (values) => {
      const found = await change("POST", `${path}/remove`, those(values));
      tell(`${number(found.removed)} messages were deleted.`);
    }, true), "danger of-queue"),
    action("Purge…", () => ask(`Purge ${name}?`, [
      make("p", {}, "All ready messages are deleted, permanently. Those that consumers have stay."),
    ], "Delete all ready messages", async () => {
      await change("DELETE", `${path}/contents`);
      messages.replaceChildren();
      tell("The queue was purged.");
    }, true), "danger of-queue"),
  );

  function condition(required = false) {
    return field("Only those of which this is true", make("input",
      { name: "where", value: where.value, placeholder: "all", spellcheck: "false", required }));
  }

  function those(values) { return values.where.trim() ? { where: values.where.trim() } : {}; }

  /** What can be done with one message that was browsed. */
  function mending(one, element) {
    if (one.id === undefined || one.unacked) return null;
    return make("div", { class: "row" },
      action("Take it", async () => {
        const found = await change("POST", `${path}/take`, { id: one.id });
        element().replaceWith(message(found, "taken"));
        tell("The message was taken off the queue.");
      }),
      action("Move it…", () => ask("Move this message", [
        field("To the queue", make("input", { name: "to", required: true })),
      ], "Move", async (values) => {
        const found = await change("POST", `${path}/move`, { to: values.to, ids: [one.id] });
        if (found.moved) element().remove();
        tell(found.moved ? `The message was moved to ${values.to}.` : "The message is gone, or a consumer has it.");
      })),
      action("Delete it…", () => ask("Delete this message?", [], "Delete the message", async () => {
        const found = await change("POST", `${path}/remove`, { ids: [one.id] });
        if (found.removed) element().remove();
        tell(found.removed ? "The message was deleted." : "The message is gone, or a consumer has it.");
      }, true), "danger"));
  }

  function action(label, work, kind = "") {
    return make("button", { type: "button", class: kind, onclick: async () => {
      try { await work(); } catch (problem) { tell(problem.message); }
    } }, label);
  }
  where.addEventListener("keydown", (event) => {
    if (event.key === "Enter") browse().catch((problem) => tell(problem.message));
  });
  more.addEventListener("click", () => browse(next).catch((problem) => tell(problem.message)));

  async function publish(values) {
    const properties = { delivery_mode: values.persistent ? 2 : 1 };
    if (values.headers.trim()) {
      try { properties.headers = JSON.parse(values.headers); } catch { throw new Error("The headers are not JSON."); }
    }
    await change("POST", `exchanges/${part(vhost)}/amq.default/publish`,
      { routing_key: name, properties, payload: values.payload, payload_encoding: "string" });
    tell("The message was published.");
  }

  function message(one, place) {
    const shown = one.error ? one.error : one.payload_encoding === "base64" ? `${one.payload} (base64)` : one.payload;
    const properties = Array.isArray(one.properties) ? {} : one.properties || {};
    const body = make("details", {},
      make("summary", {}, make("span", { class: "place" }, place), make("span", { class: "preview" }, shown.slice(0, 200)),
        one.unacked ? make("span", { class: "badge" }, "unacked") : null,
        one.redelivered ? make("span", { class: "badge" }, "redelivered") : null,
        make("span", { class: "quiet" }, one.payload_bytes === undefined ? "" : bytes(one.payload_bytes))),
      make("dl", {}, ...pair("exchange", one.exchange || "(default)"), ...pair("routing key", one.routing_key),
        ...Object.entries(properties).flatMap(([key, value]) => pair(key, typeof value === "object" ? JSON.stringify(value) : String(value)))),
      make("pre", {}, shown), mending(one, () => body));
    return body;
  }

  return {
    title: name,
    element: make("div", { class: "view" },
      make("section", { class: "panel", "aria-label": "Queue" },
        make("div", { class: "row spread" },
          make("h2", {}, name), make("a", { href: "#/queues" }, "All queues")),
        bar.element, means, lists, numbers,
        make("figure", {}, make("figcaption", {}, "ready messages, the last ten minutes"), history.element), about),
      make("section", { class: "panel", "aria-label": "Messages" },
        make("div", { class: "row spread" }, make("h3", {}, "Messages"), actions), where, said, messages, more)),
    async update() {
      if (!begun) {
        begun = true;
        const past = await get(`${path}?columns=messages_ready_details&lengths_age=600&lengths_incr=5`);
        history.begin(past.messages_ready_details?.samples ?? []);
      }
      const found = await get(`snapshot?${new URLSearchParams({ vhost, queue: name })}`);
      const row = found.queue;
      const isStream = row.type === "stream";
      for (const one of [...actions.querySelectorAll(".of-queue"), where, lists, means]) one.hidden = isStream;
      bar.update(row, Math.max(1000, row.ready));
      history.add(row.ready);
      lists.replaceChildren(...LISTS.map((one) => make("li", {}, `${NAMES[one]} `, make("b", {}, number(row[one])))));
      const counts = isStream ? [[row.ready, "messages on the disk"], [row.gone, "first offset"], [row.consumers, "consumers"]]
        : [[row.ready, "ready"], [row.unacked, "unacked"], [row.consumers, "consumers"], [row.in_ram, "in RAM"]];
      numbers.replaceChildren(...counts.map(([count, what]) => make("li", {}, make("b", {}, number(count)), ` ${what}`)),
        row.bytes === null ? "" : make("li", {}, make("b", {}, bytes(row.bytes)), " of messages"),
        make("li", {}, "in ", make("b", {}, rate(row.in_rate)), "/s"), isStream ? "" : make("li", {}, "out ", make("b", {}, rate(row.out_rate)), "/s"));
      const declared = found.declared;
      const kinds = ["durable", "exclusive", "auto_delete"].filter((kind) => declared[kind]).join(", ") || "transient";
      about.replaceChildren(...pair("vhost", vhost), ...pair("declared", kinds),
        ...Object.entries(declared.arguments).flatMap(([key, value]) => pair(key, String(value))),
        ...(row.state === "running" ? [] : pair("state", row.reason ? `${row.state}: ${row.reason}` : row.state)),
        ...(found.policy ? pair("policy", found.policy) : []));
      return heldBack(found.held);
    },
  };
}

/** Where a message stands: its offset in a stream, else its number, behind its priority. */
function place(one) {
  if (one.offset !== undefined) return `${one.offset}`;
  return one.level ? `${one.level}/${one.seq_id}` : `${one.seq_id}`;
}

function pair(name, value) {
  return [make("dt", {}, name), make("dd", {}, value)];
}
