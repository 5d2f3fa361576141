live("inclusions", {
  prepare: (view, data) =>
    ({ ...data, findings: findingsOf(view, data, view.sameTrials ? data.inclusions.map(({ p }) => p ?? NaN) : null) }),

  /** Audits the inclusions, as taxonomy/audit.py does. */
  * test(view, data) {
    const pairs = data.inclusions.map(({ special, general }) => [view.optimizers[special], view.optimizers[general]]);
    const known = pair => pair.every(({ pool }) => pool.length >= view.k) && pair.some(optimizer => optimizer.known);
    const pools = pairs.map(pair => (known(pair) ? pair.map(({ ranked }) => ranked) : [[], []]));
    return { ...data, findings: findingsOf(view, data, holm(yield* leadTests(pools, view.k))) };
  },

  rows: (view, panel, { edges, nodes, findings }) => [
    ...edges.map(edge => {
      const { worse, better, p, verdict } =
        findings.find(({ special, general }) => special === edge.special && general === edge.general);
      const inclusion = `${view.optimizers[edge.special].name} ⊆ ${view.optimizers[edge.general].name}`;
      return {
        ...edge, inclusion, verdict, worse: drawnNumber(worse), better: drawnNumber(better), p: drawnNumber(p),
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
      if (evidence) evidence.hidden = !view.sameTrials || finding.verdict !== verdicts.VIOLATED;
    }
  },
});

/** The findings with these p-values; null while they are computed. */
function findingsOf(view, data, pValues) {
  return data.inclusions.map(({ special, general }, i) => {
    const pair = [view.optimizers[special], view.optimizers[general]];
    const enough = pair.every(({ pool }) => pool.length >= view.k), p = pValues ? pValues[i] : NaN;
    const isKnown = enough && !(pValues && Number.isNaN(p));
    const worse = isKnown ? view.wins(pair[0], pair[1]) : NaN, better = isKnown ? view.wins(pair[1], pair[0]) : NaN;
    return { special, general, worse, better, p, verdict: verdict(worse, p, data), isTested: Boolean(pValues) };
  });
}

function verdict(worse, p, { clear, significant, verdicts }) {
  if (Number.isNaN(p)) return verdicts.UNKNOWN;
  if (worse <= 1 - clear) return verdicts.CONSISTENT;
  return p < significant ? verdicts.VIOLATED : verdicts.NO_SEPARATION;
}
