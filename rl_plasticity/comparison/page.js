"use strict";
// A key in a legend hides its group in every figure and greys its rows; a curve under the pointer shows its values;
// a column's head sorts its table. Without this script the page shows all of it, in the order of the groups.

let groups = []; // {label, colour}, by their places
const hidden = new Set(); // labels

function mark(place) {
  const off = hidden.has(groups[place].label);
  for (const e of document.querySelectorAll(`svg [data-group="${place}"]`)) e.style.display = off ? "none" : "";
  for (const e of document.querySelectorAll(`tr[data-group="${place}"]`)) e.classList.toggle("off", off);
  for (const e of document.querySelectorAll(`[data-key="${place}"]`)) {
    e.classList.toggle("off", off);
    e.setAttribute("aria-pressed", String(!off));
  }
}

function toggle(place) {
  const { label } = groups[place];
  if (!hidden.delete(label)) hidden.add(label);
  mark(place);
}

function prepareKey(key) {
  const place = Number(key.dataset.key);
  key.setAttribute("role", "button");
  key.setAttribute("tabindex", "0");
  key.setAttribute("aria-label", groups[place].label);
  key.addEventListener("click", () => toggle(place));
  key.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle(place);
  });
}

// --- the values of curves -----------------------------------------------------------------------------------------

const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;

const written = (value) => (value === null ? "not finite" : Number(value.toPrecision(4)).toString());

function nearest(steps, wanted) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - steps[low] < steps[high] - wanted ? low : high;
}

function spacing(steps, i) {
  return Math.max(i ? steps[i] - steps[i - 1] : 0, i + 1 < steps.length ? steps[i + 1] - steps[i] : 0);
}

function readOut(panel, step) {
  const lines = [];
  const shown = panel.curves.filter((curve) => !hidden.has(groups[curve.group].label));
  const steps = shown.map(({ steps }) => steps[nearest(steps, step)]);
  const at = steps[steps.map((s) => Math.abs(s - step)).reduce((best, d, i, all) => (d < all[best] ? i : best), 0)];
  for (const curve of shown) {
    const i = nearest(curve.steps, at);
    if (Math.abs(curve.steps[i] - at) > spacing(curve.steps, i) / 2) continue; // it has ended before, or begins later
    const interval = curve.low.length && curve.low[i] !== null ? ` [${written(curve.low[i])}, ${written(curve.high[i])}]` : "";
    lines.push({ group: groups[curve.group], mean: curve.means[i], text: written(curve.means[i]) + interval });
  }
  lines.sort((a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity));
  return { at, lines: lines.slice(0, 16), more: Math.max(0, lines.length - 16) };
}

function show({ at, lines, more }, event) {
  const parts = [Object.assign(document.createElement("b"), { textContent: at.toLocaleString("en") })];
  for (const { group, text } of lines) {
    const line = document.createElement("div");
    const swatch = Object.assign(document.createElement("i"), { className: "swatch" });
    swatch.style.background = group.colour;
    line.append(swatch, `${group.label}  ${text}`);
    parts.push(line);
  }
  if (more) parts.push(`and ${more} more`);
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}

function prepareCurves(data) {
  const svg = data.previousElementSibling;
  const panels = JSON.parse(data.textContent);
  const guide = svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
  guide.setAttribute("class", "guide");
  const leave = () => { tip.hidden = true; guide.style.display = "none"; };
  svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || leave()); // a finger is lifted
  const read = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const panel = panels.find(({ box: [x0, y0, x1, y1] }) => point.x >= x0 && point.x <= x1 && point.y >= y0 && point.y <= y1);
    if (!panel) return leave();
    const [x0, y0, x1, y1] = panel.box, [first, last] = panel.steps;
    const found = readOut(panel, first + ((point.x - x0) / (x1 - x0)) * (last - first));
    if (!found.lines.length) return leave();
    const x = x0 + ((found.at - first) / (last - first)) * (x1 - x0);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: y0, y2: y1 })) guide.setAttribute(name, value);
    guide.style.display = "";
    show(found, event);
  };
  svg.addEventListener("pointermove", read);
  svg.addEventListener("pointerdown", read);
  leave();
}

// --- tables -----------------------------------------------------------------------------------------------------

const SIZES = { k: 1e3, M: 1e6 };

function number(text) {
  const found = /^\s*([-−+]?[\d.]+(?:e[-+]?\d+)?)([kM]?)/.exec(text);
  return found ? Number(found[1].replace("−", "-")) * (SIZES[found[2]] ?? 1) : NaN;
}

function compareCells(a, b) {
  return Number.isNaN(number(a)) ? a.localeCompare(b, "en", { numeric: true }) : number(a) - number(b);
}

function prepareTable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      // The first click puts the largest number on top, and words in their order.
      const cells = [...body.rows].map((row) => row.cells[column].textContent);
      const upward = cells.every((cell) => Number.isNaN(number(cell))) ? "ascending" : "descending";
      const other = upward === "ascending" ? "descending" : "ascending";
      const way = head.getAttribute("aria-sort") === upward ? other : upward;
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => {
        const [s, t] = [a.cells[column].textContent, b.cells[column].textContent];
        const missing = Number.isNaN(number(s)) - Number.isNaN(number(t));
        return missing || sign * compareCells(s, t); // what is no number comes last either way
      });
      body.append(...rows);
    });
  });
}

function prepare(root) {
  const known = root.querySelector("#groups");
  if (known) groups = JSON.parse(known.textContent);
  root.querySelectorAll("[data-key]").forEach(prepareKey);
  root.querySelectorAll("figure script[type='application/json']").forEach(prepareCurves);
  root.querySelectorAll("table.sortable").forEach(prepareTable);
  groups.forEach((_, place) => mark(place));
}

prepare(document);
