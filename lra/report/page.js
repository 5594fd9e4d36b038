"use strict";
// One table at a time, that of the address; DataTables sorts, filters and hides columns.
const find = (css, of = document) => of.querySelector(css);
const sections = [...document.querySelectorAll("section")], select = find("nav select"), tip = find("#tip");

function show() {
  const section = sections.find(s => "#" + s.id === location.hash)
    ?? document.getElementById(select.options[0].value);
  for (const other of sections) other.hidden = other !== section;
  select.value = section.id;
  if (find(".dt-container", section)) return;
  const chooser = find(".columns", section);
  const table = new DataTable(find(".main", section), {
    paging: false, autoWidth: false, order: [],
    columnDefs: [{targets: 0, orderSequence: ["asc", "desc", ""]},
                 {targets: "_all", orderSequence: ["desc", "asc", ""]}],
    language: {search: "Filter", info: "_TOTAL_ of _MAX_ rows", infoEmpty: "0 of _MAX_ rows",
               infoFiltered: "", zeroRecords: "no row has these words"},
    layout: {topStart: ["search", () => chooser, "info"], topEnd: null, bottomStart: null, bottomEnd: null},
  });
  chooser.onchange = e => table.column(+e.target.value).visible(e.target.checked);
}

let shown = null;  // the score that the tooltip tells about
function tell(score) {
  shown?.removeAttribute("aria-describedby");
  shown = score;
  tip.hidden = !score;
  if (!score) return;
  score.setAttribute("aria-describedby", "tip");
  tip.replaceChildren(...score.dataset.facts.split("\n").map(line => {
    const part = document.createElement(line.startsWith("lra ") ? "code" : "p");
    part.textContent = line;
    return part;
  }));
  place();
}

function place() {
  if (!shown) return;
  const score = shown.getBoundingClientRect(), below = score.bottom + 6;
  const fits = below + tip.offsetHeight < innerHeight;
  tip.classList.toggle("held", shown === document.activeElement);  // its text can be selected
  tip.style.left = Math.max(8, Math.min(score.left, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (fits ? below : Math.max(8, score.top - tip.offsetHeight - 6)) + "px";
}

function go(event) {  // from score to score with the arrow keys
  const cell = event.target.closest?.("td:has(button)");
  const right = {ArrowRight: 1, ArrowLeft: -1}[event.key], down = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!cell || !(right || down)) return;
  event.preventDefault();
  const row = down ? cell.parentNode[down > 0 ? "nextElementSibling" : "previousElementSibling"] : cell.parentNode;
  row?.cells[cell.cellIndex + (right ?? 0)]?.querySelector("button")?.focus();
}

const scoreAt = node => node.closest?.("[data-facts]");
addEventListener("mouseover", e => tip.contains(e.target) || tip.contains(document.activeElement)
  || tell(scoreAt(e.target) ?? scoreAt(document.activeElement)));
addEventListener("focusin", e => tip.contains(e.target) || tell(scoreAt(e.target)));
addEventListener("focusout", e => e.relatedTarget || tell(null));
addEventListener("click", e => scoreAt(e.target)?.focus());  // Safari does not focus buttons
addEventListener("keydown", e => e.key === "Escape" ? tell(null) : go(e));
addEventListener("scroll", place, true);
addEventListener("hashchange", show);
select.onchange = () => location.hash = select.value;
document.documentElement.className = "live";
if (sections.length) show();
