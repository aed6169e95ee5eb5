// The page: logging in, the views behind the hash, and the event stream that keeps the shown view current.

import { current, follow, isLoggedOut, logIn, logOut, may, reasonOf, resume } from "./api.js";
import { adminView } from "./admin.js";
import { channelsView, channelView, connectionsView, connectionView } from "./clients.js";
import { make, setText } from "./dom.js";
import { exchangesView, exchangeView } from "./exchanges.js";
import { overviewView } from "./overview.js";
import { queuesView } from "./queues.js";
import { queueView } from "./queue.js";
import { loadVhosts } from "./tables.js";

const AGAIN_MS = 1000;
const main = document.getElementById("main");
const nav = document.querySelector("nav");
const status = document.getElementById("status");
let view = null;
let turn = 0;
let endStream = () => {};

// ── themes ──

const THEMES = { auto: "as the system", light: "light", dark: "dark" };
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(themeButton, `Theme: ${theme}`);
  themeButton.setAttribute("aria-label", `Theme: ${THEMES[theme]}. Change`);
  try { localStorage.setItem("theme", theme); } catch { /* the theme lasts until the page is closed */ }
  themeButton.dataset.theme = theme;
}

function savedTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

setTheme(Object.hasOwn(THEMES, savedTheme()) ? savedTheme() : "auto");
themeButton.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(themeButton.dataset.theme) + 1) % names.length]);
});

// ── views ──

/** The views, how many parts their addresses have, and the link in the navigation that leads to them. */
const VIEWS = {
  overview: [overviewView, 0, "overview"], queues: [queuesView, 0, "queues"], queue: [queueView, 2, "queues"],
  exchanges: [exchangesView, 0, "exchanges"], exchange: [exchangeView, 2, "exchanges"], connections: [connectionsView, 0, "connections"],
  connection: [connectionView, 1, "connections"], channels: [channelsView, 0, "channels"], channel: [channelView, 1, "channels"],
  admin: [adminView, 1, "admin"],
};

function route() {
  const [name, ...parts] = location.hash.replace(/^#\//, "").split("/");
  const isView = Object.hasOwn(VIEWS, name) && VIEWS[name][1] === parts.length && (name !== "admin" || may("policymaker"));
  return isView ? [...VIEWS[name], parts.map(decoded)] : [...VIEWS.overview, []];
}

/** A part of an address; unchanged if it is not encoded as it should be. */
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

async function show() {
  const mine = (turn += 1);
  endStream();
  const session = current();
  nav.hidden = !session;
  document.getElementById("logout").hidden = !session;
  setText(document.getElementById("who"), session ? session.name : "");
  setText(status, "");
  if (!session) { view = null; main.replaceChildren(login()); main.querySelector("input").focus(); return; }
  document.getElementById("admin").hidden = !may("policymaker");
  try { await loadVhosts(); } catch { /* the stream reports it */ }
  if (mine !== turn) return;
  const [create, , place, parts] = route();
  for (const link of nav.children) {
    if (link.hash.split("/")[1] === place) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  view = create(...parts);
  document.title = `${view.title} · warren`;
  const hasFocus = main.contains(document.activeElement);
  main.replaceChildren(view.element);
  if (hasFocus) main.focus();
  await keepCurrent(mine);
}

/** Read the view's stream as long as it is shown; begin again if it ends. */
async function keepCurrent(mine) {
  while (mine === turn) {
    if (document.hidden) { await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); }); continue; }
    const isLost = await streamed(mine);
    if (mine !== turn || !isLost) continue;
    try { await resume(); } catch (problem) { setText(status, problem.message); }
    if (mine === turn && !current()) { show(); return; }
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
}

/** One stream of the view; whether it was lost. */
function streamed(mine) {
  return new Promise((resolve) => {
    let source = null;
    const end = (isLost) => { source?.close(); resolve(isLost); };
    endStream = () => end(false);
    view.load().catch((problem) => { if (mine === turn) setText(status, problem.message); });
    if (!view.paths().length) { source = { close() {} }; return; }
    source = follow(view.paths(), (answers) => {
      if (mine !== turn) { end(false); return; }
      const problem = answers.find((answer) => answer.status !== 200);
      if (problem && isLoggedOut(problem.status, problem.body)) { end(true); return; }
      if (problem) { if (!view.failed(problem.body)) setText(status, reasonOf(problem.status, problem.body)); return; }
      setText(status, view.update(...answers.map((answer) => answer.body)));
    }, () => end(true));
  });
}

document.addEventListener("refresh", () => endStream());
document.addEventListener("visibilitychange", () => { if (document.hidden) endStream(); });

// ── logging in and out ──

function login() {
  const error = make("p", { class: "error", role: "alert" });
  const name = make("input", { name: "username", autocomplete: "username", required: true, autocapitalize: "none" });
  const word = make("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const form = make("form", { class: "panel login" }, make("h2", {}, "Log in"), make("label", {}, "User", name),
    make("label", {}, "Password", word), error, make("button", { class: "main" }, "Log in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await logIn(name.value, word.value);
      await show();
    } catch (problem) {
      setText(error, problem.isLoggedOut ? "No user has this name and password." : problem.message);
      word.select();
      word.focus();
    }
  });
  return form;
}

document.getElementById("logout").addEventListener("click", async () => {
  try { await logOut(); } finally { show(); }
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", () => { show(); window.scrollTo(0, 0); main.focus(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName) || document.querySelector("dialog")) return;
  const filter = main.querySelector("input[type=search]");
  if (filter) { event.preventDefault(); filter.focus(); }
});

try { await resume(); } catch { /* the log-in form reports it */ }
show();
