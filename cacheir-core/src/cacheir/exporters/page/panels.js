// The list of steps, and the details beside the graph: the chosen op, what the step did, the graph's signature.

function drawSteps() {
  const rows = modeNow().steps.map((step, number) => {
    const { added, removed } = changeCounts(step);
    return html(
      "li",
      {},
      html(
        "button",
        {
          type: "button",
          class: step.outcome,
          "data-step": number,
          "aria-current": number === state.step ? "step" : null,
          onclick: () => goTo(number),
        },
        html("span", { class: "dot", "aria-hidden": "true" }),
        html("span", { class: "step-name" }, step.name),
        html("span", { class: "step-stage" }, step.stage),
        html(
          "span",
          { class: "step-counts" },
          added ? html("b", { class: "added" }, "+" + added) : "",
          removed ? html("b", { class: "removed" }, "−" + removed) : "",
          !added && !removed && number > 0 ? step.outcome : "",
        ),
      ),
    );
  });
  byId("steps").replaceChildren(...rows);
  byId("steps").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function drawTicks() {
  const last = lastStep();
  const ticks = modeNow().steps.map((step, number) => {
    const tick = html("i", { class: step.outcome });
    tick.style.left = last ? (100 * number) / last + "%" : "0";
    return tick;
  });
  byId("ticks").replaceChildren(...ticks);
  byId("slider").max = last;
}

function drawNow() {
  const step = stepNow();
  const { added, removed } = changeCounts(step);
  byId("slider").value = state.step;
  byId("slider").setAttribute("aria-valuetext", `${step.name}, ${step.outcome}`);
  byId("now").replaceChildren(
    html("b", {}, step.name),
    html("span", {}, `${state.step} of ${lastStep()} · ${step.stage} · ${step.plugin}`),
    added ? html("span", { class: "added" }, `+${countText(added, "op")}`) : "",
    removed ? html("span", { class: "removed" }, `−${countText(removed, "op")}`) : "",
    !added && !removed && state.step > 0 ? html("span", {}, step.outcome) : "",
  );
}

const TABS = [
  ["op", "Op"],
  ["step", "Step"],
  ["graph", "Graph"],
];

function drawDetails() {
  choices(byId("tabs"), "tab", TABS, state.tab, (tab) => {
    state.tab = tab;
    drawDetails();
  });
  const draw = { op: opDetails, step: stepDetails, graph: graphDetails }[state.tab];
  byId("details").replaceChildren(...draw().flat(Infinity));
  byId("details").scrollTop = 0;
}

const block = (title, ...children) => html("section", { class: "block" }, html("h3", {}, title), children);
const field = (name, value) => [html("dt", {}, name), html("dd", {}, value)];

// A value's name, which leads to the op that makes it.
function valueLink(graph, name) {
  const found = typesIn(graph).get(name);
  const mark = found?.origin === "weight" ? "@" : "%";
  if (!found || found.maker === null) return html("code", {}, mark + name);
  const first = found.maker.results[0][0];
  return html("button", { type: "button", class: "link", onclick: () => choose("+" + first, true) }, mark + name);
}

function opDetails() {
  const item = findItem(drawn.items, state.node);
  if (item === null) {
    return [html("p", { class: "empty" }, "Choose an op in the graph, or press the arrow keys in it.")];
  }
  const chosen = membersOf(item).find((member) => member.key === state.node) ?? item;
  const { op, graph } = chosen;
  const types = typesIn(graph);
  const badge = item.status === "same" ? "" : html("span", { class: "badge " + item.status }, item.status);
  const parts = [
    html("h2", {}, op.callee ? "@" + op.callee : op.name, " ", badge),
    html("pre", { class: "line" }, op.line),
  ];
  if (item.members !== null || op.callee) parts.push(callButtons(item, op));
  parts.push(...launchDetails(chosen));
  const rows = op.operands.map((name) => [valueLink(graph, name), types.get(name)?.type ?? "", from(types.get(name))]);
  if (rows.length) parts.push(block("Reads", smallTable(rows)));
  const users = (name) => graph.ops.filter((other) => other.operands.includes(name));
  const made = op.results.map(([name, type]) => [
    html("code", {}, "%" + name),
    type,
    users(name).length ? "read by " + countText(users(name).length, "op") : graph.outputs.includes(name) ? "yielded" : "unread",
  ]);
  parts.push(block("Makes", smallTable(made)));
  const touched = op.results.length ? historyOf(state.graph, op.results[0][0]) : [];
  if (touched.length) {
    parts.push(
      block(
        "History of %" + op.results[0][0],
        html("ul", { class: "history" }, touched.map(historyRow)),
      ),
    );
  }
  return parts;
}

function historyRow({ number, step, status, op }) {
  const go = () => goTo(number);
  return html(
    "li",
    {},
    html("button", { type: "button", class: "link", onclick: go }, step.name),
    html("span", { class: status > 0 ? "added" : "removed" }, status > 0 ? " made by " : " no longer by "),
    html("code", {}, op.callee ? "call @" + op.callee : op.name),
  );
}

const from = (found) =>
  !found ? "" : found.origin === "weight" ? found.recipe : found.origin === "op" ? "by " + found.maker.name : found.origin;

function smallTable(rows) {
  return html(
    "table",
    {},
    html("tbody", {}, rows.map((row) => html("tr", {}, row.map((cell) => html("td", {}, cell))))),
  );
}

function callButtons(item, op) {
  const key = state.graph + " " + op.callee;
  const folds = item.members !== null || state.unfolded.has(key);
  return html(
    "p",
    { class: "actions" },
    html("button", { type: "button", onclick: () => openItem(item) }, "Open @" + op.callee),
    folds
      ? html("button", { type: "button", onclick: () => toggleFold(key) }, item.members ? "Unfold the calls" : "Fold the calls")
      : "",
  );
}

function launchDetails({ op, status }) {
  const node = op.results[0]?.[0];
  const launch = launchOf(state.graph, node);
  if (status === "removed" || launch === null) {
    const go = () => goTo(lastStep());
    const link = html("button", { type: "button", class: "link", onclick: go }, "the finished graph");
    return [block("Kernel", html("p", { class: "empty" }, "Kernels are chosen for ", link, "."))];
  }
  const parts = [];
  if (!op.callee) parts.push(block("Kernel", launch.choices.map(choiceDetails)));
  const places = planOf(state.graph).places.filter((place) => op.results.some((result) => result[0] === place.name));
  if (places.length) {
    const rows = places.map((place) => [
      html("code", {}, "%" + place.name),
      `${sizeText(place.nbytes)} at ${place.offset}`,
      place.in_place_of ? "in the place of %" + place.in_place_of : `launches ${place.first} to ${place.last}`,
    ]);
    parts.push(block("Memory", smallTable(rows)));
  }
  return parts;
}

function choiceDetails(choice) {
  const cost = choice.bytes
    ? `${sizeText(choice.bytes)}, ${choice.operations.toLocaleString("en")} operations at ${countText(choice.at_rows, "row")}`
    : "";
  return html(
    "div",
    { class: "choice" },
    html("p", {}, html("span", { class: "rows" }, choice.rows), html("code", { class: "kernel" }, choice.kernel || "by its meaning")),
    html("p", { class: "reason" }, choice.reason, cost ? html("span", {}, " · " + cost) : ""),
    html(
      "ul",
      { class: "refusals" },
      choice.candidates
        .filter((candidate) => candidate.refusal)
        .map((candidate) => html("li", {}, html("code", {}, candidate.kernel), " ", candidate.refusal)),
    ),
  );
}

function stepDetails() {
  const step = stepNow();
  const parts = [html("h2", {}, step.name)];
  const facts = [field("outcome", step.outcome), field("stage", step.stage), field("plugin", step.plugin)];
  if (step.rewrites) facts.push(field("rewrites", String(step.rewrites)));
  if (step.seconds) facts.push(field("time", timeText(step.seconds)));
  const counts = Object.entries(step.counts).map(([name, count]) => `${name} ${count > 0 ? "+" : "−"}${Math.abs(count)}`);
  if (counts.length) facts.push(field("ops", counts.join(", ")));
  parts.push(html("dl", { class: "facts-list" }, facts));
  if (step.notes.length) {
    parts.push(block("What it said", smallTable(step.notes.map(([graph, note]) => [graph ? "@" + graph : "", note]))));
  }
  for (const change of step.changes) {
    parts.push(block("@" + change.graph, html("pre", { class: "diff" }, diffLines(change.diff))));
  }
  return parts;
}

const SIGNS = { "+": "added", "-": "removed", "@": "hunk" };
const diffLines = (diff) =>
  diff
    .split("\n")
    .slice(2)
    .map((line) => html("span", { class: SIGNS[line[0]] ?? "" }, line || " "));

function graphDetails() {
  const graph = graphAt(stepNow(), state.graph);
  if (graph === null) return [html("p", { class: "empty" }, "This step took the graph away.")];
  const parts = [html("h2", {}, "@" + graph.name)];
  if (graph.dims.length) parts.push(block("Sizes", smallTable(graph.dims.map(([n, low, high]) => [n, `${low} to ${high}`]))));
  parts.push(block("Takes", smallTable(graph.params.map(([name, type, origin]) => [html("code", {}, "%" + name), type, origin]))));
  const weights = graph.weights.map(([name, type, recipe]) => [html("code", {}, "@" + name), type, recipe]);
  if (weights.length) parts.push(block("Weights", smallTable(weights)));
  parts.push(block("Yields", smallTable(graph.outputs.map((name) => [valueLink(graph, name), typesIn(graph).get(name)?.type ?? ""]))));
  return parts;
}
