"use strict";

// Chosen by search: people who see fewer colours can tell any two of the first eight well apart, and of all twelve still.
const COLOURS = [
  "#3445d7", "#db7213", "#309d8b", "#873d7d", "#b976f7", "#525c08", "#55110f", "#310a77", "#b81a4f", "#f94176", "#7569bf", "#5c24a5",
];
// The same for a dark ground.
const LIGHT_COLOURS = [
  "#1565ef", "#ec8e1b", "#4bb3a1", "#b63590", "#b38fff", "#eee924", "#6f6d1c", "#63fdf3", "#dc5c66", "#fea2dc", "#8075cc", "#31dc7d",
];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);
const hidden = new Set();
// A run keeps its colour for as long as the page is open, whichever runs come and go beside it.
const places = new Map();
let pointedAt = "";
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => { if (entry.target.data) Plotly.Plots.resize(entry.target); }));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const isDark = () => document.documentElement.dataset.theme === "dark";
// Behind the chosen ones come hues as far from their neighbours as can be: each place has a colour of its own.
const colourOf = (place) => place < COLOURS.length
  ? (isDark() ? LIGHT_COLOURS : COLOURS)[place]
  : `hsl(${((place * 137.508) % 360).toFixed(1)}, 70%, ${(isDark() ? 62 : 38) + (place % 3) * 7}%)`;
const runColour = (run) => colourOf(places.get(run.name));
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function brief(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(unit && count < 10 ? 1 : 0)} ${units[unit]}`;
}

// An exponential average whose first values are not drawn towards zero; gaps stay gaps.
function smoothed(values, amount) {
  if (!amount) return values;
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = amount * mean + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return mean / weight;
  });
}

function layout(chart) {
  const ink = variable("--ink");
  const axis = { gridcolor: variable("--grid"), zeroline: false, linecolor: variable("--line"), automargin: true };
  const compares = chart.stacked && visible().length > 1;
  const along = byId("axis").value === "step" ? "step" : "training time, seconds";
  return {
    barmode: "stack",
    margin: { l: 50, r: 10, t: 6, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12 },
    showlegend: chart.metrics.length > 1,
    legend: { orientation: "h", y: -0.2, font: { size: 11 } },
    hovermode: "x unified",
    hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--line"), font: { color: ink } },
    xaxis: { ...axis, type: compares ? "category" : "linear", title: { text: compares ? "" : along, standoff: 6 } },
    yaxis: { ...axis, type: byId("logarithmic").checked && !chart.stacked ? "log" : "linear", rangemode: chart.stacked ? "tozero" : "normal" },
    shapes: compares ? [] : restarts(),
  };
}

// Every start after the first is a thin line: the curve itself goes on as if nothing had happened.
function restarts() {
  if (byId("axis").value !== "step") return [];
  return data.runs.flatMap((run) => hidden.has(run.name) ? [] : run.starts.slice(1).map((start) => ({
    type: "line", x0: start.step, x1: start.step, yref: "paper", y0: 0, y1: 1,
    line: { color: runColour(run), width: 1, dash: "dot" }, opacity: 0.6, name: "restart",
  })));
}

const visible = () => data.runs.filter((run) => !hidden.has(run.name));

// Parts of a whole: over the course of one run, or the means of several runs beside each other.
function parts(chart) {
  const runs = visible();
  const scaled = (series) => series.value.map((value) => value === null ? null : value * 1000);
  const mean = (series) => { const values = scaled(series).filter((value) => value !== null); return values.reduce((sum, value) => sum + value, 0) / values.length; };
  return chart.metrics.filter((metric) => runs.some((run) => run.series[metric])).map((metric, position) => {
    const base = { name: metric.replace("step_time/", ""), marker: { color: colourOf(position) } };
    if (runs.length > 1) return { ...base, type: "bar", x: runs.map((run) => run.name), y: runs.map((run) => run.series[metric] ? mean(run.series[metric]) : null) };
    const series = runs[0].series[metric];
    return { ...base, x: series[byId("axis").value], y: scaled(series), mode: "lines", stackgroup: "parts", line: { color: colourOf(position), width: 1 } };
  });
}

function traces(chart) {
  if (chart.stacked) return parts(chart);
  const axis = byId("axis").value;
  const amount = Number(byId("smoothing").value);
  const found = [];
  const named = new Set();
  data.runs.forEach((run) => {
    if (hidden.has(run.name)) return;
    chart.metrics.forEach((metric, position) => {
      const series = run.series[metric];
      if (!series) return;
      const short = metric.startsWith(`${chart.title}/`) ? metric.slice(chart.title.length + 1) : metric;
      const label = data.runs.length === 1 ? short : chart.metrics.length === 1 ? run.name : `${run.name}: ${short}`;
      const colour = data.runs.length === 1 ? colourOf(position) : runColour(run);
      const dash = data.runs.length === 1 ? "solid" : DASHES[position % DASHES.length];
      const lone = series.value.length === 1;
      // The colours of the runs are explained above; what is left to explain is which line is which metric.
      const explains = !named.has(metric);
      named.add(metric);
      const faded = pointedAt && pointedAt !== run.name ? { opacity: 0.15 } : {};
      const base = { ...faded, x: series[axis], name: label, mode: lone ? "markers" : "lines", showlegend: explains, legendgroup: metric };
      if (amount && !lone) found.push({ ...base, y: series.value, line: { color: colour, width: 1, dash }, opacity: faded.opacity ? 0.05 : 0.25, showlegend: false, hoverinfo: "skip" });
      if (data.runs.length > 1 && explains) found.push({ x: [null], y: [null], name: short, mode: "lines", legendgroup: metric, line: { color: variable("--quiet"), dash } });
      found.push({ ...base, showlegend: data.runs.length === 1, y: smoothed(series.value, amount), line: { color: colour, width: 2, dash }, marker: { color: colour } });
    });
  });
  return found;
}

function draw() {
  document.querySelectorAll(".plot").forEach((place) => {
    sizes.observe(place);
    const chart = data.charts[Number(place.dataset.chart)];
    if (chart) Plotly.react(place, traces(chart), layout(chart), { responsive: true, displaylogo: false, displayModeBar: false });
  });
}

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((inside) => element("th", {}, ...[inside].flat())));
  const body = rows.map((cells) => element("tr", {}, ...cells));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

// The colour of a run, wherever the run is named.
function markOf(run) {
  const mark = element("span", { class: "mark", "data-run": run.name });
  mark.style.background = runColour(run);
  return mark;
}

function paintMarks() {
  document.querySelectorAll(".mark").forEach((mark) => { mark.style.background = colourOf(places.get(mark.dataset.run)); });
}

const nameOf = (run) => data.runs.length === 1 ? [run.name] : [markOf(run), " ", run.name];
const cell = (text, kind = "") => element("td", { class: kind }, text ?? "");

function showRuns() {
  byId("runs").replaceChildren(...data.runs.map((run) => {
    const box = element("input", { type: "checkbox" });
    box.checked = !hidden.has(run.name);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
      card.classList.toggle("off", !box.checked);
      draw();
    });
    const state = element("span", { class: `state ${run.state}` }, run.state);
    const restarted = run.starts.length > 1 ? `, started ${run.starts.length} times` : "";
    const facts = element("small", {}, state, `${run.step ? ` at step ${run.step}` : ""}${restarted}`);
    const words = run.message ? [element("small", {}, run.message)] : [];
    const card = element("div", { class: `run${box.checked ? "" : " off"}` }, markOf(run), element("label", {}, box, " ", element("strong", {}, run.name), facts, ...words));
    const point = (name) => { if (data.runs.length > 1 && pointedAt !== name) { pointedAt = name; draw(); } };
    card.addEventListener("mouseenter", () => point(hidden.has(run.name) ? "" : run.name));
    card.addEventListener("mouseleave", () => point(""));
    return card;
  }));
}

function chartSections(chosen) {
  const sections = [...new Set(data.charts.map((chart) => chart.section))].filter(chosen);
  return sections.flatMap((section) => {
    const cards = data.charts.flatMap((chart, place) => chart.section !== section ? [] : [
      element("div", { class: "card" }, element("h3", {}, chart.title), element("div", { class: "plot", "data-chart": String(place) })),
    ]);
    return [element("h2", {}, section), element("div", { class: "charts" }, ...cards)];
  });
}

function evaluations() {
  const rows = Object.entries(data.evaluations).flatMap(([metric, cells]) => data.runs.flatMap((run, place) => cells[place] ? [[
    cell(metric, "key whole"), element("td", { class: "whole" }, ...nameOf(run)), ...["last", "lowest", "highest"].map((name) => cell(brief(cells[place][name]), "number")),
  ]] : []));
  if (!rows.length) return [];
  return [element("h2", {}, "Evaluation"), element("div", { class: "card" }, table(["metric", "run", "last", "lowest", "highest"], rows))];
}

// As an image, a picture that somebody else drew can run nothing.
function picture(panel, title) {
  return panel.svg
    ? element("img", { class: "picture", alt: title, src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(panel.svg)}` })
    : table(panel.columns, panel.rows.map((cells) => cells.map((text) => cell(text, /^[-+]?[\d.,]/.test(text) ? "number" : ""))));
}

// What is shown of all runs together comes first.
function together() {
  return (data.panels ?? []).flatMap((panel) => [element("h2", {}, panel.title), element("div", { class: "card" }, picture(panel, panel.title))]);
}

function panels() {
  const cards = data.runs.flatMap((run) => run.panels.map((panel) => {
    const title = data.runs.length === 1 ? panel.title : `${run.name}: ${panel.title}`;
    return element("div", { class: "card" }, element("h3", {}, ...(data.runs.length === 1 ? [title] : [markOf(run), " ", title])), picture(panel, title));
  }));
  return cards.length ? [element("h2", {}, "Results"), element("div", { class: "charts wide" }, ...cards)] : [];
}

function configs() {
  const found = [];
  if (data.runs.length > 1) {
    const rows = data.differences.map((row) => [cell(row.key, "key"), ...row.values.map((value) => cell(value, "key"))]);
    const shown = rows.length ? table(["key", ...data.runs.map(nameOf)], rows) : element("p", { class: "empty" }, "The configs are the same.");
    found.push(element("h2", {}, "Differences between the configs"), element("div", { class: "card" }, shown));
  }
  found.push(element("h2", {}, "Details"));
  const pairs = (values) => table(["key", "value"], Object.entries(values).map(([key, value]) => [cell(key, "key"), cell(value, "key")]));
  const folded = (title, inside) => element("details", {}, element("summary", {}, title), inside);
  data.runs.forEach((run) => {
    const of = data.runs.length === 1 ? "" : ` of ${run.name}`;
    found.push(folded(`Config${of}`, pairs(run.config)), folded(`Where and with what${of}`, pairs(run.manifest)));
    const starts = run.starts.map((start, place) => [cell(String(place + 1), "number"), cell(String(start.step), "number"), cell(start.time ? new Date(start.time * 1000).toLocaleString() : "")]);
    found.push(folded(`Starts${of} (${starts.length})`, table(["start", "from step", "time"], starts)));
    const saved = run.checkpoints.map((one) => [cell(String(one.step), "number"), cell(bytes(one.size), "number"), cell(one.names.join(", "))]);
    found.push(folded(`Checkpoints${of} (${saved.length})`, table(["step", "size", ""], saved)));
    if (run.log) found.push(folded(`Log${of}`, element("pre", {}, run.log)));
  });
  return found;
}

function show() {
  data.runs.forEach((run) => { if (!places.has(run.name)) places.set(run.name, places.size); });
  pointedAt = "";
  showRuns();
  const isCurve = (section) => section === "Curves";
  const rest = chartSections((section) => !isCurve(section));
  const parts = [...together(), ...evaluations(), ...chartSections(isCurve), ...panels(), ...rest, ...configs()];
  byId("controls").classList.toggle("bare", !data.charts.length);
  byId("content").replaceChildren(...(data.runs.length ? parts : [element("p", { class: "empty" }, "There are no runs here yet.")]));
  draw();
}

async function follow() {
  let tag = "";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LIVE * 1000));
    try {
      const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status !== 200) continue;
      tag = answer.headers.get("ETag") ?? "";
      const open = [...document.querySelectorAll("details")].map((one) => one.open);
      data = await answer.json();
      show();
      document.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? false; });
      document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed ?? 0) + 1);
    } catch { /* The server may be gone for a while; the page stays as it was. */ }
  }
}

async function loadPlotly() {
  const packed = Uint8Array.from(atob(byId("plotly").textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = element("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; paintMarks(); draw(); });
byId("smoothing").addEventListener("input", (event) => { byId("amount").textContent = event.target.value; draw(); });
for (const id of ["axis", "logarithmic"]) byId(id).addEventListener("change", draw);
loadPlotly().then(show).then(() => { document.body.dataset.ready = "yes"; if (LIVE) follow(); });
