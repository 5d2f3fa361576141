live("steps", {
  rows: (view, panel) => (view.shown.some(optimizer => optimizer.steps.some(Number.isFinite)) ? view.shown.map(optimizer => {
    const { probability, low, high } = optimizer.reachedBy(view.k);
    const interval = panel.live.seconds ? optimizer.secondsInterval(view.k) : optimizer.stepsInterval(view.k);
    return {
      ...optimizer.fields, ...intervalFields(interval),
      reached: drawnNumber(probability), reachedLow: drawnNumber(low), reachedHigh: drawnNumber(high),
    };
  }) : []),

  update: (view, section) => { select(".live", section).textContent = claimsText(view, view.tests?.steps, FASTER); },
});
