// Draws the graph and moves over it: elements are kept from step to step, so that what stays does not flicker.

const canvas = byId("canvas");
const drawing = byId("drawing");
const layers = { edges: svg("g", { class: "edges" }), nodes: svg("g", { class: "nodes" }) };
const plane = svg("g", { class: "plane" }, layers.edges, layers.nodes);
drawing.append(plane);

const view = { scale: 1, x: 0, y: 0, width: canvas.clientWidth, height: canvas.clientHeight };
const drawn = { items: [], layout: null, elements: new Map(), graph: "" };
const FEW = 150; // so many nodes are all drawn, and glide to their places; of more only those in view are elements
const FAR = 0.36; // below this scale text is too small to read and is not drawn
const SMALLEST = 0.05; // of all scales
const MARGIN = 200; // pixels around the view in which nodes are drawn too

function drawGraph() {
  const step = stepNow();
  drawn.items = itemsOf(step, state.graph);
  drawn.layout = layoutGraph(step, state.graph, drawn.items);
  const other = drawn.graph !== modeNow().mode + " " + state.graph;
  drawn.graph = modeNow().mode + " " + state.graph;
  if (other) {
    layers.nodes.replaceChildren();
    drawn.elements.clear();
  }
  canvas.classList.toggle("animated", !other && !isLarge());
  drawNodes();
  drawEdges();
  if (other) fitWidth();
  drawLegend();
}

const isLarge = () => drawn.layout.nodes.length > FEW;
const isFar = () => view.scale < FAR;

function isInView(node) {
  const [x, y] = [view.x + node.x * view.scale, view.y + node.y * view.scale];
  const [w, h] = [(node.w / 2) * view.scale, node.h * view.scale];
  return y < view.height + MARGIN && y + h > -MARGIN && x - w < view.width + MARGIN && x + w > -MARGIN;
}

function drawNodes() {
  const kept = new Map();
  const fresh = [];
  const wanted = isLarge() ? drawn.layout.nodes.filter(isInView) : drawn.layout.nodes;
  for (const node of wanted) {
    const look = lookOf(node);
    let element = drawn.elements.get(node.id);
    if (element === undefined || element.look !== look) {
      const made = node.kind === "op" ? opElement(node, look.startsWith("bare")) : pillElement(node);
      made.look = look;
      if (element !== undefined) element.remove();
      fresh.push(made);
      element = made;
    }
    drawn.elements.delete(node.id);
    element.style.transform = `translate(${(node.x - node.w / 2).toFixed(1)}px, ${node.y.toFixed(1)}px)`;
    kept.set(node.id, element);
  }
  for (const element of drawn.elements.values()) element.remove();
  drawn.elements = kept;
  layers.nodes.append(...fresh);
  markNodes();
}

const lookOf = (node) =>
  isLarge() && isFar()
    ? "bare " + (node.item?.status ?? "") + node.w + node.h
    : node.kind === "op"
    ? [node.item.status, node.title, node.sub, node.usesText, node.chipTexts.join("|"), node.w, node.h].join("\n")
    : node.kind + (node.name ?? "") + (node.type ?? "");

function opElement(node, bare) {
  const { item } = node;
  const parts = bare ? [svg("rect", { class: "box", width: node.w, height: node.h, rx: 8 })] : opParts(node);
  const group = svg(
    "g",
    {
      class: `node op ${item.status} dialect-${data.dialects[item.op.name] ?? (item.op.callee ? "call" : "other")}`,
      id: "node-" + encodeURIComponent(item.key),
      role: "img",
      "aria-label": `${item.status === "same" ? "" : item.status + ": "}${node.title}, ${node.sub}`,
      "data-key": item.key,
      "data-state": item.status,
      "data-calls": item.calls,
    },
    parts,
  );
  group.addEventListener("click", () => choose(item.key));
  group.addEventListener("dblclick", () => openItem(item));
  return group;
}

function opParts(node) {
  const { item } = node;
  const parts = [];
  if (item.members !== null) {
    for (const shift of [8, 4]) {
      parts.push(svg("rect", { class: "behind", x: shift, y: -shift, width: node.w, height: node.h, rx: 8 }));
    }
  }
  parts.push(svg("rect", { class: "box", width: node.w, height: node.h, rx: 8 }));
  parts.push(svg("rect", { class: "stripe", x: 0, y: 8, width: 3, height: node.h - 16, rx: 1.5 }));
  parts.push(svg("text", { class: "title", x: 14, y: 18 }, node.title));
  parts.push(svg("text", { class: "sub", x: 14, y: 33 }, node.sub));
  if (node.usesText) parts.push(svg("text", { class: "uses", x: 14, y: 47 }, node.usesText));
  let x = 14;
  for (const text of node.chipTexts) {
    const width = 6.1 * text.length + 12;
    const y = node.h - 22;
    parts.push(svg("rect", { class: "chip", x, y, width, height: 15, rx: 4 }));
    parts.push(svg("text", { class: "chip-text", x: x + 6, y: y + 11 }, text));
    x += width + 6;
  }
  if (item.status !== "same") {
    const sign = item.status === "added" ? "+" : "−";
    parts.push(svg("text", { class: "sign", x: node.w - 16, y: 19 }, sign));
  }
  return parts;
}

function pillElement(node) {
  const text = node.kind === "yield" ? "yield" : `%${node.name}  ${shortType(node.type)}`;
  const state_ = node.origin === "state" ? " state" : "";
  const parts = [
    svg("rect", { class: "box", width: node.w, height: node.h, rx: node.h / 2 }),
    svg("text", { class: "sub", x: node.w / 2, y: 17, "text-anchor": "middle" }, cut(text, 36)),
  ];
  return svg("g", { class: "node " + node.kind + state_ }, parts);
}

// All lines of a kind are one path: a graph of a thousand ops has a handful of them.
function drawEdges() {
  const paths = { live: "", state: "", ghost: "", near: "" };
  for (const edge of drawn.layout.edges) {
    const path = edgePath(edge);
    paths[edge.kind] += path;
    if (state.node && (edge.from.id === state.node || edge.to.id === state.node)) paths.near += path;
  }
  layers.edges.replaceChildren(
    ...Object.entries(paths)
      .filter(([, path]) => path)
      .map(([kind, path]) => svg("path", { class: "edge " + kind, d: path })),
  );
}

// What is chosen and what the search found, without drawing anew.
function markNodes() {
  const item = findItem(drawn.items, state.node);
  for (const [id, element] of drawn.elements) {
    element.classList.toggle("chosen", item !== null && id === item.key);
    element.classList.toggle("match", state.matches.has(id));
  }
  if (item === null) canvas.removeAttribute("aria-activedescendant");
  else canvas.setAttribute("aria-activedescendant", "node-" + encodeURIComponent(item.key));
}

function drawLegend() {
  const { added, removed } = changeCounts(stepNow(), state.graph);
  const counts = html("span", {}, countText(drawn.items.length, "op") + " drawn");
  const parts = [counts];
  if (added) parts.push(html("span", { class: "added" }, `+${added} came`));
  if (removed) parts.push(html("span", { class: "removed" }, `−${removed} went`));
  if (!added && !removed) parts.push(html("span", {}, "this step left the graph as it was"));
  byId("legend").replaceChildren(...parts);
}

// --- the view: a scale and a shift

function showView() {
  plane.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
  canvas.classList.toggle("far", isFar());
  if (isLarge()) drawNodes();
}

function fitWidth() {
  const { width } = drawn.layout;
  view.scale = Math.min(1, Math.max(0.55, (view.width - 48) / Math.max(1, width)));
  const middle = width * view.scale > view.width ? (drawn.layout.nodes.find((node) => node.kind === "op")?.x ?? 0) : width / 2;
  view.x = view.width / 2 - middle * view.scale;
  view.y = 24;
  showView();
}

function fitAll() {
  const { width, height } = drawn.layout;
  const across = (view.width - 48) / Math.max(1, width);
  // Of a graph that is far taller than the view the upper part: all of it would be a hairline.
  view.scale = Math.max(SMALLEST, Math.min(1, across, (view.height - 60) / Math.max(1, height)));
  view.x = (view.width - width * view.scale) / 2;
  view.y = 20;
  showView();
}

function zoom(factor, atX = view.width / 2, atY = view.height / 2) {
  const scale = Math.min(2.5, Math.max(SMALLEST, view.scale * factor));
  view.x = atX - ((atX - view.x) * scale) / view.scale;
  view.y = atY - ((atY - view.y) * scale) / view.scale;
  view.scale = scale;
  showView();
}

// Brings the node into view; one that is in view already does not move.
function reveal(id) {
  const node = drawn.layout.nodes.find((each) => each.id === id);
  if (node === undefined) return;
  const x = view.x + node.x * view.scale;
  const y = view.y + (node.y + node.h / 2) * view.scale;
  const half = (node.w / 2) * view.scale;
  if (y < 40 || y > view.height - 130) view.y += view.height * 0.4 - y;
  if (x - half < 0 || x + half > view.width) view.x += view.width / 2 - x;
  showView();
}

function revealChange() {
  const changed = drawn.items.find((item) => item.status !== "same");
  if (changed) reveal(changed.key);
}

canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
      return;
    }
    view.x -= event.shiftKey ? event.deltaY : event.deltaX;
    view.y -= event.shiftKey ? 0 : event.deltaY;
    showView();
  },
  { passive: false },
);

canvas.addEventListener("pointerdown", (down) => {
  if (down.button !== 0) return;
  const from = { x: view.x - down.clientX, y: view.y - down.clientY };
  const move = (event) => {
    if (Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) > 4) canvas.classList.add("dragged");
    view.x = from.x + event.clientX;
    view.y = from.y + event.clientY;
    showView();
  };
  const up = () => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", up);
    requestAnimationFrame(() => canvas.classList.remove("dragged"));
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", up);
});
