live("best-of-k", {
  rows: (view, { choice }, { ks, timed }) =>
    view.shown.flatMap(optimizer => ks.map(k => ({
      ...optimizer.fields, k, cost: drawnNumber(optimizer.cost(k) * (timed ? optimizer.stepSeconds : 1)),
      ...estimateFields(optimizer.best(k, view[choice])),
    }))),

  /** The ends of the metric's axis, which keep the worst optimizer's mean in sight. */
  ends: (rows, maximized, { firstInSight }) => {
    const means = rows.filter(row => row.k >= firstInSight && row.mean !== null).map(row => row.mean);
    if (!means.length) return [null, null];
    return maximized ? [Math.min(...means), null] : [null, Math.max(...means)];
  },
});
