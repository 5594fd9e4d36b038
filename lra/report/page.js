"use strict";
// One table at a time, that of the address, with the figure above it; DataTables sorts it. The card
// tells about the score that is pointed at, in a table or in the figure.
const sections = [...document.querySelectorAll("section")], select = find("nav select"), tip = find("#tip");
const tables = {};  // those that were shown, by name

// A run, a table, or without an address all tasks below what one may need.
function show() {
  readAddress(sections.map(section => section.id));
  tell(null);
  const isRun = state.run !== "" && showRun();
  find("#run").hidden = !isRun;
  find("#explore").hidden = isRun;
  if (find("#needs")) find("#needs").hidden = location.hash !== "";
  find("#start").hidden = location.hash === "" || !find("#needs");
  for (const section of sections) section.hidden = isRun || section.id !== state.table;
  select.value = state.table;
  if (isRun) return scrollTo(0, 0);
  state.run = "";
  furnish();
  redraw();
  tabulate();
}

// The table of the address has the rows, the columns and the order of the figure.
function tabulate() {
  const table = tables[state.table] ??= made(state.table), panels = panelsOf();
  table.search.fixed("choices", (text, cells, row) => view.keys.has(table.row(row).node().dataset.lane));
  panels.forEach((_, j) => table.column(j + 1).visible(view.shown.includes(j), false));
  const [column, direction] = state.order.split("-");
  if (state.order !== orderOf(table)) table.order(state.order ? [[+column, direction]] : []);
  table.draw();
  hintAtMore();
}

const orderOf = table => table.order().map(([column, direction]) => `${column}-${direction}`)[0] ?? "";

function made(name) {
  const table = new DataTable(find(".main", document.getElementById(name)), {
    paging: false, autoWidth: false, order: [],
    columnDefs: [{targets: 0, orderSequence: ["asc", "desc", ""]},
                 {targets: "_all", orderSequence: ["desc", "asc", ""]}],
    language: {info: "", infoFiltered: "", zeroRecords: "no row is like that"},
    layout: {topStart: null, topEnd: null, bottomStart: null, bottomEnd: null},
  });
  find(".dt-layout-table", document.getElementById(name)).before(find(".more").cloneNode(true));
  table.on("order", () => {  // a click on a heading
    if (name !== state.table || orderOf(table) === state.order) return;
    state.order = orderOf(table);
    furnish();
    redraw();
    keep();
  });
  return table;
}

// Above what is wider than its place stands that there is more; at its right end no longer.
function hintAtMore() {
  for (const hint of document.querySelectorAll(".more")) {
    const wide = hint.nextElementSibling;
    hint.hidden = wide.scrollWidth - wide.scrollLeft - wide.clientWidth < 4;
  }
}

let shown = null, seed = 0;  // the score, and the seed of it, that the card tells about
function tell(score, of = 0) {
  shown?.removeAttribute("aria-describedby");
  [shown, seed] = [score, of];
  tip.hidden = !score;
  tip.classList.remove("held");
  if (!score) return;
  score.setAttribute("aria-describedby", "tip");
  const {lines, command, last} = factsOf(score.dataset.at, seed);
  tip.replaceChildren(...lines.map(line => element("p", {}, line)));
  if (last) tip.append(command ? element("code", {}, command) : element("p", {}, "the command was not recorded"), element("p", {}, last));
  place();
}

// The card stays, with buttons and links, until Escape or a click elsewhere.
function hold() {
  if (!shown || tip.classList.contains("held")) return;
  const {run, command} = factsOf(shown.dataset.at, seed);
  tip.classList.add("held");
  if (run === undefined) return;
  const parts = [element("a", {href: addressOf({run: nameOf(run)})}, "Its record")];
  if (command) parts.unshift(copyButton(command, "Copy command"));
  const links = linksOf(cellAt(shown.dataset.at).row[2]);
  if (shown.closest("section")?.id !== shown.dataset.at.split(" ")[0]) {
    const toRow = element("a", {href: "#" + shown.dataset.at.split(" ")[0]}, "Its row in the table");
    toRow.onclick = event => { event.preventDefault(); goTo(shown.dataset.at); };
    parts.push(toRow);
  }
  if (links) parts.push(links);
  tip.append(element("p", {className: "does"}, ...parts));
  place();
}

function goTo(at) {
  history.pushState(null, "", "#" + at.split(" ")[0]);
  show();
  const score = [...document.querySelectorAll("section:not([hidden]) [data-at]")].find(other => other.dataset.at === at);
  score?.scrollIntoView({block: "center"});
  score?.focus();
}

function place() {
  if (!shown) return;
  const score = shown.getBoundingClientRect(), below = score.bottom + 6;
  const fits = below + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(8, Math.min(score.left, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (fits ? below : Math.max(8, score.top - tip.offsetHeight - 6)) + "px";
}

function go(event) {  // from score to score of a table with the arrow keys
  const cell = event.target.closest?.("td:has(button)");
  const right = {ArrowRight: 1, ArrowLeft: -1}[event.key], down = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!cell || !(right || down)) return;
  event.preventDefault();
  const row = down ? cell.parentNode[down > 0 ? "nextElementSibling" : "previousElementSibling"] : cell.parentNode;
  row?.cells[cell.cellIndex + (right ?? 0)]?.querySelector("button")?.focus();
}

const scoreAt = node => node.closest?.("[data-at]");
const seedAt = node => +(node.closest?.("[data-seed]")?.dataset.seed ?? 0);
const held = () => tip.classList.contains("held");
addEventListener("mouseover", e => held() || tip.contains(e.target)
  || tell(scoreAt(e.target) ?? scoreAt(document.activeElement), seedAt(e.target)));
addEventListener("focusin", e => tip.contains(e.target) || (held() && scoreAt(e.target) === shown) || tell(scoreAt(e.target)));
addEventListener("focusout", e => e.relatedTarget || held() || tell(null));
addEventListener("click", e => {
  const score = scoreAt(e.target);
  if (!score) return tip.contains(e.target) || tell(null);
  score.focus();  // Safari does not focus buttons
  tell(score, seedAt(e.target));
  hold();
});
addEventListener("keydown", e => {
  const score = scoreAt(e.target);
  if (e.key === "Escape") {
    const back = tip.contains(document.activeElement) && shown;
    if (back) back.focus();
    tell(null);
  } else if (score && ["Enter", " "].includes(e.key)) {
    e.preventDefault();
    if (score !== shown) tell(score);
    hold();
    find("button, a", tip)?.focus();
  } else go(e);
});
addEventListener("scroll", () => { place(); hintAtMore(); }, true);
addEventListener("resize", hintAtMore);
addEventListener("hashchange", show);
select.onchange = () => location.hash = select.value;
for (const link of document.querySelectorAll("[data-order]")) {  // of a need, to its task from the best on
  if (link.dataset.task) link.href = `#${ALL}?task=${link.dataset.task}&order=${link.dataset.order}`;
}
document.documentElement.className = "live";
if (sections.length) show();
