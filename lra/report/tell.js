"use strict";
// What is said of a cell, of rows side by side, and of a run.

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

// ---------------------------------------------------------------- rows side by side

function choose(key) {
  const at = state.chosen.indexOf(key);
  if (at >= 0) state.chosen.splice(at, 1);
  else state.chosen.push(key);
  changed();
}

const tableOf = (heads, lines) => {
  const row = (cells, head) => element("tr", {}, ...cells.map((cell, i) => element(head || !i ? "th" : "td", {scope: head ? "col" : i ? "" : "row"}, ...[cell].flat())));
  return element("table", {}, element("thead", {}, row(heads, true)), element("tbody", {}, ...lines.map(cells => row(cells))));
};

function compare() {
  const place = find("#compare"), lanes = state.chosen.map(key => view.lanes.find(lane => lane.key === key)).filter(Boolean);
  if (lanes.length < 2) {
    const hint = lanes.length ? `${lanes[0].name} is chosen; choose more names to compare.` : "Choose two names or more to compare them.";
    place.replaceChildren(element("p", {className: "soft"}, hint));
    return;
  }
  const [first, ...others] = lanes, side = lanes[0].side;
  const lines = view.panels.flatMap((panel, j) => {
    const a = first.cells[j]?.cell;
    if (lanes.every(lane => !lane.cells[j])) return [];
    return [[panel.title, a?.text ?? "not run", ...others.map(lane => besides(a, lane.cells[j]?.cell, panel.column, side))]];
  });
  const heads = ["", ...lanes.map(lane => [`${lane.side}: ${lane.name}`, linksOf(lane.attention)])];
  const clear = element("button", {type: "button"}, "Choose none");
  clear.onclick = () => { state.chosen = []; changed(); };
  const note = `Below a score stands its difference from ${side}, with Student's interval over the seeds of both rows, not corrected for how many pairs one looks at. `;
  place.replaceChildren(find(".more").cloneNode(true), element("div", {className: "scroll"}, tableOf(heads, [...lines, ...costsOf(lanes)])), element("p", {className: "soft"}, note, clear));
}

// A score, its difference from that of the first row, and the command that compares their answers.
function besides(a, b, column, side) {
  if (!b) return "not run";
  const difference = a && differenceOf(b, a);
  const why = !a ? "" : isMixed(a) || isMixed(b) ? "seeds of two kinds: no difference of means" : "a single seed says nothing about others";
  const said = [b.text, element("small", {}, difference ? `${spelt(difference, column)} against ${side}` : why)];
  return answered(a) && answered(b) ? [...said, copyButton(compareCommand(a, b), "Copy command")] : said;
}

// What rows cost, on the first task that all of them have run.
function costsOf(lanes) {
  const at = view.panels.findIndex((_, j) => lanes.every(lane => lane.cells[j]?.cell.parameters));
  if (at < 0) return [];
  const on = `, ${view.panels[at].title}`, cells = lanes.map(lane => lane.cells[at].cell);
  return [
    [`parameters${on}`, ...cells.map(cell => cell.parameters.toLocaleString("en"))],
    [`GFLOPs${on}`, ...cells.map(cell => `${cell.gflops}`)],
    ...(cells.some(cell => cell.state !== "–") ? [[`state of a head${on}`, ...cells.map(cell => cell.state)]] : []),
  ];
}

// The paper and the code of a method, as the table of all tasks has them.
const linksOf = method => find(`[data-lane="${CSS.escape(method)}"] .links`)?.cloneNode(true) ?? "";

const answered = cell => cell?.runs?.every(run => DATA.runs[run][8]);

function compareCommand(x, y) {
  const [a, b] = [DATA.runs[x.runs[0]], DATA.runs[y.runs[0]]], file = DATA.files[a[4]];
  return `lra compare ${a[0]} ${b[0]} --runs ${a[4] === b[4] ? `results/${file}` : "results/records"}`;
}

// ---------------------------------------------------------------- copies

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

// ---------------------------------------------------------------- the record of a run

// Everything that this page has of the run that the address names: false where there is none.
function showRun() {
  const run = DATA.runs.findIndex((_, run) => nameOf(run) === state.run), place = find("#run");
  const at = run >= 0 && placeOf(run);
  if (!at) return false;
  const {table, row, column, cell} = cellAt(at), [, seed, score, , file, , , curve, , settings, finished, device, seconds] = DATA.runs[run];
  const {lines, command} = factsOf(at, cell.runs.indexOf(run));
  const back = element("p", {}, element("a", {href: addressOf({run: ""})}, "← back to all rows"));
  const facts = [
    `Score ${rounded(score, column.digits + 1)}${column.unit && ` ${column.unit}`}, ${column.metric}; the row has ${cell.text}.`,
    `Finished ${finished || "at an unknown time"} on ${DATA.devices[device]}, after ${seconds.toLocaleString("en")} seconds of training.`,
    ...lines.slice(2),
  ].map(text => element("p", {}, text));
  const parts = [back, element("h2", {}, `${row[1]}, ${column.words}, seed ${seed}`), linksOf(row[2]), ...facts];
  parts.push(element("p", {}, "It is the line with ", element("code", {}, nameOf(run)), " of ", element("a", {href: DATA.files[file]}, DATA.files[file]), "."));
  if (command) parts.push(element("p", {}, element("code", {}, command), " ", copyButton(command, "Copy command")));
  if (curve.length) parts.push(element("h3", {}, "Learning curve, on dev"), curveOf(run, at));
  if (table.answers[run]) parts.push(element("h3", {}, "Accuracy by what must be read"), element("div", {className: "scroll"}, tableOf(["", ...table.rungs], [["this run, %", ...table.answers[run].map(share => share.toFixed(1))]])));
  const named = DATA.of_runs[settings].map(at => DATA.settings[at].split(/: (.*)/s).slice(0, 2));
  parts.push(element("h3", {}, "Settings"), element("dl", {className: "settings"}, ...named.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
  place.replaceChildren(...parts);
  return true;
}

// A cell that has the run: of the table that is shown, or else of the first one.
function placeOf(run) {
  for (const name of [state.table, ...Object.keys(DATA.tables)].filter(name => name in DATA.tables)) {
    const {cells} = DATA.tables[name];
    for (const [i, line] of cells.entries()) {
      const j = line.findIndex(cell => cell?.runs?.includes(run));
      if (j >= 0) return `${name} ${i} ${j}`;
    }
  }
  return null;
}

function curveOf(run, at) {
  const {row, column, cell} = cellAt(at), theme = night.matches && !printing ? DARK : LIGHT;
  const only = {...lane(row[0], row[1], row[0], row[2], [{cell: {...cell, runs: [run]}, at}]), side: ""};
  const panel = {title: column.words, column, verdict: column.metric};
  const drawn = {title: row[1], kind: "curves", lanes: [only], named: false, grouped: false, panels: [panel]};
  const svg = draw(drawn, Math.min(760, document.body.clientWidth - 24), theme);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Learning curve of ${row[1]}`);
  for (const stop of svg.querySelectorAll(".stop")) for (const name of ["class", "role", "tabindex", "data-at"]) stop.removeAttribute(name);
  return element("div", {}, svg);
}
