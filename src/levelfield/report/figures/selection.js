live("selection", {
  rows: view => view.shown.flatMap(optimizer => view.metrics.map((metric, selector) => ({
    ...optimizer.fields, selector, selectorName: metric.name,
    ...estimateFields(optimizer.best(view.k, view.report, selector)),
  }))),
});
