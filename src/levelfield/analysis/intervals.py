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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from levelfield.analysis.best_of import check_k, probability_better
from levelfield.analysis.permutation import ENOUGH, PERMUTATIONS, holm, lead, p_value, permuted_leads

LEVEL = 0.9  # of a confidence interval
SIGNIFICANCE = 0.05  # chance of a false claim about any pair of a study
MANY = 2_000  # values to deal in each permutation: beyond, there are fewer permutations
FEWEST_PERMUTATIONS, PERMUTATIONS_PER_CLAIM = 1_999, 8
_DRAWS = 2_000
_LEADS = 400  # permutations that show how far chance alone spreads the lead
_POWER = 0.8
_HOPELESS = 1_000  # times as many trials: beyond, a number would suggest more than is known
_SLACK = 1e-12


@dataclass(frozen=True)
class Interval:
    """The median best of K trials and its confidence interval. An open end is infinite."""

    median: float
    low: float
    high: float

    def times(self, sign: int) -> Interval:
        """Return the interval of the values times 1 or −1."""
        return self if sign > 0 else Interval(-self.median, -self.high, -self.low)


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
    generator = np.random.default_rng(0)
    lows, highs = _bounds(ours, theirs, k, generator)
    tail = (1 - level) / 2
    estimate = probability_better(ours, theirs, k)
    low, high = float(np.quantile(lows, tail)), float(np.quantile(highs, 1 - tail))
    return Chance(estimate, min(low, estimate), max(high, estimate))


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


def _bounds(
    ours: np.ndarray, theirs: np.ndarray, k: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the distribution functions at the trials; return the least and the largest chance that each draw allows.

    The mass between two ordered trials may lie anywhere between them. The least chance puts ours at the upper end of
    each gap and theirs at the lower end; the largest chance the other way around.
    """

    def survival(size: int) -> np.ndarray:
        """P(one trial lies beyond the i-th ordered one), i = 0 … size + 1, for each draw."""
        spacings = generator.exponential(size=(_DRAWS, size + 1))
        cumulated = np.cumsum(spacings, axis=1)
        return np.concatenate([np.ones((_DRAWS, 1)), 1 - cumulated / cumulated[:, -1:]], axis=1).clip(0.0, 1.0)

    beyond_ours, beyond_theirs = survival(len(ours)), survival(len(theirs))  # columns 0 … n + 1; the last one is 0
    return (
        _chance(ours, theirs, beyond_ours, beyond_theirs, k, favor_ours=False),
        _chance(ours, theirs, beyond_ours, beyond_theirs, k, favor_ours=True),
    )


def _chance(
    ours: np.ndarray, theirs: np.ndarray, beyond_ours: np.ndarray, beyond_theirs: np.ndarray, k: int, favor_ours: bool
) -> np.ndarray:
    """Return P(best of ours < best of theirs) with ours' mass at an end of each gap and theirs' at the other.

    Gap i of ours lies between ordered trials i and i + 1 (0: −∞, n + 1: ∞).
    """
    best = beyond_ours[:, :-1] ** k - beyond_ours[:, 1:] ** k  # P(the best of ours lies in gap i)
    if favor_ours:  # ours at the lower ends of their gaps, theirs at the upper ends
        gaps_below = np.concatenate([[0], np.searchsorted(theirs, ours, side="right")])
    else:
        gaps_below = np.concatenate([np.searchsorted(theirs, ours, side="right"), [len(theirs)]]) + 1
    chance: np.ndarray = np.sum(best * beyond_theirs[:, gaps_below] ** k, axis=1)
    return chance


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
        return self.p_value < SIGNIFICANCE

    @property
    def better(self) -> str:
        """The one that wins more often, separated or not."""
        return self.ours if self.wins >= self.losses else self.theirs

    @property
    def worse(self) -> str:
        return self.theirs if self.better == self.ours else self.ours


def compare_pairs(pools: Mapping[str, Sequence[float] | np.ndarray], k: int) -> list[PairTest]:
    """Test every two pools against each other; lower values are better.

    Two-sided permutation tests with Holm's correction over all pairs: the chance that any claim of a study is false is
    at most SIGNIFICANCE, whatever the distributions and however small the pools.
    """
    check_k(k)
    values = {name: feasible(pool) for name, pool in pools.items()}
    names = [name for name, pool in values.items() if len(pool)]
    pairs = [(ours, theirs) for i, ours in enumerate(names) for theirs in names[i + 1 :]]
    corrected = holm([two_sided_p_value(values[ours], values[theirs], k, len(pairs)) for ours, theirs in pairs])
    tests = []
    for (ours, theirs), p in zip(pairs, corrected, strict=True):
        wins, losses = (probability_better(values[a], values[b], k) for a, b in ((ours, theirs), (theirs, ours)))
        needed = None if p < SIGNIFICANCE else needed_to_separate(values[ours], values[theirs], k, len(pairs))
        tests.append(PairTest(ours, theirs, wins, losses, p, needed))
    return tests


def two_sided_p_value(ours: np.ndarray, theirs: np.ndarray, k: int, pairs: int = 1) -> float:
    """Return the p-value of the lead that either has: twice that of the one that leads, and a little more.

    A p-value from random permutations has a standard error. It is added, so that the noise of the test itself does not
    make a study claim too much.
    """
    leader, other = (ours, theirs) if lead(ours, theirs, k) >= 0 else (theirs, ours)
    permutations = PERMUTATIONS
    if len(ours) + len(theirs) > MANY:  # which separate easily and take long: as many as the correction needs
        permutations = min(PERMUTATIONS, max(FEWEST_PERMUTATIONS, round(PERMUTATIONS_PER_CLAIM * pairs / SIGNIFICANCE)))
    p = p_value(leader, other, k, permutations=permutations)
    reached = min(p * (1 + permutations), ENOUGH)  # permutations with at least that lead
    return min(1.0, 2 * p * (1 + 1 / math.sqrt(reached)))


def needed_to_separate(ours: np.ndarray, theirs: np.ndarray, k: int, pairs: int) -> int | None:
    """Estimate how many trials of each would separate the two with a power of 80%, if the lead is what it seems.

    The lead that chance gives shrinks with the square root of the number of trials. None if that is more than a
    thousand times the present number, that is, if there is no sign of a difference.
    """
    spread = float(np.std(permuted_leads(ours, theirs, k, _LEADS)))
    observed = abs(lead(ours, theirs, k))
    normal = NormalDist()
    wanted = normal.inv_cdf(1 - SIGNIFICANCE / (2 * max(pairs, 1))) + normal.inv_cdf(_POWER)
    if not spread or observed < wanted * spread / math.sqrt(_HOPELESS):
        return None
    n = min(len(ours), len(theirs))
    return max(n + 1, math.ceil(n * (wanted * spread / observed) ** 2))


def separated(pools: Mapping[str, Sequence[float] | np.ndarray], k: int) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) whose best of k differ by more than chance; lower values are better.

    NaN marks an infeasible trial, which is left out. The chance that any of the claims is false is at most 5%.

    >>> separated({"a": range(50), "b": range(40, 90), "c": range(41, 91)}, k=5)
    [('a', 'b'), ('a', 'c')]
    """
    return [(test.better, test.worse) for test in compare_pairs(pools, k) if test.separated]


def feasible(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, float)
    if array.ndim != 1:
        raise ValueError(f"values have shape {array.shape}; expected one dimension")
    kept: np.ndarray = array[~np.isnan(array)]
    return kept


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: expected a number between 0 and 1")
