// What is drawn: a queue's lists, memory against its limit, the course of a number.

const SVG = "http://www.w3.org/2000/svg";
export const LISTS = ["q1", "q2", "delta", "q3", "q4"];
export const NAMES = { q1: "Q1", q2: "Q2", delta: "delta", q3: "Q3", q4: "Q4" };
const MEANS = {
  q1: "in memory, newest", q2: "on the way to the disk", delta: "on disk only", q3: "on the way from the disk",
  q4: "in memory, next out",
};
const WIDE = 1000;

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const number = (value) => Math.round(value).toLocaleString("en");

/** A text about several things, after a number of them: in the singular after 1. */
export const after = (count, what) => (count !== "1" ? what : what.replace(/ies\b/, "y").replace(/([a-z])s\b/, "$1")
  .replace(" were ", " was ").replace(" are ", " is ").replace(" wait ", " waits "));
export const counted = (value, what) => `${number(value)} ${after(number(value), what)}`;

/** A rate a second; a dot: it is not known yet. */
export function rate(value) {
  if (value === null || value === undefined) return "·";
  return value < 0.05 ? "0" : value < 10 ? value.toFixed(1) : number(value);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** How broad each list is: together as long as the logarithm of all messages, so that ten and ten million both show. */
function widths(row, capacity) {
  const total = LISTS.reduce((sum, name) => sum + row[name], 0);
  if (!total) return LISTS.map(() => 0);
  const length = (WIDE * Math.log10(1 + total)) / Math.log10(1 + Math.max(capacity, total, 1));
  const least = 8;
  const kept = LISTS.map((name) => (row[name] ? Math.max(least, (row[name] / total) * length) : 0));
  const scale = Math.max(length, least) / kept.reduce((sum, one) => sum + one, 0);
  return kept.map((one) => one * scale);
}

/** A queue from its newest message (left) to the next one out (right). */
export class ListsBar {
  constructor(tall = false) {
    this.parts = LISTS.map((name) => shape("rect", { class: name, y: 0, height: 10, x: 0, width: 0 }));
    this.track = shape("rect", { class: "track", y: 4.6, height: 0.8, x: 0, width: WIDE });
    this.element = shape(
      "svg",
      { class: tall ? "lists tall" : "lists", viewBox: `0 0 ${WIDE} 10`, preserveAspectRatio: "none", role: "img" },
      this.track, ...this.parts,
    );
  }

  update(row, capacity) {
    let at = 0;
    widths(row, capacity).forEach((width, index) => {
      this.parts[index].setAttribute("x", at);
      this.parts[index].setAttribute("width", width);
      at += width;
    });
    this.track.setAttribute("x", at);
    this.track.setAttribute("width", Math.max(0, WIDE - at));
    const said = LISTS.filter((name) => row[name]).map((name) => `${NAMES[name]} ${number(row[name])}`);
    this.element.setAttribute("aria-label", said.length ? said.join(", ") : "empty");
  }
}

/** Memory against its limit, with a mark where paging begins. */
export class Gauge {
  constructor() {
    this.used = shape("rect", { class: "used", y: 0, height: 10, x: 0, width: 0 });
    this.mark = shape("rect", { class: "mark", y: 0, height: 10, width: 3 });
    this.element = shape(
      "svg",
      { class: "lists", viewBox: `0 0 ${WIDE} 10`, preserveAspectRatio: "none", role: "img" },
      shape("rect", { class: "track", y: 4.6, height: 0.8, x: 0, width: WIDE }), this.used, this.mark,
    );
  }

  update(used, paging, limit) {
    const scale = WIDE / Math.max(1, limit);
    this.used.setAttribute("width", Math.min(WIDE, used * scale));
    this.mark.setAttribute("x", Math.min(WIDE - 3, paging * scale));
    this.element.setAttribute("aria-label", `${bytes(used)} of ${bytes(limit)}; paging begins at ${bytes(paging)}`);
  }
}

/** The courses of some numbers in the past, the newest on the right. A series is [name, details => values]. */
export class Plot {
  constructor(title, series, unit = number) {
    this.title = title;
    this.unit = unit;
    this.curves = series.map(([name], index) => shape("polyline", { class: `curve s${index}` }));
    this.values = series.map(() => document.createElement("b"));
    const key = document.createElement("p");
    key.className = "legend";
    series.forEach(([name], index) => {
      const item = document.createElement("span");
      item.append(shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
        shape("rect", { class: `s${index}`, width: 10, height: 10 })), `${name} `, this.values[index]);
      key.append(item);
    });
    this.names = series.map(([name]) => name);
    this.svg = shape("svg", { class: "plot", viewBox: `0 0 ${WIDE} 100`, preserveAspectRatio: "none", role: "img" }, ...this.curves);
    [this.heading, this.scale, this.range] = ["figcaption", "span", "span"].map((name) => document.createElement(name));
    this.element = document.createElement("figure");
    this.element.append(this.heading, this.scale, this.svg, this.range, key);
    [this.scale.className, this.range.className] = ["quiet scale", "quiet range"];
    this.heading.textContent = title;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX / this.svg.clientWidth));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.pointed = null;
  }

  /** `columns`: the values of each series, the newest first; `times`: in milliseconds. */
  update(columns, times) {
    this.columns = columns;
    this.times = times;
    const most = Math.max(1, ...columns.flat());
    columns.forEach((values, index) => {
      const last = Math.max(1, values.length - 1);
      const points = values.map((value, back) => `${(WIDE - (back * WIDE) / last).toFixed(1)},${(97 - (94 * value) / most).toFixed(1)}`);
      this.curves[index].setAttribute("points", points.join(" "));
    });
    this.scale.textContent = this.unit(most);
    const now = columns.map((values, index) => `${this.names[index]} ${this.unit(values[0] ?? 0)} now`);
    this.svg.setAttribute("aria-label", `${this.title}: ${now.join(", ")}; at most ${this.unit(most)}`);
    this.point(this.pointed);
  }

  /** Show the values at a place, from 0 to 1; `null`: the newest. */
  point(place) {
    this.pointed = place;
    if (!this.times?.length) return;
    const back = place === null ? 0 : Math.round((1 - place) * (this.times.length - 1));
    this.columns.forEach((values, index) => { this.values[index].textContent = this.unit(values[back] ?? 0); });
    const first = new Date(this.times.at(-1));
    this.range.textContent = place === null ? `since ${clock(first)}` : `at ${clock(new Date(this.times[back]))}`;
  }
}

const clock = (time) => time.toLocaleTimeString("en-GB");

/** Plots of samples of the past, with the choice of how far back they go. */
export class Past {
  static ranges = { minute: [60, 5], "ten minutes": [600, 5], hour: [3600, 60] };
  static chosen = "ten minutes";

  /** `plots`: [title, [[name, counter]], whether they are growths, from where in the document]. */
  constructor(...plots) {
    this.plots = plots.map(([title, series, isRate, from]) => ({ series, isRate, from,
      plot: new Plot(title, series, isRate ? (value) => `${rate(value)}/s` : number) }));
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "How far back the plots go");
    for (const name of Object.keys(Past.ranges)) choice.append(new Option(`last ${name}`, name, false, name === Past.chosen));
    choice.addEventListener("change", () => { Past.chosen = choice.value; document.dispatchEvent(new Event("refresh")); });
    this.element = document.createElement("div");
    this.element.className = "plots";
    this.element.append(...this.plots.map(({ plot }) => plot.element));
    this.choice = choice;
  }

  static query(...kinds) {
    const [age, step] = Past.ranges[Past.chosen];
    return new URLSearchParams(kinds.flatMap((kind) => [[`${kind}_age`, age], [`${kind}_incr`, step]]));
  }

  update(document) {
    for (const { series, isRate, from, plot } of this.plots) {
      const details = series.map(([, counter]) => from(document)?.[`${counter}_details`]?.samples ?? []);
      const times = (details.find((samples) => samples.length) ?? []).map((one) => one.timestamp);
      plot.element.hidden = !times.length;
      const step = (times[0] - times[1]) / 1000;
      const columns = details.map((samples) => (isRate
        ? samples.slice(0, -1).map((one, back) => Math.max(0, one.sample - samples[back + 1].sample) / step)
        : samples.map((one) => one.sample)));
      plot.update(columns, isRate ? times.slice(0, -1) : times);
    }
  }
}

export const MESSAGES = ["Messages", [["ready", "messages_ready"], ["unacked", "messages_unacknowledged"]], false];
export const RATES = ["Messages a second", [["published", "publish"], ["delivered", "deliver_get"], ["acked", "ack"],
  ["redelivered", "redeliver"]], true, (document) => document.message_stats];

export function legend() {
  const list = document.createElement("p");
  list.className = "legend";
  for (const name of LISTS) {
    const item = document.createElement("span");
    item.append(
      shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, shape("rect", { class: name, width: 10, height: 10 })),
      `${NAMES[name]} ${MEANS[name]}`,
    );
    list.append(item);
  }
  list.append("The length of a bar is on a log scale.");
  return list;
}
