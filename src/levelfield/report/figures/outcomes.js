live("outcomes", {
  rows: (view, { choice }) =>
    view.shown.map(optimizer => ({ ...optimizer.fields, ...estimateFields(optimizer.best(view.k, view[choice])) })),
});
