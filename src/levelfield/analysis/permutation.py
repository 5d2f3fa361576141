"""A permutation test: is one pool's best of K worse than another's by more than chance?

The report computes the same test in the page from the same random numbers: report/statistics.js must follow every
change here.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from levelfield.analysis.best_of import TOLERANCE

PERMUTATIONS = 9_999
ENOUGH = 200  # the p-value is known well enough once this many permutations have reached the observed lead
NEGLIGIBLE = 1e-9  # the other values are left out of the lead once P(no best has been seen yet) is below this
HASH_MULTIPLIERS = 0x7FEB352D, 0x846CA68B  # of the hash function that deals the trials
_STAGES = 400, 2_000  # permutations after which to stop the tests that are decided; most are decided early
_BLOCK = 1 << 16  # random numbers made at a time


@dataclass(frozen=True)
class LeadTest:
    """The lead that one pool has over another, and what chance alone gives. NaN if a pool is empty."""

    lead: float
    p_value: float  # how often chance alone gives at least this lead
    spread: float  # standard deviation of the leads that chance gives
    reached: int = 1  # how many deals the p-value is counted from, those that gave at least this lead

    def cautious_p_value(self, margin: float) -> float:
        """Return the p-value and so many of its standard errors: the noise of the deals must not make claims."""
        return float(np.minimum(1.0, self.p_value * (1 + margin / math.sqrt(self.reached))))  # NaN stays NaN


@dataclass(frozen=True, eq=False)
class _Ranks:
    """The values of two pools in order: where each run of equal values ends, and how many up to there are ours."""

    ours: int
    n: int
    ends: np.ndarray = field(repr=False)  # 1 … n
    counts: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, ours: np.ndarray, theirs: np.ndarray) -> _Ranks:
        ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
        values = np.concatenate([ours, theirs])
        order = np.argsort(values, kind="stable")
        values = values[order]
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], True)[: len(values)]) + 1
        return cls(len(ours), len(values), ends, np.cumsum(order < len(ours))[ends - 1])

    @property
    def ties(self) -> bytes | int:
        """A key for which values are equal: the number of values if none are."""
        return len(self.ends) if self.ends[-1] == len(self.ends) else self.ends.tobytes()

    def first(self, count: int) -> _Ranks:
        """Return the ranks of the first values only, and of those that equal the last of them."""
        runs = int(np.searchsorted(self.ends, count)) + 1
        return _Ranks(self.ours, self.n, self.ends[:runs], self.counts[:runs])

    def lead(self, k: int) -> float:
        beyond_ours, beyond_theirs = _beyond(self.ours, k), _beyond(self.n - self.ours, k)
        a, b = beyond_ours[self.counts], beyond_theirs[self.ends - self.counts]
        # Our best is among some equal values with probability a_before − a, and wins if theirs comes later.
        return float(np.sum(np.append(1.0, a[:-1]) * b - np.append(1.0, b[:-1]) * a))


def _beyond(size: int, k: int) -> np.ndarray:
    """Return P(the best of k comes after the first i of a pool), i = 0 … size."""
    chances: np.ndarray = ((size - np.arange(size + 1)) / size) ** k
    return chances


def lead(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """Return P(the best of k of ours is lower than the best of k of theirs) minus P(it is higher)."""
    return _Ranks.of(ours, theirs).lead(k)


def relevant(n: int, k: int) -> int:
    """Return how many of the lowest of n values, of two pools together, decide which best of k is lower.

    >>> relevant(1000, 1), relevant(1000, 100)
    (1000, 99)
    """
    return math.ceil(n * float(1 - NEGLIGIBLE ** (1 / (2 * k))) - TOLERANCE * n)


def p_value(ours: np.ndarray, theirs: np.ndarray, k: int, *, permutations: int = PERMUTATIONS) -> float:
    """Return how often chance alone gives ours at least the lead over theirs that it has; lower values are better.

    NaN if a pool is empty.
    """
    return lead_tests([(ours, theirs)], k, permutations=permutations)[0].p_value


def lead_tests(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], k: int, *, permutations: int = PERMUTATIONS
) -> list[LeadTest]:
    """Test the lead of ours over theirs for each pair of pools (ours, theirs); lower values are better.

    The trials of both pools are dealt again at random until enough permutations have reached that lead (Besag and
    Clifford 1991), or all permutations are used. The test is valid for any distribution that both pools share and
    depends only on ranks. High ranks hardly matter to the best of k, so only ``relevant`` values are dealt, and pairs
    of the same sizes share the deals.
    """
    tests = [LeadTest(math.nan, math.nan, math.nan)] * len(pairs)
    groups: dict[tuple[int, int], dict[int, _Ranks]] = defaultdict(dict)
    for i, (ours, theirs) in enumerate(pairs):
        ranks = _Ranks.of(ours, theirs)
        if 0 < ranks.ours < ranks.n:
            groups[ranks.ours, ranks.n][i] = ranks
    for group in groups.values():
        for i, test in _test_group(group, k, permutations):
            tests[i] = test
    return tests


def _test_group(group: dict[int, _Ranks], k: int, permutations: int) -> Iterator[tuple[int, LeadTest]]:
    """Yield the tests of pairs whose pools have the same sizes."""
    shortened = {i: ranks.first(relevant(ranks.n, k)) for i, ranks in group.items()}
    # The same terms as in the permutations, so that equal leads are equal.
    observed = {i: ranks.lead(k) for i, ranks in shortened.items()}
    reached, spreads, start = dict.fromkeys(group, 0), dict.fromkeys(group, math.nan), 0
    for stage in (*_STAGES, permutations):
        stop = min(stage, permutations)
        if not reached or stop <= start:
            break
        leads = _leads_by_ties([shortened[i] for i in reached], k, start, stop)
        for i in list(reached):
            permuted = leads[shortened[i].ties]
            if not start:
                spreads[i] = float(np.std(permuted))
            large = np.flatnonzero(permuted >= observed[i] - TOLERANCE)
            if reached[i] + len(large) >= ENOUGH:
                last = start + int(large[ENOUGH - reached[i] - 1])
                del reached[i]
                yield i, LeadTest(group[i].lead(k), ENOUGH / (last + 1), spreads[i], ENOUGH)
            else:
                reached[i] += len(large)
        start = stop
    for i, count in reached.items():
        yield i, LeadTest(group[i].lead(k), (1 + count) / (1 + permutations), spreads[i], 1 + count)


def _leads_by_ties(pairs: Sequence[_Ranks], k: int, start: int, stop: int) -> dict[bytes | int, np.ndarray]:
    """Return the leads in the permutations start … stop − 1 of pairs with the same sizes, by which values are equal."""
    ours, n = pairs[0].ours, pairs[0].n
    leads: dict[bytes | int, np.ndarray] = {}
    tied: dict[bytes | int, np.ndarray] = {}
    for ranks in pairs:
        if isinstance(ranks.ties, int):
            leads[ranks.ties] = _untied_leads(ranks.ties, ours, n, k, start, stop)
        else:
            tied[ranks.ties] = ranks.ends
    leads.update(zip(tied, _permuted_leads(list(tied.values()), ours, n, k, start, stop), strict=True))
    return leads


@functools.lru_cache(maxsize=32)  # without ties, all pairs of these sizes are alike
def _untied_leads(count: int, ours: int, n: int, k: int, start: int, stop: int) -> np.ndarray:
    return _permuted_leads([np.arange(1, count + 1)], ours, n, k, start, stop)[0]


def _permuted_leads(
    ends_of_runs: Sequence[np.ndarray], ours: int, n: int, k: int, start: int, stop: int
) -> list[np.ndarray]:
    """Return the leads in the permutations start … stop − 1 for each way in which values are equal."""
    beyond_ours, beyond_theirs = _beyond(ours, k), _beyond(n - ours, k)
    ending: dict[int, list[int]] = defaultdict(list)  # number of values → where equal values end there
    for i, ends in enumerate(ends_of_runs):
        for end in ends.tolist():
            ending[end].append(i)
    if not ending:
        return []
    totals = [np.zeros(stop - start) for _ in ends_of_runs]
    before = [(np.ones(()), np.ones(()))] * len(ends_of_runs)
    for end, counts in enumerate(deal(ours, n, start, stop), start=1):
        if end in ending:
            a, b = beyond_ours[counts], beyond_theirs[end - counts]
            for i in ending.pop(end):
                a_before, b_before = before[i]
                totals[i] += a_before * b - b_before * a
                before[i] = a, b
            if not ending:
                break
    return totals


def deal(ours: int, n: int, start: int, stop: int) -> Iterator[np.ndarray]:
    """Yield how many of the first 1, 2, … of n values are ours, for each of the permutations start … stop − 1.

    Each value in turn becomes ours with probability (values that ours still needs) / (values that are left). The array
    is the same each time.
    """
    first = np.arange(start, stop, dtype=np.uint32) * np.uint32(n)
    counts, needed = np.zeros(stop - start, np.intp), np.full(stop - start, ours * 2.0**32)
    rows = max(1, _BLOCK // max(1, stop - start))
    for i in range(0, n, rows):
        positions = np.arange(i, min(i + rows, n))
        block = hash32(first + positions.astype(np.uint32)[:, None]) * (n - positions).astype(float)[:, None]
        for row in block:
            chosen = row < needed
            counts += chosen
            needed -= chosen * 2.0**32
            yield counts


def hash32(x: np.ndarray) -> np.ndarray:
    """Return a random 32-bit number for each counter (Wellons' "lowbias32")."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(HASH_MULTIPLIERS[0])
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(HASH_MULTIPLIERS[1])
    return np.asarray(x ^ (x >> np.uint32(16)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, which controls the error over all of them; NaN is left out.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = np.array(p_values, float)
    tested = np.flatnonzero(~np.isnan(adjusted))
    order = tested[np.argsort(adjusted[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(adjusted[order] * factors), 1.0)
    return [float(p) for p in adjusted]
