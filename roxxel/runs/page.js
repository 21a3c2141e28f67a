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
        line: { width: 1.5, color: run.color }, marker: { color: run.color },
        hovertemplate: "%{y:.5g} at %{x:,}",
      };
    });
}

function layout(metric, log) {
  const style = getComputedStyle(document.body);
  const line = style.getPropertyValue("--line").trim();
  const axis = { gridcolor: line, zerolinecolor: line, automargin: true };
  return {
    margin: { l: 60, r: 12, t: 8, b: 40 }, height: 300, showlegend: false,
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

function bars() {
  const plot = choose("goodput");
  if (!plot) return;
  const runs = data.runs.filter((run) => shown.has(run.id) && run.seconds);
  const phases = [...new Set(runs.flatMap((run) => Object.keys(run.seconds)))];
  const rows = phases.map((phase) => ({
    type: "bar", orientation: "h", name: phase,
    y: runs.map((run) => run.label),
    x: runs.map((run) => run.seconds[phase] || 0),
    hovertemplate: "%{x:.1f} s",
  }));
  const base = layout("", false);
  Plotly.react(plot, rows, {
    ...base, barmode: "stack", showlegend: true, height: 90 + 26 * runs.length,
    hovermode: "closest", yaxis: { ...base.yaxis, type: "category", title: {} },
    xaxis: { ...base.xaxis, title: { text: "seconds" } },
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
if (data.refresh) setInterval(async () => {
  const answer = await fetch("version", { cache: "no-store" });
  if (answer.ok && (await answer.text()) !== data.version) location.reload();
}, data.refresh * 1000);
