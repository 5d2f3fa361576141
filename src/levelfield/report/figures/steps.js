live("steps", {
  rows: view => (view.shown.some(optimizer => optimizer.steps.some(Number.isFinite)) ? view.shown.map(optimizer => {
    const { probability, low, high } = optimizer.reachedBy(view.k);
    return {
      ...optimizer.fields, ...intervalFields(optimizer.stepsInterval(view.k)),
      reached: drawnNumber(probability), reachedLow: drawnNumber(low), reachedHigh: drawnNumber(high),
    };
  }) : []),

  update: (view, section) => { select(".live", section).textContent = claimsText(view, view.tests?.steps, FASTER); },
});
