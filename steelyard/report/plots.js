// Turns figures into data and layout for plotly. Texts from runs go through plain(): plotly reads tags in texts.
"use strict";

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const PATTERNS = ["", "/", "x", "-", ".", "\\", "|"];

const short = (text, limit) => {
  const characters = [...text];
  return characters.length > limit ? characters.slice(0, limit - 1).join("") + "…" : text;
};
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\s+/g, " ");
const fade = (hex, opacity) => {
  const [r, g, b] = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
};

/** Return shortened names that are different from each other, as the categories of an axis must be. */
function shortenUnique(names, limit) {
  const shortNames = new Set();
  return names.map((name, i) => {
    let shortName = short(name, limit);
    if (shortNames.has(shortName)) shortName = `${short(name, limit - 6)} #${i}`;
    shortNames.add(shortName);
    return plain(shortName);
  });
}

/**
 * Return the positions on an axis to label, at most `limit`, in steps of 1, 2 or 5 times a power of ten.
 * If the names count from 1, these are round numbers.
 */
function ticks(names, limit) {
  let step = 1;
  for (let i = 0; names.length / step > Math.max(1, limit); i++) step = [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3);
  const countsFromOne = names[0] === "1" && names[1] === "2";
  const first = countsFromOne && step > 1 ? step - 1 : 0;
  const count = Math.ceil((names.length - first) / step);
  const positions = Array.from({ length: count }, (_, i) => first + i * step);
  return first ? [0, ...positions] : positions;
}

/** Return a function that gives the colour, dash, marker and pattern of a style number. */
function looks(styles) {
  return (style) => ({
    ink: styles.inks[style % styles.inks.length],
    dash: styles.dashes[style % styles.dashes.length],
    marker: styles.markers[style % styles.markers.length],
    pattern: PATTERNS[style % PATTERNS.length],
  });
}

const axis = (title, options) => ({
  title: { text: plain(title), font: { size: 12.5 }, standoff: 8 },
  gridcolor: "#eceff2", linecolor: "#8a949e", zeroline: false, showline: true, ticks: "outside", ticklen: 4,
  tickcolor: "#8a949e", tickfont: { size: 11.5 }, automargin: true, exponentformat: "power", ...options,
});

function baseLayout(isNarrow, options) {
  return {
    font: { family: FONT, color: "#1b2733" }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: false,
    margin: { l: isNarrow ? 44 : 58, r: 12, t: 12, b: 44 }, hoverlabel: { font: { size: 12, family: FONT } },
    uirevision: "kept", autosize: true, ...options,
  };
}

function drawLines(figure, look, hidden, isNarrow) {
  const data = [];
  for (const line of figure.lines) {
    const { ink, dash, marker } = look(line.style);
    const common = { type: "scatter", x: line.x, visible: !hidden.has(line.name), legendgroup: String(line.style) };
    if (line.high.length) {
      const edge = { ...common, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      data.push({ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: fade(ink, 0.14) });
    }
    data.push({
      ...common, y: line.y, name: plain(short(line.name, 40)), mode: line.x.length > 1 ? "lines+markers" : "markers",
      line: { color: ink, dash, width: 2 }, marker: { color: ink, symbol: marker, size: 6.5, maxdisplayed: 8 },
      hovertemplate: "%{y:.5~g}",
    });
  }
  for (const mark of figure.marks) {
    data.push({
      type: "scatter", mode: "markers", x: [mark.x], y: [mark.y], showlegend: false, hoverinfo: "skip",
      visible: !hidden.has(mark.name), legendgroup: String(mark.style),
      marker: { symbol: "circle-open", size: 15, color: look(mark.style).ink, line: { width: 2.5 } },
    });
  }
  const spans = figure.spans.filter((span) => !hidden.has(span.name));
  const shapes = spans.map((span) => ({
    type: "rect", xref: "x", yref: "paper", x0: span.start - 0.5, x1: span.end + 0.5, y0: 0, y1: 1, layer: "below",
    line: { width: 0 }, fillcolor: fade(look(span.style).ink, 0.13),
  }));
  const annotations = spans.slice(0, 1).map((span) => ({
    text: "critical", xref: "x", yref: "paper", x: span.start - 0.5, y: 1, xanchor: "left", yanchor: "top",
    showarrow: false, font: { size: 11, color: "#55626f" },
  }));
  const low = Math.min(...figure.lines.map((line) => line.x[0]));
  const high = Math.max(...figure.lines.map((line) => line.x.at(-1)));
  const margin = 0.02 * (high - low || 1);
  const layout = baseLayout(isNarrow, {
    height: isNarrow ? 300 : 360, hovermode: "x unified", shapes, annotations,
    xaxis: axis(figure.x, { range: [low - margin, high + margin] }), yaxis: axis(figure.y, { type: "linear" }),
  });
  return { data, layout };
}

function drawBars(figure, look, hidden, isNarrow) {
  const names = shortenUnique(figure.categories, 48);
  const labels = figure.categories.map((name) => plain(short(name, isNarrow ? 18 : 34)));
  const showNumbers = figure.bars.length * names.length <= 8 && !figure.stacked;
  const formatNumber = (value) => (value === null ? "" : Number(value.toPrecision(3)).toString());
  const data = figure.bars.map((bars) => {
    const { ink, pattern } = look(bars.style);
    return {
      type: "bar", name: plain(short(bars.name, 40)), visible: !hidden.has(bars.name),
      orientation: figure.stacked ? "h" : "v",
      x: figure.stacked ? bars.values : names, y: figure.stacked ? names : bars.values,
      marker: {
        color: ink, line: { color: ink, width: 1 },
        pattern: { shape: pattern, bgcolor: ink, fgcolor: "#fff", size: 7, solidity: 0.22 },
      },
      text: showNumbers ? bars.values.map(formatNumber) : undefined,
      textposition: "outside", cliponaxis: false, textfont: { size: 11 },
      hovertemplate: figure.stacked ? "%{x:.4~g}" : "%{y:.4~g}",
    };
  });
  const categories = { type: "category", tickmode: "array", tickvals: names, ticktext: labels };
  const groupHeight = isNarrow ? 300 : 360;
  const layout = baseLayout(isNarrow, {
    barmode: figure.stacked ? "stack" : "group", bargap: 0.3, hovermode: figure.stacked ? "y unified" : "x unified",
    height: figure.stacked ? 90 + 34 * names.length : groupHeight,
    xaxis: figure.stacked ? axis(figure.y) : axis(figure.x, categories),
    yaxis: figure.stacked ? axis("", { ...categories, autorange: "reversed" }) : axis(figure.y, { rangemode: "tozero" }),
  });
  return { data, layout };
}

function drawHeats(figure, styles, isNarrow) {
  const scale = styles.palettes[figure.palette];
  const heights = figure.heats.map((heat) => Math.min(300, Math.max(110, 15 * heat.rows.length)));
  const gap = figure.heats.length > 1 ? 46 : 0;
  const head = figure.heats[0].name ? 26 : 10;
  const foot = 46;
  const inner = heights.reduce((sum, height) => sum + height, 0) + gap * (heights.length - 1);
  const layout = baseLayout(isNarrow, {
    height: inner + head + foot, margin: { l: isNarrow ? 44 : 58, r: 10, t: head, b: foot }, annotations: [],
    coloraxis: {
      showscale: figure.z !== "", cmin: figure.limits[0], cmax: figure.limits[1],
      colorscale: scale.map((ink, i) => [i / (scale.length - 1), ink]),
      colorbar: {
        title: { text: plain(figure.z), font: { size: 12 }, side: "right" }, thickness: 11, outlinewidth: 0, tickfont: { size: 11 },
        lenmode: "pixels", len: Math.min(inner, 220), y: 1, yanchor: "top", nticks: 5, x: 1.01, xpad: 4,
      },
    },
  });
  let top = 0;
  const data = figure.heats.map((heat, i) => {
    const number = i ? String(i + 1) : "";
    const edges = [1 - (top + heights[i]) / inner, 1 - top / inner];
    const domain = edges.map((edge) => Math.min(1, Math.max(0, edge)));
    top += heights[i] + gap;
    const rows = shortenUnique(heat.rows, 60);
    const columns = shortenUnique(heat.columns, 60);
    const columnTicks = ticks(heat.columns, isNarrow ? 6 : 12);
    const rowTicks = ticks(heat.rows, heights[i] / 15);
    const isLast = i === figure.heats.length - 1;
    const columnLabels = columnTicks.map((column) => plain(short(heat.columns[column], 12)));
    const hasLongLabels = columnLabels.some((label) => label.length > (isNarrow ? 5 : 8));
    layout[`xaxis${number}`] = axis(isLast ? figure.x : "", {
      type: "category", anchor: `y${number}`, showgrid: false, tickmode: "array",
      tickvals: columnTicks.map((column) => columns[column]), // a position may be the name of another column
      ticktext: columnLabels, tickangle: hasLongLabels ? -40 : 0,
    });
    layout[`yaxis${number}`] = axis(figure.y, {
      type: "category", anchor: `x${number}`, domain, showgrid: false, autorange: "reversed", tickmode: "array",
      tickvals: rowTicks.map((row) => rows[row]),
      ticktext: rowTicks.map((row) => plain(short(heat.rows[row], isNarrow ? 9 : 18))),
    });
    if (heat.name) layout.annotations.push({
      text: plain(short(heat.name, isNarrow ? 40 : 90)), xref: "paper", yref: "paper", x: 0, y: domain[1], xanchor: "left",
      yanchor: "bottom", yshift: 4, showarrow: false, font: { size: 12.5 },
    });
    return {
      type: "heatmap", z: heat.values, x: columns, y: rows, xaxis: `x${number}`, yaxis: `y${number}`, coloraxis: "coloraxis",
      hoverongaps: false, xgap: columns.length <= 40 ? 1 : 0, ygap: rows.length <= 40 ? 1 : 0,
      hovertemplate: `${plain(figure.y)} %{y}<br>${plain(figure.x)} %{x}<br>${plain(figure.z)} %{z:.4~g}<extra></extra>`,
    };
  });
  return { data, layout };
}

/** Return the data and the layout of a figure for plotly. */
function draw(figure, styles, hidden, isNarrow) {
  if (figure.heats.length) return drawHeats(figure, styles, isNarrow);
  if (figure.lines.length) return drawLines(figure, looks(styles), hidden, isNarrow);
  return drawBars(figure, looks(styles), hidden, isNarrow);
}
