// From a figure as data to what plotly draws. Text from runs goes through plain(): plotly reads tags in its text.
"use strict";

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const PATTERNS = ["", "/", "x", "-", ".", "\\", "|"];

const short = (text, most) => {
  const signs = [...text];
  return signs.length > most ? signs.slice(0, most - 1).join("") + "…" : text;
};
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\s+/g, " ");
const faded = (hex, share) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
};

/** Names that differ even when shortened: categories of an axis must. */
function unique(names, most) {
  const seen = new Set();
  return names.map((name, at) => {
    let made = short(name, most);
    if (seen.has(made)) made = `${short(name, most - 6)} #${at}`;
    seen.add(made);
    return plain(made);
  });
}

/** Places on an axis to name, no more than `most`, in steps of 1, 2 or 5 times a power of ten; from 1, at round numbers. */
function ticks(names, most) {
  let step = 1;
  for (let at = 0; names.length / step > Math.max(1, most); at++) step = [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3);
  const first = names[0] === "1" && names[1] === "2" && step > 1 ? step - 1 : 0;
  const places = Array.from({ length: Math.ceil((names.length - first) / step) }, (_, at) => first + at * step);
  return first ? [0, ...places] : places;
}

function looks(styles) {
  return (style) => ({
    ink: styles.inks[style % styles.inks.length],
    dash: styles.dashes[style % styles.dashes.length],
    marker: styles.markers[style % styles.markers.length],
    pattern: PATTERNS[style % PATTERNS.length],
  });
}

const axis = (title, more) => ({
  title: { text: plain(title), font: { size: 12.5 }, standoff: 8 },
  gridcolor: "#eceff2", linecolor: "#8a949e", zeroline: false, showline: true, ticks: "outside", ticklen: 4,
  tickcolor: "#8a949e", tickfont: { size: 11.5 }, automargin: true, ...more,
});

function base(narrow, more) {
  return {
    font: { family: FONT, color: "#1b2733" }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: false,
    margin: { l: narrow ? 44 : 58, r: 12, t: 12, b: 44 }, hoverlabel: { font: { size: 12, family: FONT } },
    uirevision: "kept", autosize: true, ...more,
  };
}

function drawLines(figure, look, hidden, narrow) {
  const data = [];
  for (const line of figure.lines) {
    const { ink, dash, marker } = look(line.style);
    const common = { type: "scatter", x: line.x, visible: !hidden.has(line.name), legendgroup: String(line.style) };
    if (line.high.length) {
      const edge = { ...common, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      data.push({ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: faded(ink, 0.14) });
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
    line: { width: 0 }, fillcolor: faded(look(span.style).ink, 0.13),
  }));
  const annotations = spans.slice(0, 1).map((span) => ({
    text: "critical", xref: "x", yref: "paper", x: span.start - 0.5, y: 1, xanchor: "left", yanchor: "top",
    showarrow: false, font: { size: 11, color: "#55626f" },
  }));
  const low = Math.min(...figure.lines.map((line) => line.x[0])), high = Math.max(...figure.lines.map((line) => line.x.at(-1)));
  const wide = high - low || 1;
  const layout = base(narrow, {
    height: narrow ? 300 : 360, hovermode: "x unified", shapes, annotations,
    xaxis: axis(figure.x, { range: [low - 0.02 * wide, high + 0.02 * wide] }), yaxis: axis(figure.y, { type: "linear" }),
  });
  return { data, layout };
}

function drawBars(figure, look, hidden, narrow) {
  const names = unique(figure.categories, 48);
  const labels = figure.categories.map((name) => plain(short(name, narrow ? 18 : 34)));
  const few = figure.bars.length * names.length <= 8 && !figure.stacked;
  const data = figure.bars.map((bars) => {
    const { ink, pattern } = look(bars.style);
    const along = { cat: names, val: bars.values };
    return {
      type: "bar", name: plain(short(bars.name, 40)), visible: !hidden.has(bars.name),
      orientation: figure.stacked ? "h" : "v",
      x: figure.stacked ? along.val : along.cat, y: figure.stacked ? along.cat : along.val,
      marker: { color: ink, line: { color: ink, width: 1 }, pattern: { shape: pattern, bgcolor: ink, fgcolor: "#fff", size: 7, solidity: 0.22 } },
      text: few ? bars.values.map((value) => (value === null ? "" : Number(value.toPrecision(3)).toString())) : undefined,
      textposition: "outside", cliponaxis: false, textfont: { size: 11 },
      hovertemplate: figure.stacked ? "%{x:.4~g}" : "%{y:.4~g}",
    };
  });
  const named = { type: "category", tickmode: "array", tickvals: names, ticktext: labels };
  const layout = base(narrow, {
    barmode: figure.stacked ? "stack" : "group", bargap: 0.3, hovermode: figure.stacked ? "y unified" : "x unified",
    height: figure.stacked ? 90 + 34 * names.length : narrow ? 300 : 360,
    xaxis: figure.stacked ? axis(figure.y) : axis(figure.x, named),
    yaxis: figure.stacked ? axis("", { ...named, autorange: "reversed" }) : axis(figure.y, { rangemode: "tozero" }),
  });
  return { data, layout };
}

function drawHeats(figure, styles, narrow) {
  const scale = styles.palettes[figure.palette];
  const heights = figure.heats.map((heat) => Math.min(300, Math.max(64, 15 * heat.rows.length)));
  const gap = figure.heats.length > 1 ? 46 : 0, head = figure.heats[0].name ? 26 : 10, foot = 46;
  const inner = heights.reduce((sum, height) => sum + height, 0) + gap * (heights.length - 1);
  const layout = base(narrow, {
    height: inner + head + foot, margin: { l: narrow ? 44 : 58, r: 10, t: head, b: foot }, annotations: [],
    coloraxis: {
      showscale: figure.z !== "", cmin: figure.limits[0], cmax: figure.limits[1],
      colorscale: scale.map((ink, at) => [at / (scale.length - 1), ink]),
      colorbar: {
        title: { text: plain(figure.z), font: { size: 12 }, side: "right" }, thickness: 11, outlinewidth: 0, tickfont: { size: 11 },
        lenmode: "pixels", len: Math.min(inner, 220), y: 1, yanchor: "top", nticks: 5, x: 1.01, xpad: 4,
      },
    },
  });
  let top = 0;
  const data = figure.heats.map((heat, at) => {
    const number = at ? String(at + 1) : "";
    const domain = [1 - (top + heights[at]) / inner, 1 - top / inner].map((share) => Math.min(1, Math.max(0, share)));
    top += heights[at] + gap;
    const rows = unique(heat.rows, 60), columns = unique(heat.columns, 60);
    const across = ticks(heat.columns, narrow ? 6 : 12), down = ticks(heat.rows, heights[at] / 15);
    const last = at === figure.heats.length - 1;
    layout[`xaxis${number}`] = axis(last ? figure.x : "", {
      type: "category", anchor: `y${number}`, showgrid: false, tickmode: "array", tickvals: across,
      ticktext: across.map((place) => plain(short(heat.columns[place], 12))), tickangle: 0,
    });
    layout[`yaxis${number}`] = axis(figure.y, {
      type: "category", anchor: `x${number}`, domain, showgrid: false, autorange: "reversed", tickmode: "array", tickvals: down,
      ticktext: down.map((place) => plain(short(heat.rows[place], narrow ? 9 : 18))),
    });
    if (heat.name) layout.annotations.push({
      text: plain(short(heat.name, narrow ? 40 : 90)), xref: "paper", yref: "paper", x: 0, y: domain[1], xanchor: "left",
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

function draw(figure, styles, hidden, narrow) {
  if (figure.heats.length) return drawHeats(figure, styles, narrow);
  return (figure.lines.length ? drawLines : drawBars)(figure, looks(styles), hidden, narrow);
}
