"use strict";
// Asks the gateway every two seconds, and keeps the last half hour for the charts, in this tab alone.
// What a gateway says becomes text nodes: the page's policy (trusted types) lets no script make HTML of it.
const POLL_MS = 2_000, COST_MS = 60_000, STALE_MS = 10_000, WINDOW_S = 300, MAX_SAMPLES = 900;
const find = (selector) => document.querySelector(selector);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const clock = (unixS) => new Date(1e3 * unixS).toLocaleTimeString("en-GB");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

const answeredMs = {}; // when the figures came, by this tab's clock
const samples = Object.create(null); // by model, oldest first
let plots = [];

function make(tag, content, className = "") {
  const made = document.createElement(tag);
  made.append(content);
  made.className = className;
  return made;
}

function shown(value, path) {
  if (value == null || value.length === 0) return "-";
  if (typeof value !== "number") return Array.isArray(value) ? value.join(", ") : value;
  if (/share|usage|attainment/.test(path)) return `${(100 * value).toFixed(1)} %`;
  const digits = /usd|hours/.test(path) ? 4 : Number.isInteger(value) ? 0 : 1;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// `columns`: paths of fields in `rows`; a heading of its own may stand before a path, as "heading=path".
function fill(selector, columns, rows) {
  const paths = columns.split(", ").map((one) => one.split("=").at(-1));
  const heads = columns.split(", ").map((one) => one.split("=")[0].replaceAll("_", " "));
  const values = rows.map((row) => paths.map((path) => path.split(".").reduce((part, key) => part?.[key], row)));
  const side = (column) => values.some((row) => typeof row[column] === "number") ? "" : "left";
  const line = (tag, cells) => {
    const made = make("tr", "");
    made.append(...cells.map((cell, column) => make(tag, cell, side(column))));
    return made;
  };
  const lines = values.map((row) => line("td", row.map((value, column) => shown(value, paths[column]))));
  find(selector).replaceChildren(...lines.length ? [line("th", heads), ...lines] : ["none"]);
}

// The share of requests that met an SLO in the five minutes before a sample; null if none came, or a gateway has gone.
function shareMet(kept, sample, at) {
  const first = kept.findLast((one) => one.t <= sample.t - WINDOW_S) ?? kept[0];
  const [now, then] = [sample.slos[at], first.slos[at]];
  const met = now && then ? now.met - then.met : 0, missed = now && then ? now.missed - then.missed : 0;
  return met < 0 || missed < 0 || met + missed === 0 ? null : met / (met + missed);
}

// Adds to each model what is summed up of it, and keeps what the charts show.
function remember(report) {
  for (const model of report.models) {
    model.waiting = sum(model.lanes.map((lane) => lane.waiting));
    model.ready = model.replicas.filter((replica) => replica.state === "ready").length;
    model.rejected = sum(Object.values(model.rejections).flatMap(Object.values));
    const { waiting, leases, ready, desired_replicas, ttft_ms, slos } = model;
    const sample = { t: Date.now() / 1e3, waiting, leases, ready, desired_replicas, ttft_ms, slos };
    const kept = samples[model.name] = [...samples[model.name] ?? [], sample].slice(-MAX_SAMPLES);
    slos.forEach((slo, at) => slo.share_met = shareMet(kept, sample, at));
    const missed = slos.filter((slo) => slo.share_met !== null && slo.share_met < slo.attainment);
    const names = missed.map((slo) => `${slo.slo} ${slo.traffic_class}`);
    const known = slos.some((slo) => slo.share_met !== null) ? "met" : null;
    model.judged = names.length ? make("span", `missed: ${names.join(", ")}`, "bad") : known;
  }
}

function show({ cluster, gateways, models }) {
  const flows = sum(gateways.map((one) => one.flows));
  find("#cell").textContent = `${cluster}: gateways: ${gateways.length}, requests: ${flows}`;
  fill("#models", "model=name, engine, SLOs in 5 min=judged, ready, desired=desired_replicas, waiting, " +
    "running=leases, TTFT p50 ms=ttft_ms.p50, p95=ttft_ms.p95, finished=endings.finished, " +
    "failed=endings.failed, rejected", models);
  const menu = find("#model");
  const names = models.map((model) => model.name);
  if (names.some((name, at) => menu.options[at]?.value !== name) || menu.length !== names.length) {
    menu.replaceChildren(...names.map((name) => new Option(name)));
  }
  const scaled = models.flatMap((model) => model.groups.length ? model.groups : [model]);
  const decisions = scaled.filter((one) => one.scaling).map(({ scaling, overdue_s }) => (
    { ...scaling, overdue_s, at: clock(scaling.at_unix_s) }));
  fill("#decisions", "at, model, requested, applied, ready, starting, reason, scheduled, alarms, overdue_s", decisions);
  const model = models[menu.selectedIndex];
  const slos = "class=traffic_class, slo, limit_ms, attainment, share met in 5 min=share_met, met, missed";
  fill("#slos", slos, model.slos);
  const lanes = "lane=name, waiting, work_s, oldest_wait_s, wait p50 s=eta_s.0, p95=eta_s.1, head_waits_for";
  fill("#lanes", lanes, model.lanes);
  const failing = model.failing_start ? [{ ...model.failing_start.last, state: "failing" }] : [];
  const starts = [...model.starting, ...failing].map((start) => (
    { state: "starting", ...start, note: start.cause || `since ${clock(start.since_unix_s)}` }));
  const replicas = model.replicas.map((one) => ({ ...one, note: one.cordon?.why ?? one.drains_for }));
  const named = [...replicas, ...starts].map((one) => ({ ...one, id: one.replica_id.split("#").at(-1).slice(-8) }));
  fill("#replicas", "replica=id, group, state, phase, leases, in engine=engine_running, queued there=engine_waiting, " +
    "kv_usage, booked_kv_tokens, note", named);
  draw(model, samples[model.name]);
}

// Draws anew each time, unless somebody reads values off by the pointer.
function draw(model, kept) {
  const slos = model.slos.map((slo, at) => [`${slo.slo} ${slo.traffic_class}`, (one) => one.slos[at]?.share_met]);
  const charts = {
    "TTFT of the last minute, ms": { p50: (one) => one.ttft_ms?.p50, p95: (one) => one.ttft_ms?.p95 },
    "Share of SLOs met in 5 min": Object.fromEntries(slos),
    "Requests": { waiting: (one) => one.waiting, running: (one) => one.leases },
    "Replicas": { ready: (one) => one.ready, desired: (one) => one.desired_replicas },
  };
  if (find("#charts:hover")) return;
  const width = parseFloat(getComputedStyle(find("#charts")).gridTemplateColumns); // of the first column
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, font: "11px system-ui" };
  const time = { ...axis, size: 30, space: 80, incrs: [5, 15, 60, 300, 600], values: (_, ticks) => ticks.map(clock) };
  const line = (label, at) => ({ label, stroke: colour(`--line${at % 4}`), dash: at < 4 ? [] : [6, 4] });
  plots.forEach((plot) => plot.destroy());
  plots = Object.entries(charts).map(([title, lines]) => {
    const range = (_, low, high) => [0, title.startsWith("Share") ? 1 : Math.max(1, 1.1 * high)];
    const series = [{ value: (_, t) => t && clock(t) }, ...Object.keys(lines).map(line)];
    const options = { title, width, height: 180, series, axes: [time, axis], scales: { y: { range } } };
    const data = [(one) => one.t, ...Object.values(lines)].map((of) => kept.map((one) => of(one) ?? null));
    return new uPlot(options, data);
  });
  find("#charts").replaceChildren(...plots.map((plot) => plot.root));
  queueMicrotask(() => plots.forEach((plot) => plot.setLegend({ idx: kept.length - 1 }))); // after they are drawn
}

function showCost({ lines }) {
  const hours = (some) => sum(some.map((line) => line.amounts.ns)) / 3.6e12;
  const price = (line) => String(line.key.usd_per_hour).split("/").reduce((above, below) => above / below);
  const external = ({ amounts }) => (amounts.external_in + amounts.external_out) / 1e12; // it is in picodollars
  const usd = (some) => sum(some.map((line) => hours([line]) * price(line) + external(line)));
  const idle = (some) => usd(some.filter((line) => line.key.share === "idle"));
  const row = (model, some) => ({ model, hours: hours(some), usd: usd(some), idle_usd: idle(some) });
  const rows = Object.entries(Object.groupBy(lines, (line) => line.key.model)).map((one) => row(...one));
  fill("#cost", "model, replica-hours=hours, usd, idle_usd", [...rows, row("all", lines)]);
}

async function why(id) {
  const record = await ask(`requests/${encodeURIComponent(id)}`);
  answeredMs.why = performance.now();
  fill("#record", "path, model, tenant, class, status, outcome, error, prompt_tokens, cached_tokens, output_tokens",
    [record]);
  const stages = Object.entries(record.stages_s).map(([stage, s]) => (
    { stage, ms: 1e3 * s, share: s / (record.wall_s || 1) }));
  fill("#stages", "stage, ms, share", stages);
  fill("#reasons", "at ms=at, verdict, reason, because", record.decisions.map(({ at_s, verdict, reason, ...facts }) => {
    const known = Object.entries(facts).filter(([, value]) => value != null);
    return { at: 1e3 * at_s, verdict, reason, because: known.map((one) => one.join(" ")) };
  }));
}

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(15_000), ...options });
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const error = (await answer.json().catch(() => null))?.error;
  throw Object.assign(new Error(error?.message ?? `HTTP ${answer.status}`), { status: answer.status });
}

const enter = (code) => ask("session", { method: "POST", body: code });

async function poll() {
  const report = await ask("status").catch((error) => {
    if (error.status !== 401) throw error;
  });
  [find("main").hidden, find("#login").hidden] = [!report, Boolean(report)];
  if (!report) return;
  find("#problem").textContent = "";
  answeredMs.status = performance.now();
  remember(report);
  show(report);
  if (performance.now() - answeredMs.cost < COST_MS) return;
  showCost(await ask("cost?by="));
  answeredMs.cost = performance.now();
}

async function trying(work, place = "#problem") {
  await work().catch((error) => find(place).textContent = error.message);
}

find("#login").onsubmit = (event) => trying(async () => {
  event.preventDefault();
  const headers = { authorization: `Bearer ${find("#login input").value}` };
  await enter((await ask("codes", { method: "POST", headers })).code);
  await poll();
});
find("#ask").onsubmit = (event) => trying(async () => {
  event.preventDefault();
  await why(find("#ask input").value.trim());
}, "#record");
async function run() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  history.replaceState(null, "", location.pathname); // no code stays in the address
  if (code) await trying(() => enter(code));
  for (;;) {
    await trying(poll);
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

setInterval(() => {
  for (const one of document.querySelectorAll("[data-of]")) {
    const ageMs = performance.now() - answeredMs[one.dataset.of];
    one.textContent = ageMs >= 0 ? `${Math.floor(ageMs / 1e3)} s old` : "";
  }
  document.body.classList.toggle("stale", performance.now() - answeredMs.status > STALE_MS);
}, 500);
addEventListener("hashchange", () => location.reload()); // another link was opened in this tab
run();
