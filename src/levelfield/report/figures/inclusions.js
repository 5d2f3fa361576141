live("inclusions", {
  /** Audits the inclusions, as taxonomy/audit.py does. */
  prepare: (view, data) => {
    const ranked = number => view.optimizers[number].ranked;
    const known = ({ special, general }) => view.optimizers[special].known || view.optimizers[general].known;
    const pValues = holm(data.inclusions.map(inclusion => (known(inclusion)
      ? pValue(ranked(inclusion.special), ranked(inclusion.general), view.k, data.permutations, data.enough) : NaN)));
    const findings = data.inclusions.map(({ special, general, share, coverage }, i) => {
      const worse = probabilityBetter(ranked(special), ranked(general), view.k);
      const better = probabilityBetter(ranked(general), ranked(special), view.k);
      const p = pValues[i];
      return { special, general, worse, better, p, coverage, verdict: verdict(worse, p, share, data) };
    });
    return { ...data, findings };
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
      write("p", formatPValue(finding.p));
      write("verdict", finding.verdict);
      // The evidence is about the study as it was run.
      const evidence = select("[data-cell=evidence]", row);
      const explained = [verdicts.VIOLATED, verdicts.NOT_COVERED].includes(finding.verdict);
      if (evidence) evidence.hidden = !view.sameTrials || !explained;
    }
  },
});

/** Returns the verdict. The share is that of the full ranges, whatever part of them is looked at. */
function verdict(worse, p, share, { clear, significant, leastCovered, verdicts }) {
  if (Number.isNaN(p)) return verdicts.UNKNOWN;
  if (share !== null && share < leastCovered) return verdicts.NOT_COVERED;
  if (worse <= 1 - clear) return verdicts.CONSISTENT;
  return p < significant ? verdicts.VIOLATED : verdicts.NO_SEPARATION;
}
