"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const shown = new Set(data.runs.map((run) => run.id));
const choose = (id) => document.getElementById(id);

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return Array.from(new Float32Array(bytes.buffer));
}

for (const run of data.runs)
  for (const curve of Object.values(run.curves))
    for (const key of Object.keys(curve)) curve[key] = floats(curve[key]);

// Exponential mean with a bias correction, so that it starts at the first value.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, norm = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

// Tokens or minutes at the steps of a curve, between those that are known.
function placed(run, steps, axis) {
  if (axis === "step") return steps;
  const known = run.curves[""].step, values = run.curves[""][axis];
  let k = 0;
  return steps.map((step) => {
    while (k < known.length - 2 && known[k + 1] < step) k++;
    if (known.length < 2) return values[0];
    const share = (step - known[k]) / (known[k + 1] - known[k]);
    return values[k] + share * (values[k + 1] - values[k]);
  });
}

function traces(metric) {
  const axis = choose("axis").value, weight = Number(choose("smooth").value);
  return data.runs
    .filter((run) => shown.has(run.id) && run.curves[metric])
    .map((run) => {
      const curve = run.curves[metric];
      return {
        x: placed(run, curve.x, axis), y: smoothed(curve.y, weight), name: run.label,
        mode: curve.y.length < 3 ? "markers" : "lines",
        line: { width: 1.5, color: run.color, dash: run.dash }, marker: { color: run.color },
        hovertemplate: "%{y:.5g} at %{x:,}",
      };
    });
}

function layout(metric, log) {
  const style = getComputedStyle(document.body);
  const line = style.getPropertyValue("--line").trim();
  const axis = { gridcolor: line, zerolinecolor: line, automargin: true };
  return {
    margin: { l: 76, r: 12, t: 8, b: 40 }, height: 300, showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: style.getPropertyValue("--text").trim(), size: 12 },
    xaxis: { ...axis, title: { text: choose("axis").value } },
    yaxis: { ...axis, title: { text: metric }, type: log ? "log" : "linear" },
    hovermode: "x unified",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: line },
  };
}

function draw() {
  for (const plot of document.querySelectorAll(".plot")) {
    const metric = plot.dataset.metric || choose("metric").value;
    const log = metric.includes("loss") ? choose("log").checked : false;
    Plotly.react(plot, traces(metric), layout(metric, log),
      { displaylogo: false, responsive: true });
  }
  bars();
}

const PHASE_COLORS = {
  step: "#3a9b5c", data: "#d9822b", compile: "#8b62b8", start: "#7d858c",
  evaluation: "#3b76c4", save: "#2fa3b5", sample: "#d46ab0", other: "#a8a829",
  lost: "#c4453c",
};

// Wall time by phase, steps that counted first.
function bars() {
  const plot = choose("goodput");
  if (!plot) return;
  const runs = data.runs.filter((run) => shown.has(run.id) &&
    Object.keys(run.seconds).length);
  const percent = choose("unit").value === "percent";
  const total = (run) => Object.values(run.seconds).reduce((a, b) => a + b, 0);
  const first = (phase) => phase === "step" ? 0 : 1;
  const phases = data.phases.filter((phase) => runs.some((run) => run.seconds[phase]));
  phases.sort((a, b) => first(a) - first(b));
  const rows = phases.map((phase) => ({
    type: "bar", orientation: "h", name: phase, marker: { color: PHASE_COLORS[phase] },
    y: runs.map((run) => run.label),
    x: runs.map((run) => (run.seconds[phase] || 0) * (percent ? 100 / total(run) : 1)),
    text: runs.map((run) => (100 * (run.seconds[phase] || 0) / total(run)).toFixed(1)),
    customdata: runs.map((run) => run.seconds[phase] || 0), textposition: "none",
    hovertemplate: "%{customdata:.1f} s, %{text} %",
  }));
  const base = layout("", false);
  Plotly.react(plot, rows, {
    ...base, barmode: "stack", showlegend: true, height: 110 + 26 * runs.length,
    legend: { orientation: "h", y: 1, yanchor: "bottom", traceorder: "normal" },
    hovermode: "closest",
    yaxis: { ...base.yaxis, type: "category", title: {}, autorange: "reversed" },
    xaxis: { ...base.xaxis, title: { text: percent ? "percent" : "seconds" } },
  }, { displaylogo: false, responsive: true });
}

function filter() {
  const wanted = choose("search").value.toLowerCase();
  for (const row of document.querySelectorAll("#config tr[data-path]"))
    row.hidden = !row.dataset.path.toLowerCase().includes(wanted);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  draw();
}

for (const id of ["metric", "axis", "log", "smooth"])
  choose(id).addEventListener("input", draw);
choose("search").addEventListener("input", filter);
if (choose("unit")) choose("unit").addEventListener("input", bars);
choose("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.body).getPropertyValue("--dark").trim() === "1";
  theme(dark ? "light" : "dark");
});
for (const box of document.querySelectorAll("input[data-run]"))
  box.addEventListener("input", () => {
    const id = Number(box.dataset.run);
    box.checked ? shown.add(id) : shown.delete(id);
    draw();
  });
draw();
document.body.dataset.ready = "1";
document.body.dataset.millis = performance.now().toFixed();
if (data.refresh) setInterval(async () => {
  const answer = await fetch("version", { cache: "no-store" });
  if (answer.ok && (await answer.text()) !== data.version) location.reload();
}, data.refresh * 1000);
