"use strict";
// What the figure shows and answers: choice of rows, two rows compared, files of what is seen.

const find = (css, of = document) => of.querySelector(css);
const DATA = JSON.parse(find("#data").textContent);
const ALL = "-all";  // the address of all tasks; no table can have this name
const NARROW = 640;  // pixels: below, one panel at a time
const state = {table: "", kind: "scores", task: "", family: "", find: "", order: "", chosen: []};
let view = null;  // what is drawn

function element(name, more = {}, ...children) {
  const made = Object.assign(document.createElement(name), more);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- the view

// `at` names a cell: its table, row and column.
function cellAt(at) {
  const [name, row, column] = at.split(" "), table = DATA.tables[name];
  return {table, row: table.rows[row], column: table.columns[column], cell: table.cells[row][column]};
}

function viewOf() {
  const all = state.table === ALL, panels = all ? panelsOfTasks() : panelsOfTable(state.table);
  const lanes = all ? lanesOfTasks(panels) : lanesOfTable(state.table);
  const shown = state.task === "" ? panels : panels.filter((_, j) => j === +state.task);
  const at = panel => panels.indexOf(panel);
  const kept = lanes.filter(matches).map(lane => ({...lane, cells: shown.map(panel => lane.cells[at(panel)])}));
  const ordered = inOrder(kept.filter(lane => lane.cells.some(Boolean)), panels, lanes);
  for (const lane of ordered) lane.side = ["A", "B"][state.chosen.indexOf(lane.key)];
  const title = all ? "All tasks" : DATA.tables[state.table].title;
  return {
    title, kind: state.kind, lanes: ordered, grouped: all && state.order === "",
    panels: shown.map((panel, j) => ({...panel, verdict: verdictOf(panel, ordered.map(lane => lane.cells[j]).filter(Boolean))})),
  };
}

const panelsOfTasks = () => DATA.tasks.filter(task => task[2] !== null).map(([title, name, column, rows]) => (
  {title, name, at: column, rows, column: DATA.tables[name].columns[column]}));
const panelsOfTable = name => DATA.tables[name].columns.map((column, at) => ({title: column.words, name, at, column}));

function lane(key, name, label, attention, cells) {
  const [, family, colour, marker] = DATA.looks[attention];
  return {key, name, label, attention, family, colour, marker, cells, bold: ["luna", "softmax"].includes(attention)};
}

function lanesOfTasks(panels) {
  const places = ({name, at, rows}, method) => {
    const row = rows[method], cell = row === undefined ? null : DATA.tables[name].cells[row][at];
    return cell && {cell, at: `${name} ${row} ${at}`};
  };
  const methods = Object.keys(DATA.looks).filter(method => panels.some(panel => method in panel.rows));
  return methods.map(method => lane(method, DATA.looks[method][0], method, method, panels.map(panel => places(panel, method))));
}

function lanesOfTable(name) {
  const {rows, cells} = DATA.tables[name];
  return rows.map(([label, words, attention], row) => lane(
    label, words, label, attention, cells[row].map((cell, column) => cell && {cell, at: `${name} ${row} ${column}`})));
}

function matches({name, label, family}) {
  const wanted = state.find.toLowerCase().split(" ").filter(Boolean), text = `${name} ${label}`.toLowerCase();
  return (!state.family || family === state.family) && wanted.every(word => text.includes(word));
}

function inOrder(kept, panels, lanes) {
  if (state.order === "") return kept;
  if (state.order === "name") return kept.sort((a, b) => a.name.localeCompare(b.name, "en"));
  const {sign} = panels[+state.order].column;
  const worth = kept => {
    const cell = lanes.find(lane => lane.key === kept.key).cells[+state.order]?.cell;
    return cell ? sign * mean(scoresOf(cell)) : -Infinity;
  };
  return kept.sort((a, b) => worth(b) - worth(a));
}

// How many rows are above the best rule in every seed.
function verdictOf(panel, places) {
  const {rules, rule, sign, digits, metric, unit} = panel.column;
  if (state.kind === "curves") return `${metric}${unit && ` in ${unit}`}, on dev`;
  const best = rules.find(([name]) => name === rule)?.[1];
  if (best === undefined) return [metric, unit && `in ${unit}`].filter(Boolean).join(" ");
  const above = places.filter(({cell}) => scoresOf(cell).every(score => sign * score > sign * best)).length;
  return `${above} of ${places.length} beat rule ${rounded(best, digits)}`;
}

// ---------------------------------------------------------------- what is said of a cell

// Student's interval of a difference, over the seeds of both; their variance is never taken to be
// smaller than that of drawing the test examples again. None for seeds of two kinds, or single ones.
function differenceOf(a, b) {
  if (!a?.runs || !b?.runs || a.runs.length < 2 || b.runs.length < 2 || isMixed(a) || isMixed(b)) return null;
  const [x, y] = [scoresOf(a), scoresOf(b)], freedom = x.length + y.length - 2;
  const squares = values => values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0);
  const least = ((a.noise ?? 0) ** 2 + (b.noise ?? 0) ** 2) / 2;
  const variance = Math.max((squares(x) + squares(y)) / freedom, least);
  const t = DATA.students[Math.min(freedom, DATA.students.length) - 1];
  return {mean: mean(x) - mean(y), half: t * Math.sqrt(variance * (1 / x.length + 1 / y.length))};
}

function spelt(difference, {digits, unit}) {
  const signed = value => (value < 0 ? "−" : "+") + rounded(Math.abs(value), digits);
  const {mean, half} = difference;
  return `${signed(mean)}${unit === "%" ? " points" : ""} (95 % interval ${signed(mean - half)} to ${signed(mean + half)})`;
}

function softmaxOf(table, column) {
  const known = table.rows.map(([label, , attention], row) => ({label, attention, row, cell: table.cells[row][column]}));
  const rows = known.filter(({attention, cell}) => attention === "softmax" && cell?.runs);
  return rows.sort((a, b) => a.label.length - b.label.length || b.cell.runs.length - a.cell.runs.length)[0];
}

const commandOf = run => DATA.commands[DATA.runs[run][3]].replace("#", DATA.runs[run][1]);
const nameOf = run => `${DATA.runs[run][0]}-seed-${DATA.runs[run][1]}`;

// Lines about a cell; `seed` is the place of the seed that is pointed at.
function factsOf(at, seed = 0) {
  const {table, row, column, cell} = cellAt(at), digits = column.digits + 1;
  const [label, name, attention] = row;
  const lines = [`${[name, attention].includes(label) ? name : `${name} (${label})`}, ${column.words}`];
  if (!cell.runs) return {lines: [...lines, cell.text]};
  const seeds = cell.runs.map(run => `seed ${DATA.runs[run][1]}: ${rounded(DATA.runs[run][2], digits)}`).join(", ");
  const verdict = isMixed(cell) ? "seeds of two kinds: no mean" : cell.best ? "best mean" : {"↓": "shown to be worse", "∅": "no better than a simple rule"}[cell.mark];
  lines.push([seeds, verdict].filter(Boolean).join(", "));
  if (cell.p !== undefined) lines.push(`p = ${+cell.p.toPrecision(2)} against the best of the column`);
  if (cell.needs > 0) lines.push(`${cell.needs > 100 ? "more than 100" : `about ${cell.needs}`} seeds per row would tell`);
  const softmax = softmaxOf(table, at.split(" ")[2]), against = softmax && softmax.cell !== cell && differenceOf(cell, softmax.cell);
  if (against) lines.push(`against ${softmax.label}: ${spelt(against, column)}`);
  if (cell.parameters) lines.push(`${cell.parameters.toLocaleString("en")} parameters, ${cell.gflops} GFLOPs, ${cell.compute}${cell.state === "–" ? "" : `, state ${cell.state}`}`);
  const run = cell.runs[seed] ?? cell.runs[0];
  return {lines, run, command: commandOf(run), last: `revision ${DATA.runs[run][5]}; runs ${cell.runs.map(nameOf).join(" ")}`};
}

// ---------------------------------------------------------------- two rows

function choose(key) {
  const at = state.chosen.indexOf(key);
  if (at >= 0) state.chosen.splice(at, 1);
  else state.chosen = [...state.chosen, key].slice(-2);
  redraw();
}

function compare() {
  const place = find("#compare"), lanes = state.chosen.map(key => view.lanes.find(lane => lane.key === key)).filter(Boolean);
  if (lanes.length < 2) {
    const hint = lanes.length ? `${lanes[0].name} is chosen; choose a second name to compare.` : "Choose two names to compare them.";
    place.replaceChildren(element("p", {className: "soft"}, hint));
    return;
  }
  const [a, b] = lanes, heads = ["", `A: ${a.name}`, `B: ${b.name}`, "A − B", ""];
  const body = view.panels.flatMap((panel, j) => {
    const [x, y] = [a.cells[j]?.cell, b.cells[j]?.cell];
    if (!x && !y) return [];
    const difference = differenceOf(x, y), copy = answered(x) && answered(y) ? copyButton(compareCommand(x, y), "Copy command") : "";
    const why = !x || !y ? "not run" : isMixed(x) || isMixed(y) ? "seeds of two kinds: no difference of means" : "a single seed says nothing about others";
    return [[panel.title, x?.text ?? "not run", y?.text ?? "not run", difference ? spelt(difference, panel.column) : why, copy]];
  });
  const both = view.panels.findIndex((_, j) => a.cells[j]?.cell.parameters && b.cells[j]?.cell.parameters);
  if (both >= 0) {
    const [p, q] = [a.cells[both].cell, b.cells[both].cell], on = `, ${view.panels[both].title}`;
    body.push([`parameters${on}`, p.parameters.toLocaleString("en"), q.parameters.toLocaleString("en"), `×${rounded(p.parameters / q.parameters, 2)}`, ""]);
    body.push([`GFLOPs${on}`, p.gflops, q.gflops, `×${rounded(p.gflops / q.gflops, 2)}`, ""]);
    if (p.state !== "–" || q.state !== "–") body.push([`state of a head${on}`, p.state, q.state, "", ""]);
  }
  const row = (cells, head) => element("tr", {}, ...cells.map((text, i) => element(head || !i ? "th" : "td", {scope: head ? "col" : i ? "" : "row"}, text)));
  const table = element("table", {}, element("thead", {}, row(heads, true)), element("tbody", {}, ...body.map(cells => row(cells))));
  const note = "The interval is Student's, over the seeds of both rows, and not corrected for how many pairs one looks at.";
  place.replaceChildren(element("div", {className: "scroll"}, table), element("p", {className: "soft"}, note));
}

const answered = cell => cell?.runs?.every(run => DATA.runs[run][8]);

function compareCommand(x, y) {
  const [a, b] = [DATA.runs[x.runs[0]], DATA.runs[y.runs[0]]], file = DATA.files[a[4]];
  return `lra compare ${a[0]} ${b[0]} --runs ${a[4] === b[4] ? `results/${file}` : "results/records"}`;
}

// ---------------------------------------------------------------- files, and copies

function copyButton(text, says) {
  const button = element("button", {type: "button", className: "copy"}, says);
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a browser that gives no clipboard to files
      const area = element("textarea", {value: text});
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => button.textContent = says, 1500);
  };
  return button;
}

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
  find("#said").textContent = view.lanes.length ? `${view.lanes.length} rows` : "no row has these words";
  compare();
}

function options(select, pairs, value) {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", {value}, text)));
  select.value = value;
}

// Called with every change of the table; on a narrow screen the first panel is shown alone.
function showFigure(name) {
  if (state.table === name) return;
  const all = name === ALL, panels = all ? panelsOfTasks() : panelsOfTable(name);
  const lanes = all ? lanesOfTasks(panels) : lanesOfTable(name), families = new Set(lanes.map(lane => lane.family));
  const numbered = panels.map((panel, j) => [`${j}`, panel.title]);
  const alone = innerWidth < NARROW || panels.length === 1;
  Object.assign(state, {table: name, task: alone ? "0" : "", family: "", find: "", order: "", chosen: []});
  options(find("#task"), [...(panels.length > 1 ? [["", "all"]] : []), ...numbered], state.task);
  options(find("#family"), [["", "all"], ...DATA.families.filter(family => families.has(family)).map(family => [family, family])], "");
  options(find("#order"), [["", all ? "by family" : "as in the table"], ["name", "by name"], ...numbered.map(([j, title]) => [j, `by ${title}`])], "");
  find("#find").value = "";
  offerKinds(lanes);
  redraw();
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
  if (select.selectedOptions[0].disabled) select.value = "scores";
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
    other.classList.toggle("dim", lane !== undefined ? other.dataset.lane !== lane : state.chosen.length === 2 && !chosen);
  }
}

for (const name of ["kind", "task", "family", "order", "find"]) {
  find(`#${name}`).addEventListener("input", event => { state[name] = event.target.value; redraw(); light(null); });
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
night.addEventListener("change", redraw);
addEventListener("beforeprint", () => { printing = true; redraw(); });
addEventListener("afterprint", () => { printing = false; redraw(); });
let width = 0;
new ResizeObserver(([{contentRect}]) => {
  if (view && Math.abs(contentRect.width - width) > 1) redraw();
  width = contentRect.width;
}).observe(find("#figure"));
