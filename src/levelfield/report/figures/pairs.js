live("pairs", {
  * test(view, texts) { return texts; },  // the tests themselves are the view's
  rows: (view, { live: { chart } }, texts) => (chart === "wins" ? wins(view, texts) : ranks(view)),
});

function wins(view, { better, worse, open, testing }) {
  const tested = ({ p, separated }, ours, winner) =>
    ({ p: drawnNumber(p), verdict: separated ? (winner === ours ? better : worse) : open });
  return view.comparable.flatMap(ours => view.comparable.filter(theirs => theirs !== ours).map(theirs => {
    const chance = view.wins(ours, theirs), lead = chance - view.wins(theirs, ours);
    const pair = [ours.number, theirs.number];
    const test = view.tests?.best.find(test => pair.includes(test.better) && pair.includes(test.worse));
    return {
      row: ours.number, column: theirs.number, ours: ours.name, theirs: theirs.name,
      chance: drawnNumber(chance), lead: drawnNumber(lead),
      ...(test ? tested(test, ours.number, test.better) : { p: null, verdict: testing }),
    };
  }));
}

function ranks(view) {
  const probabilities = view.ranks(view.comparable);
  return view.comparable.flatMap((optimizer, i) =>
    probabilities[i].map((chance, rank) => ({ ...optimizer.fields, rank: rank + 1, chance: drawnNumber(chance) })));
}
