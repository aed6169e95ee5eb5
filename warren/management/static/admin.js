// Users, vhosts, permissions, limits, policies, parameters, definitions, feature flags: lists with forms.

import { change, get, may, path } from "./api.js";
import { badge, button, listed, make, panel, plain, tell, viewOf } from "./dom.js";
import { counted, number } from "./draw.js";
import { ask } from "./forms.js";
import { listPanel, paged, vhostField, whole } from "./tables.js";

const column = (label, name, more = {}) => ({ label, sort: name, value: (row) => row[name] ?? "", ...more });
const vhostColumn = column("vhost", "vhost");
const userField = { name: "user", label: "User", required: true, key: true };
const nameField = { name: "name", label: "Name", required: true, key: true };
const pattern = (name, what) => ({ name, label: `${name}: ${what}`, value: ".*" });
const tableOf = (label, name) => ({ label, value: (row) => listed(row[name]) });

const USERS = {
  title: "Users", noun: "The user", ...whole("users"), sort: "name", empty: "There are no users.", key: (row) => row.name,
  name: (row) => row.name,
  columns: [column("user", "name"), { label: "tags", sort: "tags", value: (row) => [row.tags].flat().join(", ") },
    { label: "password", value: (row) => (row.password_hash ? "set" : "none: cannot log in") }],
  form: {
    title: "Add a user", verb: "Add",
    fields: (values) => [nameField, { name: "password", label: values ? "New password; empty: as it is" : "Password", type: "password",
      required: !values }, { name: "tags", label: "Tags: administrator, monitoring, policymaker, management" }],
    send: ({ name, password, tags }, row) => change("PUT", path("users", name), { tags, ...(password || !row ? { password }
      : { password_hash: row.password_hash, hashing_algorithm: row.hashing_algorithm }) }),
  },
  edit: (row) => ({ name: row.name, tags: [row.tags].flat().join(", ") }),
  remove: { text: "Its permissions go with it.", send: (row) => change("DELETE", path("users", row.name)) },
};

const PERMISSIONS = {
  title: "Permissions", noun: "The permission", ...whole("permissions"), sort: "user", byVhost: true, empty: "There are no permissions.",
  key: (row) => [row.vhost, row.user], name: (row) => `${row.user} in ${row.vhost}`,
  columns: [column("user", "user"), vhostColumn, column("configure", "configure"), column("write", "write"), column("read", "read")],
  form: {
    title: "Set permissions", verb: "Set", text: "Each is a regular expression of names; an empty one matches nothing.",
    fields: () => [userField, vhostField(), pattern("configure", "what may be declared and deleted"), pattern("write", "where may be published"),
      pattern("read", "what may be consumed")],
    send: ({ user, vhost, ...body }) => change("PUT", path("permissions", vhost, user), body),
  },
  edit: (row) => row,
  remove: { verb: "Clear", send: (row) => change("DELETE", path("permissions", row.vhost, row.user)) }, done: "cleared",
};

const TOPIC_PERMISSIONS = {
  ...PERMISSIONS, title: "Topic permissions", ...whole("topic-permissions"), empty: "There are none: every routing key is allowed.",
  key: (row) => [row.vhost, row.user, row.exchange], name: (row) => `${row.user} in ${row.vhost} for ${row.exchange}`,
  columns: [column("user", "user"), vhostColumn, column("exchange", "exchange"), column("write", "write"), column("read", "read")],
  form: {
    ...PERMISSIONS.form, title: "Set topic permissions", text: "Each is a regular expression of routing keys.",
    fields: () => [userField, vhostField(), { name: "exchange", label: "Topic exchange", value: "amq.topic", required: true, key: true },
      pattern("write", "keys for publishing"), pattern("read", "keys for binding")],
    send: ({ user, vhost, ...body }) => change("PUT", path("topic-permissions", vhost, user), body),
  },
  remove: { verb: "Clear", send: (row) => change("DELETE", path("topic-permissions", row.vhost, row.user, row.exchange)) },
};

/** Limits of vhosts or users: one row for each limit. */
const limits = (title, api, owner, names, field) => ({
  title, noun: "The limit", isWhole: true, sort: owner, empty: "There are no limits.", tags: [],
  query: () => `/${api}`,
  cut: (answer, ...others) => whole(api).cut(answer.flatMap((row) => Object.entries(row.value)
    .map(([name, value]) => ({ [owner]: row[owner], name, value }))), ...others),
  key: (row) => [row[owner], row.name], name: (row) => `${row.name} of ${row[owner]}`,
  columns: [column(owner, owner), column("limit", "name"), { label: "value", kind: "number", value: (row) => number(row.value) }],
  form: {
    title: "Set a limit", verb: "Set",
    fields: () => [field(), { name: "name", label: "Limit", type: "select", options: names, key: true },
      { name: "value", label: "At most; -1: no limit", type: "number", required: true }],
    send: (values) => change("PUT", path(api, values[owner], values.name), { value: values.value }),
  },
  edit: (row) => row,
  remove: { verb: "Clear", send: (row) => change("DELETE", path(api, row[owner], row.name)) }, done: "cleared",
});

const VHOSTS = {
  title: "Vhosts", noun: "The vhost", ...paged(() => "vhosts"), sort: "name", empty: "There are no vhosts.", key: (row) => row.name,
  name: (row) => row.name,
  columns: [
    { ...column("vhost", "name"), draw: (name, row) => [name, ...(row.tracing ? [" ", badge("traced")] : []),
      ...(Object.values(row.cluster_state).includes("stopped") ? [" ", badge("down", "bad")] : [])] },
    column("description", "description"), { label: "tags", kind: "wide", value: (row) => row.tags.join(", ") },
    { label: "ready", sort: "messages_ready", kind: "number", value: (row) => number(row.messages_ready ?? 0) },
    { label: "unacked", sort: "messages_unacknowledged", kind: "number", value: (row) => number(row.messages_unacknowledged ?? 0) },
  ],
  form: {
    title: "Add a vhost", verb: "Add",
    fields: () => [nameField, { name: "description", label: "Description" }, { name: "tags", label: "Tags, with commas between them" },
      { name: "tracing", label: "traced: messages are copied to the exchange amq.rabbitmq.trace", type: "checkbox" }],
    send: ({ name, ...body }) => change("PUT", path("vhosts", name), body),
  },
  edit: (row) => ({ name: row.name, description: row.description, tags: row.tags.join(","), tracing: row.tracing }),
  remove: { text: "Everything in it is deleted: queues, messages, exchanges, policies, permissions.",
    send: (row) => change("DELETE", path("vhosts", row.name)) },
};

const KEYS = ["alternate-exchange", "dead-letter-exchange", "dead-letter-routing-key", "delivery-limit", "expires", "max-age", "max-length",
  "max-length-bytes", "message-ttl", "overflow", "queue-mode"];
const policies = (title, api, tags, targets) => ({
  title, noun: "The policy", ...whole(api), sort: "name", byVhost: true, empty: "There are none.", tags, key: (row) => [row.vhost, row.name],
  name: (row) => row.name,
  columns: [column("policy", "name"), vhostColumn, column("pattern", "pattern"), column("applies to", "apply-to"),
    { ...column("priority", "priority", { kind: "number" }), value: (row) => String(row.priority) }, tableOf("definition", "definition")],
  form: {
    title: `Add ${api === "policies" ? "a policy" : "an operator policy"}`, verb: "Set",
    fields: () => [vhostField(), nameField, { name: "pattern", label: "Names that match this pattern", required: true },
      { name: "apply-to", label: "Of", type: "select", options: targets }, { name: "priority", label: "Priority", type: "number", value: 0, required: true },
      { name: "definition", label: "Definition", type: "table", suggestions: KEYS }],
    send: ({ vhost, name, ...body }) => change("PUT", path(api, vhost, name), body),
  },
  edit: (row) => row,
  remove: { send: (row) => change("DELETE", path(api, row.vhost, row.name)) },
});

const PARAMETERS = {
  title: "Parameters of vhosts", noun: "The parameter", ...whole("parameters"), sort: "component", byVhost: true, empty: "There are no parameters.",
  key: (row) => [row.component, row.vhost, row.name], name: (row) => `${row.component} ${row.name}`,
  isFixed: (row) => row.component === "operator_policy", // they have their own list
  columns: [column("component", "component"), vhostColumn, column("name", "name"), { label: "value", value: (row) => plain(row.value) }],
  form: {
    title: "Set a parameter", verb: "Set",
    fields: () => [{ name: "component", label: "Component (shovel, federation-upstream …)", required: true, key: true }, vhostField(), nameField,
      { name: "value", label: "Value, as JSON", type: "json", required: true }],
    send: ({ component, vhost, name, value }) => change("PUT", path("parameters", component, vhost, name), { value }),
  },
  edit: (row) => row,
  remove: { send: (row) => change("DELETE", path("parameters", row.component, row.vhost, row.name)) },
};

const GLOBAL_PARAMETERS = {
  title: "Global parameters", noun: "The parameter", ...whole("global-parameters"), sort: "name", empty: "There are no parameters.",
  key: (row) => row.name, name: (row) => row.name,
  columns: [column("name", "name"), { label: "value", value: (row) => plain(row.value) }],
  form: {
    title: "Set a global parameter", verb: "Set",
    fields: () => [nameField, { name: "value", label: "Value, as JSON", type: "json", required: true }],
    send: ({ name, value }) => change("PUT", path("global-parameters", name), { value }),
  },
  edit: (row) => row,
  remove: { send: (row) => change("DELETE", path("global-parameters", row.name)) },
};

const FLAGS = {
  title: "Feature flags", ...whole("feature-flags"), sort: "name", empty: "There are no feature flags.", key: (row) => row.name,
  columns: [column("flag", "name"), { ...column("state", "state"), draw: (state) => badge(state) }, column("what it is", "desc")],
};

/** Everything that is declared, as a file, and back. */
function definitions() {
  const every = ["", "all vhosts"];
  const whereField = () => ({ ...vhostField(), key: false, options: [every, ...vhostField().options.map((name) => [name, name])], value: "" });
  const where = ({ vhost }) => (vhost ? path("definitions", vhost) : "definitions");
  const download = () => ask({ title: "Download definitions", verb: "Download", fields: [whereField()] }, async (values) => {
    const link = make("a", { href: `/api/${where(values)}?download=definitions.json`, download: "definitions.json" });
    document.body.append(link);
    link.click();
    link.remove();
    tell("The definitions are being downloaded.");
  });
  const upload = () => ask({ title: "Upload definitions?", verb: "Upload", danger: true,
    text: "What the file defines is declared. Users, policies and parameters with the same name are replaced; nothing is deleted.",
    fields: [{ name: "file", label: "File", type: "file", hint: ".json,application/json", required: true }, whereField()],
  }, async (values) => {
    await change("POST", where(values), values.file);
    tell(`${values.file.name} was uploaded.`);
    document.dispatchEvent(new Event("refresh"));
  });
  const counts = make("p", {});
  return {
    element: panel("Definitions", [button("Download…", download), button("Upload…", upload)],
      make("p", { class: "quiet" }, "Vhosts, users, permissions, queues, exchanges, bindings, policies and parameters as RabbitMQ's JSON, without messages."), counts),
    paths: () => [],
    async load() {
      const document = await get("definitions");
      counts.textContent = Object.entries(document).filter(([, rows]) => Array.isArray(rows))
        .map(([name, rows]) => counted(rows.length, name.replaceAll("_", " "))).join(" · ");
    },
    update: () => "",
  };
}

/** The pages of "Admin": their title, the tags that may see them, their parts. */
const PAGES = {
  users: ["Users", [], () => [listPanel(USERS), listPanel(PERMISSIONS), listPanel(TOPIC_PERMISSIONS),
    listPanel(limits("Limits of users", "user-limits", "user", ["max-connections", "max-channels"], () => userField))]],
  vhosts: ["Vhosts", [], () => [listPanel(VHOSTS),
    listPanel(limits("Limits of vhosts", "vhost-limits", "vhost", ["max-connections", "max-queues"], vhostField))]],
  policies: ["Policies", ["policymaker"], () => [listPanel(policies("Policies", "policies", ["policymaker"], ["all", "queues", "exchanges"])),
    listPanel(policies("Operator policies", "operator-policies", [], ["queues"]))]],
  parameters: ["Parameters", ["policymaker"], () => [listPanel(PARAMETERS), listPanel(GLOBAL_PARAMETERS)]],
  definitions: ["Definitions", [], () => [definitions()]],
  flags: ["Feature flags", [], () => [listPanel(FLAGS)]],
};

export function adminView(page) {
  const allowed = Object.entries(PAGES).filter(([, [, tags]]) => may(...tags));
  const [name, [title, , parts]] = allowed.find(([key]) => key === page) ?? allowed[0];
  const links = allowed.map(([key, [label]]) => make("a", { href: `#/admin/${key}`, "aria-current": key === name ? "page" : null }, label));
  return viewOf(title, parts(), make("nav", { class: "pages", "aria-label": "Admin" }, links));
}
