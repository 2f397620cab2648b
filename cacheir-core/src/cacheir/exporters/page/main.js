// What a person does: moving the slider, choosing graphs and ops, keys, colours; and the start of the page.

function goTo(number) {
  const wanted = Math.max(0, Math.min(lastStep(), number));
  if (wanted !== state.step) state.step = wanted;
  const step = stepNow();
  const names = graphNames(step);
  const changed = step.changes.map((change) => change.graph);
  if (!names.includes(state.graph)) state.graph = names[0];
  if (byId("follow").checked && changed.length && !changed.includes(state.graph)) state.graph = mostChanged(step);
  if (state.node.startsWith("-")) state.node = "";
  if (!state.node && state.tab === "op") state.tab = "step";
  drawAll();
  revealChange();
}

function mostChanged(step) {
  const sizes = step.changes.map((change) => change.merged.filter(([status]) => status !== 0).length);
  return step.changes[sizes.indexOf(Math.max(...sizes))].graph;
}

function setMode(mode) {
  state.mode = mode;
  state.step = Math.min(state.step, lastStep());
  if (!graphNames(stepNow()).includes(state.graph)) state.graph = graphNames(stepNow())[0];
  drawTicks();
  drawAll();
}

function showGraph(name) {
  if (name !== state.graph) state.node = "";
  state.graph = name;
  drawAll();
}

// Choose an op by its key; `go` brings it into view, and unfolds nothing: a folded run shows its member's details.
function choose(key, go = false) {
  if (canvas.classList.contains("dragged")) return;
  state.node = key;
  state.tab = "op";
  markNodes();
  drawEdges();
  drawDetails();
  markChart();
  const item = findItem(drawn.items, key);
  if (go && item !== null) reveal(item.key);
  writePlace();
}

function openItem(item) {
  if (item.op.callee) showGraph(item.op.callee);
}

function toggleFold(key) {
  if (!state.unfolded.delete(key)) state.unfolded.add(key);
  drawAll();
}

function moveBy(steps) {
  if (!drawn.items.length) return;
  const now = drawn.items.indexOf(findItem(drawn.items, state.node));
  const start = now < 0 ? (steps > 0 ? -1 : drawn.items.length) : now;
  const at = Math.max(0, Math.min(drawn.items.length - 1, start + steps));
  choose(drawn.items[at].key, true);
}

function drawAll() {
  drawNow();
  drawSteps();
  drawTabs();
  drawGraph();
  if (byId("search").value.trim()) runSearchMarks();
  drawDetails();
  drawChart();
  writePlace();
}

function drawTabs() {
  choices(
    byId("modes"),
    "group",
    data.modes.map((mode, number) => [number, mode.mode]),
    state.mode,
    setMode,
  );
  const step = stepNow();
  const entries = graphNames(step).map((name) => {
    const { added, removed } = changeCounts(step, name);
    return [name, "@" + name, { class: added || removed ? "has-changes" : null }];
  });
  choices(byId("graphs"), "tab", entries, state.graph, showGraph);
}

// --- the place in the address, so that a link leads to a step, a graph and an op

function writePlace() {
  const parts = [modeNow().mode, state.step, state.graph, state.node];
  history.replaceState(null, "", "#" + parts.map((part) => encodeURIComponent(part)).join("/"));
}

function readPlace() {
  let parts = [];
  try {
    parts = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    parts = []; // an address that somebody cut off in the middle of an escape
  }
  const [mode, step, graph, node] = parts;
  const preferred = data.modes.findIndex((each) => each.mode === (mode || "decode"));
  state.mode = Math.max(0, preferred);
  state.step = /^\d+$/.test(step ?? "") ? Math.min(Number(step), lastStep()) : lastStep();
  const names = graphNames(stepNow());
  state.graph = names.includes(graph) ? graph : names[0];
  state.node = node ?? "";
}

// --- colours

const THEMES = ["auto", "light", "dark"];
const THEME_TEXTS = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = THEME_TEXTS[theme];
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);

// --- keys

const KEYS = [
  ["[ and ]", "one step back, one step on", { "[": () => goTo(state.step - 1), "]": () => goTo(state.step + 1) }],
  ["{ and }", "the first step, the finished graph", { "{": () => goTo(0), "}": () => goTo(lastStep()) }],
  ["n and p", "next or last step that changed something", { n: () => goToChange(1), p: () => goToChange(-1) }],
  ["d", "the next op that this step changed", { d: () => nextChanged() }],
  ["/", "search", { "/": () => byId("search").focus() }],
  ["m", "the next mode", { m: () => setMode((state.mode + 1) % data.modes.length) }],
  ["g", "the next graph", { g: () => nextGraph() }],
  ["u", "back to main", { u: () => showGraph(graphNames(stepNow())[0]) }],
  ["x", "fold or unfold the calls of main", { x: () => foldAll() }],
  ["f", "the whole graph", { f: fitAll }],
  ["+ and -", "larger, smaller", { "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8) }],
  ["c", "memory or roofline", { c: () => nextChart() }],
  ["t", "colours", { t: nextTheme }],
  ["?", "these keys", { "?": () => byId("keys").showModal() }],
];
const IN_GRAPH = [
  ["↑ ↓", "the op before, the op after", { ArrowUp: () => moveBy(-1), ArrowDown: () => moveBy(1) }],
  ["Home End", "the first op, the last op", { Home: () => moveBy(-1e9), End: () => moveBy(1e9) }],
  ["Enter", "open the graph that a call calls", { Enter: () => openChosen() }],
  ["Esc", "choose nothing", { Escape: () => choose("") }],
];
const bound = (rows) => Object.assign({}, ...rows.map((row) => row[2]));

function goToChange(direction) {
  for (let at = state.step + direction; at >= 0 && at <= lastStep(); at += direction) {
    if (modeNow().steps[at].outcome === "changed") return goTo(at);
  }
}

function nextChanged() {
  const changed = drawn.items.filter((item) => item.status !== "same");
  if (!changed.length) return;
  const now = changed.indexOf(findItem(drawn.items, state.node));
  choose(changed[(now + 1) % changed.length].key, true);
}

function nextGraph() {
  const names = graphNames(stepNow());
  showGraph(names[(names.indexOf(state.graph) + 1) % names.length]);
}

function foldAll() {
  const callees = new Set(drawn.items.map((item) => item.op.callee).filter(Boolean));
  for (const callee of callees) toggleFold(state.graph + " " + callee);
}

function nextChart() {
  state.chart = state.chart === "memory" ? "cost" : "memory";
  drawChart();
}

function openChosen() {
  const item = findItem(drawn.items, state.node);
  if (item !== null) openItem(item);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const inGraph = document.activeElement === canvas || document.activeElement === document.body;
  const act = (inGraph ? bound(IN_GRAPH)[event.key] : undefined) ?? bound(KEYS)[event.key];
  if (act === undefined) return;
  event.preventDefault();
  act();
});

function start() {
  byId("title").textContent = data.title;
  byId("facts").textContent = data.facts.join(" · ");
  byId("keys").append(
    html("h2", {}, "Keys"),
    smallTable([...KEYS, ...IN_GRAPH].map(([keys, what]) => [html("kbd", {}, keys), what])),
    html("form", { method: "dialog" }, html("button", {}, "Close")),
  );
  setTheme("auto");
  readPlace();
  drawTicks();
  drawAll();
  if (state.node) {
    choose(state.node, true);
  } else {
    state.tab = "step";
    drawDetails();
    revealChange();
  }
  byId("slider").addEventListener("input", (event) => goTo(Number(event.target.value)));
  byId("previous").addEventListener("click", () => goTo(state.step - 1));
  byId("next").addEventListener("click", () => goTo(state.step + 1));
  byId("zoom-in").addEventListener("click", () => zoom(1.25));
  byId("zoom-out").addEventListener("click", () => zoom(0.8));
  byId("fit").addEventListener("click", fitAll);
  byId("theme").addEventListener("click", nextTheme);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  addEventListener("hashchange", () => {
    readPlace();
    drawAll();
  });
  new ResizeObserver(([entry]) => {
    view.width = entry.contentRect.width;
    view.height = entry.contentRect.height;
    showView();
    drawChart(true);
  }).observe(canvas);
}

start();
