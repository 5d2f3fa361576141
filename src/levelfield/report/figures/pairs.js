live("pairs", {
  prepare: (view, texts) => ({ claims: view.claims?.best, texts }),
  * test(view, texts) { return { claims: view.claims.best, texts }; },
  rows: (view, { live: { chart } }, prepared) => (chart === "wins" ? wins(view, prepared) : ranks(view)),
});

function wins(view, { claims, texts }) {
  const claimed = (better, worse) => claims.some(([a, b]) => a === better.number && b === worse.number);
  const verdict = (ours, theirs) => {
    if (!claims) return texts.testing;
    if (claimed(ours, theirs)) return texts.better;
    return claimed(theirs, ours) ? texts.worse : texts.open;
  };
  return view.comparable.flatMap(ours => view.comparable.filter(theirs => theirs !== ours).map(theirs => {
    const chance = view.wins(ours, theirs), lead = chance - view.wins(theirs, ours);
    return {
      row: ours.number, column: theirs.number, ours: ours.name, theirs: theirs.name,
      chance: drawnNumber(chance), lead: drawnNumber(lead), verdict: verdict(ours, theirs),
    };
  }));
}

function ranks(view) {
  const probabilities = view.ranks(view.comparable);
  return view.comparable.flatMap((optimizer, i) =>
    probabilities[i].map((chance, rank) => ({ ...optimizer.fields, rank: rank + 1, chance: drawnNumber(chance) })));
}
