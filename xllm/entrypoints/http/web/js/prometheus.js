// Reads the Prometheus text format and the quantiles of its histograms.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** The samples of a page: a Map from name to [{labels, value}]. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const [, name, labelText = "", value] = match;
    const labels = Object.fromEntries([...labelText.matchAll(LABEL)].map((l) => [l[1], l[2]]));
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: Number(value) });
  }
  return samples;
}

/** The sum of a metric over its labels; 0 when it is not there. */
export function total(samples, name) {
  return (samples.get(name) ?? []).reduce((sum, sample) => sum + sample.value, 0);
}

/** A histogram's state: cumulative `counts` at upper `bounds`, and the `sum` of what was observed. */
export function histogram(samples, name) {
  const buckets = (samples.get(`${name}_bucket`) ?? [])
    .map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value])
    .sort((a, b) => a[0] - b[0]);
  return {
    bounds: buckets.map(([bound]) => bound),
    counts: buckets.map(([, count]) => count),
    sum: total(samples, `${name}_sum`),
  };
}

/** What was observed between two states of a histogram. */
export function since(now, before) {
  if (!before || before.counts.length !== now.counts.length) return now;
  return {
    bounds: now.bounds,
    counts: now.counts.map((count, i) => count - before.counts[i]),
    sum: now.sum - before.sum,
  };
}

export const count = (histogram) => histogram.counts.at(-1) ?? 0;

/** The `q` quantile, linear within its bucket as Prometheus has it; null without observations. */
export function quantile(q, { bounds, counts }) {
  const all = counts.at(-1) ?? 0;
  if (!all) return null;
  const rank = q * all;
  const i = counts.findIndex((c) => c >= rank);
  if (bounds[i] === Infinity) return bounds[i - 1] ?? null;
  const below = i ? counts[i - 1] : 0;
  const low = i ? bounds[i - 1] : 0;
  return low + (bounds[i] - low) * ((rank - below) / (counts[i] - below || 1));
}
