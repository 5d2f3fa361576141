// The columns of the outcome table that the page recomputes, by the key of their declaration in columns.py.
// cell(view, optimizer) returns a main and a smaller text; heading and shown are optional.

const COLUMNS = new Map(Object.entries({
  select: {
    heading: view => `median ${view.metrics[view.select].name}`,
    cell: (view, optimizer) => {
      const { median, low, high } = optimizer.interval(view.k), metric = view.metrics[view.select];
      if (!Number.isFinite(median)) return [CONSTANTS.missing];
      return [formatMetric(metric, median), formatInterval(metric, low, high)];
    },
  },
  luck: {
    heading: view => `mean ${view.metrics[view.select].name}`,
    cell: (view, optimizer) => meanText(view, optimizer, view.select),
  },
  report: {
    heading: view => `mean ${view.metrics[view.report].name}`,
    shown: view => view.report !== view.select,
    cell: (view, optimizer) => meanText(view, optimizer, view.report),
  },
  steps: {
    cell: (view, optimizer) => {
      const { median, low, high } = optimizer.stepsInterval(view.k);
      if (Number.isNaN(median)) return [CONSTANTS.missing];
      const ends = low === Infinity ? "not reached" : formatEnds(formatCount, low, high);
      return [median === Infinity ? "not reached" : formatCount(median), ends];
    },
  },
  reached: {
    cell: (view, optimizer) => {
      const { probability, low, high } = optimizer.reachedBy(view.k);
      if (Number.isNaN(probability)) return [CONSTANTS.missing];
      return [formatPercent(probability), formatEnds(formatPercent, low, high)];
    },
  },
  feasible: { cell: (view, optimizer) => [`${formatCount(optimizer.pool.length)} of ${formatCount(optimizer.tried.length)}`] },
  hyperparameters: { cell: (view, optimizer) => [optimizer.bestHyperparameters()] },
}));

function meanText(view, optimizer, number) {
  const { mean, low, high } = optimizer.best(view.k, number), metric = view.metrics[number];
  if (Number.isNaN(mean)) return [CONSTANTS.missing];
  return [formatMetric(metric, mean), `${formatMetric(metric, low)} – ${formatMetric(metric, high)}`];
}

/** A text whose lines end between words, or after an underscore of a word that is too long for a line. */
const breakable = text => text.split(" ").flatMap((word, i) => {
  const whole = document.createElement("span");
  whole.className = "word";
  whole.append(...word.split(/(?<=_)/).flatMap(part => [part, document.createElement("wbr")]));
  return [...(i ? [" "] : []), whole];
});

/** Writes the outcome table, its rows in the order of the ranking. */
function fillOutcomes(sortable, view) {
  const { table, headings } = sortable;
  const body = select("tbody", table);
  const rows = new Map(selectAll("tr", body).map(row => [Number(row.dataset.optimizer), row]));
  headings.forEach((heading, i) => {
    const column = COLUMNS.get(heading.dataset.column);
    if (!column) return;
    if (column.heading) select(".main", heading).replaceChildren(...breakable(column.heading(view)));
    const [name, detail] = [".main", ".small"].map(part => select(part, heading).textContent);
    heading.hidden = column.shown ? !column.shown(view) : heading.hidden;
    for (const optimizer of view.optimizers) {
      const cell = rows.get(optimizer.number).cells[i], [main, small = ""] = column.cell(view, optimizer);
      select(".main", cell).textContent = main;
      select(".small", cell).textContent = small;
      cell.dataset.label = detail ? `${name} (${detail})` : name;
      cell.hidden = heading.hidden;
    }
  });
  body.append(...view.ranking.map(({ optimizer }) => rows.get(optimizer.number)));
  sortable.natural = {
    column: headings.findIndex(heading => heading.dataset.column === "select"),
    direction: view.metrics[view.select].maximized ? "descending" : "ascending",
  };
}
