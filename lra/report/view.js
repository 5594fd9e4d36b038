"use strict";
// What is shown: the choices, which the address keeps, and the rows and columns that follow from them.

const find = (css, of = document) => of.querySelector(css);
const DATA = JSON.parse(find("#data").textContent);
const ALL = "-all";  // the address of all tasks; no table can have this name
const NARROW = 640;  // pixels: below, one panel at a time
const FILTERS = {kind: "scores", task: "", budget: "", family: "", since: "", memory: "", order: "", find: ""};
const state = {table: "", ...FILTERS, chosen: [], run: ""};
let view = null;  // what is drawn

function element(name, more = {}, ...children) {
  const made = Object.assign(document.createElement(name), more);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- the address

// A task that is shown alone, as on a narrow screen, is named, so that a link shows the same to all.
function addressOf(more = {}) {
  const said = {...state, ...more}, words = new URLSearchParams();
  for (const [name, usual] of Object.entries(FILTERS)) if (said[name] !== usual) words.set(name, said[name]);
  if (said.task === "" && innerWidth < NARROW && panelsOf().length > 1) words.set("task", "all");
  for (const key of said.chosen) words.append("with", key);
  if (said.run) words.set("run", said.run);
  return `#${said.table}${words.size ? "?" : ""}${words}`;
}

const keep = () => history.replaceState(null, "", addressOf());

// The choices of an address; what it does not name is as usual.
function readAddress(tables) {
  const [name, query = ""] = location.hash.slice(1).split("?"), words = new URLSearchParams(query);
  state.table = tables.includes(name) ? name : tables[0];
  for (const [choice, usual] of Object.entries(FILTERS)) state[choice] = words.get(choice) ?? usual;
  const panels = panelsOf();
  if (innerWidth < NARROW && !words.has("task")) state.task = "0";
  if (panels.length === 1 || !panels[state.task]) state.task = "";
  state.chosen = words.getAll("with").filter(key => lanesOf().some(lane => lane.key === key));
  state.run = words.get("run") ?? "";
}

// ---------------------------------------------------------------- rows and columns

// `at` names a cell: its table, row and column.
function cellAt(at) {
  const [name, row, column] = at.split(" "), table = DATA.tables[name];
  return {table, row: table.rows[row], column: table.columns[column], cell: table.cells[row][column]};
}

const placed = at => at && {cell: cellAt(at).cell, at};

const panelsOf = () => state.table === ALL
  ? DATA.tasks.map(([title, name, at, places, full]) => ({title, places, full, column: DATA.tables[name].columns[at]}))
  : DATA.tables[state.table].columns.map(column => ({title: column.words, column}));

function lane(key, name, label, attention, cells) {
  const [, family, colour, marker, year] = DATA.looks[attention];
  return {key, name, label, attention, family, colour, marker, year, cells, bold: ["luna", "softmax"].includes(attention)};
}

function lanesOf() {
  if (state.table === ALL) {
    return DATA.lines.map(([key, name, method]) => lane(key, name, key, method, DATA.tasks.map(task => placed(task[3][key]))));
  }
  const {rows, cells} = DATA.tables[state.table];
  return rows.map(([label, words, attention], row) => lane(
    label, words, label, attention, cells[row].map((cell, column) => cell && {cell, at: `${state.table} ${row} ${column}`})));
}

// ---------------------------------------------------------------- numbers of a cell

const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const rounded = (value, digits) => (Math.round(value * 10 ** digits + 1e-7 * Math.sign(value)) / 10 ** digits).toFixed(digits);
const isMixed = cell => cell.leapt !== undefined && cell.leapt > 0 && cell.leapt < cell.runs.length;
const scoresOf = cell => cell.runs ? cell.runs.map(run => DATA.runs[run][2]) : [cell.score];

const curvesOf = cell => (cell.runs ?? []).map(run => {
  const [, , , , , , steps, scores] = DATA.runs[run];
  return scores.map((score, at) => [DATA.steps[steps][at], score]);
});

function costOf(cell, cost) {
  const value = cell[cost];
  const number = value === "grows" ? Infinity : typeof value === "string" ? parseFloat(value.replaceAll(",", "")) : value;
  return number > 0 ? scoresOf(cell).map(score => [[number, score]]) : [];
}

// ---------------------------------------------------------------- filters

// How many numbers a head keeps: the most among the cells of a row, infinite where it grows.
function memoryOf(lane) {
  const sizes = lane.cells.map(place => place?.cell.state).filter(size => size && size !== "–");
  return sizes.length ? Math.max(...sizes.map(size => size === "grows" ? Infinity : parseFloat(size.replaceAll(",", "")))) : null;
}

function matches(lane) {
  const wanted = state.find.toLowerCase().split(" ").filter(Boolean), text = `${lane.name} ${lane.label}`.toLowerCase();
  const size = memoryOf(lane);
  return (!state.family || lane.family === state.family)
    && (!state.since || lane.year >= +state.since)
    && (!state.memory || (size !== null && (state.memory === "grows" ? size === Infinity : size <= +state.memory)))
    && wanted.every(word => text.includes(word));
}

// Where a table stands at a budget its columns all have it; tasks differ.
const isShown = (panel, j) => (state.task === "" || j === +state.task)
  && (!state.budget || panel.full === undefined || !!panel.full === (state.budget === "full"));

// `2-desc` is the second column of the table, the first after the names, from its largest value down.
function inOrder(rows, lanes) {
  if (!state.order) return rows;
  const [column, direction] = state.order.split("-"), sign = direction === "asc" ? 1 : -1;
  if (column === "0") return rows.sort((a, b) => sign * a.name.localeCompare(b.name, "en"));
  const worth = row => {
    const cell = lanes.find(lane => lane.key === row.key).cells[column - 1]?.cell;
    return cell ? sign * mean(scoresOf(cell)) : Infinity;
  };
  return rows.sort((a, b) => (worth(a) - worth(b)) || 0);
}

// Rows that the choices leave; a best setting that no shown column has is no row of its own.
function kept(lanes, shown) {
  const cut = shown.length < panelsOf().length, places = lane => shown.map(j => lane.cells[j]?.at ?? "");
  const usual = Object.fromEntries(lanes.map(lane => [lane.key, places(lane).join()]));
  return lanes.filter(lane => matches(lane)
    && (!cut || places(lane).some(Boolean))
    && (lane.key === lane.attention || usual[lane.attention] !== usual[lane.key]));
}

function viewOf() {
  const panels = panelsOf(), lanes = lanesOf(), all = state.table === ALL;
  const asked = panels.map((_, j) => j).filter(j => isShown(panels[j], j)), rows = kept(lanes, asked);
  const run = asked.filter(j => rows.some(lane => lane.cells[j])), shown = run.length ? run : asked;
  const drawn = rows.map(lane => ({...lane, cells: shown.map(j => lane.cells[j])}));
  const ordered = inOrder(drawn.filter(lane => lane.cells.some(Boolean)), lanes);
  for (const lane of ordered) lane.side = letterOf(lane.key);
  return {
    title: all ? "All tasks" : DATA.tables[state.table].title,
    kind: state.kind, named: true, keys: new Set(rows.map(lane => lane.key)), shown, lanes: ordered, grouped: all && state.order === "",
    panels: shown.map((at, j) => ({...panels[at], verdict: verdictOf(panels[at], ordered.map(lane => lane.cells[j]).filter(Boolean))})),
  };
}

function letterOf(key) {
  const at = state.chosen.indexOf(key);
  return at < 0 ? "" : String.fromCharCode(65 + at);
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
