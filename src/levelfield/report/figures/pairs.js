live("pairs", {
  rows: (view, { live: { chart } }) => (chart === "wins" ? wins(view) : ranks(view)),
});

function wins({ k, shown }) {
  return shown.flatMap(ours => shown.filter(theirs => theirs !== ours).map(theirs => {
    const chance = probabilityBetter(ours.ranked, theirs.ranked, k);
    const lead = chance - probabilityBetter(theirs.ranked, ours.ranked, k);
    return {
      row: ours.number, column: theirs.number, ours: ours.name, theirs: theirs.name,
      chance: drawnNumber(chance), lead: drawnNumber(lead),
    };
  }));
}

function ranks({ k, shown }) {
  const probabilities = rankProbabilities(shown.map(optimizer => optimizer.ranked), k);
  return shown.flatMap((optimizer, i) =>
    probabilities[i].map((chance, rank) => ({ ...optimizer.fields, rank: rank + 1, chance: drawnNumber(chance) })));
}
