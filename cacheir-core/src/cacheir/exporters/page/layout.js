// Where things are drawn: ops in ranks by what they need, long edges led around, each rank in an order with few crossings.

const GAP_X = 26;
const GAP_Y = 30;
const LONG_EDGE = 24; // an edge over more ranks than this is a name on the op and no line
const MANY_USES = 4; // so is a value that more ops than this read
const WEIGHTS_SHOWN = 3;

// {nodes, edges, width, height}; a node is {id, kind, x, y, w, h, ...}, its place the middle of its upper edge.
function layoutGraph(step, name, items) {
  const graph = graphAt(step, name) ?? items[0]?.graph;
  if (graph === undefined) return { nodes: [], edges: [], width: 0, height: 0 };
  const draft = draftOf(graph, items);
  rankNodes(draft);
  const ranks = ranksOf(draft);
  orderRanks(ranks);
  placeRanks(ranks);
  return finished(draft, ranks);
}

function draftOf(graph, items) {
  const uses = new Map();
  for (const item of items) for (const name of operandsOf(item)) uses.set(name, (uses.get(name) ?? 0) + 1);
  for (const name of new Set(graph.outputs)) uses.set(name, (uses.get(name) ?? 0) + 1);
  const params = new Set(graph.params.map((param) => param[0]));
  const weights = new Map(graph.weights.map((weight) => [weight[0], weight]));
  const nodes = [];
  const edges = [];
  const live = new Map();
  const ghosts = new Map();
  for (const [name, type, origin] of graph.params) {
    const count = uses.get(name) ?? 0;
    if (count === 0 || count > MANY_USES) continue;
    const node = { id: "p" + name, kind: "param", name, type, origin, rank: null, w: pill(name, type), h: 26 };
    nodes.push(node);
    live.set(name, node);
  }
  for (const item of items) {
    const node = itemNode(item, weights);
    const named = [];
    for (const name of operandsOf(item)) {
      if (typesIn(item.graph).get(name)?.origin === "weight") continue;
      const source = (item.status === "removed" ? ghosts.get(name) : undefined) ?? live.get(name);
      const many = (uses.get(name) ?? 0) > MANY_USES;
      if (source === undefined || many || (source.item?.status === "added" && item.status === "removed")) {
        if (params.has(name) || many) named.push(name);
        continue;
      }
      edges.push({ from: source, to: node, name, kind: edgeKind(item, name) });
    }
    node.named = named;
    measure(node);
    nodes.push(node);
    for (const [name] of resultsOf(item)) (item.status === "removed" ? ghosts : live).set(name, node);
  }
  const end = { id: "yield", kind: "yield", w: 64, h: 26, outputs: graph.outputs };
  for (const name of new Set(graph.outputs)) {
    const source = live.get(name);
    if (source !== undefined) edges.push({ from: source, to: end, name, kind: isState(graph, name) ? "state" : "live" });
  }
  nodes.push(end);
  return { nodes, edges };
}

const isState = (graph, name) => (typesIn(graph).get(name)?.type ?? "").startsWith("kv<");
const edgeKind = (item, name) => (item.status === "removed" ? "ghost" : isState(item.graph, name) ? "state" : "live");
const pill = (name, type) => Math.min(240, 24 + 6.6 * (name.length + shortType(type).length + 2));

function itemNode(item, weights) {
  const used = item.members === null ? item.op.operands.filter((name) => weights.has(name)) : [];
  const chips = used.map((name) => ({ name, type: shortType(weights.get(name)[1]).split("  ").pop() }));
  return { id: item.key, kind: "op", item, chips: chips.slice(0, WEIGHTS_SHOWN), more: chips.length - WEIGHTS_SHOWN };
}

function measure(node) {
  const { item } = node;
  node.title = item.op.callee ? "@" + item.op.callee : item.op.name;
  if (item.members !== null) {
    const layers = item.members.map((member) => member.op.layer);
    node.sub = `× ${item.calls}   layers ${layers[0]}–${layers[layers.length - 1]}`;
  } else if (item.op.callee) {
    node.sub = `layer ${item.op.layer}`;
  } else {
    const [first] = item.op.results;
    node.sub = (first ? `%${cut(first[0], 18)}  ${shortType(first[1])}` : "") + more(item.op.results.length - 1);
  }
  node.usesText = node.named.length ? "reads " + cut(node.named.join(", "), 34) : "";
  node.chipTexts = node.chips.map((chip) => cut(chip.name, 16) + " " + chip.type);
  if (node.more > 0) node.chipTexts.push("+" + node.more);
  const chips = node.chipTexts.reduce((sum, text) => sum + 6.1 * text.length + 18, 0);
  const lines = Math.max(7.4 * node.title.length + 20, 6.3 * node.sub.length, 5.9 * node.usesText.length, chips);
  node.w = Math.max(120, Math.min(380, lines + 26));
  node.h = 42 + (node.usesText ? 14 : 0) + (node.chipTexts.length ? 20 : 0);
}

const more = (count) => (count > 0 ? `  +${count}` : "");

function rankNodes({ nodes, edges }) {
  const incoming = new Map(nodes.map((node) => [node, []]));
  const outgoing = new Map(nodes.map((node) => [node, []]));
  for (const edge of edges) {
    incoming.get(edge.to).push(edge);
    outgoing.get(edge.from).push(edge);
  }
  for (const node of nodes) {
    if (node.kind === "param") continue;
    const above = incoming.get(node).map((edge) => edge.from.rank ?? 0);
    node.rank = above.length ? Math.max(...above) + 1 : 1;
  }
  for (const node of nodes) {
    if (node.kind === "param") node.rank = Math.min(...outgoing.get(node).map((edge) => edge.to.rank)) - 1;
  }
}

// The ranks as lists of nodes; an edge over several ranks goes through a point in each of them.
function ranksOf(draft) {
  const ranks = [];
  const put = (node) => (ranks[node.rank] ??= []).push(node);
  for (const node of draft.nodes) {
    node.up = [];
    node.down = [];
    put(node);
  }
  draft.edges = draft.edges.filter((edge) => {
    const span = edge.to.rank - edge.from.rank;
    if (span > LONG_EDGE && edge.to.kind === "op") {
      edge.to.named.push(edge.name);
      measure(edge.to);
      return false;
    }
    return true;
  });
  for (const edge of draft.edges) {
    edge.points = [];
    let last = edge.from;
    const straight = edge.to.rank - edge.from.rank > LONG_EDGE; // what is yielded keeps its line, however long
    for (let rank = edge.from.rank + 1; rank < edge.to.rank && !straight; rank += 1) {
      const point = { kind: "point", rank, w: 6, h: 0, up: [last], down: [] };
      last.down.push(point);
      edge.points.push(point);
      put(point);
      last = point;
    }
    last.down.push(edge.to);
    edge.to.up.push(last);
  }
  return Array.from(ranks, (rank) => rank ?? []);
}

function orderRanks(ranks) {
  const number = (rank) => rank.forEach((node, index) => (node.order = index));
  ranks.forEach(number);
  const sweep = (rank, side) => {
    for (const node of rank) {
      const near = node[side];
      node.wish = near.length ? near.reduce((sum, other) => sum + other.order, 0) / near.length : node.order;
    }
    rank.sort((a, b) => a.wish - b.wish || a.order - b.order);
    number(rank);
  };
  for (let round = 0; round < 3; round += 1) {
    for (let at = 1; at < ranks.length; at += 1) sweep(ranks[at], "up");
    for (let at = ranks.length - 2; at >= 0; at -= 1) sweep(ranks[at], "down");
  }
}

function placeRanks(ranks) {
  for (const rank of ranks) settle(rank, () => 0);
  const mean = (side) => (node) => {
    const near = node[side];
    // A little towards the middle, or a long graph would walk off to one side, a step with each edge led around.
    return (near.length ? near.reduce((sum, other) => sum + other.x, 0) / near.length : node.x) * 0.92;
  };
  for (let round = 0; round < 4; round += 1) {
    for (const rank of ranks) settle(rank, mean("up"));
    for (const rank of [...ranks].reverse()) settle(rank, mean("down"));
  }
}

// As near to their wishes as they can stand in a row without touching: blocks that would overlap move as one.
function settle(rank, wish) {
  const blocks = [];
  let offset = 0;
  rank.forEach((node, index) => {
    if (index > 0) offset += (rank[index - 1].w + node.w) / 2 + (node.kind === "point" ? GAP_X / 2 : GAP_X);
    const weight = node.kind === "point" ? 3 : 1;
    let block = { sum: (wish(node) - offset) * weight, weight, nodes: [[node, offset]] };
    while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const left = blocks.pop();
      block = { sum: left.sum + block.sum, weight: left.weight + block.weight, nodes: [...left.nodes, ...block.nodes] };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const [node, shift] of block.nodes) node.x = block.sum / block.weight + shift;
}

function finished({ nodes, edges }, ranks) {
  let y = 0;
  for (const rank of ranks) {
    const height = Math.max(0, ...rank.map((node) => node.h));
    for (const node of rank) {
      node.y = y + (height - node.h) / 2;
      node.middle = y + height / 2;
    }
    if (height > 0) y += height + GAP_Y;
  }
  const left = Math.min(...nodes.map((node) => node.x - node.w / 2));
  const right = Math.max(...nodes.map((node) => node.x + node.w / 2));
  for (const rank of ranks) for (const node of rank) node.x -= left;
  for (const node of nodes) node.up.sort((a, b) => a.x - b.x);
  return { nodes, edges, width: right - left, height: Math.max(0, y - GAP_Y) };
}

// The line of an edge, through its points; several edges into one node end side by side.
function edgePath(edge) {
  const ends = edge.to.up.length;
  const place = edge.to.up.indexOf(edge.points[edge.points.length - 1] ?? edge.from);
  const spread = Math.min(14, (edge.to.w - 40) / Math.max(1, ends));
  const endX = edge.to.x + (place - (ends - 1) / 2) * spread;
  const stops = [[edge.from.x, edge.from.y + edge.from.h], ...edge.points.map((p) => [p.x, p.middle]), [endX, edge.to.y]];
  let path = `M${stops[0][0].toFixed(1)} ${stops[0][1].toFixed(1)}`;
  for (let at = 1; at < stops.length; at += 1) {
    const [x0, y0] = stops[at - 1];
    const [x1, y1] = stops[at];
    const bend = (y1 - y0) / 2;
    path += `C${x0.toFixed(1)} ${(y0 + bend).toFixed(1)} ${x1.toFixed(1)} ${(y1 - bend).toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;
  }
  return path;
}
