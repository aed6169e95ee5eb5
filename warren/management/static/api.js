// Requests to the API, and its event stream. Every change carries the session's token.

let session = null;
export const current = () => session;

/** Whether the user has one of these tags. Administrators may do everything. */
export const may = (...tags) => Boolean(session?.tags.some((tag) => tag === "administrator" || tags.includes(tag)));

/** What the API's shortest reasons mean. */
const WORDS = {
  "Access refused.": "Access refused: the user has no permission for it, or the name is reserved (amq.…).",
  "Login failed": "The session has ended: log in again.",
  "Not management user": "This user has none of the tags management, policymaker, monitoring and administrator.",
  "Not Found": "This does not exist (any more).",
  vhost_or_user_not_found: "There is no such user or vhost.",
};

/** The reason in an answer that is an error. RabbitMQ's own texts may be escaped as HTML, and quote Erlang's binaries. */
export function reasonOf(status, body) {
  const reason = Array.isArray(body?.reason) ? body.reason.join(" ") : body?.reason || (status === 404 && "Not Found");
  if (!reason) return `The server answers with ${status}.`;
  return Object.hasOwn(WORDS, reason) ? WORDS[reason]
    : reason.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&").replace(/<<("[^"]*")>>/g, "$1");
}

export const isLoggedOut = (status, body) => status === 401 && body?.reason === "Login failed";

export class Refused extends Error {
  constructor(status, body) {
    super(status ? reasonOf(status, body) : "The server does not answer.");
    this.status = status;
    this.isLoggedOut = isLoggedOut(status, body);
  }
}

/** One request. A `File` goes out as it is, anything else as JSON. */
async function send(path, method = "GET", body, more = {}) {
  const headers = { "x-requested-with": "page", ...more };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && session) headers["x-csrf-token"] = session.csrf_token;
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
      credentials: "same-origin", cache: "no-store", redirect: "error",
    });
  } catch { throw new Refused(0); }
  const text = await answer.text();
  let document = null;
  try { document = text ? JSON.parse(text) : null; } catch { /* not from the API */ }
  if (answer.ok) return document;
  const refusal = new Refused(answer.status, document);
  if (refusal.isLoggedOut) session = null;
  throw refusal;
}

export const get = (path) => send(`/api/${path}`);
export const change = (method, path, body, headers) => send(`/api/${path}`, method, body, headers);

/** A path of the API; its parts are encoded. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");

/** The same below "#/". */
export const address = (...parts) => `#/${path(...parts)}`;

/** Follow paths: `take` gets their answers whenever they differ, `lost` is called once the stream has ended. */
export function follow(paths, take, lost) {
  const source = new EventSource(`/api/events?${new URLSearchParams(paths.map((one) => ["path", one]))}`);
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = lost;
  return source;
}

export async function resume() {
  session = await send("/session");
  return session;
}

export async function logIn(username, password) {
  session = await send("/login", "POST", { username, password });
  return session;
}

export async function logOut() {
  try { await send("/logout", "POST"); } finally { session = null; }
}
