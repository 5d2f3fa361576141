"""What N trials say, and do not say, about the best of K.

A pool is a sample of N trials from an optimizer's distribution over its search space, so every statistic of it is
uncertain. The intervals here are confidence intervals for the *population*: they shrink as N grows.

The best of K trials is at most x with probability 1 − (1 − F(x))^K, where F is the distribution of one trial. Its
median is therefore the population's quantile at q = 1 − (1/2)^(1/K), and the number of trials below it is binomial:
the interval between two order statistics covers it with a probability that does not depend on F.

The distribution of F at the ordered trials does not depend on F either: F(x₍₁₎) < … < F(x₍N₎) are distributed as N
ordered uniform numbers. ``beats`` draws them for both pools, and bounds what the mass between the trials could do.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from levelfield.analysis.best_of import as_values, check_k, probability_better
from levelfield.analysis.permutation import PERMUTATIONS, LeadTest, holm, lead, lead_tests, relevant

LEVEL = 0.9  # of a confidence interval
SIGNIFICANCE = 0.05  # chance that any two equal optimizers of a study are separated
TIED = 0.005  # win rates below this are as good as none
MARGIN = 2  # standard errors that are added to a p-value from random permutations
ONE_SIDED_MARGIN = 3  # with 2, the level was above 5% at N = 100 (benchmarks/calibration.py --pairs)
MANY = 2_000  # values to deal in each permutation: beyond, there are fewer permutations
FEWEST_PERMUTATIONS, PERMUTATIONS_PER_CLAIM = 1_999, 8
_DRAWS = 2_000
_IMPROBABLE = 1e-12  # trials beyond which the best of k lies with less than this chance are treated alike
_POWER = 0.8
_HOPELESS = 1_000  # times as many trials: beyond, a number would suggest more than is known
_SLACK = 1e-12


@dataclass(frozen=True)
class Interval:
    """The median best of K trials and its confidence interval. An open end is infinite."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Return the interval of the values times a factor, which may be negative but not 0."""
        low, high = (self.low, self.high) if factor > 0 else (self.high, self.low)
        return Interval(factor * self.median, factor * low, factor * high)


@dataclass(frozen=True)
class Chance:
    """A probability and its confidence interval."""

    probability: float
    low: float
    high: float


def interval(values: Sequence[float] | np.ndarray, k: int, level: float = LEVEL) -> Interval:
    """Return the median best (lowest) of k trials and its confidence interval.

    NaN marks an infeasible trial, which is left out. The interval holds for any distribution. An end is open, that is
    −∞ or ∞, if there are too few trials to bound it: the lower one needs about 4.3 k of them.

    >>> interval(range(100), k=10)
    Interval(median=6.0, low=2.0, high=11.0)
    >>> interval(range(10), k=10).low
    -inf
    """
    check_k(k)
    check_level(level)
    ordered = np.sort(feasible(values))
    n = len(ordered)
    if not n:
        return Interval(math.nan, math.nan, math.nan)
    q = 1 - 0.5 ** (1 / k)
    below = binomial_cdf(n, q)  # P(at most i trials lie below the median best of k)
    tail = (1 - level) / 2
    low = int(np.searchsorted(below, tail + _SLACK, side="right"))  # trials certain enough to lie below it
    high = int(np.searchsorted(below, 1 - tail - _SLACK)) + 1
    # The smallest x with 1 − (1 − F(x))^K ≥ 1/2, in the pool itself.
    median = ordered[min(max(math.ceil(q * n - _SLACK), 1), n) - 1]
    return Interval(
        float(median),
        float(ordered[low - 1]) if low else -math.inf,
        float(ordered[high - 1]) if high <= n else math.inf,
    )


def needed_trials(k: int, level: float = LEVEL) -> int:
    """Return how many trials it takes to bound the median best of k from below.

    >>> needed_trials(10), needed_trials(100)
    (44, 433)
    """
    check_k(k)
    check_level(level)
    return math.ceil(k * math.log2(2 / (1 - level)) - _SLACK)


def binomial_cdf(n: int, p: float) -> np.ndarray:
    """Return P(a binomial count is at most i), i = 0 … n."""
    if p >= 1:
        return np.append(np.zeros(n), 1.0)
    counts = np.arange(n + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs = (
        log_factorials[-1]
        - log_factorials
        - log_factorials[::-1]
        + counts * math.log(p)
        + (n - counts) * math.log1p(-p)
    )
    cumulated: np.ndarray = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return cumulated


def beats(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray, k: int, level: float = LEVEL
) -> Chance:
    """Return P(the best of k of ours is lower than the best of k of theirs), with its confidence interval."""
    check_k(k)
    check_level(level)
    ours, theirs = np.sort(feasible(ours)), np.sort(feasible(theirs))
    if not len(ours) or not len(theirs):
        return Chance(math.nan, math.nan, math.nan)
    if k > min(len(ours), len(theirs)):
        raise ValueError(f"k = {k}: expected at most {min(len(ours), len(theirs))}, the number of feasible trials")
    tail = (1 - level) / 2
    estimate = probability_better(ours, theirs, k)
    low = float(np.quantile(_chances(ours, theirs, k, favor_ours=False), tail))
    high = float(np.quantile(_chances(ours, theirs, k, favor_ours=True), 1 - tail))
    return Chance(estimate, max(min(low, estimate), 0.0), min(max(high, estimate), 1.0))  # sums of float32


def chance_of_any(successes: int, n: int, k: int, level: float = LEVEL) -> Chance:
    """Return P(at least one of k trials succeeds) if successes of n trials did, with its confidence interval.

    The Clopper–Pearson interval of one trial's chance, which is exact, carries over because the chance of any rises
    with it.

    >>> chance_of_any(0, 20, k=1).low, round(chance_of_any(0, 20, k=1).high, 3)
    (0.0, 0.139)
    """
    from scipy.special import betaincinv

    check_k(k)
    check_level(level)
    if not n:
        return Chance(math.nan, math.nan, math.nan)
    tail = (1 - level) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    probability, low, high = (1 - (1 - p) ** k for p in (successes / n, low, high))
    return Chance(probability, low, high)


def _chances(ours: np.ndarray, theirs: np.ndarray, k: int, favor_ours: bool) -> np.ndarray:
    """Return the largest (or the least) P(best of ours < best of theirs) that each draw of both distributions allows.

    Gap i lies between ordered trials i and i + 1 (0: −∞, n + 1: ∞), and its mass may lie anywhere in it. The largest
    chance puts ours at the lower end of each gap and theirs at the upper end; the least chance the other way around.
    """
    beyond_ours, beyond_theirs = _beyond(len(ours), k, stream=0), _beyond(len(theirs), k, stream=1)
    gaps = len(beyond_ours) - 1
    if favor_ours:
        theirs_before = np.concatenate([[0], np.searchsorted(theirs, ours[: gaps - 1], side="right")])
    else:
        ends = np.append(ours, np.inf)[:gaps]  # the last gap has no end
        theirs_before = np.searchsorted(theirs, ends, side="right") + 1
        theirs_before[-1] = len(theirs) + 1
    best = beyond_ours[:-1] - beyond_ours[1:]  # P(the best of ours lies in gap i)
    later = beyond_theirs[np.minimum(theirs_before, len(beyond_theirs) - 1)]
    chances: np.ndarray = np.einsum("ij,ij->j", best, later)
    return chances


@functools.lru_cache(maxsize=4)  # most pools of a study have the same size
def _beyond(size: int, k: int, stream: int) -> np.ndarray:
    """Draw P(the best of k lies beyond the i-th ordered trial), i = 0 … size + 1, as [i, draw]; the last row is 0.

    Trials that are too bad to be the best of k are left out; the last gap then starts after the others.
    """
    first = min(size, math.ceil(size * (1 - _IMPROBABLE ** (1 / k))))
    generator = np.random.default_rng([size, stream])
    # Uniform spacings are exponential numbers divided by their sum; the sum of the others has a gamma distribution.
    cumulated = np.cumsum(generator.standard_exponential((first, _DRAWS)), axis=0)
    total = cumulated[-1] + generator.standard_gamma(size + 1 - first, _DRAWS)
    beyond: np.ndarray = np.concatenate([np.ones((1, _DRAWS)), (1 - cumulated / total) ** k, np.zeros((1, _DRAWS))])
    return beyond.astype(np.float32)


@dataclass(frozen=True)
class PairTest:
    """Two pools compared at k trials each: the size of the difference, and whether it is more than chance."""

    ours: str
    theirs: str
    wins: float  # P(ours is strictly better), by the pools themselves
    losses: float  # P(theirs is strictly better)
    p_value: float  # two-sided, corrected over all pairs
    needed: int | None = None  # trials for each that would separate them, if the difference is what it seems

    @property
    def names(self) -> tuple[str, str]:
        return self.ours, self.theirs

    @property
    def separated(self) -> bool:
        """Whether one is better by more than chance. Two that tie in nearly all repetitions are not."""
        return self.p_value < SIGNIFICANCE and max(self.wins, self.losses) >= TIED

    @property
    def better(self) -> str:
        """The one that wins more often, separated or not."""
        return self.ours if self.wins >= self.losses else self.theirs

    @property
    def worse(self) -> str:
        return self.theirs if self.better == self.ours else self.ours


@dataclass(frozen=True, eq=False)
class Contest:
    """Pools that are compared with each other at k trials each; lower values are better."""

    pools: Mapping[str, np.ndarray]  # without NaN; none is empty
    k: int
    independent: bool = True  # False: a tuner or a person chose the points, so no test holds

    @classmethod
    def of(cls, pools: Mapping[str, Sequence[float] | np.ndarray], k: int, independent: bool = True) -> Contest:
        values = {name: feasible(pool) for name, pool in pools.items()}
        return cls({name: pool for name, pool in values.items() if len(pool)}, k, independent)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations(self.pools, 2))


def compare_pairs(pools: Mapping[str, Sequence[float] | np.ndarray], k: int) -> list[PairTest]:
    """Test every two pools against each other, as ``compare_all`` does; lower values are better."""
    check_k(k)
    if not isinstance(pools, Mapping):
        raise ValueError(f"{type(pools).__name__}: expected a mapping from names to lists of values")
    return compare_all([Contest.of(pools, k)])[0]


def compare_all(contests: Sequence[Contest]) -> list[list[PairTest]]:
    """Test every two pools of each contest against each other.

    Two-sided permutation tests with Holm's correction over all pairs of all contests: the chance that any two pools
    from the same distribution are separated is at most SIGNIFICANCE, whatever the distribution and however small the
    pools. The p-values of a contest whose trials are not independent are 1.
    """
    tested = [
        (contest.pools[ours], contest.pools[theirs], contest.k)
        for contest in contests
        if contest.independent
        for ours, theirs in contest.pairs
    ]
    tests = iter(family_tests(tested))

    def compared(contest: Contest, ours: str, theirs: str) -> PairTest:
        first, second = contest.pools[ours], contest.pools[theirs]
        wins, losses = (probability_better(*pools, contest.k) for pools in ((first, second), (second, first)))
        p, needed = 1.0, None
        if contest.independent:
            p, test = next(tests)
            if p >= SIGNIFICANCE:
                needed = needed_to_separate(test, min(len(first), len(second)), len(tested))
        return PairTest(ours, theirs, wins, losses, p, needed)

    return [[compared(contest, *pair) for pair in contest.pairs] for contest in contests]


def family_tests(pairs: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> list[tuple[float, LeadTest]]:
    """Test pairs of pools, each with its own k, and return p-values with Holm's correction over all of them."""
    tests: dict[int, tuple[float, LeadTest]] = {}
    for k in {k for *_, k in pairs}:
        members = [i for i, (*_, own) in enumerate(pairs) if own == k]
        tests |= zip(members, two_sided_tests([pairs[i][:2] for i in members], k, len(pairs)), strict=True)
    corrected = holm([tests[i][0] for i in range(len(pairs))])
    return [(p, tests[i][1]) for i, p in enumerate(corrected)]


def needed_permutations(family: int) -> int:
    """Return with how many permutations a p-value can be well below what the correction over so many tests asks for."""
    return round(PERMUTATIONS_PER_CLAIM * family / SIGNIFICANCE)


def two_sided_tests(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], k: int, family: int | None = None
) -> list[tuple[float, LeadTest]]:
    """Return the two-sided p-value of a lead: twice the cautious p-value of the pool that leads.

    ``family``: how many tests are corrected together, by default these pairs.
    """
    needed = needed_permutations(family or len(pairs))
    # It takes long to deal many values, and such pools separate easily: as many deals as the correction needs.
    many = any(relevant(len(ours) + len(theirs), k) > MANY for ours, theirs in pairs)
    permutations = max(FEWEST_PERMUTATIONS if many else PERMUTATIONS, needed)
    leaders = [(ours, theirs) if lead(ours, theirs, k) >= 0 else (theirs, ours) for ours, theirs in pairs]
    tests = lead_tests(leaders, k, permutations=permutations)
    return [(min(1.0, 2 * test.cautious_p_value(MARGIN)), test) for test in tests]


def one_sided_tests(pairs: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> list[float]:
    """Return the cautious p-value of the lead of ours over theirs for each pair (ours, theirs)."""
    return [test.cautious_p_value(ONE_SIDED_MARGIN) for test in lead_tests(pairs, k)]


def needed_to_separate(test: LeadTest, n: int, pairs: int) -> int | None:
    """Estimate how many trials of each would separate two pools of n with a power of 80%, if the lead is what it seems.

    The lead that chance gives shrinks with the square root of the number of trials. None if that is more than a
    thousand times as many as there are, because then the pools show no sign of a difference.
    """
    normal = NormalDist()
    wanted = normal.inv_cdf(1 - SIGNIFICANCE / (2 * max(pairs, 1))) + normal.inv_cdf(_POWER)
    if not test.spread or test.lead < wanted * test.spread / math.sqrt(_HOPELESS):
        return None
    return max(n + 1, math.ceil(n * (wanted * test.spread / test.lead) ** 2))


def separated(pools: Mapping[str, Sequence[float] | np.ndarray], k: int) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) whose best of k differ by more than chance; lower values are better.

    NaN marks an infeasible trial, which is left out; use infinity for a trial that counts as the worst. The chance that
    any two pools from the same distribution are called separated is at most 5%.

    >>> separated({"a": range(50), "b": range(40, 90), "c": range(41, 91)}, k=5)
    [('a', 'b'), ('a', 'c')]
    """
    return [(test.better, test.worse) for test in compare_pairs(pools, k) if test.separated]


def feasible(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = as_values(values)
    kept: np.ndarray = array[~np.isnan(array)]
    return kept


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: expected a number between 0 and 1")
