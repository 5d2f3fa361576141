live("outcomes", {
  rows: (view, { choice }) => view.shown.map(optimizer => ({
    ...optimizer.fields,
    ...(choice === "select" ? intervalFields(optimizer.interval(view.k)) : {}),
    ...estimateFields(optimizer.best(view.k, view[choice])),
  })),
});
