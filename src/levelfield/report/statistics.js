// The statistics of analysis/, for any K, metric and part of the search spaces that the reader asks for.
// Lower is better throughout. Each function mirrors the Python function of that name; tests compare the results.

/** The probability that each value is the best of k drawn. Ties share theirs; NaN is never drawn. */
function weights(values, k) {
  const order = [];
  values.forEach((value, i) => { if (!Number.isNaN(value)) order.push(i); });
  order.sort((a, b) => values[a] - values[b] || 0);  // Infinity − Infinity is NaN
  const n = order.length, probabilities = new Array(values.length).fill(0);
  for (let first = 0, end; first < n; first = end) {
    for (end = first + 1; end < n && values[order[end]] === values[order[first]]; end++);
    const share = (((n - first) / n) ** k - ((n - end) / n) ** k) / (end - first);
    for (let i = first; i < end; i++) probabilities[order[i]] = share;
  }
  return probabilities;
}

/** The mean and percentiles of values under probabilities, which need not add up to 1. */
function estimate(values, probabilities) {
  const likely = [];
  probabilities.forEach((p, i) => { if (p > 0) likely.push(i); });
  if (!likely.length) return { mean: NaN, low: NaN, high: NaN };
  const last = i => Number.isNaN(values[i]);  // as NumPy sorts
  likely.sort((a, b) => (last(a) || last(b) ? last(a) - last(b) : values[a] - values[b] || 0));
  let total = 0, sum = 0;
  const cumulative = likely.map(i => { sum += values[i] * probabilities[i]; return total += probabilities[i]; });
  const percentile = q => {
    const at = cumulative.findIndex(c => c / total >= q - CONSTANTS.tolerance);
    return values[likely[at < 0 ? likely.length - 1 : at]];
  };
  return { mean: sum / total, low: percentile(CONSTANTS.low), high: percentile(CONSTANTS.high) };
}

function sorted(values) {
  return Float64Array.from(values.filter(value => !Number.isNaN(value))).sort();
}

/** How many of the sorted values are below x; with orEqual, how many are not above it. */
function countBelow(ordered, x, orEqual = false) {
  let low = 0, high = ordered.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ordered[middle] < x || (orEqual && ordered[middle] === x)) low = middle + 1; else high = middle;
  }
  return low;
}

/** P(the best of k of ours is strictly lower than the best of k of theirs). */
function probabilityBetter(ours, theirs, k) {
  const rivals = sorted(theirs);
  if (!rivals.length || !sorted(ours).length) return NaN;
  const exceed = x => 1 - countBelow(rivals, x, true) / rivals.length;
  return weights(ours, k).reduce((sum, w, i) => (w > 0 ? sum + w * exceed(ours[i]) ** k : sum), 0);
}

/** P(the best of k of pool i takes rank r), as [i][r]. Ties share the better rank. */
function rankProbabilities(pools, k) {
  const ordered = pools.map(sorted);
  return pools.map((pool, i) => {
    const probabilities = new Array(pools.length).fill(ordered[i].length ? 0 : NaN);
    if (!ordered[i].length) return probabilities;
    weights(pool, k).forEach((w, j) => {
      if (!(w > 0)) return;
      let chances = [1];
      ordered.forEach((rival, other) => {
        if (other === i || !rival.length) return;
        const better = 1 - (1 - countBelow(rival, pool[j]) / rival.length) ** k;
        const next = new Array(chances.length + 1).fill(0);
        chances.forEach((chance, r) => { next[r] += chance * (1 - better); next[r + 1] += chance * better; });
        chances = next;
      });
      chances.forEach((chance, r) => { probabilities[r] += w * chance; });
    });
    return probabilities;
  });
}

/** How often chance alone would give ours as large a lead over theirs; the permutations are those of Python. */
function pValue(ours, theirs, k, permutations, enough) {
  const labeled = [...ours.map(v => [v, 1]), ...theirs.map(v => [v, 0])].filter(([v]) => !Number.isNaN(v));
  labeled.sort((a, b) => a[0] - b[0] || 0);
  const n = labeled.length, m = labeled.filter(([, label]) => label).length;
  if (!m || m === n) return NaN;
  const ends = labeled.map(([v], i) => i + 1 === n || labeled[i + 1][0] !== v);
  const table = size => Float64Array.from({ length: size + 1 }, (_, c) => ((size - c) / size) ** k);
  const a = table(m), b = table(n - m);
  // Values that decide which best is lower, in Python's "relevant"
  const relevant = Math.ceil(n * (1 - CONSTANTS.negligible ** (1 / (2 * k))) - CONSTANTS.tolerance * n);
  const lead = isOurs => {  // the sum over groups of a_before · b_after − b_before · a_after
    let seen = 0, aBefore = 1, bBefore = 1, sum = 0;
    for (let i = 0; i < n; i++) {
      seen += isOurs(i, seen) ? 1 : 0;
      if (!ends[i]) continue;
      const aAfter = a[seen], bAfter = b[i + 1 - seen];
      sum += aBefore * bAfter - bBefore * aAfter;
      aBefore = aAfter; bBefore = bAfter;
      if (i + 1 >= relevant) break;
    }
    return sum;
  };
  const observed = lead(i => labeled[i][1]) - CONSTANTS.tolerance;
  let reached = 0;
  for (let r = 0; r < permutations; r++) {
    const first = Math.imul(r, n);
    if (lead((i, seen) => hashed(first + i) * (n - i) < (m - seen) * 2 ** 32) >= observed && ++reached === enough)
      return enough / (r + 1);
  }
  return (1 + reached) / (1 + permutations);
}

/** Turns a counter into a random 32-bit number. */
function hashed(x) {
  x = Math.imul(x ^ (x >>> 16), CONSTANTS.multipliers[0]);
  x = Math.imul(x ^ (x >>> 15), CONSTANTS.multipliers[1]);
  return (x ^ (x >>> 16)) >>> 0;
}

/** Holm's correction. NaN stays NaN. */
function holm(pValues) {
  const order = pValues.map((_, i) => i).filter(i => !Number.isNaN(pValues[i]));
  order.sort((a, b) => pValues[a] - pValues[b]);
  const corrected = [...pValues];
  let largest = 0;
  order.forEach((i, rank) => {
    largest = Math.max(largest, pValues[i] * (order.length - rank));
    corrected[i] = Math.min(largest, 1);
  });
  return corrected;
}
