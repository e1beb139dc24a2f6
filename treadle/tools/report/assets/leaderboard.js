"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);

// Everything that comes from data is set as text: names of models, users and items never become part of the page.
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Light or dark ---------------------------------------------------------------------------------------------

const wanted = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; };
setTheme(wanted.matches);
wanted.addEventListener("change", (event) => setTheme(event.matches));
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));

// The table -------------------------------------------------------------------------------------------------

const few = (value) => (value === null ? "-" : Number(value.toPrecision(3)).toLocaleString("en"));
const whole = (value) => (value === null ? "-" : Math.round(value).toLocaleString("en"));
const chance = (value) => (value < 0.0001 ? "< 0.0001" : value.toPrecision(2));
const compared = data.models.some((one) => one.p !== null);

function metricCell(one, name) {
  const known = one.metrics[name];
  const [mean, spread] = known.shown.split(" ± ");
  const cell = element("td");
  cell.append(element("b", mean));
  if (known.interval) cell.append(element("small", known.interval.map((edge) => edge.toFixed(4)).join(" – "), { title: "95 % of draws of users" }));
  if (spread) cell.append(element("small", "± " + spread, { title: "standard deviation over seeds" }));
  return cell;
}

// What decides and what it costs come first, so that they are seen beside each other on any screen.
const measured = data.metrics.map((name) => ({ name, value: (one) => one.metrics[name].mean, cell: (one) => metricCell(one, name) }));
const columns = [
  ...measured.filter((column) => column.name === data.metric),
  ...(compared ? [{ name: "p vs best", value: (one) => one.p, cell: (one) => element("td", one.p === null ? "-" : chance(one.p)) }] : []),
  { name: "s/epoch", value: (one) => one.seconds, cell: (one) => element("td", few(one.seconds)) },
  { name: "memory, MiB", value: (one) => one.memory, cell: (one) => element("td", whole(one.memory)) },
  ...measured.filter((column) => column.name !== data.metric),
  { name: "epochs", value: (one) => one.epochs, cell: (one) => element("td", whole(one.epochs)) },
  { name: "weights", value: (one) => one.parameters, cell: (one) => element("td", whole(one.parameters)) },
  { name: "seeds", value: (one) => one.seeds, cell: (one) => element("td", one.seeds) },
];
let order = null;

function drawBoard() {
  const head = element("tr");
  head.append(element("th", "model", { scope: "col" }));
  for (const column of columns) {
    const cell = element("th", null, { scope: "col" });
    const button = element("button", column.name, { type: "button", title: "Sort" });
    button.addEventListener("click", () => {
      order = { name: column.name, down: order && order.name === column.name ? !order.down : true };
      drawBoard();
    });
    if (order && order.name === column.name) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    cell.append(button);
    head.append(cell);
  }
  const models = [...data.models];
  if (order) {
    const { value } = columns.find((column) => column.name === order.name);
    const far = (one) => (value(one) === null ? Infinity : order.down ? -value(one) : value(one));
    models.sort((one, other) => (far(one) === far(other) ? 0 : far(one) - far(other)));
  }
  const body = element("tbody");
  for (const one of models) {
    const row = element("tr");
    row.append(element("th", one.model, { scope: "row", title: one.model }));
    for (const column of columns) {
      const cell = column.cell(one);
      if (column.name === data.metric && one === data.models[0]) cell.classList.add("best");
      row.append(cell);
    }
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  byId("board").replaceChildren(top, body);
}

// Pictures --------------------------------------------------------------------------------------------------

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function span(values, share) {
  const low = Math.min(...values), high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}

const shortened = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const compact = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4, notation: Math.abs(value) >= 1e5 ? "compact" : "standard" });

// One line for each model: its mean, and between which values it lies.
function drawIntervals(name) {
  const shown = data.models.filter((one) => one.metrics[name].mean !== null);
  const width = 440, left = 120, right = 16, line = Math.max(22, Math.min(40, 200 / shown.length)), height = shown.length * line + 34;
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name + " of each model" });
  if (shown.length) {
    const [low, high] = span(shown.flatMap((one) => [one.metrics[name].mean, ...(one.metrics[name].interval || [])]), 0.06);
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    for (const tick of ticks(low, high, 5)) {
      picture.append(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: height - 24 }));
      picture.append(shape("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, compact(tick)));
    }
    shown.forEach((one, place) => {
      const y = place * line + 18, known = one.metrics[name];
      const group = shape("g", { class: one === data.models[0] ? "first" : "" });
      group.append(shape("text", { class: "name", x: left - 10, y: y + 4, "text-anchor": "end" }, shortened(one.model, 16)));
      if (known.interval) group.append(shape("line", { class: "whisker", x1: x(known.interval[0]), x2: x(known.interval[1]), y1: y, y2: y }));
      const dot = shape("circle", { class: "dot", cx: x(known.mean), cy: y, r: 5 });
      dot.append(shape("title", {}, `${one.model}: ${known.shown}`));
      group.append(dot);
      picture.append(group);
    });
  }
  byId("interval").replaceChildren(picture);
}

// A point for each model: what it reaches, and what it costs.
function drawCost(place, name, cost) {
  const shown = data.models.filter((one) => one.metrics[name].mean !== null && one[cost] !== null && one[cost] > 0);
  const width = 440, height = 260, left = 58, right = 20, below = 34, above = 12;
  if (!shown.length) {
    byId(place).replaceChildren(element("p", "Nothing was measured.", { class: "quiet" }));
    return;
  }
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name + " and " + cost });
  const [low, high] = span(shown.map((one) => one.metrics[name].mean), 0.12);
  const [cheap, dear] = span(shown.map((one) => Math.log10(one[cost])), 0.15);
  const x = (value) => left + ((Math.log10(value) - cheap) / (dear - cheap)) * (width - left - right);
  const y = (value) => height - below - ((value - low) / (high - low)) * (height - below - above);
  for (const tick of ticks(low, high, 6)) {
    picture.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    picture.append(shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, compact(tick)));
  }
  const whole = [];
  for (let power = -6; power < 9; power += 1) for (const digit of [1, 2, 5]) whole.push(digit * 10 ** power);
  const inside = whole.filter((value) => x(value) >= left && x(value) <= width - right);
  const some = inside.length > 1 ? inside.filter((_, at) => at % Math.ceil(inside.length / 5) === 0) : ticks(10 ** cheap, 10 ** dear, 4);
  for (const tick of some) {
    picture.append(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: above, y2: height - below }));
    picture.append(shape("text", { x: x(tick), y: height - 12, "text-anchor": "middle" }, compact(tick)));
  }
  const taken = [];
  for (const one of shown) {
    const cx = x(one[cost]), cy = y(one.metrics[name].mean);
    const group = shape("g", { class: one === data.models[0] ? "first" : "" });
    const dot = shape("circle", { class: "dot", cx, cy, r: 6 });
    dot.append(shape("title", {}, `${one.model}: ${one.metrics[name].shown}, ${few(one[cost])}`));
    group.append(dot);
    const right_side = cx < width * 0.66, text = shortened(one.model, 16);
    const at = right_side ? cx + 10 : cx - 10 - text.length * 6.6;
    // A name that would stand on another one moves down, and then up.
    const free = [4, 18, -10, 32, -24].find((move) => !taken.some((other) => Math.abs(other.y - cy - move) < 12 && at < other.to && at + text.length * 6.6 > other.from));
    const move = free === undefined ? 4 : free;
    taken.push({ y: cy + move, from: at, to: at + text.length * 6.6 });
    group.append(shape("text", { class: "name", x: right_side ? cx + 10 : cx - 10, y: cy + move, "text-anchor": right_side ? "start" : "end" }, text));
    picture.append(group);
  }
  byId(place).replaceChildren(picture);
}

function drawMetric(name) {
  const intervals = data.models.some((one) => one.metrics[name].interval);
  byId("interval-title").textContent = name + (intervals ? ", with 95 % intervals" : "");
  drawIntervals(name);
  drawCost("seconds", name, "seconds");
  drawCost("memory", name, "memory");
}

// One user --------------------------------------------------------------------------------------------------

function listOf(items, wantedItems = new Set()) {
  const list = element("ol");
  for (const item of items) {
    const label = data.labels[item];
    const line = element("li", label || item);
    if (label) line.append(" ", element("small", item));
    if (wantedItems.has(item)) line.classList.add("hit");
    list.append(line);
  }
  return list;
}

function drawUser(name) {
  const user = data.users[name], wantedItems = new Set(user.wanted);
  const before = byId("before");
  before.replaceChildren(element("h3", "What the user has"), element("h4", "To be found in the test"), listOf(user.wanted));
  before.append(element("h4", "In training and validation"), user.history.length ? listOf(user.history) : element("p", "Nothing.", { class: "quiet" }));
  if (user.earlier) before.append(element("p", `and ${user.earlier} more`, { class: "quiet" }));
  const lists = Object.entries(user.lists).map(([model, items]) => {
    const made = element("div", null, { class: "list" });
    made.append(element("h3", model), listOf(items, wantedItems));
    return made;
  });
  const found = Object.entries(user.lists).map(([model, items]) => `${model} ${items.filter((item) => wantedItems.has(item)).length}`);
  byId("hits").textContent = `Of ${user.wanted.length} to be found, in the first ten: ${found.join(", ")}. A ✓ marks them.`;
  byId("lists").replaceChildren(...lists);
}

// The page --------------------------------------------------------------------------------------------------

function select(place, names, draw, first) {
  for (const name of names) byId(place).append(element("option", name, { value: name }));
  byId(place).value = first;
  byId(place).addEventListener("change", (event) => draw(event.target.value));
  draw(first);
}

drawBoard();
byId("notes").append(...data.notes.map((note) => element("li", note)));
if (data.models.length) select("metric", data.metrics, drawMetric, data.metrics.includes(data.metric) ? data.metric : data.metrics[0]);
byId("drawn").hidden = !data.models.length;
const users = Object.keys(data.users);
byId("single").hidden = !users.length;
if (users.length) select("user", users, drawUser, users[0]);
byId("protocol").append(...Object.entries(data.protocol).map(([name, value]) => {
  const row = element("tr");
  row.append(element("th", name, { scope: "row" }), element("td", value));
  return row;
}));
byId("failures").hidden = !data.failed.length;
byId("failed").append(...data.failed.map(([model, seed, why]) => {
  const row = element("tr");
  row.append(element("th", model, { scope: "row" }), element("td", "seed " + seed), element("td", why));
  return row;
}));
