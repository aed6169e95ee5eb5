// The page: logging in, the pages behind the hash, and what is asked again and again.

import { current, logIn, logOut, resume } from "./api.js";
import { field, make, setText } from "./dom.js";
import { queuesView } from "./queues.js";
import { queueView } from "./queue.js";
import { connectionsView, exchangesView } from "./lists.js";

const EVERY_MS = 1000;
const main = document.getElementById("main");
const nav = document.querySelector("nav");
const status = document.getElementById("status");
let view = null;
let turn = 0;

// ── themes ──

const THEMES = { auto: "as the system", light: "light", dark: "dark" };
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(themeButton, `Theme: ${theme}`);
  themeButton.setAttribute("aria-label", `Theme: ${THEMES[theme]}. Change`);
  try { localStorage.setItem("theme", theme); } catch { /* it is as it is until the page goes */ }
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

// ── pages ──

const PAGES = { queues: queuesView, queue: queueView, connections: connectionsView, exchanges: exchangesView };

function route() {
  const [name, ...parts] = location.hash.replace(/^#\//, "").split("/");
  const known = Object.hasOwn(PAGES, name) && (name !== "queue" || parts.length === 2);
  return known ? [name, parts.map(decoded)] : ["queues", []];
}

/** A part of an address; as it stands if it is not encoded as it should be. */
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

async function show() {
  const mine = ++turn;
  const session = current();
  nav.hidden = !session;
  document.getElementById("logout").hidden = !session;
  setText(document.getElementById("who"), session ? session.name : "");
  setText(status, "");
  if (!session) { view = null; main.replaceChildren(login()); main.querySelector("input").focus(); return; }
  const [name, parts] = route();
  for (const link of nav.children) {
    const here = link.hash === `#/${name === "queue" ? "queues" : name}`;
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  view = PAGES[name](...parts);
  document.title = `${view.title} · warren`;
  main.replaceChildren(view.element);
  await keepAsking(mine);
}

async function keepAsking(mine) {
  while (mine === turn && view) {
    if (!document.hidden) {
      try {
        setText(status, (await view.update()) || "");
      } catch (problem) {
        if (mine !== turn) return;
        if (!current()) { show(); return; }
        setText(status, problem.status ? problem.message : "The server does not answer.");
        if (problem.status === 404 && view.gone) view.gone();
      }
    }
    if (mine !== turn) return;
    await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
  }
}

// ── logging in and out ──

function login() {
  const error = make("p", { class: "error", role: "alert" });
  const name = make("input", { name: "username", autocomplete: "username", required: true, autocapitalize: "none" });
  const word = make("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const form = make("form", { class: "panel login" }, make("h2", {}, "Log in"), field("User", name),
    field("Password", word), error, make("button", { class: "main" }, "Log in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await logIn(name.value, word.value);
      await show();
    } catch (problem) {
      setText(error, problem.status === 401 && problem.message === "Login failed"
        ? "No user has this name and password." : problem.message);
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

try { await resume(); } catch { /* it is said when it is asked next */ }
show();
