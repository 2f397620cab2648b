// Making elements. Names of models, plugins and values are anyone's: they only ever become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A row of buttons of which one is chosen: [value, label, more attributes].
function choices(place, role, entries, chosen, choose) {
  place.replaceChildren(
    ...entries.map(([value, label, attributes]) =>
      html(
        "button",
        {
          type: "button",
          role: role === "tab" ? "tab" : null,
          "aria-selected": role === "tab" ? String(value === chosen) : null,
          "aria-pressed": role === "tab" ? null : String(value === chosen),
          "data-value": value,
          ...attributes,
          onclick: () => choose(value),
        },
        label,
      ),
    ),
  );
}

// "T × 576  f32" for f32[T, 576]; other types as they are written.
function shortType(type) {
  const found = /^([a-z0-9]+)(?:<[^>]*>)?\[(.*)\]$/.exec(type) ?? /^([\w-]+)<[^>]*>\[(.*)\]$/.exec(type);
  if (found) return (found[2] ? found[2].replaceAll(", ", " × ") + "  " : "") + found[1];
  return type.startsWith("kv<") ? "kv state" : type;
}

const cut = (text, length) => (text.length <= length ? text : text.slice(0, length - 1) + "…");
