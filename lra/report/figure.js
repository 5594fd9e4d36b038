"use strict";
// Draws a view into an SVG that stands alone when it is saved: all looks are attributes.
// A view has lanes (rows of a table, or methods), panels (its columns, or tasks) and a kind:
// "scores", a dot per seed; "curves", a line per seed; or a cost, scores over it.

const LIGHT = {ink: "#1d2126", soft: "#5b6470", line: "#dcdfe3", faint: "#eceef0", back: "#fcfcfa", rule: "#5b6470"};
const DARK = {ink: "#e6e8ea", soft: "#a4aeb9", line: "#343b43", faint: "#23292f", back: "#15181c", rule: "#a4aeb9"};
const APART = 18;  // between two lines of panels
// Height of a row, sizes of letters, the width of one; on a phone a finger points and letters are larger.
const DESK = {lane: 19, text: 11.5, small: 10, letter: 6.3, least: 80}, PHONE = {lane: 26, text: 13, small: 12, letter: 7.2, least: 118};
let sizes = DESK;
const COSTS = {parameters: "parameters", gflops: "GFLOPs per example", state: "numbers in the state of a head"};

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const words = (text, x, y, more = {}) => node("text", {x, y, "font-size": sizes.text, ...more}, text);
const cut = (text, width, letter = sizes.letter) => text.length * letter <= width ? text : text.slice(0, Math.floor(width / letter) - 1) + "…";

// A colour on a dark ground: greys are turned round, dark colours made lighter.
function toned(colour, theme) {
  if (theme !== DARK) return colour;
  const parts = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  if (Math.max(...parts) - Math.min(...parts) < 16) return `rgb(${parts.map(part => 255 - part)})`;
  const light = (0.21 * parts[0] + 0.72 * parts[1] + 0.07 * parts[2]) / 255;
  const share = Math.max(0, (0.5 - light) / (1 - light));
  return `rgb(${parts.map(part => Math.round(part + (255 - part) * share))})`;
}

const around = (n, turn, inner = 1) => Array.from({length: inner < 1 ? 2 * n : n}, (_, i, all = inner < 1 ? 2 * n : n) => {
  const angle = 2 * Math.PI * i / all + turn, far = inner < 1 && i % 2 ? inner : 1;
  return [far * Math.sin(angle), -far * Math.cos(angle)];
});
const PLUS = [[-.35, -1], [.35, -1], [.35, -.35], [1, -.35], [1, .35], [.35, .35], [.35, 1], [-.35, 1], [-.35, .35], [-1, .35], [-1, -.35], [-.35, -.35]];
const SHAPES = {
  s: around(4, Math.PI / 4, 1), D: around(4, 0), d: around(4, 0).map(([x, y]) => [.65 * x, 1.1 * y]),
  "^": around(3, 0), v: around(3, Math.PI), ">": around(3, Math.PI / 2), "<": around(3, -Math.PI / 2),
  p: around(5, 0), h: around(6, 0), "*": around(5, 0, .45), P: PLUS,
  X: PLUS.map(([x, y]) => [(x - y) * .75, (x + y) * .75]),
};

function dot(marker, x, y, attributes) {
  const radius = 4.6;
  if (!SHAPES[marker]) return node("circle", {cx: x, cy: y, r: radius - .8, ...attributes});
  const points = SHAPES[marker].map(([dx, dy]) => `${(x + radius * dx).toFixed(1)},${(y + radius * dy).toFixed(1)}`);
  return node("polygon", {points: points.join(" "), ...attributes});
}

// ---------------------------------------------------------------- scales

function scale(low, high, from, to) {
  if (low === high) [low, high] = [low - 1, high + 1];
  const at = value => from + (value - low) / (high - low) * (to - from);
  return Object.assign(at, {low, high});
}

function ticks(low, high, about) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(n => n * power >= raw);
  const all = [];
  for (let n = Math.ceil(low / step); n * step <= high + 1e-9; n++) all.push(+(n * step).toPrecision(12));
  return all;
}

// Between powers of ten: 1, 2 and 5 times each, or the powers alone.
function powers(low, high) {
  const all = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const digit of high - low > 2.2 ? [1] : [1, 2, 5]) all.push(digit * 10 ** power);
  }
  const inside = all.filter(tick => tick >= 10 ** low && tick <= 10 ** high);
  return inside.length > 1 ? inside : ticks(10 ** low, 10 ** high, 3);
}

// From the constant answer or the worst seed to the best seed or rule.
function reachOf(panel, values, onDev = false) {
  const rules = rulesOf(panel, {onDev, all: false}).filter(rule => !rule.bound).map(rule => rule.score);
  const known = [...values, ...rules];
  const low = Math.min(...known), high = Math.max(...known), edge = (high - low) * .04 || .5;
  return [low - edge, high + edge];
}

const short = value => value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`;

// ---------------------------------------------------------------- the whole

function draw(view, width, theme) {
  const strip = view.kind === "scores", n = Math.max(1, view.panels.length);
  sizes = {...(width < NARROW ? PHONE : DESK), head: n > 1 ? 100 : 60};
  const left = view.named === false ? 0 : Math.round(Math.min(strip ? 236 : 200, Math.max(width < NARROW ? 158 : 120, width * (strip ? .2 : .18))));
  const across = strip ? n : Math.max(1, Math.min(n, Math.floor((width - left) / 270))), tall = n > 1 ? 250 : 380;
  const wide = Math.max(strip ? sizes.least : 200, Math.min((width - left) / across, n > 1 ? 560 : 860));
  const {places, headings, end} = layOut(view);
  const lines = Math.ceil(n / across);
  const height = Math.max(end + 24, strip ? 0 : lines * (tall + sizes.head + APART));
  const svg = node("svg", {
    width: left + across * wide, height, viewBox: `0 0 ${left + across * wide} ${height}`,
    role: "group", "aria-label": `${view.title}. Arrow keys go from point to point, Enter holds one, or chooses a name.`,
    "font-family": "system-ui, sans-serif", fill: theme.ink,
  });
  for (const [text, y] of headings) svg.append(words(text, 2, y, {fill: theme.soft, "font-size": sizes.small + .5, "font-weight": 600}));
  view.lanes.forEach((lane, i) => {
    if (strip) svg.append(node("line", {x1: left, x2: left + across * wide, y1: places[i], y2: places[i], stroke: theme.faint}));
    if (left) svg.append(label(lane, i, places[i], left, theme));
  });
  view.panels.forEach((panel, j) => {
    const box = {x: left + (j % across) * wide, y: strip ? 0 : Math.floor(j / across) * (tall + sizes.head + APART), wide, end, tall};
    svg.append((strip ? stripPanel : xyPanel)(view, panel, j, box, places, theme));
  });
  svg.querySelector(".stop")?.setAttribute("tabindex", 0);
  return svg;
}

function layOut(view) {
  const places = [], headings = [];
  let y = sizes.head + 6, family = "";
  for (const lane of view.lanes) {
    if (view.grouped && lane.family !== family) {
      headings.push([family = lane.family, y + 12]);
      y += sizes.lane;
    }
    places.push(y + sizes.lane / 2);
    y += sizes.lane;
  }
  return {places, headings, end: y + 4};
}

function label(lane, i, y, left, theme) {
  const side = lane.side ? `${lane.side}  ` : "", colour = toned(lane.colour, theme);
  const group = node("g", {
    class: "label stop", "data-lane": i, "data-panel": -1, tabindex: -1, role: "button",
    "aria-pressed": !!lane.side, "aria-label": `${lane.name}: compare`,
  });
  group.append(
    node("rect", {x: 0, y: y - sizes.lane / 2, width: left - 6, height: sizes.lane, fill: "transparent"}),
    dot(lane.marker, 7, y, {fill: colour}),
    words(cut(side + lane.name, left - 30), 17, y + 4, {"font-weight": lane.side || lane.bold ? 700 : undefined}),
    node("title", {}, lane.label === lane.name ? lane.name : `${lane.name} (${lane.label})`),
  );
  return group;
}

function heading(panel, x, y, wide, theme) {
  const group = node("g", {}), lines = folded(panel.title, wide, 7, 3), said = folded(panel.verdict, wide, 5.6, 3);
  lines.forEach((line, i) => group.append(words(cut(line, wide, 7), x, y + 13 + 14 * i, {"font-weight": 600, "font-size": sizes.text})));
  said.forEach((line, i) => group.append(words(cut(line, wide, 5.4), x, y + 13 + 14 * lines.length + 12 * i, {fill: theme.soft, "font-size": sizes.small + .5})));
  return group;
}

// A text in lines of a width.
function folded(text, wide, letter, most) {
  const fits = Math.floor(wide / letter * (DESK.text / sizes.text)), lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && (lines.at(-1) + word).length + 1 > fits) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.slice(0, most);
}

function mark(view, lane, i, panel, j) {
  const cell = lane.cells[j].cell;
  return node("g", {
    class: "mark stop", "data-lane": i, "data-panel": j, "data-at": lane.cells[j].at, tabindex: -1, role: "button",
    "aria-label": `${lane.name}, ${panel.title}: ${cell.text.replace("±", "plus minus")}`,
  });
}

// ---------------------------------------------------------------- a dot per seed

function stripPanel(view, panel, j, box, places, theme) {
  const values = view.lanes.flatMap(lane => lane.cells[j] ? scoresOf(lane.cells[j].cell) : []);
  const group = node("g", {}), [low, high] = reachOf(panel, values);
  const x = scale(low, high, box.x + 10, box.x + box.wide - 14);
  group.append(heading(panel, box.x + 8, 0, box.wide - 12, theme));
  for (const tick of ticks(low, high, box.wide / 38)) {
    group.append(
      node("line", {x1: x(tick), x2: x(tick), y1: sizes.head, y2: box.end, stroke: theme.line}),
      words(short(tick), x(tick), sizes.head - 4, {"text-anchor": "middle", fill: theme.soft, "font-size": sizes.small}),
    );
  }
  for (const rule of rulesOf(panel, {all: view.panels.length === 1})) {
    const place = {x1: x(rule.score), x2: x(rule.score), y1: sizes.head, y2: box.end};
    if (rule.score >= low && rule.score <= high) group.append(ruleLine(rule, place, theme));
  }
  view.lanes.forEach((lane, i) => {
    const y = places[i];
    if (!lane.cells[j]) {
      group.append(words("not run", box.x + box.wide / 2, y + 3.5, {"text-anchor": "middle", fill: theme.soft, "font-size": sizes.small, opacity: .6}));
      return;
    }
    const made = mark(view, lane, i, panel, j), cell = lane.cells[j].cell, scores = scoresOf(cell);
    made.append(node("rect", {x: box.x + 2, y: y - sizes.lane / 2, width: box.wide - 6, height: sizes.lane, fill: "transparent"}));
    if (scores.length > 1 && !isMixed(cell)) {
      const middle = x(mean(scores));
      made.append(node("line", {x1: middle, x2: middle, y1: y - 8, y2: y + 8, stroke: theme.ink, "stroke-width": 1.5}));
    }
    scores.forEach((score, s) => made.append(seedDot(lane, x(score), y, s, scores.length, theme)));
    group.append(made);
  });
  return group;
}

// A single seed is hollow: it says nothing about other seeds.
function seedDot(lane, x, y, s, seeds, theme) {
  const colour = toned(lane.colour, theme);
  const look = seeds > 1 ? {fill: colour, "fill-opacity": .75} : {fill: theme.back, stroke: colour, "stroke-width": 1.6};
  return dot(lane.marker, x, y, {...look, class: "dot", "data-seed": s});
}

// Rules and bounds by their scores on test or, beside curves, on dev. One panel alone has all of them,
// several have the best rule, the constant answer and the bound each.
function rulesOf(panel, {onDev = false, all = true} = {}) {
  const {rules, rule: best, floor} = panel.column;
  const shown = rules.map(([name, test, reads, bound, dev]) => (
    {name, reads, bound, score: onDev ? dev : test, best: name === best}));
  if (floor !== null && !onDev && !shown.some(rule => rule.name === "constant")) {
    shown.push({name: "constant", score: floor, reads: "nothing: the same answer to everything"});
  }
  const wanted = rule => all || rule.best || rule.bound || rule.name === "constant";
  return shown.filter(rule => rule.score !== null && wanted(rule));
}

function ruleLine(rule, place, theme) {
  const look = rule.best ? {"stroke-width": 2} : {"stroke-width": 1, "stroke-dasharray": rule.bound ? "7 3" : "2 3"};
  const line = node("line", {...place, stroke: theme.rule, ...look});
  const hit = node("line", {...place, stroke: "transparent", "stroke-width": 7});
  const what = rule.bound ? "bound" : "rule";
  return node("g", {class: "rule"}, node("title", {}, `${what} “${rule.name}”: ${rule.score}; reads ${rule.reads}`), line, hit);
}

// ---------------------------------------------------------------- lines, and scores over a cost

function xyPanel(view, panel, j, box, places, theme) {
  const curves = view.kind === "curves", group = node("g", {});
  const series = view.lanes.map(lane => lane.cells[j] && (curves ? curvesOf : costOf)(lane.cells[j].cell, view.kind));
  const points = series.filter(Boolean).flat(2), numbers = points.map(point => point[0]).filter(Number.isFinite);
  group.append(heading(panel, box.x + 34, box.y, box.wide - 40, theme));
  const top = box.y + sizes.head - 10, bottom = top + box.tall - 20, left = box.x + 36, right = box.x + box.wide - 16;
  if (!points.length) {
    group.append(words(curves ? "no curve was recorded" : "no row has this number", left, top + 30, {fill: theme.soft}));
    return group;
  }
  const [low, high] = reachOf(panel, points.map(point => point[1]), curves), y = scale(low, high, bottom, top);
  const grows = points.some(point => point[0] === Infinity), inner = right - (grows ? 44 : 0);
  const log = curves || !numbers.length ? value => value : Math.log10;
  const x = scale(...spanOf(numbers.map(log), curves), left, inner);
  group.append(axes({x, y, log, left, right, inner, top, bottom, grows, curves, title: curves ? "training steps" : COSTS[view.kind]}, theme));
  for (const rule of rulesOf(panel, {onDev: curves, all: view.panels.length === 1})) {
    if (rule.score >= low && rule.score <= high) group.append(ruleLine(rule, {x1: left, x2: right, y1: y(rule.score), y2: y(rule.score)}, theme));
  }
  const place = point => [point[0] === Infinity ? right - 14 : x(log(point[0])), y(point[1])];
  view.lanes.forEach((lane, i) => {
    if (!series[i]?.flat().length) return;
    const made = mark(view, lane, i, panel, j), colour = toned(lane.colour, theme);
    series[i].forEach((line, s) => {
      if (curves) {
        const path = line.map(point => place(point).map(p => p.toFixed(1)).join(",")).join(" ");
        made.append(
          node("polyline", {points: path, fill: "none", stroke: "transparent", "stroke-width": 9, "data-seed": s}),
          node("polyline", {points: path, fill: "none", stroke: colour, "stroke-width": 1.3, "stroke-opacity": .8, "data-seed": s}),
        );
      } else made.append(seedDot(lane, ...place(line[0]), s, series[i].length, theme));
    });
    group.append(made);
  });
  return group;
}

function spanOf(values, curves) {
  if (!values.length) return [0, 1];
  const low = curves ? 0 : Math.min(...values), high = Math.max(...values), edge = curves ? 0 : (high - low) * .06 || .1;
  return [low - edge, high + edge];
}

function axes({x, y, log, left, right, inner, top, bottom, grows, curves, title}, theme) {
  const group = node("g", {}), small = {fill: theme.soft, "font-size": sizes.small};
  for (const tick of ticks(y.low, y.high, 5)) {
    group.append(
      node("line", {x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: theme.faint}),
      words(short(tick), left - 4, y(tick) + 3.5, {...small, "text-anchor": "end"}),
    );
  }
  for (const tick of curves ? ticks(x.low, x.high, Math.max(2, (inner - left) / 70)) : powers(x.low, x.high)) {
    group.append(
      node("line", {x1: x(log(tick)), x2: x(log(tick)), y1: bottom, y2: bottom + 4, stroke: theme.soft}),
      words(short(tick), x(log(tick)), bottom + 15, {...small, "text-anchor": "middle"}),
    );
  }
  if (grows) group.append(words("grows", right - 14, bottom + 15, {...small, "text-anchor": "middle"}));
  group.append(
    node("line", {x1: left, x2: right, y1: bottom, y2: bottom, stroke: theme.soft}),
    words(title, (left + right) / 2, bottom + 29, {...small, "text-anchor": "middle"}),
  );
  return group;
}
