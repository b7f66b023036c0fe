// The page of the benchmark: one view of all settings, and one view of each.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const ALL = "all";
const state = { view: ALL, score: data.scores[0].name, sort: null };
const byId = (id) => document.getElementById(id);

/** Create an element; strings become text nodes, so that no name is ever read as markup. */
function create(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}
function createSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
}

const scoreOf = (name) => data.scores.find((score) => score.name === name);
const cellOf = (setting, rule, score) => data.cells[setting]?.[score]?.[rule] ?? null;
const configId = (setting, rule) => `config-${setting}-${rule}`;

function formatNumber(value, digits, signed = false) {
  if (value === null || value === undefined) return "n/a";
  const text = value.toFixed(digits);
  return signed && value > 0 ? `+${text}` : text;
}
function isGain(value, score) {
  return score.higher ? value > 0 : value < 0;
}

// Tables that can be sorted

/** `columns` have a head, a value to sort by for each rule, and a cell to show. */
function createTable(columns, rules) {
  const order = state.sort;
  const sorted = [...rules];
  if (order !== null && columns[order.column]) {
    const sign = order.up ? 1 : -1;
    const valueOf = columns[order.column].value;
    sorted.sort((a, b) => {
      const x = valueOf(a), y = valueOf(b);
      if (x === null || y === null) return (x === null) - (y === null); // what is missing goes last
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }
  const heads = columns.map((column, number) => {
    const isSorted = order !== null && order.column === number;
    const direction = isSorted ? (order.up ? "ascending" : "descending") : "none";
    const sort = () => {
      state.sort = { column: number, up: isSorted ? !order.up : column.upFirst };
      draw();
      byId("view").querySelectorAll("th button")[number].focus();
    };
    return create("th", { scope: "col", "aria-sort": direction }, create("button", { type: "button", onclick: sort }, column.head));
  });
  const rows = sorted.map((rule) => {
    const kind = rule.control ? "control" : rule.name === data.reference ? "reference" : "";
    return create("tr", { class: kind, "data-rule": rule.name }, ...columns.map((column) => column.cell(rule)));
  });
  return create("div", { class: "scroll" }, create("table", {}, create("thead", {}, create("tr", {}, ...heads)), create("tbody", {}, ...rows)));
}
const ruleColumn = (cell) => ({ head: "rule", upFirst: true, value: (rule) => rule.label, cell });
function nameCell(rule) {
  const mark = rule.control ? "control" : rule.note;
  return create("td", { title: rule.algorithm }, rule.label, mark ? create("span", { class: "note" }, ` ${mark}`) : "");
}

// The view of all settings: differences from the reference, and ranks

function drawAll() {
  const score = scoreOf(state.score);
  const columns = [ruleColumn(nameCell)];
  for (const setting of data.settings) {
    columns.push({
      head: setting.label,
      upFirst: !score.higher,
      value: (rule) => cellOf(setting.name, rule.name, score.name)?.mean ?? null,
      cell: (rule) => differenceCell(setting, rule, score),
    });
  }
  if (score.name === data.scores[0].name) {
    const rankOf = (rule) => data.ranks.by_rule[rule.name] ?? null;
    columns.push({ head: "mean rank", upFirst: true, value: rankOf, cell: (rule) => create("td", {}, formatNumber(rankOf(rule), 1)) });
  }
  const figure = create("div", { class: "scroll", id: "ranks" });
  figure.innerHTML = data.ranks.drawing; // drawn by the command, from names that were escaped there
  byId("view").replaceChildren(
    create("h2", {}, "All settings"), createScoreChoice(),
    create("p", {}, `${score.title}: of the reference as it is, of the others as a difference from it (${score.unit}), bold where they are told apart. Runs that failed are left out of a mean; a rule with one is never told apart, and is ranked last in that setting. A number leads to the configuration of its cell.`),
    createTable(columns, data.rules),
    create("h2", {}, "Mean ranks"), create("p", {}, data.ranks.sentence), figure,
  );
}
function differenceCell(setting, rule, score) {
  const cell = cellOf(setting.name, rule.name, score.name);
  if (cell === null || cell.mean === null) return create("td", {}, cell === null ? "" : "n/a");
  const isReference = rule.name === data.reference || cell.difference === null;
  const text = isReference ? formatNumber(cell.mean, score.digits) : formatNumber(cell.difference, score.digits, true);
  const failed = cell.failed > 0 ? ` (${cell.failed} failed)` : "";
  const told = cell.told ? (isGain(cell.difference, score) ? "told gain" : "told loss") : "";
  const open = (event) => {
    event.preventDefault();
    choose(setting.name);
    openConfiguration(setting.name, rule.name);
  };
  const interval = cell.low === null ? null : `95 % interval ${formatNumber(cell.low, score.digits, true)} to ${formatNumber(cell.high, score.digits, true)}`;
  return create("td", { class: told, title: interval }, create("a", { href: `#${configId(setting.name, rule.name)}`, onclick: open }, text + failed));
}

// The view of one setting: all scores, and the interval drawn

function drawSetting(setting) {
  const score = scoreOf(state.score);
  const rules = data.rules.filter((rule) => cellOf(setting.name, rule.name, score.name) !== null);
  const cells = rules.map((rule) => cellOf(setting.name, rule.name, score.name));
  const reach = Math.max(1e-9, ...cells.flatMap((cell) => [cell.low, cell.high, cell.difference].filter((end) => end !== null).map(Math.abs)));
  const of = (rule) => cellOf(setting.name, rule.name, score.name);
  const columns = [
    ruleColumn((rule) => nameCell(rule)),
    { head: `difference, ${score.unit}`, upFirst: !score.higher, value: (rule) => of(rule).difference,
      cell: (rule) => create("td", {}, of(rule).difference === null ? "" : formatNumber(of(rule).difference, score.digits, true)) },
    { head: `95 % interval (to ±${formatNumber(reach, score.digits)})`, upFirst: !score.higher, value: (rule) => of(rule).low,
      cell: (rule) => create("td", {}, drawInterval(of(rule), reach, score)) },
    { head: "p (Holm)", upFirst: true, value: (rule) => of(rule).p, cell: (rule) => create("td", {}, of(rule).p === null ? "" : of(rule).p.toPrecision(2)) },
  ];
  for (const other of data.scores) {
    const cellOfOther = (rule) => cellOf(setting.name, rule.name, other.name);
    columns.push({
      head: other.name === "rounds" ? `rounds to ${(100 * setting.target).toFixed(0)} %` : other.head,
      upFirst: !other.higher,
      value: (rule) => cellOfOther(rule)?.mean ?? null,
      cell: (rule) => create("td", {}, formatMean(cellOfOther(rule), other)),
    });
  }
  columns.push({
    head: "configuration", upFirst: true, value: (rule) => rule.algorithm,
    cell: (rule) => create("td", {}, create("a", {
      href: `#${configId(setting.name, rule.name)}`,
      onclick: (event) => { event.preventDefault(); openConfiguration(setting.name, rule.name); },
    }, "show")),
  });
  const configurations = rules.map((rule) => create("details", { id: configId(setting.name, rule.name) },
    create("summary", {}, `${rule.label}: ${rule.algorithm}`), create("pre", { tabindex: "0" }, data.configurations[`${setting.name}/${rule.name}`])));
  byId("view").replaceChildren(
    create("h2", {}, setting.label), create("p", {}, `${setting.about}.`), createScoreChoice(),
    createTable(columns, rules), create("h2", {}, "Configurations"),
    create("p", {}, "Save one as run.toml, then: steelyard run run.toml --set seed=1"), ...configurations,
  );
}
function formatMean(cell, score) {
  if (cell === null || cell.mean === null) return score.name === "rounds" ? "not reached" : "n/a";
  const spread = score.percent && cell.deviation !== null ? ` ± ${formatNumber(cell.deviation, score.digits)}` : "";
  const missing = cell.count < data.seeds.length ? ` (${cell.count} of ${data.seeds.length})` : "";
  return formatNumber(cell.mean, score.digits) + spread + missing;
}
/** A bar from the low to the high end of the interval, with 0 in the middle. */
function drawInterval(cell, reach, score) {
  const width = 180, height = 18, middle = width / 2;
  const place = (value) => middle + (value / reach) * (middle - 8);
  const box = createSvg("svg", { width, height, role: "img" });
  box.append(createSvg("line", { x1: middle, x2: middle, y1: 0, y2: height, stroke: "#9aa3ad" }));
  if (cell.difference === null) return box;
  const colour = isGain(cell.difference, score) ? "#0072b2" : "#d55e00";
  if (cell.low !== null) {
    box.append(createSvg("line", { x1: place(cell.low), x2: place(cell.high), y1: height / 2, y2: height / 2, stroke: colour, "stroke-width": 2 }));
  }
  box.append(createSvg("circle", { cx: place(cell.difference), cy: height / 2, r: 4, stroke: colour, "stroke-width": 2, fill: cell.told ? colour : "#fff" }));
  box.setAttribute("aria-label", `difference ${formatNumber(cell.difference, score.digits, true)}`);
  return box;
}
function openConfiguration(setting, rule) {
  const details = byId(configId(setting, rule));
  details.open = true;
  details.scrollIntoView();
  details.querySelector("summary").focus();
}

// The whole page

function createScoreChoice() {
  const choice = create("select", { id: "score", onchange: (event) => { state.score = event.target.value; state.sort = null; draw(); } });
  for (const score of data.scores) choice.append(create("option", { value: score.name, ...(score.name === state.score ? { selected: "" } : {}) }, score.head));
  return create("label", {}, "Score: ", choice);
}
function choose(view) {
  state.view = view;
  state.sort = null;
  draw();
}
function draw() {
  for (const button of byId("settings").children) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  if (state.view === ALL) drawAll();
  else drawSetting(data.settings.find((setting) => setting.name === state.view));
}
function start() {
  byId("summary").textContent = data.summary;
  const views = [{ name: ALL, label: "All settings" }, ...data.settings];
  byId("settings").replaceChildren(...views.map((view) =>
    create("button", { type: "button", "data-view": view.name, onclick: () => choose(view.name) }, view.label)));
  byId("download").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([data.csv], { type: "text/csv;charset=utf-8" }));
    const link = create("a", { href: address, download: "benchmark.csv" });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
  draw();
}
start();
})();
