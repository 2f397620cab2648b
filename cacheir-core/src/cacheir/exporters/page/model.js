// What the page shows: the data of the export, the state of the page, and what follows from both.

const data = JSON.parse(document.getElementById("data").textContent);

const state = {
  mode: 0,
  step: 0,
  graph: "main",
  node: "", // the key of the selected item, "" for none
  unfolded: new Set(), // "graph callee": runs of calls that are drawn one by one
  tab: "op",
  chart: "memory",
  matches: new Set(), // keys of items in this graph that the search found
};

const modeNow = () => data.modes[state.mode];
const stepNow = () => modeNow().steps[state.step];
const lastStep = () => modeNow().steps.length - 1;
const poolGraph = (index) => (index === null ? null : data.graphs[index]);

function graphAt(step, name) {
  return poolGraph(step.graphs.find((index) => data.graphs[index].name === name) ?? null);
}

const changeOf = (step, name) => step.changes.find((change) => change.graph === name) ?? null;

// The graphs that a step shows: those after it, then those that it took away.
function graphNames(step) {
  const names = step.graphs.map((index) => data.graphs[index].name);
  for (const change of step.changes) if (!names.includes(change.graph)) names.push(change.graph);
  return names;
}

// How many ops a step added to and removed from a graph, or from all graphs.
function changeCounts(step, name) {
  let added = 0;
  let removed = 0;
  for (const change of step.changes) {
    if (name !== undefined && change.graph !== name) continue;
    for (const [status] of change.merged) {
      if (status > 0) added += 1;
      else if (status < 0) removed += 1;
    }
  }
  return { added, removed };
}

const STATUS = { "-1": "removed", 0: "same", 1: "added" };

// The ops to draw, in order. Each is an item {key, status, op, graph, calls}; `calls` counts a folded run.
function itemsOf(step, name) {
  const after = graphAt(step, name);
  const change = changeOf(step, name);
  const before = change === null ? null : poolGraph(change.before);
  const merged = change === null ? after.ops.map((_, index) => [0, index]) : change.merged;
  const items = merged.map(([status, index]) => {
    const graph = status < 0 ? before : after;
    const op = graph.ops[index];
    const first = op.results.length ? op.results[0][0] : String(index);
    return { key: (status < 0 ? "-" : "+") + first, status: STATUS[status], op, graph, calls: 1, members: null };
  });
  return foldCalls(items, name);
}

function foldCalls(items, name) {
  const folded = [];
  for (const item of items) {
    const last = folded[folded.length - 1];
    const callee = item.op.callee;
    const joins = callee && last && last.op.callee === callee && last.status === item.status;
    if (!joins || state.unfolded.has(name + " " + callee)) {
      folded.push(item);
      continue;
    }
    if (last.members === null) folded[folded.length - 1] = { ...last, members: [last] };
    const run = folded[folded.length - 1];
    run.members.push(item);
    run.calls += 1;
  }
  return folded;
}

const membersOf = (item) => item.members ?? [item];
const operandsOf = (item) => {
  const made = new Set(membersOf(item).flatMap((member) => member.op.results.map((result) => result[0])));
  const all = membersOf(item).flatMap((member) => member.op.operands);
  return [...new Set(all)].filter((operand) => !made.has(operand));
};
const resultsOf = (item) => membersOf(item).flatMap((member) => member.op.results);

// The item of the graph as it is drawn that holds the key, which may be one of a folded run.
function findItem(items, key) {
  return items.find((item) => membersOf(item).some((member) => member.key === key)) ?? null;
}

// Value name -> its type in a graph, wherever it comes from.
const typesCache = new WeakMap();
function typesIn(graph) {
  let types = typesCache.get(graph);
  if (types === undefined) {
    types = new Map();
    for (const [name, type, origin] of graph.params) types.set(name, { type, origin, maker: null });
    for (const [name, type, recipe] of graph.weights) types.set(name, { type, origin: "weight", recipe, maker: null });
    for (const op of graph.ops) for (const [name, type] of op.results) types.set(name, { type, origin: "op", maker: op });
    typesCache.set(graph, types);
  }
  return types;
}

// What the finished program says of an op: its launch and its places, where the graph is the finished one.
function planOf(name) {
  return modeNow().plan[name] ?? null;
}

// Whether no later step changes the graph any more: then its ops are those that kernels were chosen for.
const isFinished = (name) => {
  const finished = graphAt(modeNow().steps[lastStep()], name);
  return finished !== null && graphAt(stepNow(), name) === finished;
};

function launchOf(name, node) {
  const plan = isFinished(name) ? planOf(name) : null;
  return plan === null ? null : plan.launches.find((launch) => launch.node === node) ?? null;
}

// The steps that added or removed an op that makes `value`, with what each did.
function historyOf(name, value) {
  const found = [];
  modeNow().steps.forEach((step, number) => {
    const change = changeOf(step, name);
    if (change === null) return;
    for (const [status, index] of change.merged) {
      if (status === 0) continue;
      const op = poolGraph(status < 0 ? change.before : change.after).ops[index];
      if (op.results.some((result) => result[0] === value)) found.push({ number, step, status, op });
    }
  });
  return found;
}

function sizeText(bytes) {
  if (bytes < 1000) return bytes + " B";
  const units = ["kB", "MB", "GB", "TB"];
  let size = bytes;
  let unit = -1;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0) + " " + units[unit];
}

function timeText(seconds) {
  if (seconds >= 1) return seconds.toFixed(2) + " s";
  if (seconds >= 1e-3) return (seconds * 1e3).toFixed(seconds < 1e-2 ? 2 : 1) + " ms";
  return (seconds * 1e6).toFixed(seconds < 1e-5 ? 2 : 1) + " µs";
}

const countText = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
