// The search: ops, values, weights and kernels of every graph of the step, and the marks in the graph that is drawn.

const MOST_RESULTS = 60;
const search = { found: [], at: -1 };

function findAll(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const found = [];
  for (const name of graphNames(stepNow())) {
    const graph = graphAt(stepNow(), name);
    if (graph === null) continue;
    for (const op of graph.ops) {
      const text = searchText(name, graph, op);
      if (words.every((word) => text.includes(word))) found.push({ graph: name, op });
    }
  }
  return found;
}

const textCache = new WeakMap();
function searchText(name, graph, op) {
  let text = textCache.get(op);
  if (text === undefined) {
    const recipes = op.operands.map((operand) => typesIn(graph).get(operand)?.recipe ?? "");
    text = [op.line, ...recipes].join(" ").toLowerCase();
    textCache.set(op, text);
  }
  const kernels = launchOf(name, op.results[0]?.[0])?.choices.map((choice) => choice.kernel) ?? [];
  return text + " " + kernels.join(" ").toLowerCase();
}

function runSearch() {
  const input = byId("search");
  search.found = findAll(input.value);
  search.at = search.found.length ? 0 : -1;
  state.matches = new Set();
  for (const { graph, op } of search.found) {
    const item = graph === state.graph ? findItem(drawn.items, "+" + op.results[0]?.[0]) : null;
    if (item !== null) state.matches.add(item.key);
  }
  canvas.classList.toggle("searching", Boolean(input.value.trim()));
  markNodes();
  drawResults();
}

function drawResults() {
  const input = byId("search");
  const list = byId("results");
  const open = Boolean(input.value.trim()) && document.activeElement === input;
  list.hidden = !open;
  input.setAttribute("aria-expanded", String(open));
  const shown = search.found.slice(0, MOST_RESULTS);
  list.replaceChildren(
    ...shown.map(({ graph, op }, number) =>
      html(
        "li",
        {
          role: "option",
          id: "result-" + number,
          "aria-selected": String(number === search.at),
          onpointerdown: (event) => {
            event.preventDefault();
            takeResult(number);
          },
        },
        html("b", {}, op.callee ? "@" + op.callee : op.name),
        html("span", {}, op.results.length ? "%" + op.results[0][0] : ""),
        html("em", {}, "@" + graph),
      ),
    ),
    html("li", { class: "count", role: "presentation" }, searchCount()),
  );
  if (search.at >= 0) input.setAttribute("aria-activedescendant", "result-" + search.at);
  else input.removeAttribute("aria-activedescendant");
  list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
}

function searchCount() {
  const count = search.found.length;
  if (!count) return "no op of this step matches";
  return countText(count, "op") + (count > MOST_RESULTS ? `, ${MOST_RESULTS} shown` : "");
}

function takeResult(number) {
  const result = search.found[number];
  if (!result) return;
  byId("results").hidden = true;
  byId("search").setAttribute("aria-expanded", "false");
  if (result.graph !== state.graph) showGraph(result.graph);
  runSearchMarks();
  choose("+" + result.op.results[0][0], true);
  canvas.focus();
}

// The marks alone, for a graph that is drawn anew while there is a query.
function runSearchMarks() {
  const at = search.at;
  runSearch();
  search.at = Math.min(at, search.found.length - 1);
}

byId("search").addEventListener("input", runSearch);
byId("search").addEventListener("focus", drawResults);
byId("search").addEventListener("blur", drawResults);
byId("search").addEventListener("keydown", (event) => {
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in moves && search.found.length) {
    const count = Math.min(search.found.length, MOST_RESULTS);
    search.at = (search.at + moves[event.key] + count) % count;
    drawResults();
    event.preventDefault();
  } else if (event.key === "Enter") {
    takeResult(search.at);
    event.preventDefault();
  } else if (event.key === "Escape") {
    byId("search").value = "";
    runSearch();
    canvas.focus();
  }
  event.stopPropagation();
});
