live("steps", {
  rows: view => view.shown
    .map(optimizer => ({ ...optimizer.fields, ...estimateFields(optimizer.stepsToTarget(view.k)) }))
    .filter(row => row.mean !== null),
});
