"""The pages of a server, which need no network: one to try it, one that says what can be asked."""

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the pages may load: nothing but answers of this server."""
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --edge: #8888; --soft: #595959; --accent: #1d4ed8; --wrong: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --soft: #b3b3b3; --accent: #3b82f6; --wrong: #f87171; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
a { color: var(--accent); }
form { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: .8rem;
  margin-bottom: 1.5rem; align-items: end; }
label { display: grid; gap: .2rem; font-size: .85rem; }
input, textarea { font: inherit; padding: .4rem .5rem; border: 1px solid var(--edge); border-radius: .3rem;
  width: 100%; }
button { font: inherit; padding: .45rem 1rem; border: 0; border-radius: .3rem; background: var(--accent); color: #fff; }
button:focus-visible, input:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; }
th, td { text-align: left; padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: .9em; } .error { color: var(--wrong); } .soft { color: var(--soft); font-size: .85rem; }
"""


def _page(title: str, body: str, script: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body>{body}<script>{script}</script></body></html>"
    )


_ASK_BODY = """
<h1>Recommendations</h1>
<p class="soft" id="health">asking the server ...</p>
<form id="ask">
  <label>user<input name="user" autocomplete="off" placeholder="a token of the data"></label>
  <label>history, oldest first, by commas
    <input name="history" autocomplete="off" placeholder="instead of a user"></label>
  <label>without<input name="exclude" autocomplete="off" placeholder="items, by commas"></label>
  <label>how many<input name="k" type="number" min="1" value="10"></label>
  <div><button>Recommend</button></div>
</form>
<form id="like">
  <label>items like<input name="item" autocomplete="off"></label>
  <label>how many<input name="k" type="number" min="1" value="10"></label>
  <div><button>Find</button></div>
</form>
<div id="answer" aria-live="polite"></div>
<p class="soft"><a href="/docs">what can be asked</a> &middot; <a href="/metrics">metrics</a>
&middot; <a href="/health">health</a></p>
"""
_ASK_SCRIPT = """
const answer = document.getElementById("answer");
const make = (name, text, parent, kind) => {
  const one = document.createElement(name);
  if (text !== undefined) one.textContent = text;
  if (kind) one.className = kind;
  if (parent) parent.append(one);
  return one;
};
const list = text => text.split(",").map(one => one.trim()).filter(one => one);
async function ask(path, body) {
  answer.replaceChildren();
  let status, found;
  try {
    const options = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
    const reply = await fetch(path, options);
    status = reply.status; found = await reply.json();
  } catch (error) {
    make("p", "the server does not answer", answer, "error");
    return;
  }
  if (status !== 200) { make("p", found.error, answer, "error"); return; }
  if (found.popular) make("p", "the model does not know this user: this is what is popular", answer, "soft");
  const table = make("table", undefined, answer), head = make("tr", undefined, table);
  const explained = found.items.some(one => (one.because || []).length);
  make("th", "", head, "number"); make("th", "item", head); make("th", "score", head, "number");
  if (explained) make("th", "because of", head);
  found.items.forEach((one, place) => {
    const row = make("tr", undefined, table);
    make("td", place + 1, row, "number"); make("td", one.item, row);
    make("td", one.score === null ? "" : one.score.toPrecision(5), row, "number");
    if (explained) make("td", (one.because || []).join(", "), row);
  });
  if (!found.items.length) make("p", "nothing is left to recommend", answer);
}
document.getElementById("ask").addEventListener("submit", event => {
  event.preventDefault();
  const given = new FormData(event.target), body = {k: Number(given.get("k"))};
  if (given.get("user").trim()) body.user = given.get("user").trim();
  const history = list(given.get("history")), exclude = list(given.get("exclude"));
  if (history.length) { body.history = history; }
  if (exclude.length) body.exclude = exclude;
  ask("/recommend", body);
});
document.getElementById("like").addEventListener("submit", event => {
  event.preventDefault();
  const given = new FormData(event.target);
  ask("/similar", {item: given.get("item").trim(), k: Number(given.get("k"))});
});
const asked = new URLSearchParams(location.search), form = document.getElementById("ask");
for (const [name, value] of asked) if (form.elements[name]) form.elements[name].value = value;
if (asked.has("user") || asked.has("history")) form.requestSubmit();
fetch("/health").then(reply => reply.json()).then(facts => {
  document.getElementById("health").textContent =
    `${facts.model}: ${facts.users} users, ${facts.items} items` + (facts.problem ? `; ${facts.problem}` : "");
});
"""
ASK = _page("Recommendations", _ASK_BODY, _ASK_SCRIPT)
"""The page to try a server."""

_DOCS_BODY = """
<h1>What can be asked</h1>
<p class="soft">from <a href="/openapi.json">/openapi.json</a> &middot; <a href="/">try it</a></p>
<div id="paths">reading ...</div>
"""
_DOCS_SCRIPT = """
const make = (name, text, parent, kind) => {
  const one = document.createElement(name);
  if (text !== undefined) one.textContent = text;
  if (kind) one.className = kind;
  if (parent) parent.append(one);
  return one;
};
const kind = schema => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return [...new Set(schema.anyOf.map(kind))].join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  const bounds = [["minimum", "from"], ["maximum", "to"], ["maxItems", "at most"]];
  return [schema.type || "anything", ...bounds.filter(([name]) => name in schema)
    .map(([name, word]) => `${word} ${schema[name]}`)].join(" ");
};
const table = (schema, schemas, parent) => {
  const body = schema && schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
  if (!body || !body.properties) return;
  const rows = make("table", undefined, parent), head = make("tr", undefined, rows);
  for (const name of ["field", "type", "default", "meaning"]) make("th", name, head);
  for (const [name, one] of Object.entries(body.properties)) {
    const row = make("tr", undefined, rows), needed = (body.required || []).includes(name);
    make("code", name, make("td", undefined, row));
    make("td", kind(one), row);
    make("td", needed ? "needed" : "default" in one ? JSON.stringify(one.default) : "", row);
    make("td", one.description || "", row);
  }
};
fetch("/openapi.json").then(reply => reply.json()).then(api => {
  const parent = document.getElementById("paths"), schemas = (api.components || {}).schemas || {};
  parent.replaceChildren();
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, one] of Object.entries(methods)) {
      make("h2", `${method.toUpperCase()} ${path}`, parent);
      make("p", one.description || one.summary, parent);
      const body = one.requestBody && one.requestBody.content["application/json"];
      if (body) { make("p", "asked", parent, "soft"); table(body.schema, schemas, parent); }
      const good = one.responses["200"], answered = good && good.content && good.content["application/json"];
      if (answered && answered.schema && answered.schema.$ref) {
        make("p", "answered", parent, "soft"); table(answered.schema, schemas, parent);
      }
      const others = Object.entries(one.responses).filter(([status]) => status !== "200");
      if (others.length) {
        make("p", "refused", parent, "soft");
        const list = make("ul", undefined, parent);
        for (const [status, about] of others) make("li", `${status}: ${about.description}`, list);
      }
    }
});
"""
DOCS = _page("What can be asked", _DOCS_BODY, _DOCS_SCRIPT)
"""The page that says what can be asked."""
