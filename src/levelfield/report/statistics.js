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

/** The interval of the values times a positive factor. */
const scaled = ({ median, low, high }, factor) =>
  ({ median: factor * median, low: factor * low, high: factor * high });

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

/** Two pools in order: how many values they have together, how many are ours, and where runs of equal values end. */
function ranksOf(ours, theirs) {
  const labeled = [...ours.map(v => [v, 1]), ...theirs.map(v => [v, 0])].filter(([v]) => !Number.isNaN(v));
  labeled.sort((a, b) => a[0] - b[0] || 0);
  const n = labeled.length, counts = new Int32Array(n + 1), ends = [];  // counts: how many of the first i are ours
  labeled.forEach(([value, label], i) => {
    counts[i + 1] = counts[i] + label;
    if (i + 1 === n || labeled[i + 1][0] !== value) ends.push(i + 1);
  });
  return { n, m: counts[n], counts, ends: Int32Array.from(ends) };
}

/** P(the best of k of ours is lower than the best of k of theirs) minus P(it is higher), up to the last of the ends.
 *
 * a and b: P(the best of k comes after the first i of ours, and of theirs).
 */
function leadOf(counts, ends, a, b) {
  let aBefore = 1, bBefore = 1, sum = 0;
  for (let i = 0; i < ends.length; i++) {
    const seen = counts[ends[i]], aAfter = a[seen], bAfter = b[ends[i] - seen];
    sum += aBefore * bAfter - bBefore * aAfter;
    aBefore = aAfter; bBefore = bAfter;
  }
  return sum;
}

/** How many of the lowest of n values, of two pools together, decide which best of k is lower. */
const relevant = (n, k) => Math.ceil(n * (1 - CONSTANTS.negligible ** (1 / (2 * k))) - CONSTANTS.tolerance * n);

/** How often chance alone would give ours as large a lead over theirs, for each pair of pools [ours, theirs].
 *
 * The p-values include a margin of so many standard errors. The permutations are those of Python, and pairs of the same
 * sizes share them. Yields now and then, so that a page can do something else in between.
 */
function* leadTests(pairs, k, margin, permutations = CONSTANTS.permutations) {
  const pValues = new Array(pairs.length).fill(NaN), groups = new Map();
  pairs.forEach(([ours, theirs], i) => {
    const ranks = ranksOf(ours, theirs), { n, m } = ranks, key = `${m} ${n}`;
    if (!m || m === n) return;
    const a = later(m, k, true), b = later(n - m, k, true);
    const last = ranks.ends.findIndex(end => end >= relevant(n, k)), ends = ranks.ends.subarray(0, last + 1);
    if (!groups.has(key)) groups.set(key, { n, m, a, b, ties: new Map() });
    // Where the same values are equal, and without ties, leads are the same.
    const { ties } = groups.get(key), pattern = ends.join();
    if (!ties.has(pattern)) ties.set(pattern, { ends, open: [] });
    ties.get(pattern).open.push({ i, reached: 0, least: leadOf(ranks.counts, ends, a, b) - CONSTANTS.tolerance });
  });
  for (const group of groups.values()) yield* groupTests(group, margin, permutations, pValues);
  return pValues;
}

function* groupTests({ n, m, a, b, ties }, margin, permutations, pValues) {
  // The p-value of a lead that so many of the permutations made have reached, and a margin for its noise.
  const cautious = (reached, made) => Math.min(1, reached / made * (1 + margin / Math.sqrt(reached)));
  const { enough } = CONSTANTS, counts = new Int32Array(n + 1);
  let open = [...ties.values()];
  const last = open.reduce((last, { ends }) => Math.max(last, ends.at(-1)), 0);
  for (let r = 0; r < permutations && open.length; r++) {
    if (r % 16 === 0) yield;
    deal(counts, n, m, r, last);
    let isDecided = false;
    for (const pattern of open) {
      const lead = leadOf(counts, pattern.ends, a, b);
      for (const test of pattern.open) {
        if (lead < test.least || ++test.reached < enough) continue;
        pValues[test.i] = cautious(enough, r + 1);
        isDecided = true;
      }
    }
    if (!isDecided) continue;
    open.forEach(pattern => { pattern.open = pattern.open.filter(({ reached }) => reached < enough); });
    open = open.filter(pattern => pattern.open.length);
  }
  for (const pattern of open) {
    for (const { i, reached } of pattern.open) pValues[i] = cautious(1 + reached, 1 + permutations);
  }
}

/** Writes how many of the first 1, 2, … of n values are ours in permutation r. */
function deal(counts, n, m, r, last) {
  const first = Math.imul(r, n);
  let seen = 0;
  for (let i = 0; i < last; i++) {
    if (hashed(first + i) * (n - i) < (m - seen) * 2 ** 32) seen++;
    counts[i + 1] = seen;
  }
}

/** Tests every two pools against each other, as compare_pairs does: { ours, theirs, wins, losses, p } by number.
 *
 * If they are not independent, every p is 1.
 */
function* comparePairs(pools, k, independent = true) {
  const pairs = pools.flatMap((_, ours) => pools.map((_, theirs) => ({ ours, theirs })))
    .filter(({ ours, theirs }) => ours < theirs && pools[ours].length && pools[theirs].length)
    .map(pair => ({
      ...pair,
      wins: probabilityBetter(pools[pair.ours], pools[pair.theirs], k, true),
      losses: probabilityBetter(pools[pair.theirs], pools[pair.ours], k, true),
    }));
  const tested = pairs.map(({ ours, theirs }) => [pools[ours], pools[theirs]]);
  const pValues = independent ? holm(yield* twoSidedTests(tested, k)) : pairs.map(() => 1);
  return pairs.map((pair, i) => ({ ...pair, p: pValues[i] }));
}

/** The p-values of the lead that either of two pools has: twice that of the leader's. */
function* twoSidedTests(pairs, k) {
  const { many, fewestPermutations, permutationsPerClaim, significance, margin } = CONSTANTS;
  const needed = Math.round(permutationsPerClaim * pairs.length / significance);
  const areMany = pairs.some(([ours, theirs]) => relevant(ours.length + theirs.length, k) > many);
  const permutations = Math.max(areMany ? fewestPermutations : CONSTANTS.permutations, needed);
  const leads = ([ours, theirs]) => {
    const { counts, ends, n, m } = ranksOf(ours, theirs);
    return leadOf(counts, ends, later(m, k, true), later(n - m, k, true)) >= 0;
  };
  const leaders = pairs.map(pair => (leads(pair) ? pair : [pair[1], pair[0]]));
  const pValues = yield* leadTests(leaders, k, margin, permutations);
  return pValues.map(p => Math.min(1, 2 * p));
}

/** The p-values of the lead that ours has over theirs, as one_sided_tests returns them. */
const oneSidedTests = (pairs, k) => leadTests(pairs, k, CONSTANTS.oneSidedMargin);

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
