// Shows a report: texts and tables at once, figures when they are near the visible part of the page.
// A live page asks its server for news.
"use strict";

const LIVE = document.body.dataset.live === "yes";
const MAX_ROWS = 30; // of a table, until the reader asks for all
const POLL_INTERVAL = 2000; // milliseconds between requests of a live page
// What the reader chose, by the name of a figure: hidden series, open tables, sort orders, tables with all rows, panels.
const choices = { hidden: new Map(), open: new Set(), sort: new Map(), all: new Set(), panel: new Map() };
const entries = new Map(); // figures on the page, by name
let report = null;
let version = "";
let isReady = false; // whether plotly is loaded

const byId = (id) => document.getElementById(id);
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children); // strings become text nodes: a name is never read as markup
  return element;
}
function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function unpack(text) {
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Tables

const formatValue = (value, digits) => {
  if (value === null) return "–";
  if (typeof value !== "number") return value;
  if (digits !== null) return value.toFixed(digits);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
};
function compareValues(a, b) {
  if (a === null || b === null) return (a === null) - (b === null); // missing values are last in both orders
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}
function sortRows(rows, order) {
  if (!order) return rows;
  const sign = order.up ? 1 : -1;
  return [...rows].sort((a, b) => {
    const x = a[order.column];
    const y = b[order.column];
    return compareValues(x, y) * (x === null || y === null ? 1 : sign);
  });
}
/** Return a value for CSV. A text that a spreadsheet would read as a formula gets an apostrophe in front. */
const quoteValue = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csv = (rows) => rows.map((row) => row.map(quoteValue).join(",") + "\n").join("");

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = make("a", { href: address, download: `${name}.csv` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", {});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

function sortState(order, column) {
  if (!order || order.column !== column) return "none";
  return order.up ? "ascending" : "descending";
}
/** Return the text that a cell shows when the mouse is over it: what the cell itself cuts off. */
function fullText(value, text) {
  if (text.length > 40) return text;
  if (typeof value === "number" && String(value) !== text) return String(value);
  return null;
}
function makeTable(name, data, title) {
  const box = make("div", { class: "table" });
  const isText = data.heads.map((_, column) => data.rows.some((row) => typeof row[column] === "string"));
  const className = (column) => (isText[column] ? "text" : "");
  const isLong = data.rows.length > MAX_ROWS + 10;
  const makeHead = (head, column) => {
    const state = sortState(choices.sort.get(name), column);
    const button = make("button", { type: "button", title: head }, short(head, 40).replace(/ %/g, "\u00a0%"));
    button.addEventListener("click", () => {
      choices.sort.set(name, { column, up: state !== "ascending" });
      fill();
      box.querySelectorAll("th button")[column].focus();
    });
    return make("th", { scope: "col", "aria-sort": state, class: className(column) }, button);
  };
  const makeCell = (value, column) => {
    const text = formatValue(value, data.digits[column]);
    return make("td", { class: className(column), title: fullText(value, text) }, short(text, 60));
  };
  const fill = (printAll = false) => {
    const showAll = printAll || choices.all.has(name) || !isLong;
    const rows = sortRows(data.rows, choices.sort.get(name));
    const visible = showAll ? rows : rows.slice(0, MAX_ROWS);
    const head = make("thead", {}, make("tr", {}, ...data.heads.map(makeHead)));
    const body = make("tbody", {}, ...visible.map((row) => make("tr", {}, ...row.map(makeCell))));
    const table = make("table", { "aria-label": title }, head, body);
    box.replaceChildren(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table));
    if (!showAll) {
      const onclick = () => { choices.all.add(name); fill(); };
      box.append(make("button", { type: "button", class: "more", onclick }, `Show all ${data.rows.length} rows`));
    }
  };
  fill();
  box.print = (on) => { if (isLong && !choices.all.has(name)) fill(on); };
  return box;
}

function makeButtons(name, data, figure) {
  const lines = () => [data.heads, ...sortRows(data.rows, choices.sort.get(name))];
  const box = make("div", { class: "tools" });
  const add = (label, action) => {
    box.append(make("button", { type: "button", onclick: (event) => action(event.currentTarget) }, label));
  };
  add("Download CSV", () => download(name, csv(lines())));
  add("Copy", (button) => copy(lines().map((row) => row.map((value) => value ?? "").join("\t")).join("\n"), button));
  if (figure && figure.heats.length) {
    add("CSV of all cells", () => download(`${name}-cells`, csv([
      ["panel", figure.y, figure.x, figure.z],
      ...figure.heats.flatMap((heat) => heat.values.flatMap((row, r) => row.map((value, c) => [heat.name, heat.rows[r], heat.columns[c], value]))),
    ])));
  }
  if (figure) {
    const options = { format: "svg", filename: name, width: 900, height: null };
    add("SVG", () => isReady && Plotly.downloadImage(drawForDownload(figure), options));
  }
  return box;
}
/** Return a figure for plotly with a legend of its own. */
function drawForDownload(figure) {
  const { data, layout } = draw(selectPanel(figure), report.styles, choices.hidden.get(figure.name), false);
  const legend = { orientation: "h", y: 1.02, yanchor: "bottom", font: { size: 12 } };
  const margin = { ...layout.margin, t: 60 };
  return { data, layout: { ...layout, showlegend: !figure.heats.length, legend, title: { text: "" }, margin } };
}

// Figures

const DASH = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };
const HATCH = { // the patterns of plotly, for the legend
  "": "", "/": "M4 8 10 0M8 12 17 0M15 12 22 3", "\\": "M4 3 11 12M9 0 18 12M16 0 22 8", "-": "M4 3H22M4 9H22", "|": "M8 0V12M13 0V12M18 0V12",
  "x": "M4 8 10 0M8 12 17 0M15 12 22 3M4 3 11 12M9 0 18 12M16 0 22 8", ".": "M7 3h2M12 3h2M17 3h2M7 8h2M12 8h2M17 8h2",
};
function makeSwatch(style, isBar) {
  const { ink, dash, pattern } = looks(report.styles)(style);
  const box = makeSvg("svg", { width: 26, height: 12, "aria-hidden": "true" });
  if (isBar) {
    box.append(makeSvg("rect", { x: 4, y: 0, width: 18, height: 12, fill: ink }));
    box.append(makeSvg("path", { d: HATCH[pattern], stroke: "#fff", "stroke-width": 1.4 }));
  } else {
    const line = { x1: 1, x2: 25, y1: 6, y2: 6, stroke: ink, "stroke-width": 2.5, "stroke-dasharray": DASH[dash] };
    box.append(makeSvg("line", line));
  }
  return box;
}
function fillLegend(entry) {
  const { figure } = entry;
  const hidden = choices.hidden.get(figure.name);
  const parts = [...figure.lines, ...figure.bars];
  const items = parts.map((part) => make("li", {}, make("button", {
    type: "button", title: `${part.name}: click to hide or show`, "aria-pressed": String(!hidden.has(part.name)),
    onclick: () => {
      if (hidden.has(part.name)) hidden.delete(part.name);
      else hidden.add(part.name);
      fillLegend(entry);
      paint(entry);
      [...entry.legend.querySelectorAll("button")].find((_, i) => parts[i].name === part.name).focus();
    },
  }, makeSwatch(part.style, figure.bars.length > 0), make("span", {}, part.name))));
  entry.legend.replaceChildren(...items);
}

/** Return the figure with the panel that the reader chose, if it shows one panel at a time. */
function selectPanel(figure) {
  if (!figure.selectable) return figure;
  const heat = figure.heats[choices.panel.get(figure.name) ?? 0] ?? figure.heats[0];
  return { ...figure, heats: [heat], limits: heat.limits };
}
function fillSelector(entry) {
  const { figure } = entry;
  if (!figure.selectable) return;
  const selected = choices.panel.get(figure.name) ?? 0;
  const select = make("select", { "aria-label": `Panel of: ${figure.title}` }, ...figure.heats.map((heat, i) => (
    make("option", { value: i, selected: i === selected ? "" : null }, short(heat.name, 80))
  )));
  select.addEventListener("change", () => {
    choices.panel.set(figure.name, Number(select.value));
    paint(entry);
  });
  entry.selector.replaceChildren(select);
}

function paint(entry) {
  if (!isReady || !entry.isNear) return;
  const isNarrow = entry.plot.clientWidth < 500;
  const { data, layout } = draw(selectPanel(entry.figure), report.styles, choices.hidden.get(entry.figure.name), isNarrow);
  if (!entry.isDrawn) entry.plot.replaceChildren();
  entry.isDrawn = true;
  Plotly.react(entry.plot, data, layout, {
    responsive: true, displaylogo: false, doubleClick: "reset", scrollZoom: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]], displayModeBar: isNarrow ? false : "hover",
  });
  entry.box.dataset.drawn = "yes";
  if (!performance.getEntriesByName("figures").length) performance.mark("figures");
}

// Draws a figure when it is less than 400 pixels away from the visible part of the page.
const observer = new IntersectionObserver((changes) => {
  for (const { isIntersecting, target } of changes) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    const entry = entries.get(target.dataset.figure);
    if (entry) {
      entry.isNear = true;
      paint(entry);
    }
  }
}, { rootMargin: "400px 0px" });

function makeFigure(figure) {
  const waiting = make("p", { class: "waiting" }, "The figure will be drawn in a moment; its numbers are in the table.");
  const entry = {
    figure, isNear: false, isDrawn: false, legend: make("ul", { class: "legend" }), caption: make("figcaption", {}),
    plot: make("div", { class: "plot", "data-figure": figure.name, role: "img" }, waiting), numbers: make("div", {}),
    selector: make("div", { class: "selector" }),
  };
  const details = make("details", {}, make("summary", {}, "Numbers"), entry.numbers);
  details.open = choices.open.has(figure.name);
  details.addEventListener("toggle", () => {
    if (details.open) choices.open.add(figure.name);
    else choices.open.delete(figure.name);
  });
  entry.box = make("figure", { id: `figure-${figure.name}`, class: "" },
    make("div", { class: "head" }, make("h3", {}, figure.title), entry.caption, entry.legend, entry.selector), entry.plot, details);
  if (!choices.hidden.has(figure.name)) choices.hidden.set(figure.name, new Set());
  entries.set(figure.name, entry);
  observer.observe(entry.plot);
  return entry;
}
function updateFigure(entry, figure) {
  entry.figure = figure;
  entry.caption.textContent = figure.caption;
  entry.plot.setAttribute("aria-label", `${figure.title}. ${figure.caption} The numbers are in the table below.`);
  const scrollTop = entry.numbers.querySelector(".scroll")?.scrollTop ?? 0;
  const buttons = makeButtons(figure.name, figure.table, figure);
  entry.numbers.replaceChildren(buttons, makeTable(figure.name, figure.table, figure.title));
  entry.numbers.querySelector(".scroll").scrollTop = scrollTop;
  fillLegend(entry);
  fillSelector(entry);
  paint(entry);
}

// The page

const makePairs = (items) => items.flatMap(([name, value]) => {
  const title = value.length > 300 ? value : null;
  return [make("dt", {}, name), make("dd", { title }, short(value, 300))];
});
const figureNames = (data) => data.figures.map((figure) => figure.name).join("\n");
/** Show a report. Figures that are on the page already are updated. */
function render(newReport) {
  const hasSameFigures = report !== null && figureNames(newReport) === figureNames(report);
  report = newReport;
  document.title = short(report.title, 100);
  byId("title").textContent = short(report.title, 160);
  byId("title").title = report.title;
  byId("facts").replaceChildren(...makePairs(report.facts));
  byId("notes").hidden = !report.notes.length;
  byId("notes").replaceChildren(...report.notes.map((note) => make("li", { title: note }, short(note, 400))));
  const buttons = makeButtons("summary", report.summary, null);
  byId("summary").replaceChildren(makeTable("summary", report.summary, "Summary"), buttons);
  byId("environment").replaceChildren(...makePairs(report.environment));
  byId("command").textContent = report.command;
  byId("copy-command").onclick = (event) => copy(report.command, event.currentTarget);
  const isOpen = [...byId("configuration").children].map((details) => details.open);
  byId("configuration").replaceChildren(...report.configuration.map(([name, text], i) => {
    const summary = make("summary", { title: name }, short(name, 100));
    return make("details", { open: isOpen[i] ? "" : null }, summary, make("pre", { tabindex: "0" }, text));
  }));
  if (!hasSameFigures) {
    observer.disconnect();
    entries.clear();
    const sections = new Map();
    for (const figure of report.figures) {
      if (!sections.has(figure.section)) sections.set(figure.section, make("div", { class: "grid" }));
      sections.get(figure.section).append(makeFigure(figure).box);
    }
    [...sections.values()].forEach(arrangeInPairs);
    byId("sections").replaceChildren(...[...sections].map(([title, grid]) => make("section", {}, make("h2", {}, title), grid)));
  }
  for (const figure of report.figures) updateFigure(entries.get(figure.name), figure);
}

/** Put curves and vertical bars in pairs, side by side. The first of an odd number, and all others, get the full width. */
function arrangeInPairs(grid) {
  let boxes = [];
  const pairBoxes = () => {
    boxes.slice(boxes.length % 2).forEach((box) => box.classList.add("half"));
    boxes = [];
  };
  for (const box of grid.children) {
    const { figure } = entries.get(box.id.slice("figure-".length));
    const isWide = figure.heats.length || figure.stacked || figure.name === "accuracy";
    if (isWide) pairBoxes();
    else boxes.push(box);
  }
  pairBoxes();
}

/** Before printing (on): open all tables and draw all figures with the width of paper. After printing: undo it. */
function preparePrint(on) {
  for (const details of document.querySelectorAll("details")) {
    if (on) {
      details.dataset.was = details.open ? "yes" : "";
      details.open = true;
    } else {
      details.open = details.dataset.was === "yes";
    }
  }
  for (const box of document.querySelectorAll(".table")) box.print(on);
  for (const entry of entries.values()) {
    if (on) entry.isNear = true;
    if (!on || !entry.isDrawn) paint(entry);
    if (on) Plotly.relayout(entry.plot, { width: 690, autosize: false });
  }
}

/** Ask the server for news, again and again. */
async function poll() {
  const state = byId("state");
  state.hidden = false;
  try {
    const answer = await fetch(`data?have=${version}`, { cache: "no-store" });
    if (answer.status === 200) {
      const body = await answer.json();
      version = body.version;
      if (body.report) render(body.report);
      state.textContent = body.state;
    }
  } catch {
    state.textContent = "The server has stopped: this page keeps its last state.";
  }
  setTimeout(poll, POLL_INTERVAL);
}

const pause = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
async function start() {
  try {
    // Unpack plotly at the same time as the report: it takes longest.
    const library = unpack(byId("plotly").textContent);
    const data = byId("report").textContent;
    if (data.trim()) render(JSON.parse(await unpack(data)));
    performance.mark("tables");
    if (LIVE) poll();

    // Load plotly.
    await pause();
    const address = URL.createObjectURL(new Blob([await library], { type: "text/javascript" }));
    byId("plotly").textContent = "";
    await new Promise((resolve, reject) => {
      document.head.append(make("script", { src: address, onload: resolve, onerror: reject }));
    });
    URL.revokeObjectURL(address);
    performance.mark("library");
    isReady = true;
    document.body.dataset.ready = "yes";
    window.addEventListener("beforeprint", () => preparePrint(true));
    window.addEventListener("afterprint", () => preparePrint(false));

    // Draw the figures that are visible. The pause lets the page react to the reader in between.
    for (const entry of [...entries.values()].filter((item) => item.isNear)) {
      paint(entry);
      await pause();
    }
  } catch (error) {
    byId("state").hidden = false;
    byId("state").textContent = `This browser could not draw the page (${error}): use a browser from 2023 or later.`;
  }
}
start();
