// The charts below the graph, of the finished program: where buffers lie over time, and what each op moves.

const CHARTS = [
  ["memory", "Memory over time"],
  ["cost", "Roofline"],
];

let charted = ""; // what the chart shows; it stays while only the step changes

function drawChart(again = false) {
  const wanted = [modeNow().mode, state.graph, state.chart].join(" ");
  if (again || wanted !== charted) drawChartAnew();
  charted = wanted;
  markChart();
}

function drawChartAnew() {
  choices(byId("charts"), "tab", CHARTS, state.chart, (chart) => {
    state.chart = chart;
    drawChart();
  });
  const plan = planOf(state.graph);
  if (plan === null) {
    byId("chart-note").textContent = "";
    byId("chart").replaceChildren(html("p", { class: "empty" }, "The finished program has no such graph."));
    return;
  }
  (state.chart === "memory" ? drawMemory : drawCosts)(plan);
}

// --- memory: launches from left to right, bytes of the frame from below

function drawMemory(plan) {
  const launches = plan.launches.length;
  const height = Math.max(1, plan.with_callees);
  const note = `@${state.graph}: a frame of ${sizeText(plan.nbytes)}`;
  const calls = plan.with_callees > plan.nbytes ? `, ${sizeText(plan.with_callees)} with what it calls` : "";
  const arena = ` · arena of ${modeNow().mode} ${sizeText(modeNow().arena_bytes)}`;
  byId("chart-note").textContent = note + calls + arena;
  if (!launches || !plan.with_callees) {
    byId("chart").replaceChildren(html("p", { class: "empty" }, "This graph keeps nothing in the arena."));
    return;
  }
  // One unit is one pixel, so that text keeps its shape; the chart is drawn anew when its place changes.
  const place = byId("chart");
  const [width, tall, left, below] = [Math.max(320, place.clientWidth - 20), place.clientHeight - 14, 62, 22];
  const x = (launch) => left + ((width - left) * launch) / launches;
  const y = (bytes) => (tall - below) * (1 - bytes / height) + 4;
  const parts = [];
  for (let part = 0; part <= 4; part += 1) {
    const at = y((height * part) / 4);
    parts.push(svg("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }));
    parts.push(svg("text", { class: "axis", x: left - 8, y: at + 4, "text-anchor": "end" }, sizeText(Math.round((height * part) / 4))));
  }
  for (const run of callRuns(plan.calls)) parts.push(...calleeBox(run, x, y));
  for (const each of plan.places) parts.push(placeBox(each, plan, x, y));
  parts.push(...launchLabels(plan.launches, x, tall - 4));
  const chart = svg("svg", { class: "memory", width, height: tall, role: "img", "aria-label": note }, parts);
  place.replaceChildren(chart);
}

// Calls of one graph one after the other, whose frames begin at one place, are drawn as one.
function callRuns(calls) {
  const runs = [];
  for (const call of calls) {
    const last = runs[runs.length - 1];
    if (last && last.callee === call.callee && last.base === call.base && last.launch + last.count === call.launch) last.count += 1;
    else runs.push({ ...call, count: 1 });
  }
  return runs;
}

function calleeBox({ callee, launch, count, base, nbytes }, x, y) {
  const [left, top] = [x(launch), y(base + nbytes)];
  const [width, height] = [x(launch + count) - left, y(base) - top];
  const said = `@${callee}${count > 1 ? " × " + count : ""}: a frame of ${sizeText(nbytes)}`;
  return [
    svg("rect", { class: "callee", x: left, y: top, width, height, rx: 3 }, svg("title", {}, said)),
    width > 7 * said.length && height > 18
      ? svg("text", { class: "axis", x: left + width / 2, y: top + height / 2 + 4, "text-anchor": "middle" }, said)
      : "",
  ];
}

// Names of launches below the chart, as many as have room; runs of one name have it once.
function launchLabels(launches, x, y) {
  const labels = [];
  let free = 0;
  launches.forEach((launch, number) => {
    let last = number;
    while (last + 1 < launches.length && launches[last + 1].op === launch.op) last += 1;
    if (number > 0 && launches[number - 1].op === launch.op) return;
    const middle = (x(number) + x(last + 1)) / 2;
    const label = cut(launch.op + (last > number ? ` × ${last - number + 1}` : ""), 22);
    const half = 3.4 * label.length;
    const at = Math.min(middle, x(launches.length) - half);
    if (at - half < free) return;
    free = at + half + 8;
    labels.push(svg("text", { class: "axis", x: at, y, "text-anchor": "middle" }, label));
  });
  return labels;
}

function placeBox(place, plan, x, y) {
  // A buffer in the place of another takes it over while its launch runs.
  const start = x(place.first + (place.in_place_of ? 0.5 : 0));
  const width = x(place.last + 1) - start;
  const height = y(place.offset) - y(place.offset + place.nbytes);
  const top = y(place.offset + place.nbytes);
  const node = plan.launches[place.first]?.node ?? place.name;
  const shared = place.in_place_of ? ` in the place of %${place.in_place_of}` : "";
  const said = `%${place.name}: ${sizeText(place.nbytes)} at ${place.offset}, launches ${place.first} to ${place.last}${shared}`;
  const label = height > 11 && width > 30 ? cut(place.name, Math.floor(width / 6.4)) : "";
  return svg(
    "g",
    { class: "place", "data-node": node, onclick: () => chooseFinished(node) },
    svg("title", {}, said),
    svg("rect", { x: start + 0.5, y: top + 0.5, width: Math.max(1, width - 1), height: Math.max(1, height - 1), rx: 2 }),
    label ? svg("text", { x: start + 5, y: top + Math.min(height / 2 + 4, 16) }, label) : "",
  );
}

// --- costs: a bar for each op; its length is time where the machine was measured, else bytes

function drawCosts(plan) {
  const rows = plan.launches.filter((launch) => launch.cost);
  const timed = Boolean(data.machine) && rows.every((launch) => launch.cost.predicted !== null);
  const lengthOf = ({ cost }) => (timed ? Math.max(cost.predicted, cost.floor) : cost.bytes);
  const most = Math.max(...rows.map(lengthOf), 1e-12);
  const total = (read) => rows.reduce((sum, launch) => sum + read(launch.cost), 0);
  const what = `@${state.graph}` + (modeNow().shape ? `, ${modeNow().shape}` : "");
  byId("chart-note").textContent = timed
    ? `${what}: predicted ${timeText(total((cost) => cost.predicted))}, floor ${timeText(total((cost) => cost.floor))} on ${data.machine}`
    : `${what}: ${sizeText(total((cost) => cost.bytes))} moved · not calibrated here, so bars are bytes`;
  if (!rows.length) {
    byId("chart").replaceChildren(html("p", { class: "empty" }, "Nothing here moves a byte by itself: open what it calls."));
    return;
  }
  const bars = rows.map((launch) => costRow(launch, lengthOf(launch) / most, timed));
  byId("chart").replaceChildren(html("div", { class: "bars" + (timed ? " timed" : "") }, costHead(timed), bars));
}

function costHead(timed) {
  const swatch = (name, text) => html("span", {}, html("i", { class: "swatch " + name }), text);
  const shown = timed
    ? [swatch("floor", "floor: the least this machine needs"), swatch("over", "predicted above it")]
    : [swatch("weights", "weights"), swatch("rest", "activations and keys")];
  return html("p", { class: "cost-head" }, shown);
}

function costRow(launch, share, timed) {
  const { cost } = launch;
  const part = timed ? ratio(cost.floor, Math.max(cost.predicted, cost.floor)) : ratio(cost.weight_bytes, cost.bytes);
  const first = html("i", { class: timed ? "floor" : "weights" });
  const second = html("i", { class: timed ? "over" : "rest" });
  first.style.width = 100 * share * part + "%";
  second.style.width = 100 * share * (1 - part) + "%";
  const intensity = cost.bytes ? (cost.operations / cost.bytes).toFixed(2) + " op/B" : "";
  const reached = timed && cost.predicted > 0 ? `${Math.round(100 * part)} % of the roofline · ` : "";
  return html(
    "button",
    { type: "button", class: "cost", "data-node": launch.node, onclick: () => chooseFinished(launch.node) },
    html("span", { class: "cost-op" }, launch.op),
    html("span", { class: "cost-bar" }, first, second),
    html("span", { class: "cost-number" }, timed ? timeText(cost.predicted) : sizeText(cost.bytes)),
    html("span", { class: "cost-more" }, `${reached}${timed ? sizeText(cost.bytes) + " · " : ""}${intensity}`),
  );
}

const ratio = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : 0);

// The chosen op in the charts.
function markChart() {
  const item = findItem(drawn.items, state.node);
  const names = new Set(item === null ? [] : membersOf(item).map((member) => member.op.results[0]?.[0]));
  for (const element of byId("chart").querySelectorAll("[data-node]")) {
    element.classList.toggle("chosen", names.has(element.dataset.node));
  }
}

function chooseFinished(node) {
  if (!isFinished(state.graph)) {
    const graph = state.graph;
    goTo(lastStep());
    if (state.graph !== graph) showGraph(graph);
  }
  choose("+" + node, true);
}
