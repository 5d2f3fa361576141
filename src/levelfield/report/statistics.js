// The statistics of analysis/, for any K, metric and part of the search spaces that the reader asks for.
// Lower is better throughout. Each function mirrors the Python function of that name; tests compare the results.

/** P(all k draws from n ordered trials come after the first i), i = 0 … n. */
function later(n, k, replacement) {
  const chances = new Float64Array(n + 1).fill(1);
  for (let i = 1; i <= n; i++) {
    const left = n - i + 1;
    chances[i] = replacement ? ((n - i) / n) ** k : chances[i - 1] * (Math.max(left - k, 0) / left);
  }
  return chances;
}

/** The places of the values from the lowest to the highest, without those of NaN. */
function orderOf(values) {
  const order = [];
  values.forEach((value, i) => { if (!Number.isNaN(value)) order.push(i); });
  return order.sort((a, b) => values[a] - values[b] || 0);  // Infinity − Infinity is NaN
}

/** The probability that each value is the best of k drawn. Ties share theirs; NaN is never drawn. */
function weights(values, k, replacement, order = orderOf(values)) {
  const n = order.length, chances = later(n, k, replacement), probabilities = new Array(values.length).fill(0);
  for (let first = 0, end; first < n; first = end) {
    for (end = first + 1; end < n && values[order[end]] === values[order[first]]; end++);
    const share = (chances[first] - chances[end]) / (end - first);
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
function probabilityBetter(ours, theirs, k, replacement) {
  const rivals = sorted(theirs);
  if (!rivals.length || !sorted(ours).length) return NaN;
  const exceed = later(rivals.length, k, replacement);
  return weights(ours, k, replacement)
    .reduce((sum, w, i) => (w > 0 ? sum + w * exceed[countBelow(rivals, ours[i], true)] : sum), 0);
}

/** P(the best of k of pool i takes rank r), as [i][r]. Ties share the better rank. */
function rankProbabilities(pools, k, replacement) {
  const rivals = pools.map(pool => {
    const ordered = sorted(pool);
    return { ordered, exceed: later(ordered.length, k, replacement) };
  });
  return pools.map((pool, i) => {
    const probabilities = new Array(pools.length).fill(rivals[i].ordered.length ? 0 : NaN);
    if (!rivals[i].ordered.length) return probabilities;
    weights(pool, k, replacement).forEach((w, j) => {
      if (!(w > 0)) return;
      let chances = [1];
      rivals.forEach(({ ordered, exceed }, other) => {
        if (other === i || !ordered.length) return;
        const better = 1 - exceed[countBelow(ordered, pool[j])];
        const next = new Array(chances.length + 1).fill(0);
        chances.forEach((chance, r) => { next[r] += chance * (1 - better); next[r + 1] += chance * better; });
        chances = next;
      });
      chances.forEach((chance, r) => { probabilities[r] += w * chance; });
    });
    return probabilities;
  });
}

// ---------------------------------------------------------------------------- confidence intervals

/** The median best of k and its confidence interval; an end without a bound is infinite. */
function interval(values, k) {
  const ordered = sorted(values), n = ordered.length, { level, tolerance } = CONSTANTS;
  if (!n) return { median: NaN, low: NaN, high: NaN };
  const q = 1 - 0.5 ** (1 / k), below = binomialCdf(n, q), tail = (1 - level) / 2;
  const low = countBelow(below, tail + tolerance, true), high = countBelow(below, 1 - tail - tolerance) + 1;
  const middle = Math.min(Math.max(Math.ceil(q * n - tolerance), 1), n);
  return {
    median: ordered[middle - 1],
    low: low ? ordered[low - 1] : -Infinity,
    high: high <= n ? ordered[high - 1] : Infinity,
  };
}

/** The interval of the values times 1 or −1. */
const signed = (sign, { median, low, high }) =>
  (sign > 0 ? { median, low, high } : { median: -median, low: -high, high: -low });

/** P(a binomial count is at most i), i = 0 … n. */
function binomialCdf(n, p) {
  const logFactorials = new Float64Array(n + 1), cumulated = new Float64Array(n + 1);
  for (let i = 1; i <= n; i++) logFactorials[i] = logFactorials[i - 1] + Math.log(i);
  let sum = 0;
  for (let i = 0; i <= n; i++) {
    const log = logFactorials[n] - logFactorials[i] - logFactorials[n - i] + i * Math.log(p) + (n - i) * Math.log1p(-p);
    sum += Math.exp(log);
    cumulated[i] = Math.min(sum, 1);
  }
  return cumulated;
}

/** P(at least one of k trials succeeds) if some of n did: Clopper and Pearson's interval, carried over to k trials. */
function chanceOfAny(successes, n, k) {
  if (!n) return { probability: NaN, low: NaN, high: NaN };
  const tail = (1 - CONSTANTS.level) / 2;
  const bound = (s, chance) => { const tailOf = atLeast(s, n); return crossing(p => tailOf(p) - chance); };
  const low = successes ? bound(successes, tail) : 0, high = successes < n ? bound(successes + 1, 1 - tail) : 1;
  const any = p => 1 - (1 - p) ** k;
  return { probability: any(successes / n), low: any(low), high: any(high) };
}

/** P(a binomial count of n is at least s), for 1 ≤ s ≤ n, as a function of p. */
function atLeast(s, n) {
  const logChoose = i => { let log = 0; for (let j = 1; j <= i; j++) log += Math.log((n - i + j) / j); return log; };
  const logs = [logChoose(s - 1), logChoose(s)];
  return p => {
    const upward = s > n * p, step = upward ? 1 : -1;  // away from the most likely count, so that terms decrease
    let i = upward ? s : s - 1, sum = 0;
    let term = Math.exp(logs[upward ? 1 : 0] + i * Math.log(p) + (n - i) * Math.log1p(-p));
    for (; i >= 0 && i <= n && sum + term !== sum; i += step) {
      sum += term;
      term *= upward ? ((n - i) / (i + 1)) * (p / (1 - p)) : (i / (n - i + 1)) * ((1 - p) / p);
    }
    return upward ? sum : 1 - sum;
  };
}

/** Where a function that rises from below 0 at 0 to above 0 at 1 crosses it, by bisection. */
function crossing(rising) {
  let low = 0, high = 1;
  for (;;) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) return middle;
    if (rising(middle) < 0) low = middle; else high = middle;
  }
}

// ---------------------------------------------------------------------------- tests

/** Two pools in order: how many there are, which values are ours, and where runs of equal values end. */
function ranksOf(ours, theirs) {
  const labeled = [...ours.map(v => [v, 1]), ...theirs.map(v => [v, 0])].filter(([v]) => !Number.isNaN(v));
  labeled.sort((a, b) => a[0] - b[0] || 0);
  const n = labeled.length, isOurs = Uint8Array.from(labeled, ([, label]) => label);
  const ends = Uint8Array.from(labeled, ([v], i) => (i + 1 === n || labeled[i + 1][0] !== v ? 1 : 0));
  return { n, m: isOurs.reduce((sum, label) => sum + label, 0), isOurs, ends };
}

/** P(the best of k of ours is lower than the best of k of theirs) minus P(it is higher). */
function leadOf({ n, m, isOurs, ends }, k) {
  const a = later(m, k, true), b = later(n - m, k, true);
  let seen = 0, aBefore = 1, bBefore = 1, sum = 0;
  for (let i = 0; i < n; i++) {
    seen += isOurs[i];
    if (!ends[i]) continue;
    sum += aBefore * b[i + 1 - seen] - bBefore * a[seen];
    aBefore = a[seen]; bBefore = b[i + 1 - seen];
    if (aBefore * bBefore < CONSTANTS.negligible) break;
  }
  return sum;
}

/** How often chance alone would give ours as large a lead over theirs; the permutations are those of Python.
 *
 * Yields now and then, so that a page can do something else in between.
 */
function* pValue(ours, theirs, k, permutations = CONSTANTS.permutations) {
  const ranks = ranksOf(ours, theirs), { n, m, ends } = ranks, { enough, negligible } = CONSTANTS;
  if (!m || m === n) return NaN;
  const a = later(m, k, true), b = later(n - m, k, true), observed = leadOf(ranks, k) - CONSTANTS.tolerance;
  let reached = 0;
  for (let r = 0; r < permutations; r++) {
    if (r % 16 === 0) yield;
    const first = Math.imul(r, n);
    let seen = 0, aBefore = 1, bBefore = 1, sum = 0;
    for (let i = 0; i < n; i++) {
      if (hashed(first + i) * (n - i) < (m - seen) * 2 ** 32) seen++;
      if (!ends[i]) continue;
      const aAfter = a[seen], bAfter = b[i + 1 - seen];
      sum += aBefore * bAfter - bBefore * aAfter;
      aBefore = aAfter; bBefore = bAfter;
      if (aBefore * bBefore < negligible) break;
    }
    if (sum >= observed && ++reached === enough) return enough / (r + 1);
  }
  return (1 + reached) / (1 + permutations);
}

/** Tests every two pools against each other, as compare_pairs does: { ours, theirs, wins, losses, p } by number. */
function* comparePairs(pools, k) {
  const values = pools.map(pool => pool.filter(value => !Number.isNaN(value)));
  const pairs = values.flatMap((_, ours) => values.map((_, theirs) => ({ ours, theirs })))
    .filter(({ ours, theirs }) => ours < theirs && values[ours].length && values[theirs].length);
  const pValues = [];
  for (const { ours, theirs } of pairs) pValues.push(yield* twoSidedPValue(values[ours], values[theirs], k, pairs.length));
  const corrected = holm(pValues);
  return pairs.map(({ ours, theirs }, i) => ({
    ours, theirs, p: corrected[i],
    wins: probabilityBetter(values[ours], values[theirs], k, true),
    losses: probabilityBetter(values[theirs], values[ours], k, true),
  }));
}

/** How many permutations to use for two pools that have n values together. */
function permutationsFor(n, pairs) {
  const { permutations, large, fewestPermutations, permutationsPerClaim, significance } = CONSTANTS;
  if (n <= large) return permutations;
  return Math.min(permutations, Math.max(fewestPermutations, Math.round(permutationsPerClaim * pairs / significance)));
}

function* twoSidedPValue(ours, theirs, k, pairs) {
  const leads = leadOf(ranksOf(ours, theirs), k) >= 0, permutations = permutationsFor(ours.length + theirs.length, pairs);
  const p = yield* (leads ? pValue(ours, theirs, k, permutations) : pValue(theirs, ours, k, permutations));
  const reached = Math.min(p * (1 + permutations), CONSTANTS.enough);
  return Math.min(1, 2 * p * (1 + 1 / Math.sqrt(reached)));
}

const [FIRST_MULTIPLIER, SECOND_MULTIPLIER] = CONSTANTS.multipliers;

/** Turns a counter into a random 32-bit number. */
function hashed(x) {
  x = Math.imul(x ^ (x >>> 16), FIRST_MULTIPLIER);
  x = Math.imul(x ^ (x >>> 15), SECOND_MULTIPLIER);
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
