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

/** The course of a number over the last seconds, so many, the newest on the right. */
export class History {
  constructor(label, seconds = 600) {
    this.label = label;
    this.seconds = seconds;
    this.points = [];
    this.curve = shape("polyline", { class: "curve" });
    this.element = shape(
      "svg", { class: "history", viewBox: `0 0 ${WIDE} 100`, preserveAspectRatio: "none", role: "img" }, this.curve,
    );
  }

  /** Put what the API knows of the past (samples, the newest first) ahead of all. */
  begin(samples) {
    const first = this.points.length ? this.points[0].at : Infinity;
    const before = samples.map((one) => ({ value: one.sample, at: one.timestamp / 1000 })).filter((one) => one.at < first);
    this.points.unshift(...before.reverse());
  }

  add(value) {
    const now = Date.now() / 1000;
    this.points.push({ value, at: now });
    while (this.points[0].at < now - this.seconds) this.points.shift();
    const most = Math.max(1, ...this.points.map((one) => one.value));
    const drawn = this.points.map((one) => {
      const x = WIDE - ((now - one.at) * WIDE) / this.seconds;
      return `${x.toFixed(1)},${(97 - (94 * one.value) / most).toFixed(1)}`;
    });
    this.curve.setAttribute("points", drawn.join(" "));
    this.element.setAttribute("aria-label", `${this.label}: ${number(value)} now, at most ${number(most)}`);
  }
}

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
