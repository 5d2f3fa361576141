live("inclusions", {
  prepare: (view, data) =>
    ({ ...data, findings: findingsOf(view, data, view.sameTrials ? data.inclusions.map(({ p }) => p ?? NaN) : null) }),

  /** Audits the inclusions, as taxonomy/audit.py does. */
  * test(view, data) {
    const pairs = data.inclusions.map(({ special, general }) => [view.optimizers[special], view.optimizers[general]]);
    const known = pair =>
      view.independent && pair.every(({ pool }) => pool.length >= view.k) && pair.some(optimizer => optimizer.known);
    const pools = pairs.map(pair => (known(pair) ? pair.map(({ ranked }) => ranked) : [[], []]));
    return { ...data, findings: findingsOf(view, data, holm(yield* oneSidedTests(pools, view.k))) };
  },

  rows: (view, panel, { edges, nodes, findings }) => [
    ...edges.map(edge => {
      const { worse, better, p, coverage, verdict } =
        findings.find(({ special, general }) => special === edge.special && general === edge.general);
      const inclusion = `${view.optimizers[edge.special].name} ⊆ ${view.optimizers[edge.general].name}`;
      return {
        ...edge, inclusion, verdict, worse: drawnNumber(worse), better: drawnNumber(better), p: drawnNumber(p), coverage,
      };
    }),
    ...nodes,
  ],

  update: (view, section, { findings, verdicts }) => {
    for (const row of selectAll("[data-inclusion]", section)) {
      const finding = findings[Number(row.dataset.inclusion)];
      const write = (key, text) => { select(`[data-cell=${key}]`, row).textContent = text; };
      write("worse", formatPercent(finding.worse));
      write("better", formatPercent(finding.better));
      write("p", finding.isTested ? formatPValue(finding.p) : "…");
      write("verdict", finding.isTested ? finding.verdict : "testing …");
      // The evidence is about the study as it was run.
      const evidence = select("[data-cell=evidence]", row);
      const explained = [verdicts.VIOLATED, verdicts.NOT_COVERED].includes(finding.verdict);
      if (evidence) evidence.hidden = !view.sameTrials || !explained;
    }
  },
});

/** The findings with these p-values; null while they are computed. */
function findingsOf(view, data, pValues) {
  return data.inclusions.map(({ special, general, share, coverage }, i) => {
    const pair = [view.optimizers[special], view.optimizers[general]];
    const enough = pair.every(({ pool }) => pool.length >= view.k), p = pValues ? pValues[i] : NaN;
    const isKnown = enough && !(pValues && Number.isNaN(p));
    const worse = isKnown ? view.wins(pair[0], pair[1]) : NaN, better = isKnown ? view.wins(pair[1], pair[0]) : NaN;
    const isTested = Boolean(pValues);
    return { special, general, worse, better, p, coverage, verdict: verdict(worse, p, share, data), isTested };
  });
}

/** Returns the verdict. The share is that of the full ranges, whatever part of them is looked at. */
function verdict(worse, p, share, { clear, significant, leastCovered, verdicts }) {
  if (Number.isNaN(p)) return verdicts.UNKNOWN;
  if (share !== null && share < leastCovered) return verdicts.NOT_COVERED;
  if (worse <= 1 - clear) return verdicts.CONSISTENT;
  return p < significant ? verdicts.VIOLATED : verdicts.NO_SEPARATION;
}
