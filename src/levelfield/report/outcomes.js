// What the reader asks (K, metrics, parts of the search spaces), and each optimizer's outcome for it:
// the counterpart of Results.at and Results.narrowed. Optimizers and metrics go by number.

/** Returns the results for what is asked. */
function viewOf(data, asked) {
  const optimizers = data.optimizers.map((trials, number) => outcomeOf(data, asked, trials, number));
  const isNarrowed = asked.ranges.some(axes => axes.some(range => range));
  return {
    optimizers, isNarrowed,
    metrics: data.metrics, k: asked.k, select: asked.select, report: asked.report,
    shown: optimizers.filter(optimizer => optimizer.known),
    ranking: rankingOf(optimizers, data.metrics[asked.select], asked),
    sameTrials: !isNarrowed && asked.k === data.k && asked.select === data.select,
  };
}

/** An optimizer's trials inside the ranges, and what a tuner with k of them would have got. */
function outcomeOf(data, asked, trials, number) {
  const ranges = asked.ranges[number];
  const inside = i => ranges.every((range, axis) => !range || isInside(trials, axis, i, range));
  const tried = trials.trial.map((_, i) => i).filter(inside);
  const pool = tried.filter(i => trials.feasible[i]);
  const sign = metric => (data.metrics[metric].maximized ? -1 : 1);
  const values = metric => pool.map(i => trials.finals[metric][i]);
  const rankedBy = metric => values(metric).map(value => (Number.isFinite(value) ? sign(metric) * value : Infinity));
  const spent = tried.reduce((sum, i) => sum + trials.last[i], 0);
  const ranked = rankedBy(asked.select);

  return {
    ...trials, number, tried, pool, inside, ranked,
    fields: { optimizer: number, name: trials.name },
    known: ranked.some(Number.isFinite),

    best(k, metric, select = asked.select) {
      const order = rankedBy(select);
      if (!order.some(Number.isFinite)) return { mean: NaN, low: NaN, high: NaN };
      const reported = values(metric), chances = weights(order, k), finite = reported.map(Number.isFinite);
      const lost = chances.reduce((sum, chance, i) => sum + (finite[i] ? 0 : chance), 0);
      const all = estimate(reported, chances);
      if (!lost) return all;
      // A trial without a finite value counts for the percentiles alone, unless there are too many of them.
      const { mean } = estimate(reported.filter((_, i) => finite[i]), chances.filter((_, i) => finite[i]));
      return { ...all, mean: lost <= CONSTANTS.low + CONSTANTS.tolerance ? mean : NaN };
    },

    stepsToTarget(k) {
      const steps = pool.map(i => trials.reached[i] ?? Infinity), chances = weights(steps, k);
      const able = pool.map((_, i) => i).filter(i => Number.isFinite(steps[i]));
      const probability = pool.length ? able.reduce((sum, i) => sum + chances[i], 0) : NaN;
      return { ...estimate(able.map(i => steps[i]), able.map(i => chances[i])), probability };
    },

    /** Trial-steps for k feasible trials, including what infeasible ones cost. */
    cost: k => (pool.length ? (k * spent) / pool.length : NaN),

    /** The hyperparameters of the best trial. */
    bestHyperparameters() {
      const best = ranked.reduce((best, value, i) => (value < (best < 0 ? Infinity : ranked[best]) ? i : best), -1);
      return best < 0 ? "" : trials.hyperparameters[pool[best]];
    },
  };
}

/** A range is [low, high], or the numbers of choices. */
function isInside(trials, axis, i, range) {
  const at = trials.coordinates[axis][i];
  if (trials.axes[axis].choices) return range.includes(at);
  const slack = 0.5 * 10 ** (1 - CONSTANTS.coordinateDigits) * Math.abs(at);  // coordinates are rounded
  return at >= range[0] - slack && at <= range[1] + slack;
}

/** The optimizers with their means, best first; those without a mean last. */
function rankingOf(optimizers, metric, { k, select }) {
  const entries = optimizers.map(optimizer => ({ optimizer, mean: optimizer.best(k, select).mean }));
  const key = ({ mean }) => (Number.isNaN(mean) ? Infinity : metric.maximized ? -mean : mean);
  return entries.sort((a, b) => key(a) - key(b) || 0);
}

/** Numbers that JSON has no notation for, and float32s as they were. */
function decoded(data) {
  const number = value => ({ null: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? Math.fround(value));
  for (const optimizer of data.optimizers) optimizer.finals = optimizer.finals.map(column => column.map(number));
  return { ...data, figures: new Map(data.figures) };
}
