// What the reader asks (K, metrics, parts of the search spaces), and each optimizer's outcome for it:
// the counterpart of Results.at and Results.narrowed. Optimizers and metrics go by number.

/** Returns the results for what is asked; from the outcomes of a previous view, if only K has changed. */
function viewOf(data, asked, previous) {
  const { k } = asked, trialsAsked = JSON.stringify([asked.select, asked.ranges]);
  const optimizers = previous?.trialsAsked === trialsAsked ? previous.optimizers
    : data.optimizers.map((trials, number) => outcomeOf(data, asked, trials, number));
  const isNarrowed = asked.ranges.some(axes => axes.some(range => range));
  const shown = optimizers.filter(optimizer => optimizer.known), count = optimizers.length;
  const winRate = remembered(pair => probabilityBetter(
    optimizers[Math.floor(pair / count)].ranked, optimizers[pair % count].ranked, k, data.replacement));
  return {
    optimizers, trialsAsked, isNarrowed, shown, k,
    independent: data.independent, metrics: data.metrics, select: asked.select, report: asked.report, target: data.target,
    comparable: shown.filter(optimizer => optimizer.pool.length >= k),
    ranking: rankingOf(optimizers, data.metrics, asked),
    sameTrials: !isNarrowed && k === data.k && asked.select === data.select,
    wins: (ours, theirs) => winRate(ours.number * count + theirs.number),
    ranks: some => rankProbabilities(some.map(optimizer => optimizer.ranked), k, data.replacement),
    tests: null,  // what testsOf returns, once it has run
  };
}

/** An optimizer's trials inside the ranges, and what a tuner with k of them would have got. */
function outcomeOf(data, asked, trials, number) {
  const ranges = [...asked.ranges[number]], selected = asked.select, { replacement, independent } = data;
  const inside = i => ranges.every((range, axis) => !range || isInside(trials, axis, i, range));
  const tried = trials.trial.map((_, i) => i).filter(inside);
  const pool = tried.filter(i => trials.feasible[i]);
  const sign = metric => (data.metrics[metric].maximized ? -1 : 1);
  const values = metric => pool.map(i => trials.finals[metric][i]);
  const rankedBy = remembered(metric =>
    values(metric).map(value => (Number.isFinite(value) ? sign(metric) * value : Infinity)));
  const orderBy = remembered(metric => orderOf(rankedBy(metric)));
  const spent = tried.reduce((sum, i) => sum + trials.last[i], 0);
  const ranked = rankedBy(selected), steps = pool.map(i => trials.reached[i] ?? Infinity);
  const bounded = estimate => (independent ? estimate : { ...estimate, low: -Infinity, high: Infinity });
  const canDraw = k => replacement || k <= pool.length;
  const bests = remembered(key => {
    const [k, metric, select] = key.split(",").map(Number), order = rankedBy(select);
    if (!order.some(Number.isFinite) || !canDraw(k)) return { mean: NaN, low: NaN, high: NaN };
    const reported = values(metric), chances = weights(order, k, replacement, orderBy(select));
    const finite = reported.map(Number.isFinite);
    const lost = chances.reduce((sum, chance, i) => sum + (finite[i] ? 0 : chance), 0);
    const all = estimate(reported, chances);
    if (!lost) return all;
    // A trial without a finite value counts for the percentiles alone, unless there are too many of them.
    const { mean } = estimate(reported.filter((_, i) => finite[i]), chances.filter((_, i) => finite[i]));
    return { ...all, mean: lost <= CONSTANTS.low + CONSTANTS.tolerance ? mean : NaN };
  });

  return {
    ...trials, number, tried, pool, inside, ranked, steps,
    fields: { optimizer: number, name: trials.name },
    known: ranked.some(Number.isFinite),

    /** The distribution of a metric for the best of k. */
    best: (k, metric, select = selected) => bests([k, metric, select].join()),

    /** The median best of k by the selection metric. */
    interval: k => signed(sign(selected), bounded(interval(ranked, k))),

    /** The median steps to the target of the fastest of k; a miss counts as infinitely slow. */
    stepsInterval: k => bounded(interval(steps, k)),

    /** The same in seconds, if it is known what a step takes. */
    secondsInterval: k => scaled(interval(steps, k), trials.stepSeconds),

    /** The probability that one of k trials reaches the target. */
    reachedBy(k) {
      const able = steps.filter(Number.isFinite).length;
      const bounds = independent ? chanceOfAny(able, pool.length, k) : { low: 0, high: 1 };
      if (!pool.length || !canDraw(k)) return { ...bounds, probability: NaN };
      return { ...bounds, probability: 1 - later(pool.length, k, replacement)[able] };
    },

    /** Trial-steps for k feasible trials, including what infeasible ones cost. */
    cost: k => (pool.length ? (k * spent) / pool.length : NaN),

    /** The hyperparameters of the best trial. */
    bestHyperparameters() {
      const best = ranked.reduce((best, value, i) => (value < (best < 0 ? Infinity : ranked[best]) ? i : best), -1);
      return best < 0 ? "" : trials.hyperparameters[pool[best]] ?? coordinatesText(trials, pool[best]);
    },
  };
}

/** Where a trial lies in the search space, for one of so many that the page does not have its hyperparameters. */
const coordinatesText = ({ axes, coordinates }, i) => axes.map(({ title, choices }, axis) => {
  const at = coordinates[axis][i];
  return `${title} ${choices ? choices[at] : formatGeneral(at, CONSTANTS.metricDigits)}`;
}).join(", ");

/** Whether a trial is one of those that charts show. */
const isDrawn = (trials, i) => i < CONSTANTS.mostDrawn || i in trials.hyperparameters;

/** A range is [low, high], or the numbers of choices. */
function isInside(trials, axis, i, range) {
  const at = trials.coordinates[axis][i];
  if (trials.axes[axis].choices) return range.includes(at);
  const digits = trials.coordinateDigits ?? CONSTANTS.coordinateDigits;
  const slack = 0.5 * 10 ** (1 - digits) * Math.abs(at);  // coordinates are rounded
  return at >= range[0] - slack && at <= range[1] + slack;
}

/** The optimizers with their medians, best first; those without one last. Means decide between equal medians. */
function rankingOf(optimizers, metrics, { k, select }) {
  const sign = metrics[select].maximized ? -1 : 1;
  const entries = optimizers.map(optimizer => {
    const { median } = optimizer.interval(k), { mean } = optimizer.best(k, select);
    const keys = [Number.isNaN(median) ? 1 : 0, sign * median, Number.isNaN(mean) ? Infinity : sign * mean];
    return { optimizer, median, keys };
  });
  const difference = (a, b) => (a === b || Number.isNaN(a) ? 0 : a - b);
  return entries.sort((a, b) => a.keys.reduce((order, key, i) => order || difference(key, b.keys[i]), 0));
}

/** Tests every two optimizers by their best of k and by their steps to the target, as Results.pair_tests.
 *
 * Trials that are not independent are not tested: nothing is separated.
 * Returns the pairs that can be compared: { better, worse, p, separated }, by number. Yields now and then.
 */
function* testsOf({ comparable, k, target, independent }) {
  const tested = function* (valuesOf) {
    const tests = yield* comparePairs(comparable.map(valuesOf), k, independent);
    return tests.map(({ ours, theirs, wins, losses, p }) => {
      const [better, worse] = (wins >= losses ? [ours, theirs] : [theirs, ours]).map(i => comparable[i].number);
      return { better, worse, p, separated: p < CONSTANTS.significance && Math.max(wins, losses) >= CONSTANTS.tied };
    });
  };
  const best = yield* tested(optimizer => optimizer.ranked);
  return { best, steps: target ? yield* tested(optimizer => optimizer.steps) : [] };
}

const BEATS = { claim: "beats", none: "no two optimizers are clearly different" };
const FASTER = { claim: "is faster than", none: "no two optimizers clearly differ in their steps to the target" };
const MOST_CLAIMS = 8;  // optimizers whose claims are listed

/** Says which optimizers the tests separate; null while they run. */
function claimsText({ k, optimizers, comparable, ranking, independent }, tests, { claim, none }) {
  if (comparable.length < 2) return comparable.length ? "There are no two optimizers to compare." : "";
  if (!independent) return "Nothing is tested, because the trials are not known to be independent.";
  if (!tests) return "Testing which differences are more than chance …";
  const separated = tests.filter(test => test.separated);
  if (!separated.length) return `At K = ${k}, ${none}.`;
  const winners = ranking.map(({ optimizer: { name, number } }) =>
    ({ name, beaten: separated.filter(({ better }) => better === number).map(({ worse }) => optimizers[worse].name) }))
    .filter(({ beaten }) => beaten.length);
  const texts = winners.slice(0, MOST_CLAIMS).map(({ name, beaten }) => `${name} ${claim} ${joinWords(beaten)}`);
  const more = winners.length > MOST_CLAIMS ? ["…"] : [];
  const rest = separated.length < tests.length ? " The other pairs are not clearly different." : "";
  return `At K = ${k}, ${[...texts, ...more].join("; ")} (more than chance explains).${rest}`;
}

/** Returns a function that computes each value once. */
function remembered(compute) {
  const known = new Map();
  return key => {
    if (!known.has(key)) known.set(key, compute(key));
    return known.get(key);
  };
}

/** Numbers that JSON has no notation for, float32s as they were, and columns that are compressed. */
async function decoded(data) {
  const number = value => ({ null: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? Math.fround(value));
  for (const optimizer of data.optimizers) {
    if (!Array.isArray(optimizer.trial)) await decompress(optimizer);
    optimizer.finals = optimizer.finals.map(column => column.map(number));
  }
  return { ...data, figures: new Map(data.figures) };
}

/** Replaces the compressed columns of an optimizer by their numbers; what is missing is null, as in JSON. */
async function decompress(optimizer) {
  const column = async content => (await numbersOf(content)).map(value => (Number.isNaN(value) ? null : value));
  for (const name of ["trial", "feasible", "last", "reached"]) optimizer[name] = await column(optimizer[name]);
  for (const name of ["finals", "coordinates"]) optimizer[name] = await Promise.all(optimizer[name].map(column));
}

/** The counterpart of compressed. */
async function numbersOf({ size, planes, data }) {
  const packed = Uint8Array.from(atob(data), character => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = new Uint8Array(await new Response(stream).arrayBuffer()), count = content.length / size;
  const bytes = planes ? content.map((_, i) => content[(i % size) * count + Math.floor(i / size)]) : content;
  return Array.from(new { 4: Float32Array, 8: Float64Array }[size](bytes.buffer));
}
