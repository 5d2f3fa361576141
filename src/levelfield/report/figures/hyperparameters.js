live("hyperparameters", {
  rows: (view, { live: { optimizer: number } }, { span }) => {
    const optimizer = view.optimizers[number], values = optimizer.finals[view.select];
    const { maximized } = view.metrics[view.select];
    const known = i => optimizer.feasible[i] && Number.isFinite(values[i]);
    const border = axisEnd(values.filter((_, i) => known(i)), maximized, span);
    const better = maximized ? Math.max : Math.min;
    const drawn = optimizer.trial.flatMap((_, i) => (isDrawn(optimizer, i) ? [i] : []));
    return drawn.map(i => ({
      ...optimizer.fields, trial: optimizer.trial[i], feasible: Boolean(optimizer.feasible[i]), kept: optimizer.inside(i),
      value: drawnNumber(known(i) ? better(values[i], border) : border),
      ...Object.fromEntries(optimizer.coordinates.map((column, axis) => [`x${axis}`, column[i]])),
    }));
  },

  /** A range can be dragged over a chart. */
  drawn: (page, { live: { optimizer, axis } }, vega) => {
    if (page.data.optimizers[optimizer].axes[axis].choices) return;
    vega.addSignalListener("range", (_, range) => page.narrow(optimizer, axis, range[`x${axis}`] ?? null));
  },

  /** A range can be entered below the charts. */
  listen: (page, section) => {
    for (const input of selectAll("[data-end]", section))
      input.addEventListener("change", () => {
        const [optimizer, axis] = [input.dataset.optimizer, input.dataset.axis].map(Number);
        page.narrow(optimizer, axis, entered(page, section, optimizer, axis));
      });
  },

  /** The inputs show what is asked. */
  restore: (page, section) => {
    for (const input of selectAll("[data-end]", section)) {
      const { optimizer, axis, end } = input.dataset;
      const range = page.asked.ranges[optimizer][axis];
      if (input.type === "checkbox") input.checked = !range || range.includes(Number(end));
      else input.value = range ? formatGeneral(range[end], CONSTANTS.metricDigits) : "";
    }
  },
});

/** The range that the inputs of an axis say, or the numbers of its choices; null for all of it. */
function entered(page, section, optimizer, axis) {
  const inputs = selectAll(`[data-end][data-optimizer="${optimizer}"][data-axis="${axis}"]`, section);
  const { choices, ends } = page.data.optimizers[optimizer].axes[axis];
  if (choices) {
    const kept = inputs.flatMap((input, i) => (input.checked ? [i] : []));
    return kept.length < choices.length ? kept : null;
  }
  if (inputs.every(input => input.value === "")) return null;
  return inputs.map((input, i) => (input.value === "" ? ends[i] : Number(input.value)));
}

/** Where to end a metric's axis, so that bad trials do not flatten the good ones. */
function axisEnd(values, maximized, span) {
  if (!values.length) return NaN;
  const ordered = sorted(values), n = ordered.length;
  if (maximized) return ordered[0];
  const median = (ordered[(n - 1) >> 1] + ordered[n >> 1]) / 2;
  return Math.min(ordered[n - 1], median > 0 ? span * median : Infinity);
}
