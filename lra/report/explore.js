"use strict";
// Files of what is seen, and the controls of the figure.

function save(name, type, text) {
  const link = element("a", {download: name, href: URL.createObjectURL(new Blob([text], {type}))});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveSvg() {
  const svg = draw(view, Math.max(900, find("#figure").clientWidth), LIGHT);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  svg.prepend(node("title", {}, view.title), node("rect", {width: "100%", height: "100%", fill: LIGHT.back}));
  for (const bare of svg.querySelectorAll("[tabindex]")) bare.removeAttribute("tabindex");
  save(`${fileStem()}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(svg));
}

const fileStem = () => `${state.table === ALL ? "all-tasks" : state.table}-${state.kind}`;

function saveCsv() {
  const curves = state.kind === "curves";
  const heads = ["table", "column", "row", "name", "attention", "family", "seed", ...(curves ? ["step", "score on dev"] : ["score"]), "unit",
    ...(curves ? [] : ["parameters", "gflops", "state"]), "run", "command"];
  const lines = [heads];
  for (const lane of view.lanes) for (const place of lane.cells) for (const run of place?.cell.runs ?? []) {
    const {row, column, cell} = cellAt(place.at), [, seed, score, , , , steps, curve] = DATA.runs[run];
    const before = [place.at.split(" ")[0], column.name, row[0], lane.name, lane.attention, lane.family, seed];
    const after = [nameOf(run), commandOf(run)];
    if (curves) curve.forEach((value, at) => lines.push([...before, DATA.steps[steps][at], value, column.unit, ...after]));
    else lines.push([...before, score, column.unit, cell.parameters, cell.gflops, cell.state, ...after]);
  }
  // A spreadsheet must not compute a text.
  const safe = value => (typeof value === "string" && /^[=+\-@]/.test(value) ? `'${value}` : `${value ?? ""}`);
  const quoted = value => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  save(`${fileStem()}.csv`, "text/csv", lines.map(line => line.map(value => quoted(safe(value))).join(",") + "\n").join(""));
}

// ---------------------------------------------------------------- drawing and controls

const night = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function redraw() {
  const place = find("#figure"), focused = document.activeElement?.closest?.("#figure .stop")?.dataset;
  view = viewOf();
  place.replaceChildren(draw(view, place.clientWidth, night.matches && !printing ? DARK : LIGHT));
  if (focused) place.querySelector(`.stop[data-lane="${focused.lane}"][data-panel="${focused.panel}"]`)?.focus({preventScroll: true});
  find("#said").textContent = view.lanes.length ? `${view.lanes.length} rows` : "no row is like that";
  compare();
  hintAtMore();
}

function options(select, pairs, value) {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", {value}, text)));
  select.value = value;
}

// The choices that the rows of the address have, and what it chooses.
function furnish() {
  const panels = panelsOf(), lanes = lanesOf(), families = new Set(lanes.map(lane => lane.family));
  const numbered = panels.map((panel, j) => [`${j}`, panel.title]);
  const orders = panels.map(({title, column}, j) => [`${j + 1}-${column.sign > 0 ? "desc" : "asc"}`, `by ${title}`]);
  const named = [["", state.table === ALL ? "by family" : "as in the table"], ["0-asc", "by name"], ...orders];
  if (!named.some(([value]) => value === state.order)) named.push([state.order, "by a column of the table"]);
  options(find("#task"), panels.length > 1 ? [["", "all"], ...numbered] : [["", panels[0].title]], state.task);
  options(find("#family"), [["", "all"], ...DATA.families.filter(family => families.has(family)).map(family => [family, family])], state.family);
  options(find("#since"), [["", "all"], ...yearsOf(lanes).map(year => [`${year}`, `${year} or later`])], state.since);
  options(find("#memory"), [["", "all"], ...sizesOf(lanes)], state.memory);
  options(find("#order"), named, state.order);
  find("#budget").value = state.budget;
  find("#budget").disabled = state.table !== ALL;
  find("#find").value = state.find;
  offerKinds(lanes);
}

const yearsOf = lanes => [...new Set(lanes.map(lane => lane.year).filter(Boolean))].sort((a, b) => b - a);

// Sizes that tell rows apart, in steps of four.
function sizesOf(lanes) {
  const known = lanes.map(memoryOf).filter(size => size !== null);
  const counts = [256, 1024, 4096, 16384].map(size => [size, known.filter(other => other <= size).length]);
  const told = counts.filter(([, n], i) => n > (counts[i - 1]?.[1] ?? 0));
  const grows = known.includes(Infinity) ? [["grows", "grows with the length"]] : [];
  return [...told.map(([size]) => [`${size}`, `at most ${size.toLocaleString("en")} numbers a head`]), ...grows];
}

// After a choice: all that is shown, and the address.
function changed() {
  redraw();
  tabulate();
  keep();
}

// Kinds for which the rows have no number are there, and say so.
function offerKinds(lanes) {
  const cells = lanes.flatMap(lane => lane.cells).filter(Boolean).map(place => place.cell), select = find("#kind");
  for (const option of select.options) {
    const has = {
      scores: () => true,
      curves: cell => curvesOf(cell).some(curve => curve.length),
    }[option.value] ?? (cell => costOf(cell, option.value).length);
    option.disabled = !cells.some(has);
    option.text = option.text.replace(/ \(not in .*/, "") + (option.disabled ? " (not in these records)" : "");
  }
  select.value = state.kind;
  if (!select.selectedOptions[0] || select.selectedOptions[0].disabled) select.value = "scores";
  state.kind = select.value;
}

// From stop to stop with the arrow keys: names are left of the panels.
function step(event) {
  const stop = event.target.closest?.("#figure .stop");
  const right = {ArrowRight: 1, ArrowLeft: -1}[event.key], down = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!stop || !(right || down)) return;
  event.preventDefault();
  let [lane, panel] = [+stop.dataset.lane, +stop.dataset.panel];
  for (;;) {
    [lane, panel] = [lane + (down ?? 0), panel + (right ?? 0)];
    if (lane < 0 || lane >= view.lanes.length || panel < -1 || panel >= view.panels.length) return;
    const next = find(`#figure .stop[data-lane="${lane}"][data-panel="${panel}"]`);
    if (!next) continue;
    for (const other of document.querySelectorAll("#figure .stop[tabindex='0']")) other.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
    return;
  }
}

function light(target) {  // the lane that is pointed at; the others are faint
  const lane = target?.closest?.("#figure [data-lane]")?.dataset.lane;
  for (const other of document.querySelectorAll("#figure [data-lane]")) {
    const chosen = view.lanes[other.dataset.lane]?.side;
    other.classList.toggle("dim", lane !== undefined ? other.dataset.lane !== lane : state.chosen.length > 1 && !chosen);
  }
}

for (const name of Object.keys(FILTERS)) {
  find(`#${name}`).addEventListener("input", event => { state[name] = event.target.value; changed(); light(null); });
}
find("#save-svg").onclick = saveSvg;
find("#save-csv").onclick = saveCsv;
find("#figure").addEventListener("click", event => {
  const label = event.target.closest(".label");
  if (label) choose(view.lanes[label.dataset.lane].key);
});
find("#figure").addEventListener("mouseover", event => light(event.target));
find("#figure").addEventListener("mouseleave", () => light(null));
addEventListener("focusin", event => view && light(event.target));
addEventListener("keydown", event => {
  const label = event.target.closest?.("#figure .label");
  if (!label || !["Enter", " "].includes(event.key)) return step(event);
  event.preventDefault();
  choose(view.lanes[label.dataset.lane].key);
});
night.addEventListener("change", () => state.run ? showRun() : redraw());
addEventListener("beforeprint", () => { printing = true; redraw(); });
addEventListener("afterprint", () => { printing = false; redraw(); });
let width = 0;
new ResizeObserver(([{contentRect}]) => {
  if (view && Math.abs(contentRect.width - width) > 1) redraw();
  width = contentRect.width;
}).observe(find("#figure"));
