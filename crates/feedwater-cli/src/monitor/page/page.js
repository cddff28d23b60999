// The page of `feedwater monitor --web`: every second a snapshot comes, and the page is made of it again.
// Text is only ever set as text, so that a name from a file cannot become part of the page.
"use strict";

const HISTORY = 120;
const history = new Map(); // what → its last values, for the small charts

const known = (value) => value !== null && value !== undefined;
const figure = (value) => (value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0));
const percent = (value) => `${value.toFixed(0)} %`;
const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);

function rate(bytes) {
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(0)} kB/s`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0)} MB/s`;
  return `${(bytes / 1e9).toFixed(2)} GB/s`;
}

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** An element with its attributes and children; a string among the children is text. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "rect", "line", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter(known));
  return element;
}

function bar(label, share, text, kind = "") {
  const fill = make("div", { class: `fill ${kind}` });
  // Through the object model: the page's policy forbids style attributes.
  fill.style.width = `${Math.min(100, Math.max(0, share))}%`;
  return make("div", { class: "bar" }, make("span", {}, label), make("div", { class: "track" }, fill), make("span", {}, text));
}

function headline(value, label) {
  return make("div", { class: "figure" }, make("strong", {}, value), make("span", {}, label));
}

function facts(pairs) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of pairs) if (known(value) && value !== "") list.append(make("dt", {}, name), make("dd", {}, value));
  return list.childElementCount ? list : null;
}

/** The last steps, a column each; what it waited for input is at its foot. */
function steps(recent) {
  const most = Math.max(...recent.map((step) => step.wall_millis), 1e-9);
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${recent.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Time of the last ${recent.length} steps, the longest ${figure(most)} ms` });
  for (const y of [0, 50, 100]) svg.append(make("line", { class: "grid-line", x1: 0, x2: recent.length, y1: y, y2: y }));
  recent.forEach((step, at) => {
    const wait = (100 * Math.min(step.wait_millis, step.wall_millis)) / most;
    const all = (100 * step.wall_millis) / most;
    const told = make("title", {}, `step ${step.step}: ${figure(step.wall_millis)} ms, of which ${figure(step.wait_millis)} ms waiting for input`);
    svg.append(make("rect", { class: "rest", x: at + 0.08, width: 0.84, y: 100 - all, height: Math.max(0, all - wait) }, told));
    svg.append(make("rect", { class: "wait", x: at + 0.08, width: 0.84, y: 100 - wait, height: wait }));
  });
  const first = recent[0].step;
  const last = recent[recent.length - 1].step;
  return make("div", {}, make("h3", {}, `Time of a step, up to ${figure(most)} ms`), svg,
    make("div", { class: "axis" }, make("span", {}, `step ${first}`), make("span", {}, `step ${last}`)),
    make("div", { class: "legend" }, legend("compute", "at work"), legend("wait", "waits for input")));
}

function legend(part, text) {
  return make("span", {}, make("i", { class: `${part}-back` }), text);
}

/** What a figure was in the last minutes. */
function spark(key, value) {
  const values = history.get(key) ?? [];
  if (known(value)) values.push(value);
  if (values.length > HISTORY) values.shift();
  history.set(key, values);
  if (values.length < 2) return null;
  const points = values.map((v, at) => `${(HISTORY - values.length + at).toFixed(1)},${(100 - v).toFixed(1)}`);
  const from = HISTORY - values.length;
  return make("svg", { class: "spark", viewBox: `0 0 ${HISTORY - 1} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `busy over the last ${values.length} samples` },
    make("path", { class: "area", d: `M${from},100 L${points.join(" L")} L${HISTORY - 1},100 Z` }),
    make("path", { class: "line", d: `M${points.join(" L")}` }));
}

function runCard(snapshot) {
  const card = document.getElementById("run");
  card.hidden = false;
  const run = snapshot.run;
  if (!run) {
    card.replaceChildren(make("div", { class: "title" }, make("h2", {}, "Run")), make("p", { class: "soft" }, snapshot.run_note ?? ""));
    return;
  }
  const title = make("div", { class: "title" }, make("h2", {}, run.name),
    make("span", { class: `pill ${run.state}` }, run.state + (run.state === "quiet" && known(run.last_step_seconds_ago) ? ` for ${duration(run.last_step_seconds_ago)}` : "")));
  const figures = make("div", { class: "figures" });
  const add = (value, label) => figures.append(headline(value, label));
  if (known(run.busy_percent)) add(percent(run.busy_percent), run.device ? `busy: ${run.device}` : "accelerator busy");
  if (known(run.steps_per_second)) add(figure(run.steps_per_second), "steps/s");
  if (known(run.samples_per_second)) add(figure(run.samples_per_second), "samples/s");
  if (known(run.eta_seconds)) add(duration(run.eta_seconds), "to go");
  const planned = run.steps_planned;
  const body = [title];
  if (planned) body.push(bar("step", (100 * run.steps_done) / planned, `${run.steps_done} of ${planned}`));
  if (figures.childElementCount) body.push(figures);
  if (run.verdict) {
    const verdict = make("div", { class: "verdict" }, make("p", {}, make("b", {}, run.verdict)));
    if (run.fix) verdict.append(make("p", {}, `${run.fix.what}: `, make("code", {}, run.fix.setting)));
    body.push(verdict);
  }
  const columns = make("div", { class: "columns" });
  if (run.recent.length > 1) columns.append(steps(run.recent));
  if (run.stages.length) {
    const box = make("div", {}, make("h3", {}, "Stages: the workers' time for a step"));
    for (const stage of run.stages) box.append(bar(stage.name, stage.percent, `${figure(stage.millis_a_step)} ms · ${percent(stage.percent)}`));
    columns.append(box);
  }
  const where = make("div");
  if (run.shares.length) {
    const stack = make("div", { class: "stack", role: "img", "aria-label": run.shares.map((s) => `${s.part} ${percent(s.percent)}`).join(", ") });
    const words = make("div", { class: "legend" });
    for (const share of run.shares) {
      const piece = make("i", { class: `${share.part}-back` });
      piece.style.width = `${share.percent}%`;
      stack.append(piece);
      words.append(legend(share.part, `${share.part} ${percent(share.percent)}`));
    }
    where.append(make("h3", {}, "Where a step's time goes"), stack, words);
  }
  if (known(run.ready_batches)) {
    const most = run.prefetch || Math.max(run.ready_batches, 1);
    where.append(bar("queue", (100 * run.ready_batches) / most, run.prefetch ? `${run.ready_batches} of ${run.prefetch} ready` : `${run.ready_batches} ready`));
  }
  const list = facts([
    ["read", known(run.read_bytes_per_second) ? rate(run.read_bytes_per_second) : null],
    ["batches", known(run.batch_bytes_per_second) ? rate(run.batch_bytes_per_second) : null],
    ["padding", known(run.padding_percent) ? percent(run.padding_percent) : null],
    ["waited", run.waited_for ? `${figure(run.waited_for.millis)} ms in step ${run.waited_for.step} for ${run.waited_for.key} (${run.waited_for.stage})` : null],
    ["so far", known(run.elapsed_seconds) ? duration(run.elapsed_seconds) : null],
    ["epoch", String(run.epoch)],
    ["threads", known(run.threads) ? String(run.threads) : null],
    ["process", known(run.pid) ? String(run.pid) : null],
    ["record", run.record],
  ]);
  if (list) where.append(list);
  columns.append(where);
  body.push(columns);
  card.replaceChildren(...body);
}

function gpuCard(gpu) {
  const card = make("section", { class: "card" });
  card.append(make("div", { class: "title" }, make("h2", {}, `GPU ${gpu.index}`), make("span", { class: "soft" }, gpu.name)));
  const bars = make("div");
  if (known(gpu.busy_percent)) {
    bars.append(bar("busy", gpu.busy_percent, percent(gpu.busy_percent), "compute"));
    const chart = spark(`gpu ${gpu.index}`, gpu.busy_percent);
    if (chart) bars.append(chart);
  }
  if (known(gpu.memory_used_bytes) && gpu.memory_total_bytes) {
    bars.append(bar("memory", (100 * gpu.memory_used_bytes) / gpu.memory_total_bytes, `${gib(gpu.memory_used_bytes)} of ${gib(gpu.memory_total_bytes)} GiB`, "memory"));
  }
  if (known(gpu.memory_busy_percent)) bars.append(bar("controller", gpu.memory_busy_percent, percent(gpu.memory_busy_percent), "memory"));
  if (known(gpu.power_watts)) {
    const limit = gpu.power_limit_watts;
    bars.append(bar("power", limit ? (100 * gpu.power_watts) / limit : 0, limit ? `${gpu.power_watts.toFixed(0)} of ${limit.toFixed(0)} W` : `${gpu.power_watts.toFixed(0)} W`, "wait"));
  }
  card.append(bars);
  const join = (...parts) => parts.filter(known).join(" · ");
  const list = facts([
    ["clocks", join(known(gpu.sm_clock_mhz) ? `SM ${gpu.sm_clock_mhz} MHz` : null, known(gpu.memory_clock_mhz) ? `memory ${gpu.memory_clock_mhz} MHz` : null)],
    ["PCIe", join(known(gpu.pcie_rx_bytes_per_second) ? `in ${rate(gpu.pcie_rx_bytes_per_second)}` : null, known(gpu.pcie_tx_bytes_per_second) ? `out ${rate(gpu.pcie_tx_bytes_per_second)}` : null)],
    ["temperature", known(gpu.temperature_celsius) ? `${gpu.temperature_celsius.toFixed(0)} °C` : null],
  ]);
  if (list) card.append(list);
  if (gpu.error) card.append(make("p", { class: "bad" }, `not known: ${gpu.error}`));
  return card;
}

function hostCard(snapshot) {
  const host = snapshot.host;
  const card = document.getElementById("host");
  card.hidden = false;
  const body = [make("div", { class: "title" }, make("h2", {}, "Host"), make("span", { class: "soft" }, snapshot.gpus_note ?? ""))];
  const columns = make("div", { class: "columns" });
  const sums = make("div", {}, make("h3", {}, "CPU, memory and disk"));
  if (known(snapshot.cpu_percent)) sums.append(bar("CPU", snapshot.cpu_percent, percent(snapshot.cpu_percent), "compute"));
  if (known(host.memory_used_bytes) && host.memory_total_bytes) {
    sums.append(bar("memory", (100 * host.memory_used_bytes) / host.memory_total_bytes, `${gib(host.memory_used_bytes)} of ${gib(host.memory_total_bytes)} GiB`, "memory"));
  }
  if (known(host.disk_busy_percent)) {
    sums.append(bar(host.disk_busiest ? `disk ${host.disk_busiest}` : "disk", host.disk_busy_percent, `${percent(host.disk_busy_percent)} busy`));
  }
  const list = facts([
    ["disk read", known(host.disk_read_bytes_per_second) ? rate(host.disk_read_bytes_per_second) : null],
    ["disk write", known(host.disk_write_bytes_per_second) ? rate(host.disk_write_bytes_per_second) : null],
    ["disk wait", known(host.io_wait_percent) ? percent(host.io_wait_percent) : null],
  ]);
  if (list) sums.append(list);
  if (sums.childElementCount < 2) sums.append(make("p", { class: "soft" }, "this system does not say how busy it is"));
  columns.append(sums);
  if (host.cores_percent.length) {
    const cores = make("div", { class: "cores" });
    host.cores_percent.forEach((core, at) => cores.append(bar(`core ${at}`, core, percent(core), "compute")));
    columns.append(make("div", {}, make("h3", {}, "Cores"), cores));
  }
  body.push(columns);
  card.replaceChildren(...body);
}

function show(snapshot) {
  runCard(snapshot);
  document.getElementById("gpus").replaceChildren(...snapshot.gpus.map(gpuCard));
  hostCard(snapshot);
  say(`live · ${new Date(snapshot.at_unix_millis).toLocaleTimeString()}`);
  document.body.dataset.live = "yes";
}

function say(text) {
  document.getElementById("connection").textContent = text;
}

async function begin() {
  const link = location.hash.slice(1);
  if (link) {
    // Out of the address before anything else, so that it is in no bookmark and no screenshot.
    window.history.replaceState(null, "", "/");
    await fetch("/session", { headers: { Authorization: `Bearer ${link}` }, credentials: "same-origin" }).catch(() => null);
  }
  const events = new EventSource("/events");
  events.addEventListener("snapshot", (event) => show(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    // Closed for good: the server refused. Otherwise the browser tries again by itself.
    say(events.readyState === EventSource.CLOSED ? "not allowed: open the link that the command has printed last" : "lost the connection, trying again …");
  });
}

begin();
