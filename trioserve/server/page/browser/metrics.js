"use strict";

// Charts, and the tasks that held the event loop.

const NAME = /^trioserve_(\w+)/;
const LABEL = /[{,](\w+)="((?:[^"\\]|\\.)*)"/y;

// Returns a list of [labels, value] for each name, without the prefix of all names.
function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const [head, name] = NAME.exec(line) ?? [];
    if (!name) continue;
    const labels = {};
    LABEL.lastIndex = head.length;
    for (let label; (label = LABEL.exec(line));) labels[label[1]] = label[2].replace(/\\(.)/g, "$1");
    (found[name] ||= []).push([labels, Number(line.slice(line.lastIndexOf(" ") + 1))]);
  }
  return found;
}

function sum(metrics, name) {
  return name in metrics ? metrics[name].reduce((total, [, value]) => total + value, 0) : null;
}

const SHOWN_SECONDS = 60;

class Chart {
  // `read` returns the values of one or two lines and the words for them, from the metrics
  // and from a function that tells how much a counter has grown in a second.
  constructor(title, read) {
    this.read = read;
    this.node = byId("chart").content.firstElementChild.cloneNode(true);
    this.title = title;
    setText(this.node.querySelector(".title"), title);
    this.clear();
    this.node.hidden = true;
    byId("charts").append(this.node);
  }

  clear() { this.lines = [[], []]; }

  add(metrics, rate) {
    const seen = this.read(metrics, rate);
    this.node.hidden = seen === null;
    if (seen === null) return;
    seen.values.forEach((value, i) => {
      this.lines[i].push(value);
      if (this.lines[i].length > SHOWN_SECONDS) this.lines[i].shift();
    });
    this.draw(seen);
  }

  draw({ now, below, most = 0 }) {
    const highest = Math.max(most, ...this.lines.flat(), 1e-9);
    ["first", "second"].forEach((name, i) => {
      const start = SHOWN_SECONDS - this.lines[i].length;
      const points = this.lines[i].map((value, x) => `${start + x},${(39 - 38 * value / highest).toFixed(2)}`);
      this.node.querySelector(`.${name}`).setAttribute("points", points.join(" "));
    });
    setText(this.node.querySelector(".value"), now);
    setText(this.node.querySelector(".below"), below);
    this.node.querySelector("svg").setAttribute("aria-label", `${this.title} in the last minute: ${now} now, ${below}`);
  }
}

const round = (value) => (value < 10 ? Math.round(value * 10) / 10 : Math.round(value)).toLocaleString("en");

const charts = [
  new Chart("Tokens per second", (metrics, rate) => {
    const prompt = rate("prompt_tokens_total") ?? 0, written = rate("generation_tokens_total");
    if (written === null) return { values: [prompt], now: round(prompt), below: "read" };
    return { values: [written, prompt], now: round(written), below: `written; ${round(prompt)} of prompts (dashed)` };
  }),
  new Chart("KV blocks in use", (metrics) => {
    const used = sum(metrics, "kv_cache_used_blocks"), all = sum(metrics, "kv_cache_blocks");
    if (all === null) return null;
    const shared = sum(metrics, "prefix_cache_blocks");
    return { values: [used], now: round(used), most: 1, below: `of ${all.toLocaleString("en")}; ${shared.toLocaleString("en")} can be shared` };
  }),
  new Chart("Sequences", (metrics) => {
    const running = sum(metrics, "num_requests_running"), waiting = sum(metrics, "num_requests_waiting");
    if (running === null) return null;
    return { values: [running, waiting], now: round(running), most: 1, below: `on the device; ${round(waiting)} in the queue (dashed)` };
  }),
  new Chart("Event loop", (metrics, rate) => {
    const busy = 1000 * (rate("task_step_seconds_sum") ?? 0), slow = 1000 * (rate("slow_task_seconds_total") ?? 0);
    return { values: [busy, slow], now: `${round(busy)} ms`, below: `busy per second; ${round(slow)} ms in slow steps (dashed)` };
  }),
];

const meter = { metrics: null, at: 0 };

function showMetrics(metrics) {
  const now = performance.now(), seconds = (now - meter.at) / 1000, before = meter.metrics;
  Object.assign(meter, { metrics, at: now });
  // After a pause or a restart, the lines would not tell the time.
  const isNew = before === null || seconds > 5 || sum(metrics, "steps_total") < sum(before, "steps_total");
  if (isNew) charts.forEach((each) => each.clear());
  const rate = (name) => {
    const value = sum(metrics, name);
    return value === null ? null : isNew ? 0 : Math.max(0, value - (sum(before, name) ?? 0)) / seconds;
  };
  charts.forEach((each) => each.add(metrics, rate));
  showStalls(metrics);
}

function showStalls(metrics) {
  const read = (name) => Object.fromEntries((metrics[name] || []).map(([{ task }, value]) => [task, value]));
  const steps = read("slow_task_steps_total"), total = read("slow_task_seconds_total"), longest = read("slow_task_longest_seconds");
  const rows = Object.keys(steps).map((task) => [task, steps[task].toLocaleString("en"), formatSeconds(longest[task]), formatSeconds(total[task])]);
  byId("loop").hidden = false;
  byId("no-stalls").hidden = rows.length > 0;
  byId("stalls").hidden = rows.length === 0;
  const body = byId("stalls").querySelector("tbody");
  const text = JSON.stringify(rows);
  if (body.dataset.shown === text) return;
  body.dataset.shown = text;
  body.replaceChildren(...rows.map(([task, ...numbers]) => make("tr", {}, make("td", {}, ...breakAtDots(task)), ...numbers.map((each) => make("td", { className: "number" }, each)))));
}
