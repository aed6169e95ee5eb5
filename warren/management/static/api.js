// Asking the API. Every change carries the session's token.

let session = null;
export const current = () => session;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, method = "GET", body) {
  const headers = { "x-requested-with": "page" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && session) headers["x-csrf-token"] = session.csrf_token;
  const answer = await fetch(path, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
    cache: "no-store", redirect: "error",
  });
  const text = await answer.text();
  let found = null;
  try { found = text ? JSON.parse(text) : null; } catch { found = null; }
  if (!answer.ok) {
    const reason = found && (Array.isArray(found.reason) ? found.reason.join(" ") : found.reason);
    if (answer.status === 401 && session && reason === "Login failed") session = null;
    throw new Refused(answer.status, reason || `the server says ${answer.status}`);
  }
  return found;
}

export const get = (path) => send(`/api/${path}`);
export const change = (method, path, body) => send(`/api/${path}`, method, body);
export const part = (name) => encodeURIComponent(name);

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
