live("inclusions", {
  /** Audits the inclusions, as taxonomy/audit.py does. */
  prepare: (view, data) => {
    const ranked = number => view.optimizers[number].ranked;
    const known = ({ special, general }) => view.optimizers[special].known || view.optimizers[general].known;
    const pValues = holm(data.inclusions.map(inclusion => (known(inclusion)
      ? pValue(ranked(inclusion.special), ranked(inclusion.general), view.k, data.permutations, data.enough) : NaN)));
    const findings = data.inclusions.map(({ special, general }, i) => {
      const worse = probabilityBetter(ranked(special), ranked(general), view.k);
      const better = probabilityBetter(ranked(general), ranked(special), view.k);
      return { special, general, worse, better, p: pValues[i], verdict: verdict(worse, pValues[i], data) };
    });
    return { ...data, findings };
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
      write("p", formatPValue(finding.p));
      write("verdict", finding.verdict);
      // The evidence is about the study as it was run.
      const evidence = select("[data-cell=evidence]", row);
      if (evidence) evidence.hidden = !view.sameTrials || finding.verdict !== verdicts.VIOLATED;
    }
  },
});

function verdict(worse, p, { clear, significant, verdicts }) {
  if (Number.isNaN(p)) return verdicts.UNKNOWN;
  if (worse <= 1 - clear) return verdicts.CONSISTENT;
  return p < significant ? verdicts.VIOLATED : verdicts.NO_SEPARATION;
}
