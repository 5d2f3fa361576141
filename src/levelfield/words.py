"""Results in words and compact text, the same for the terminal and the report."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield.comparison import Comparison

CLEAR = 0.95  # from this probability on, one optimizer is said to beat another
_MOSTLY = 0.75  # and from this one on, that its mean alone does not tell


def show_number(value: Any) -> str:
    """Three digits, or as many nines as a value close to 1 has and two digits more.

    >>> show_number(0.000123456), show_number(0.13), show_number(1234.5), show_number(float("nan"))
    ('1.23e-04', '0.13', '1234', '–')
    >>> show_number(1e-8)
    '1e-08'
    >>> show_number(0.9996789)
    '0.99968'
    """
    if isinstance(value, bool | str):
        return str(value)
    if math.isnan(value):
        return "–"
    if 0.99 < value < 1:
        return f"{value:.{1 - math.floor(math.log10(1 - value))}f}".rstrip("0")
    if value == 0 or 1e-3 <= abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else re.sub(r"\.?0+e", "e", f"{value:.2e}")


def show_range(dimension: Any) -> str:
    """A dimension as text: its kind and ends, its choices, or its value."""
    spec = dimension.spec()
    if not isinstance(spec, Mapping):
        return show_number(spec)
    kind, content = next(iter(spec.items()))
    listed = ", ".join(show_number(value) for value in content)
    return f"{kind} [{listed}]" if kind != "choice" else f"{{{listed}}}"


def show_metric(metric: str, value: float) -> str:
    """Shares in percent; everything else as a number."""
    if math.isnan(value):
        return "–"
    return f"{100 * value:.2f}%" if is_share(metric) else f"{value:.4g}"


def is_share(metric: str) -> bool:
    """Whether a metric is one of those that are shown in percent, of any split."""
    return metric.partition("_")[2] in ("error", "accuracy")


def show_hyperparameters(hyperparameters: Mapping[str, Any]) -> str:
    """The learning rate first, its schedule last.

    >>> show_hyperparameters({"decay_steps": 0.5, "epsilon": 1e-8, "learning_rate": 0.1})
    'learning_rate 0.1, epsilon 1e-08, decay_steps 0.5'
    """
    return ", ".join(f"{name} {show_number(hyperparameters[name])}" for name in sorted(hyperparameters, key=show_order))


def show_order(name: str) -> tuple[bool, bool]:
    """Where a hyperparameter stands: the learning rate first, its schedule last."""
    return name.startswith("decay_"), name != "learning_rate"


def sentences(comparison: Comparison) -> list[str]:
    """The answer first: who wins, who cannot be told apart, what to mind."""
    study = comparison.study
    outcomes = {name: comparison.outcome(name) for name in study.optimizers}
    ready = {name: each for name, each in outcomes.items() if any(map(math.isfinite, each.values()))}
    said = []
    if study.scale < 1:
        said.append(f"Scaled to {study.scale:.2g} of the study's steps, trials and pool: a try of its path, no result.")
    if (codes := len({each["code"] for each in comparison.provenance if "code" in each})) > 1:
        said.append(f"Its trials were trained with {codes} versions of the study's own code: are they one experiment?")
    for name in [name for name in outcomes if name not in ready]:
        missing = study.select if outcomes[name].pool else f"feasible trial ({outcomes[name].tried} tried)"
        said.append(f"{name} has no {missing}: it takes no part in what follows.")
    if len(ready) > 1:
        said += _ranking(comparison, list(ready))
    for name, outcome in ready.items():
        if not study.full(name, len(outcome.pool), outcome.tried):
            count = f"{len(outcome.pool)} of {study.pool} feasible trials"
            part = f"{name} has {count} in that part of its space."
            said.append(part if comparison.narrow else f"{name}'s pool is not full: {count}.")
    if study.target and ready:
        said.append(_target(comparison, list(ready)))
    return said + _inclusions(comparison)


def _ranking(comparison: Comparison, names: list[str]) -> list[str]:
    study, k = comparison.study, comparison.study.trials
    sign = -1 if comparison.outcome(names[0]).metrics[study.select] == "maximize" else 1
    means = {name: comparison.outcome(name).best(k).mean for name in names}
    order = sorted(names, key=lambda name: (math.isnan(means[name]), sign * means[name]))
    first, *others = order
    if math.isnan(means[first]):
        return [f"No optimizer has an expected {study.select}: too many of the best of {k} have no finite one."]
    said = [
        f"With {k} trial{'s' if k > 1 else ''} each, {first} has the best expected {study.select}: "
        f"{show_metric(study.select, means[first])}."
    ]
    chances = {name: comparison.beats(first, name) for name in others}
    against = {name: comparison.beats(name, first) for name in others}
    tied = [name for name in others if max(chances[name], against[name]) < 0.005]
    beaten = [name for name in others if chances[name] >= CLEAR]
    ahead = [name for name in others if against[name] >= _MOSTLY]
    close = [name for name in others if name not in beaten + ahead + tied]
    if tied:
        said.append(f"It ties with {listed(tied)}.")
    if beaten:
        least = min(chances[name] for name in beaten)
        share = "all" if least > 1 - 1e-9 else f"at least {_at_least(least)} of"
        said.append(f"It beats {listed(beaten)} in {share} repetitions.")
    for name in ahead:
        often = _at_least(against[name])
        said.append(f"Yet {name} is better in {often} of repetitions: in the others, so much worse that its mean is.")
    if close:
        shares = listed([f"{name} ({min(round(100 * chances[name]), 94)}%)" for name in close])  # 95% would be clear
        said.append(f"It is not told apart from {shares}; in brackets, how often it is the better one.")
    settled = comparison.settles()
    if settled and 1 < settled <= k <= min(len(comparison.outcome(name).pool) for name in names):
        said.append(f"The ranking is the same from {settled} trials on.")
    elif settled and settled > k:
        said.append(f"The ranking has not settled: it still changes up to {settled} trials.")
    if not any(comparison.beats(a, b) >= CLEAR for a, b in itertools.permutations(names, 2)):
        said.append("No optimizer is clearly better than another here.")
    return said


def _at_least(share: float) -> str:
    """In percent, rounded down: what is nearly all is not all."""
    return f"{math.floor(100 * share + 1e-9)}%"


def _inclusions(comparison: Comparison) -> list[str]:
    """What the audit found."""
    findings = [finding for finding in comparison.audit() if finding.verdict != "unknown"]
    if not findings:
        return []
    verdicts = [finding.verdict.value for finding in findings]
    counts = [
        f"{verdicts.count(each)} {each}" for each in ("consistent", "no separation", "violated") if each in verdicts
    ]
    return [
        f"Inclusions, each general optimizer against its special case: {listed(counts)}.",
        *(str(finding) for finding in findings if finding.verdict == "violated"),
    ]


def seeded_sentences(comparison: Comparison) -> list[str]:
    """What became of the extra trials at special optimizers' best points."""
    select = comparison.study.select
    said = []
    for each in comparison.seeded:
        own, followed = (show_metric(select, trial.curve.final(select)) for trial in (each.trial, each.followed))
        said.append(f"{each.edge.general} following {each.edge.special}'s best trial ({followed}): {own}")
    return said


def rerun_sentences(comparison: Comparison, trial: str = "best trial") -> list[str]:
    """The best trials again, with fresh seeds."""
    said = []
    for name, outcome in comparison.reruns.items():
        parts = []
        for metric in [outcome.select, *([outcome.test_metric] if outcome.test_metric else [])]:
            values = [value for value in outcome.values(metric) if math.isfinite(value)]
            if values:
                mean, low, high = (
                    show_metric(metric, each) for each in (sum(values) / len(values), min(values), max(values))
                )
                parts.append(f"{metric} {mean} ({low} … {high})")
        diverged = outcome.tried - len(outcome.pool)
        seeds = f"{outcome.tried} seed{'s' if outcome.tried > 1 else ''}"
        seeds += f", {diverged} of them infeasible" if diverged else ""
        said.append(f"{name}'s {trial} with {seeds}: {', '.join(parts) or 'nothing feasible'}.")
    return said


def search_sentences(comparison: Comparison) -> list[str]:
    """What is wrong with the searches: ranges that the trials object to, and checks that fail."""
    ranges = [str(each) for each in comparison.boundaries() if not each.settled]
    return [f"{each}." for each in ranges + [str(each) for each in comparison.health() if not each.healthy]]


def _target(comparison: Comparison, names: list[str]) -> str:
    study, k = comparison.study, comparison.study.trials
    assert study.target
    aim = f"{study.target.metric} {show_metric(study.target.metric, study.target.value)}"
    reached = {name: comparison.outcome(name).steps_to_target(k) for name in names}
    able = {name: each for name, each in reached.items() if each.probability > 0}
    if not able:
        return f"No trial reached the target ({aim})."
    least = round(min(each.mean for each in able.values()))
    fastest = [name for name, each in able.items() if round(each.mean) == least]
    one = len(fastest) == 1
    shares = {name: f"{able[name].probability:.0%}" for name in fastest}
    same = len(set(shares.values())) == 1
    chances = shares[fastest[0]] if same else listed([f"{name} {share}" for name, share in shares.items()])
    return (
        f"{listed(fastest)} reach{'es' if one else ''} the target ({aim}) soonest, after {least:,.0f} of "
        f"{study.steps:,} steps on average, where {'it does' if one else 'they do'} ({chances} of repetitions)."
    )


def show_time(seconds: float) -> str:
    """
    >>> show_time(0.123), show_time(300), show_time(5400), show_time(3.6e6)
    ('0.12 s', '300 s', '1.5 hours', '1,000 hours')
    """
    value, unit = (seconds, "s") if seconds < 360 else (seconds / 3600, "hours")
    return f"{value:.2g} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "trial"), counted(2000, "trial")
    ('1 trial', '2,000 trials')
    """
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def listed(names: list[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
