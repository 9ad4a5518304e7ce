// The dashboard: asks for /metrics once a second while it can be seen, and draws what it learns.

import { call } from "./api.js";
import { byId, drawIcons, h } from "./dom.js";
import { apiKey, connectThemeButton, keyIsRemembered, saveApiKey } from "./preferences.js";
import { count, histogram, parse, quantile, since, total } from "./prometheus.js";
import { Sparkline } from "./sparkline.js";

const INTERVAL_MS = 1000;
const POINTS = 120;
const KEPT = 301; // pages of the past, enough for the longest time span

const rate = (name) => (now, before) =>
  (total(now.samples, name) - total(before.samples, name)) / (now.time - before.time);
const ratio = (part, whole) => (now, before) => {
  const all = total(now.samples, whole) - total(before.samples, whole);
  return all ? (total(now.samples, part) - total(before.samples, part)) / all : null;
};
const gauge = (name) => (now) => total(now.samples, name);

const integer = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const bytes = (value) => (value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(2)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`);

// `value` reads a figure from this page and the one before; null keeps the last one.
const CARDS = [
  { title: "Generation", unit: "tokens/s", value: rate("xllm:generation_tokens_total"), show: integer },
  { title: "Prompts", unit: "tokens/s", value: rate("xllm:prompt_tokens_total"), show: integer },
  { title: "Running", unit: "sequences", value: gauge("xllm:num_requests_running"), show: integer,
    note: (now) => `${integer(total(now.samples, "xllm:num_requests_waiting"))} waiting` },
  { title: "KV cache", value: gauge("xllm:kv_cache_usage_ratio"), show: percent, top: 1,
    note: (now) => `of ${integer(total(now.samples, "xllm:kv_cache_capacity_tokens"))} tokens` },
  { title: "Prefix cache hits", top: 1, show: percent, note: () => "of tokens looked up",
    value: ratio("xllm:prefix_cache_hit_tokens_total", "xllm:prefix_cache_queried_tokens_total") },
  { title: "Engine busy", show: percent, top: 1,
    // The counter is as old as the engine's last report, so a second may seem to hold more than one.
    value: (now, before) => Math.min(1, rate("xllm:engine_step_seconds_total")(now, before)),
    note: (now, before) => `${rate("xllm:engine_steps_total")(now, before).toFixed(0)} steps/s` },
  { title: "Memory of the engine", value: gauge("xllm:engine_resident_memory_bytes"), show: bytes,
    note: (now) => `server ${bytes(total(now.samples, "xllm:server_resident_memory_bytes"))}` },
  { title: "Requests", unit: "/s", value: rate("xllm:requests_finished_total"), show: (v) => v.toFixed(1),
    note: (now) => `${integer(total(now.samples, "xllm:requests_finished_total"))} finished` },
];

const LATENCIES = [
  ["Time to first token", "xllm:time_to_first_token_seconds"],
  ["Between tokens", "xllm:inter_token_latency_seconds"],
  ["Waiting in the queue", "xllm:request_queue_time_seconds"],
  ["Whole request", "xllm:e2e_request_latency_seconds"],
];

const TOTALS = [
  ["Generated tokens", "xllm:generation_tokens_total"],
  ["Prompt tokens", "xllm:prompt_tokens_total"],
  ["Requests started", "xllm:requests_started_total"],
  ["Engine steps", "xllm:engine_steps_total"],
  ["Preemptions", "xllm:num_preemptions_total"],
];

const pages = []; // {time in seconds, samples}, oldest first
let timer = null;
let asking = false;

class Card {
  constructor({ title, unit, value, show, note, top }) {
    Object.assign(this, { read: value, show, noteOf: note });
    this.figure = h("span", {}, "–");
    this.note = h("p", { class: "note" });
    this.chart = new Sparkline(POINTS, `${title}, the last two minutes`, top ?? null);
    this.last = null;
    this.element = h("article", { class: "card" }, h("h2", {}, title),
      h("p", { class: "value" }, this.figure, unit ? h("small", {}, ` ${unit}`) : ""), this.note, this.chart.element);
  }

  update(now, before) {
    const value = this.read(now, before);
    if (value !== null) this.last = value;
    if (this.last !== null) this.figure.textContent = this.show(this.last);
    if (this.noteOf) this.note.textContent = this.noteOf(now, before);
    this.chart.push(value ?? this.last ?? 0);
  }
}

const cards = CARDS.map((card) => new Card(card));

function take(text) {
  const now = { time: performance.now() / 1000, samples: parse(text) };
  const before = pages.at(-1);
  // A restarted server counts from zero: what was seen before says nothing about it.
  const restarted = before && total(now.samples, "xllm:engine_steps_total") < total(before.samples, "xllm:engine_steps_total");
  if (restarted) pages.length = 0;
  pages.push(now);
  if (pages.length > KEPT) pages.shift();
  if (before && !restarted) for (const card of cards) card.update(now, before);
  showLatencies();
  showTotals(now);
  const up = total(now.samples, "xllm:engine_up") > 0;
  const model = now.samples.get("xllm:engine_up")?.[0]?.labels.model_name ?? "";
  showState(up ? "up" : "down", up ? model : "the engine is not up");
}

function showLatencies() {
  const now = pages.at(-1);
  const span = Number(byId("window").value);
  const start = span ? pages.find((page) => now.time - page.time <= span) : null;
  const seconds = (value) =>
    value === null ? "–" : value < 1 ? `${(1000 * value).toPrecision(3)} ms` : `${value.toPrecision(3)} s`;
  byId("latency-rows").replaceChildren(...LATENCIES.map(([title, name]) => {
    const all = histogram(now.samples, name);
    const seen = start && start !== now ? since(all, histogram(start.samples, name)) : all;
    const number = count(seen);
    const cells = [0.5, 0.9, 0.99].map((q) => seconds(quantile(q, seen)));
    return h("tr", {}, h("th", { scope: "row" }, title),
      ...[...cells, seconds(number ? seen.sum / number : null), integer(number)].map((cell) => h("td", {}, cell)));
  }));
}

function showTotals(now) {
  byId("total-rows").replaceChildren(...TOTALS.flatMap(([title, name]) =>
    [h("dt", {}, title), h("dd", {}, integer(total(now.samples, name)))]));
}

function showState(name, text) {
  byId("state").className = name;
  byId("state").textContent = text;
}

async function poll() {
  timer = null;
  asking = true;
  try {
    take(await (await call("metrics")).text());
    byId("key-form").hidden = true;
  } catch (error) {
    showState("down", error.message);
    if (error.status === 401) {
      byId("key-form").hidden = false;
      return; // until there is a key
    }
  } finally {
    asking = false;
  }
  schedule();
}

function schedule() {
  if (timer === null && !asking && !document.hidden) timer = setTimeout(poll, INTERVAL_MS);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) schedule();
  else {
    clearTimeout(timer);
    timer = null;
  }
});
byId("window").addEventListener("change", () => pages.length && showLatencies());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  saveApiKey(byId("key").value.trim(), keyIsRemembered());
  poll();
});

drawIcons();
connectThemeButton(byId("theme"));
byId("key").value = apiKey();
byId("cards").append(...cards.map((card) => card.element));
poll();
