// The page: text and tables at once, figures as they come near, and in a live page again when the runs have gone on.
"use strict";

const LIVE = document.body.dataset.live === "yes";
const ROWS = 30; // of a table before one asks for all
const EVERY = 2000; // milliseconds between looks at a live run
const kept = { hidden: new Map(), open: new Set(), sort: new Map(), all: new Set() }; // what the reader chose, by name
const shown = new Map(); // figures on the page, by name
let report = null, version = "", ready = false;

const byId = (id) => document.getElementById(id);
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children); // strings become text nodes: no name is ever read as markup
  return element;
}
function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function unpack(text) {
  const letters = atob(text.trim()), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Tables

const cell = (value, digits) => {
  if (value === null) return "–";
  if (typeof value !== "number") return value;
  if (digits !== null) return value.toFixed(digits);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
};
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null); // what is missing goes last, either way
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}
function sorted(rows, order) {
  if (!order) return rows;
  const sign = order.up ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[order.column], b[order.column]];
    return compare(x, y) * (x === null || y === null ? 1 : sign);
  });
}
/** A value as CSV has it; text that a spreadsheet would take for a formula is led by an apostrophe. */
const quoted = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csv = (rows) => rows.map((row) => row.map(quoted).join(",") + "\n").join("");

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

function table(name, data, title) {
  const box = make("div", { class: "table" }), texts = data.heads.map((_, at) => data.rows.some((row) => typeof row[at] === "string"));
  const fill = (whole = false) => {
    const order = kept.sort.get(name), all = whole || kept.all.has(name) || data.rows.length <= ROWS + 10;
    const rows = sorted(data.rows, order);
    const heads = data.heads.map((head, at) => {
      const state = order && order.column === at ? (order.up ? "ascending" : "descending") : "none";
      const button = make("button", { type: "button", title: head }, short(head, 40).replace(/ %/g, "\u00a0%"));
      button.addEventListener("click", () => {
        kept.sort.set(name, { column: at, up: state !== "ascending" });
        fill();
        box.querySelectorAll("th button")[at].focus();
      });
      return make("th", { scope: "col", "aria-sort": state, class: texts[at] ? "text" : "" }, button);
    });
    const body = make("tbody", {}, ...(all ? rows : rows.slice(0, ROWS)).map((row) => make("tr", {}, ...row.map((value, at) => {
      const text = cell(value, data.digits[at]);
      const long = text.length > 40 ? text : typeof value === "number" && String(value) !== text ? String(value) : null;
      return make("td", { class: texts[at] ? "text" : "", title: long }, short(text, 60));
    }))));
    const more = make("button", { type: "button", class: "more", onclick: () => { kept.all.add(name); fill(); } }, `Show all ${data.rows.length} rows`);
    const filled = make("table", { "aria-label": title }, make("thead", {}, make("tr", {}, ...heads)), body);
    box.replaceChildren(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, filled), ...(all ? [] : [more]));
  };
  fill();
  box.print = (on) => { if (data.rows.length > ROWS + 10 && !kept.all.has(name)) fill(on); };
  return box;
}

function tools(name, data, figure) {
  const lines = () => [data.heads, ...sorted(data.rows, kept.sort.get(name))];
  const box = make("div", { class: "tools" });
  const add = (label, act) => box.append(make("button", { type: "button", onclick: (event) => act(event.currentTarget) }, label));
  add("Download CSV", () => download(name, csv(lines())));
  add("Copy", (button) => copy(lines().map((row) => row.map((value) => value ?? "").join("\t")).join("\n"), button));
  if (figure && figure.heats.length) {
    add("CSV of all cells", () => download(`${name}-cells`, csv([
      ["panel", figure.y, figure.x, figure.z],
      ...figure.heats.flatMap((heat) => heat.values.flatMap((row, r) => row.map((value, c) => [heat.name, heat.rows[r], heat.columns[c], value]))),
    ])));
  }
  if (figure) add("SVG", () => ready && Plotly.downloadImage(picture(figure), { format: "svg", filename: name, width: 900, height: null }));
  return box;
}
function picture(figure) {
  const made = draw(figure, report.styles, kept.hidden.get(figure.name), false);
  const legend = { orientation: "h", y: 1.02, yanchor: "bottom", font: { size: 12 } };
  return { data: made.data, layout: { ...made.layout, showlegend: !figure.heats.length, legend, title: { text: "" }, margin: { ...made.layout.margin, t: 60 } } };
}

// Figures

const DASH = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };
const HATCH = { // plotly's patterns, in the small
  "": "", "/": "M4 8 10 0M8 12 17 0M15 12 22 3", "\\": "M4 3 11 12M9 0 18 12M16 0 22 8", "-": "M4 3H22M4 9H22", "|": "M8 0V12M13 0V12M18 0V12",
  "x": "M4 8 10 0M8 12 17 0M15 12 22 3M4 3 11 12M9 0 18 12M16 0 22 8", ".": "M7 3h2M12 3h2M17 3h2M7 8h2M12 8h2M17 8h2",
};
function swatch(style, bars) {
  const { ink, dash, pattern } = looks(report.styles)(style);
  const box = drawn("svg", { width: 26, height: 12, "aria-hidden": "true" });
  if (bars) box.append(drawn("rect", { x: 4, y: 0, width: 18, height: 12, fill: ink }), drawn("path", { d: HATCH[pattern], stroke: "#fff", "stroke-width": 1.4 }));
  else box.append(drawn("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: ink, "stroke-width": 2.5, "stroke-dasharray": DASH[dash] }));
  return box;
}
function legend(entry) {
  const { figure } = entry, hidden = kept.hidden.get(figure.name), parts = [...figure.lines, ...figure.bars];
  const items = parts.map((part) => make("li", {}, make("button", {
    type: "button", title: `${part.name}: click to hide or show`, "aria-pressed": String(!hidden.has(part.name)),
    onclick: () => {
      hidden.has(part.name) ? hidden.delete(part.name) : hidden.add(part.name);
      legend(entry);
      paint(entry);
      [...entry.legend.querySelectorAll("button")].find((_, at) => parts[at].name === part.name).focus();
    },
  }, swatch(part.style, figure.bars.length > 0), make("span", {}, part.name))));
  entry.legend.replaceChildren(...items);
}

function paint(entry) {
  if (!ready || !entry.near) return;
  const width = entry.plot.clientWidth, made = draw(entry.figure, report.styles, kept.hidden.get(entry.figure.name), width < 500);
  if (!entry.drawn) entry.plot.replaceChildren();
  entry.drawn = true;
  Plotly.react(entry.plot, made.data, made.layout, {
    responsive: true, displaylogo: false, doubleClick: "reset",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]], displayModeBar: width < 500 ? false : "hover", scrollZoom: false,
  });
  entry.box.dataset.drawn = "yes";
  if (!performance.getEntriesByName("figures").length) performance.mark("figures");
}

const nearby = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    nearby.unobserve(target);
    const entry = shown.get(target.dataset.figure);
    if (entry) { entry.near = true; paint(entry); }
  }
}, { rootMargin: "400px 0px" });

function figureBox(figure) {
  const entry = {
    figure, near: false, drawn: false, legend: make("ul", { class: "legend" }), caption: make("figcaption", {}),
    plot: make("div", { class: "plot", "data-figure": figure.name, role: "img" }, make("p", { class: "waiting" }, "The figure is drawn in a moment; its numbers are in the table.")),
    numbers: make("div", {}),
  };
  const details = make("details", {}, make("summary", {}, "Numbers"), entry.numbers);
  details.open = kept.open.has(figure.name);
  details.addEventListener("toggle", () => kept.open[details.open ? "add" : "delete"](figure.name));
  entry.box = make("figure", { id: `figure-${figure.name}`, class: "" },
    make("div", { class: "head" }, make("h3", {}, figure.title), entry.caption, entry.legend), entry.plot, details);
  if (!kept.hidden.has(figure.name)) kept.hidden.set(figure.name, new Set());
  shown.set(figure.name, entry);
  nearby.observe(entry.plot);
  return entry;
}
function refresh(entry, figure) {
  entry.figure = figure;
  entry.caption.textContent = figure.caption;
  entry.plot.setAttribute("aria-label", `${figure.title}. ${figure.caption} The numbers are in the table below.`);
  const scrolled = entry.numbers.querySelector(".scroll")?.scrollTop ?? 0;
  entry.numbers.replaceChildren(tools(figure.name, figure.table, figure), table(figure.name, figure.table, figure.title));
  entry.numbers.querySelector(".scroll").scrollTop = scrolled;
  legend(entry);
  paint(entry);
}

// The whole

const pairs = (items) => items.flatMap(([name, value]) => [make("dt", {}, name), make("dd", { title: value.length > 300 ? value : null }, short(value, 300))]);
function render(next) {
  const names = next.figures.map((figure) => figure.name).join("\n");
  const same = report !== null && names === report.figures.map((figure) => figure.name).join("\n");
  report = next;
  document.title = short(report.title, 100);
  byId("title").textContent = short(report.title, 160);
  byId("title").title = report.title;
  byId("facts").replaceChildren(...pairs(report.facts));
  byId("notes").hidden = !report.notes.length;
  byId("notes").replaceChildren(...report.notes.map((note) => make("li", { title: note }, short(note, 400))));
  byId("summary").replaceChildren(table("summary", report.summary, "Summary"), tools("summary", report.summary, null));
  byId("environment").replaceChildren(...pairs(report.environment));
  byId("command").textContent = report.command;
  byId("copy-command").onclick = (event) => copy(report.command, event.currentTarget);
  const open = [...byId("configuration").children].map((details) => details.open);
  byId("configuration").replaceChildren(...report.configuration.map(([name, text], at) =>
    make("details", { open: open[at] ? "" : null }, make("summary", { title: name }, `Configuration of ${short(name, 80)}`), make("pre", { tabindex: "0" }, text))));
  if (!same) {
    nearby.disconnect();
    shown.clear();
    const sections = new Map();
    for (const figure of report.figures) {
      if (!sections.has(figure.section)) sections.set(figure.section, make("div", { class: "grid" }));
      sections.get(figure.section).append(figureBox(figure).box);
    }
    [...sections.values()].forEach(pair);
    byId("sections").replaceChildren(...[...sections].map(([title, grid]) => make("section", {}, make("h2", {}, title), grid)));
  }
  for (const figure of report.figures) refresh(shown.get(figure.name), figure);
}

/** Curves and upright bars stand two by two; the first of an odd number, and all else, has the width to itself. */
function pair(grid) {
  let row = [];
  const close = () => { row.slice(row.length % 2).forEach((box) => box.classList.add("half")); row = []; };
  for (const box of grid.children) {
    const { figure } = shown.get(box.id.slice("figure-".length));
    if (figure.heats.length || figure.stacked || figure.name === "accuracy") close(); else row.push(box);
  }
  close();
}

function printing(on) {
  for (const details of document.querySelectorAll("details")) {
    if (on) { details.dataset.was = details.open ? "yes" : ""; details.open = true; } else details.open = details.dataset.was === "yes";
  }
  for (const box of document.querySelectorAll(".table")) box.print(on);
  for (const entry of shown.values()) {
    if (on) entry.near = true;
    if (!on || !entry.drawn) paint(entry);
    if (on) Plotly.relayout(entry.plot, { width: 690, autosize: false });
  }
}

async function look() {
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
    state.textContent = "The server has ended: this page keeps what it last saw.";
  }
  setTimeout(look, EVERY);
}

const pause = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
async function start() {
  try {
    const library = unpack(byId("plotly").textContent); // beside the rest: it takes longest
    const packed = byId("report").textContent;
    if (packed.trim()) render(JSON.parse(await unpack(packed)));
    performance.mark("tables");
    if (LIVE) look();
    await pause();
    const address = URL.createObjectURL(new Blob([await library], { type: "text/javascript" }));
    byId("plotly").textContent = "";
    await new Promise((done, failed) => document.head.append(make("script", { src: address, onload: done, onerror: failed })));
    URL.revokeObjectURL(address);
    performance.mark("library");
    ready = true;
    document.body.dataset.ready = "yes";
    window.addEventListener("beforeprint", () => printing(true));
    window.addEventListener("afterprint", () => printing(false));
    for (const entry of [...shown.values()].filter((one) => one.near)) {
      paint(entry);
      await pause(); // the reader can click between two figures
    }
  } catch (error) {
    byId("state").hidden = false;
    byId("state").textContent = `This browser could not draw the page (${error}): use one from 2023 or later.`;
  }
}
start();
