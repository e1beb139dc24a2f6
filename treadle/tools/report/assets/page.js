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
const MANY = 8;
const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);
const hidden = new Set();
const hiddenMetrics = new Set();
const opened = new Set();
const plots = new Map();
let sorted = null;
let pointedAt = "";
let shownPoint = 0;
const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => { if (target.data && target.offsetParent) Plotly.Plots.resize(target); }));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const isDark = () => document.documentElement.dataset.theme === "dark";
// Behind the chosen ones come hues as far from their neighbours as can be: each place has a colour of its own.
const colourOf = (place) => place < COLOURS.length
  ? (isDark() ? LIGHT_COLOURS : COLOURS)[place]
  : `hsl(${((place * 137.508) % 360).toFixed(1)}, 70%, ${(isDark() ? 62 : 38) + (place % 3) * 7}%)`;
const runColour = (run) => colourOf(run.colour);
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shortened = (text, most = 40) => text.length > most ? `${text.slice(0, most / 2)}…${text.slice(1 - most / 2)}` : text;

function brief(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

const counted = (count) => count.toLocaleString("en");

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(unit && count < 10 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  for (const [large, small, units] of [[86400, 3600, "dh"], [3600, 60, "hm"], [60, 1, "ms"]]) {
    if (whole >= large) return `${Math.floor(whole / large)}${units[0]}${String(Math.floor((whole % large) / small)).padStart(2, "0")}${units[1]}`;
  }
  return `${whole}s`;
}

function large(count) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"]]) if (count >= size) return `${(count / size).toPrecision(3)}${unit}`;
  return counted(count);
}

// Curves

// An exponential average whose first values are not drawn towards zero; gaps stay gaps.
function averaged(values, amount) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = amount * mean + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return mean / weight;
  });
}

// From both ends, so that a curve that falls is not drawn behind where it is.
function smoothed(values, amount) {
  if (!amount) return values;
  const backward = averaged([...values].reverse(), amount).reverse();
  return averaged(values, amount).map((value, place) => value === null ? null : (value + backward[place]) / 2);
}

// A curve is noisy that goes up and down far more than it gets anywhere: smoothing a short or a smooth one would only bend it.
function isNoisy(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 20) return false;
  let way = 0;
  let turns = 0;
  for (let place = 1; place < known.length; place += 1) {
    way += Math.abs(known[place] - known[place - 1]);
    if (place > 1 && (known[place] - known[place - 1]) * (known[place - 1] - known[place - 2]) < 0) turns += 1;
  }
  const ordered = [...known].sort((a, b) => a - b);
  // Without the first drop, which is larger than all noise.
  const range = ordered[Math.floor(known.length * 0.9)] - ordered[Math.floor(known.length * 0.1)];
  return turns > known.length / 5 && way > 3 * range;
}

function epochsAt(run, steps) {
  if (!run.epochs.length) return steps.map(() => null);
  const ends = [[0, 0], ...run.epochs];
  let at = 1;
  return steps.map((step) => {
    while (at < ends.length - 1 && step > ends[at][0]) at += 1;
    const [before, done] = ends[at - 1];
    const [end, then] = ends[at];
    return end === before ? then : done + ((step - before) * (then - done)) / (end - before);
  });
}

const UNITS = [["hours", 3600, 7200], ["minutes", 60, 300], ["seconds", 1, 0]];
const timeUnit = () => { const most = Math.max(0, ...data.runs.map((run) => run.seconds)); return UNITS.find(([, , from]) => most >= from); };
const axis = () => byId("axis").value;

function along(run, series) {
  if (axis() === "epoch") return epochsAt(run, series.step);
  if (axis() === "seconds") { const [, length] = timeUnit(); return series.seconds.map((value) => value / length); }
  return series.step;
}

const words = () => byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
// A word stands for a part of the name or the state, "key=value" for a setting.
function matches(run) {
  return words().every((word) => {
    const [key, ...rest] = word.split("=");
    const wanted = rest.join("=");
    const fits = (value) => value.toLowerCase() === wanted || (wanted !== "" && Number(value) === Number(wanted));
    if (rest.length) return Object.entries(run.config).some(([name, value]) => `.${name.toLowerCase()}`.endsWith(`.${key}`) && fits(value));
    return run.name.toLowerCase().includes(word) || run.state.includes(word);
  });
}
const isShown = (run) => !hidden.has(run.name) && matches(run);
const visible = () => data.runs.filter(isShown);

// Around a curve that stays at one value, such as a rate, an axis of its own would show that value as next to nothing.
function rangeOf(drawn, scale) {
  const values = new Set(drawn.flatMap((trace) => trace.y).filter((value) => value !== null));
  const [value] = values;
  if (values.size !== 1 || scale === "log" || value === 0) return {};
  return { range: [Math.min(0, 2 * value), Math.max(0, 2 * value)] };
}

function layout(chart, drawn) {
  const ink = variable("--ink");
  const common = { gridcolor: variable("--grid"), zeroline: false, linecolor: variable("--line"), automargin: true };
  const compares = chart.stacked && visible().length > 1;
  const title = axis() === "seconds" ? `training time, ${timeUnit()[0]}` : axis();
  const scale = byId("logarithmic").checked && !chart.stacked ? "log" : "linear";
  return {
    barmode: "stack",
    margin: { l: 50, r: 10, t: 6, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12 },
    showlegend: false,
    hovermode: visible().length * chart.metrics.length > 10 ? "closest" : "x unified",
    hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--line"), font: { color: ink }, namelength: 44 },
    // What somebody zoomed to stays, whatever else is drawn anew; another axis is another place.
    uirevision: `${axis()} ${scale} ${compares}`,
    xaxis: { ...common, type: compares ? "category" : "linear", title: { text: compares ? "" : title, standoff: 6 } },
    yaxis: { ...common, type: scale, rangemode: chart.stacked ? "tozero" : "normal", ...rangeOf(drawn, scale) },
    shapes: compares ? [] : restarts(),
  };
}

// Every start after the first is a thin line: the curve itself goes on as if nothing had happened.
function restarts() {
  if (axis() === "seconds" || visible().length > MANY) return [];
  return visible().flatMap((run) => along(run, { step: run.starts.slice(1).map((start) => start.step) }).filter((at) => at !== null).map((at) => ({
    type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1,
    line: { color: runColour(run), width: 1, dash: "dot" }, opacity: 0.6, name: "restart",
  })));
}

// Parts of a whole: over the course of one run, or the means of several runs beside each other.
function parts(chart) {
  const runs = visible();
  const scaled = (series) => series.value.map((value) => value === null ? null : value * 1000);
  const mean = (series) => { const values = scaled(series).filter((value) => value !== null); return values.reduce((sum, value) => sum + value, 0) / values.length; };
  return chart.metrics.map((metric, position) => [metric, position]).filter(([metric]) => runs.some((run) => run.series[metric]) && !hiddenMetrics.has(metric)).map(([metric, position]) => {
    const base = { name: metric.replace("step_time/", ""), marker: { color: colourOf(position) } };
    if (runs.length > 1) return { ...base, type: "bar", x: runs.map((run) => shortened(run.name, 24)), y: runs.map((run) => run.series[metric] ? mean(run.series[metric]) : null) };
    const series = runs[0].series[metric];
    return { ...base, x: along(runs[0], series), y: scaled(series), mode: "lines", stackgroup: "parts", line: { color: colourOf(position), width: 1 } };
  });
}

const label = (chart, metric) => metric.startsWith(`${chart.title}/`) ? metric.slice(chart.title.length + 1) : metric.replace("step_time/", "");

function traces(chart) {
  if (chart.stacked) return parts(chart);
  const found = [];
  const alone = data.runs.length === 1;
  for (const run of visible()) {
    chart.metrics.forEach((metric, position) => {
      const series = run.series[metric];
      if (!series || hiddenMetrics.has(metric)) return;
      const colour = alone ? colourOf(position) : runColour(run);
      const dash = alone ? "solid" : DASHES[position % DASHES.length];
      const lone = series.value.length === 1;
      const amount = chart.smooth && isNoisy(series.value) ? Number(byId("smoothing").value) : 0;
      const name = shortened(alone ? label(chart, metric) : chart.metrics.length === 1 ? run.name : `${run.name}: ${label(chart, metric)}`, 60);
      const faded = pointedAt && pointedAt !== run.name ? { opacity: 0.15 } : {};
      const base = { ...faded, x: along(run, series), name, mode: lone ? "markers" : "lines" };
      if (amount && visible().length <= MANY) found.push({ ...base, y: series.value, line: { color: colour, width: 1, dash }, opacity: faded.opacity ? 0.05 : 0.25, hoverinfo: "skip" });
      found.push({ ...base, y: smoothed(series.value, amount), line: { color: colour, width: visible().length > MANY ? 1.3 : 2, dash }, marker: { color: colour } });
    });
  }
  return found;
}

// Plots that nobody sees are drawn when somebody comes near them.
function drawNear() {
  for (const place of document.querySelectorAll(".plot[data-stale]")) {
    const box = place.getBoundingClientRect();
    if (box.bottom < -900 || box.top > innerHeight + 900) continue;
    const chart = plots.get(place.dataset.chart).chart;
    place.removeAttribute("data-stale");
    const drawn = traces(chart);
    Plotly.react(place, drawn, layout(chart, drawn), { responsive: false, displaylogo: false, displayModeBar: false });
    sizes.observe(place);
  }
}

function draw() {
  document.querySelectorAll(".plot").forEach((place) => place.setAttribute("data-stale", ""));
  drawNear();
}

function legendOf(chart) {
  const metrics = chart.metrics.filter((metric) => data.runs.some((run) => run.series[metric]));
  if (metrics.length < 2) return [];
  const entries = metrics.map((metric) => {
    const position = chart.metrics.indexOf(metric);
    const line = element("i", { class: "line" });
    const coloured = data.runs.length === 1 || chart.stacked;
    line.style.borderTop = `3px ${coloured ? "solid" : { dash: "dashed", longdash: "dashed", dot: "dotted", dashdot: "dotted" }[DASHES[position % DASHES.length]] ?? "solid"} ${coloured ? colourOf(position) : variable("--quiet")}`;
    const entry = element("button", { type: "button", title: `${metric}: show or hide`, "aria-pressed": String(!hiddenMetrics.has(metric)) }, line, element("span", {}, label(chart, metric)));
    entry.addEventListener("click", () => {
      if (!hiddenMetrics.delete(metric)) hiddenMetrics.add(metric);
      paintLegends();
      draw();
    });
    return entry;
  });
  return [element("div", { class: "legend" }, ...entries)];
}

function paintLegends() {
  for (const { card, chart } of plots.values()) {
    card.querySelector(".legend")?.remove();
    card.querySelector("h3").after(...legendOf(chart));
  }
}

// A chart keeps its place on the page while the runs grow, and with it what somebody zoomed to.
function cardOf(chart) {
  const key = `${chart.section}/${chart.title}`;
  if (!plots.has(key)) {
    const card = element("div", { class: "card chart" }, element("h3", {}, chart.title), element("div", { class: "plot", "data-chart": key }));
    plots.set(key, { card });
  }
  const { card } = plots.get(key);
  plots.set(key, { card, chart });
  const also = chart.metrics.flatMap((metric) => data.repeated[metric] ?? []);
  card.title = also.length ? `the same: ${also.join(", ")}` : "";
  return card;
}

function chartSections(chosen) {
  const sections = [...new Set(data.charts.map((chart) => chart.section))].filter(chosen);
  return sections.flatMap((section) => [
    element("h2", {}, section),
    element("div", { class: "charts" }, ...data.charts.filter((chart) => chart.section === section).map(cardOf)),
  ]);
}

// Runs and tables

// The colour of a run, wherever the run is named.
function markOf(run) {
  const mark = element("span", { class: "mark", "data-run": run.name, "data-colour": String(run.colour) });
  mark.style.background = runColour(run);
  return mark;
}

function paintMarks() {
  document.querySelectorAll(".mark").forEach((mark) => { mark.style.background = colourOf(Number(mark.dataset.colour)); });
}

const nameOf = (run) => data.runs.length === 1 ? [run.name] : [markOf(run), " ", element("span", { class: "name", title: run.name }, run.name)];
const cell = (text, kind = "") => element("td", kind ? { class: kind } : {}, text ?? "");

function table(heads, rows, key = "") {
  const head = element("tr", {}, ...heads.map((inside) => inside instanceof HTMLElement && inside.tagName === "TH" ? inside : element("th", {}, ...[inside].flat())));
  const body = rows.map((cells) => Array.isArray(cells) ? element("tr", {}, ...cells) : cells);
  return element("div", { class: "scroll", "data-key": key }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

// Redrawing is put off to the next moment: a pointer that crosses thirty cards asks for one drawing.
function point(name) {
  if (data.runs.length < 2 || pointedAt === name) return;
  pointedAt = name;
  clearTimeout(shownPoint);
  shownPoint = setTimeout(draw, 40);
}

function progressOf(run) {
  const step = run.step ? `step ${counted(run.step)}` : "";
  const of = run.state === "running" && run.limit ? ` of ${counted(run.limit)}` : "";
  const restarted = run.starts.length > 1 ? `started ${run.starts.length} times` : "";
  const seen = LIVE && run.state === "running" && run.beat ? `seen ${duration(Math.max(0, Date.now() / 1000 - run.beat))} ago` : "";
  return [step + (step ? of : ""), restarted, seen].filter(Boolean).join(", ");
}

function factsOf(run) {
  const parameters = run.parameters && (large(run.parameters.trained) + (run.parameters.frozen ? ` + ${large(run.parameters.frozen)} frozen` : ""));
  const best = run.best && [element("b", {}, brief(run.best.value)), element("small", {}, ` ${run.best.step ? `at step ${counted(run.best.step)}` : ""}`)];
  const pairs = [
    [run.best ? `${run.best.is} ${run.best.metric}` : "", best, "best"],
    ["duration", run.seconds ? duration(run.seconds) : "", ""],
    ["parameters", parameters, ""],
    ["device", run.device, ""],
  ];
  return pairs.filter(([, value]) => value && value.length).map(([name, value, kind]) => element("div", kind ? { class: kind } : {}, element("dt", { title: name }, name), element("dd", { title: typeof value === "string" ? value : null }, ...[value].flat())));
}

function cardOfRun(run) {
  const box = element("input", { type: "checkbox", "aria-label": `Show ${run.name}` });
  box.checked = !hidden.has(run.name);
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
    card.classList.toggle("off", !box.checked);
    draw();
  });
  const head = element("label", { class: "head" }, ...(data.runs.length > 1 ? [box] : []), markOf(run), element("strong", { title: run.name }, run.name), element("span", { class: `state ${run.state}` }, run.state));
  const card = element("div", { class: `run${box.checked ? "" : " off"}`, "data-run": run.name }, head, element("dl", {}, ...factsOf(run)), element("small", { class: "progress" }, progressOf(run)));
  if (run.message) card.append(element("small", { class: "message" }, run.message));
  card.addEventListener("mouseenter", () => point(isShown(run) ? run.name : ""));
  card.addEventListener("mouseleave", () => point(""));
  return card;
}

function showRuns() {
  byId("runs").className = data.runs.length > MANY ? "many" : "";
  byId("runs").replaceChildren(...data.runs.map(cardOfRun));
  filterRuns();
}

// What does not match leaves the cards, the table and the curves.
function filterRuns() {
  const shown = new Set(data.runs.filter(matches).map((run) => run.name));
  document.querySelectorAll(".run, tr[data-run]").forEach((one) => { one.hidden = !shown.has(one.dataset.run); });
  byId("matches").textContent = words().length ? `${shown.size} of ${data.runs.length}` : "";
}

// What a cell of the table of evaluations shows: the best value where it is known which that is, else the last.
function valueOf(metric, values) {
  if (!values) return null;
  const place = { max: "highest", min: "lowest" }[data.directions[metric]] ?? "last";
  return { value: values[place], step: values[`${place}_step`], last: values.last };
}

function evaluations() {
  const metrics = Object.keys(data.evaluations);
  if (!metrics.length) return [];
  const cells = Object.fromEntries(metrics.map((metric) => [metric, data.evaluations[metric].map((values) => valueOf(metric, values))]));
  const best = Object.fromEntries(metrics.map((metric) => {
    const values = cells[metric].filter(Boolean).map((one) => one.value);
    const how = data.directions[metric];
    return [metric, !how ? null : how === "max" ? Math.max(...values) : Math.min(...values)];
  }));
  const rows = data.runs.map((run, place) => {
    const told = metrics.map((metric) => {
      const one = cells[metric][place];
      if (!one) return cell("");
      const isBest = data.runs.length > 1 && best[metric] === one.value;
      const last = one.last === one.value ? "" : `, last ${brief(one.last)}`;
      return element("td", { class: `number${isBest ? " best" : ""}` }, element("b", {}, brief(one.value)), element("small", {}, `step ${counted(one.step)}${last}`));
    });
    const row = element("tr", { "data-run": run.name, "data-place": String(place) }, element("th", { scope: "row", class: "whole" }, ...nameOf(run)), ...told);
    row.addEventListener("mouseenter", () => point(isShown(run) ? run.name : ""));
    row.addEventListener("mouseleave", () => point(""));
    return row;
  });
  const head = (metric, text, title) => {
    const button = element("button", { type: "button", class: "sort", "data-metric": metric, title }, text);
    const made = element("th", { scope: "col", class: metric ? "number" : "whole" }, ...(data.runs.length > 1 ? [button] : [text]));
    button.addEventListener("click", () => {
      sorted = sorted?.metric !== metric ? { metric, turned: false } : sorted.turned ? null : { metric, turned: true };
      sortRows();
    });
    return made;
  };
  const arrow = { max: " ↑", min: " ↓" };
  const told = { max: "higher is better", min: "lower is better" };
  const heads = metrics.map((metric) => head(metric, `${metric}${arrow[data.directions[metric]] ?? ""}`, `${metric}: ${told[data.directions[metric]] ?? "the last value"}; sort by it`));
  const found = element("div", { class: `card${data.runs.length > MANY ? " dense" : ""}`, id: "evaluation" }, table([head("", "run", "sort by name"), ...heads], rows, "evaluation"));
  const note = data.runs.length > 1 ? element("small", { class: "note" }, "The best value of each run and its step; ★ is the best of all runs. Click a column to sort.") : element("small", { class: "note" }, "The best value and its step.");
  found.append(note);
  return [element("h2", {}, "Evaluation"), found];
}

function sortRows() {
  const body = document.querySelector("#evaluation tbody");
  if (!body) return;
  const order = (row) => Number(row.dataset.place);
  const rows = [...body.children];
  const value = (row) => valueOf(sorted.metric, data.evaluations[sorted.metric]?.[order(row)])?.value;
  rows.sort((a, b) => {
    if (!sorted) return order(a) - order(b);
    const way = sorted.turned ? -1 : 1;
    if (!sorted.metric) return way * a.dataset.run.localeCompare(b.dataset.run, "en", { numeric: true });
    const [one, other] = [value(a), value(b)];
    // Runs without a value stay at the end either way.
    if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
    return way * (data.directions[sorted.metric] === "min" ? one - other : other - one) || order(a) - order(b);
  });
  body.append(...rows);
  document.querySelectorAll("#evaluation th").forEach((head) => {
    const metric = head.querySelector(".sort")?.dataset.metric;
    if (sorted && metric === sorted.metric) head.setAttribute("aria-sort", sorted.turned ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
  });
}

// Metrics that have one value in each run are numbers, and no curves.
function once() {
  const metrics = Object.keys(data.once);
  if (!metrics.length) return [];
  const rows = data.runs.map((run, place) => element("tr", { "data-run": run.name }, element("th", { scope: "row", class: "whole" }, ...nameOf(run)), ...metrics.map((metric) => cell(brief(data.once[metric][place]), "number"))));
  const heads = metrics.map((metric) => element("th", { scope: "col", class: "number" }, metric));
  return [element("h2", {}, "Reported once"), element("div", { class: "card" }, table([element("th", { scope: "col", class: "whole" }, "run"), ...heads], rows, "once"))];
}

// As an image, a picture that somebody else drew can run nothing.
function picture(panel, title) {
  return panel.svg
    ? element("img", { class: "picture", alt: title, src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(panel.svg)}` })
    : table(panel.columns, panel.rows.map((cells) => cells.map((text) => cell(text, /^[-+]?[\d.,]/.test(text) ? "number" : ""))), `panel ${title}`);
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

// What is folded is made when it is opened, and stays open while the page follows its runs.
function folded(key, title, inside) {
  const made = element("details", { "data-key": key }, element("summary", {}, ...[title].flat()));
  let full = false;
  const fill = () => { if (!full) { full = true; made.append(...[inside()].flat()); } };
  if (opened.has(key)) { made.open = true; fill(); }
  made.addEventListener("toggle", () => {
    if (made.open) { opened.add(key); fill(); } else opened.delete(key);
  });
  return made;
}

function differences() {
  if (data.runs.length < 2) return [];
  const found = data.differences;
  const inside = () => {
    if (!found.length) return element("p", { class: "empty" }, "The configs are the same.");
    const value = (text) => element("td", { class: "key", title: text }, text ?? "");
    // The longer side goes down the page.
    if (found.length > data.runs.length) return table(["key", ...data.runs.map((run) => element("th", {}, ...nameOf(run)))], found.map((row) => [cell(row.key, "key"), ...row.values.map(value)]), "differences");
    return table(["run", ...found.map((row) => row.key)], data.runs.map((run, place) => [element("th", { scope: "row", class: "whole" }, ...nameOf(run)), ...found.map((row) => value(row.values[place]))]), "differences");
  };
  return [folded("differences", `Differences between the configs (${found.length})`, inside)];
}

function detailsOf(run) {
  const pairs = (values) => table(["key", "value"], Object.entries(values).map(([key, value]) => [cell(key, "key"), cell(value, "key")]));
  const part = (title, inside) => folded(`${title} of ${run.name}`, title, inside);
  const starts = run.starts.map((start, place) => [cell(String(place + 1), "number"), cell(String(start.step), "number"), cell(start.time ? new Date(start.time * 1000).toLocaleString() : "")]);
  const saved = run.checkpoints.map((one) => [cell(String(one.step), "number"), cell(bytes(one.size), "number"), cell(one.names.join(", "))]);
  const found = [part("Config", () => pairs(run.config)), part("Environment", () => pairs(run.manifest))];
  if (starts.length > 1) found.push(part(`Starts (${starts.length})`, () => table(["start", "from step", "time"], starts)));
  if (saved.length) found.push(part(`Checkpoints (${saved.length})`, () => table(["step", "size", ""], saved)));
  if (run.log) found.push(part("Log", () => element("pre", {}, run.log)));
  return found;
}

function configs() {
  const each = data.runs.length === 1 ? detailsOf(data.runs[0]) : data.runs.map((run) => folded(`details of ${run.name}`, nameOf(run), () => detailsOf(run)));
  return [element("h2", {}, "Details"), ...differences(), ...each];
}

// The page

function show() {
  const places = new Map([...document.querySelectorAll(".scroll[data-key]")].map((one) => [one.dataset.key, one.scrollLeft]));
  showRuns();
  const isCurve = (section) => section === "Curves";
  const rest = chartSections((section) => !isCurve(section));
  const content = [...together(), ...evaluations(), ...chartSections(isCurve), ...panels(), ...rest, ...once(), ...configs()];
  byId("content").replaceChildren(...(data.runs.length ? content : [element("p", { class: "empty" }, "There are no runs here yet.")]));
  for (const [key, { card }] of plots) if (!card.isConnected) { sizes.unobserve(card.querySelector(".plot")); plots.delete(key); }
  document.querySelectorAll(".scroll[data-key]").forEach((one) => { one.scrollLeft = places.get(one.dataset.key) ?? 0; });
  byId("controls").classList.toggle("bare", !data.charts.length);
  byId("controls").classList.toggle("lone", data.runs.length < 2);
  byId("controls").classList.toggle("smooth", !data.charts.some((chart) => chart.smooth && chart.metrics.some((metric) => data.runs.some((run) => run.series[metric] && isNoisy(run.series[metric].value)))));
  const epochs = byId("axis").querySelector('[value="epoch"]');
  epochs.hidden = epochs.disabled = !data.runs.some((run) => run.epochs.length);
  if (epochs.disabled && axis() === "epoch") byId("axis").value = "step";
  sortRows();
  filterRuns();
  paintLegends();
  draw();
}

async function follow() {
  let tag = "";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LIVE * 1000));
    try {
      const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {} });
      document.body.classList.remove("gone");
      if (answer.status !== 200) { byId("runs").querySelectorAll(".run").forEach((card, place) => { card.querySelector(".progress").textContent = progressOf(data.runs[place]); }); continue; }
      tag = answer.headers.get("ETag") ?? "";
      data = await answer.json();
      show();
      document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed ?? 0) + 1);
    } catch { document.body.classList.add("gone"); /* The server may be gone for a while; the page stays as it was. */ }
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
byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; paintMarks(); paintLegends(); draw(); });
byId("smoothing").addEventListener("input", (event) => { byId("amount").textContent = event.target.value; draw(); });
byId("filter").addEventListener("input", () => { filterRuns(); draw(); });
for (const id of ["axis", "logarithmic"]) byId(id).addEventListener("change", draw);
for (const event of ["scroll", "resize"]) addEventListener(event, drawNear, { passive: true });
loadPlotly().then(show).then(() => { document.body.dataset.ready = "yes"; if (LIVE) follow(); });
