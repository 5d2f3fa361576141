"""The sentences about results, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from levelfield.analysis.boundaries import boundaries
from levelfield.analysis.health import health
from levelfield.analysis.intervals import LEVEL, TIED, Interval, PairTest
from levelfield.analysis.reruns import reruns
from levelfield.analysis.results import Results
from levelfield.analysis.step_times import NOTICEABLE, differ, spread
from levelfield.formatting import (
    format_count,
    format_interval,
    format_metric,
    format_ordinal,
    format_percent,
    format_seconds,
    is_share,
    join_words,
    percent_rounded_down,
    pluralize,
)
from levelfield.report.caveats import caveats, pool_sentence
from levelfield.report.columns import PERCENTILES
from levelfield.rounding import two_digits_up
from levelfield.study import workload_of
from levelfield.taxonomy.audit import Verdict, audit, coverage_obstacles
from levelfield.trial import StepTime
from levelfield.usual import departures

_MANY_INFEASIBLE = 0.1  # share of a pool's trials that deserves a sentence


def sentences(results: Results) -> list[str]:
    """Return the result in words: caveats, incomplete pools, the ranking, the target, and the inclusions."""
    study, ready = results.study, results.comparable()
    lines = caveats(results)
    for name in [name for name in results.outcomes if name not in ready]:
        lines.append(_left_out(results, name))
    for name in ready:
        count = results.count(name)
        if not count.full:
            trials = f"{count.feasible:,} of {count.n:,} feasible trials"
            where = "in that part of its space" if results.narrowed_spaces else "so far"
            lines.append(f"{name} has {trials} {where}.")
    if ready:
        lines += _ranking(results, ready)
    lines += _infeasible(results, ready)
    if study.target and ready:
        lines += _target(results, ready)
    return lines + _seconds(results, ready) + _inclusions(results)


def _left_out(results: Results, name: str) -> str:
    outcome, k = results.outcome(name), results.k()
    if outcome.pool and outcome.best_trial:
        return (
            f"{name} has {pluralize(len(outcome.pool), 'feasible trial')}, fewer than K = {k:,}; it is not ranked yet."
        )
    if not outcome.tried:
        return f"{name} has no feasible trials yet; it is left out of the ranking."
    missing = results.study.select if outcome.pool else f"feasible trials ({outcome.tried:,} tried)"
    return f"{name} has no {missing}; it is left out of the ranking."


def _infeasible(results: Results, names: Sequence[str]) -> list[str]:
    """Say how many trials of which optimizers are infeasible, if these are many, and what that costs a tuner."""
    outcomes = [results.outcome(name) for name in names]
    many = [outcome for outcome in outcomes if outcome.infeasible_share > _MANY_INFEASIBLE]
    if not many:
        return []
    k = results.k()
    counts = [f"{outcome.tried - len(outcome.pool):,} of {outcome.tried:,} ({outcome.name})" for outcome in many]
    needed = sorted(math.ceil(k * outcome.tried / len(outcome.pool)) for outcome in many)
    about = " to ".join(dict.fromkeys((f"{needed[0]:,}", f"{needed[-1]:,}")))
    expected = f"; to get {k:,} of them, a tuner would run about {about}" if results.study.is_tested else ""
    return [f"Many trials are infeasible: {join_words(counts)}. K counts feasible trials{expected}."]


def _ranking(results: Results, names: Sequence[str]) -> list[str]:
    k, select = results.k(), results.study.select
    intervals = {name: results.outcome(name).interval(k) for name in names}
    first, *others = [name for name in results.ranking() if name in intervals]
    best = intervals[first]
    if not math.isfinite(best.median):
        return [f"No optimizer has a median {select}: too many of the best of {k} are not finite."]
    only_draw = not results.study.replacement and all(len(results.outcome(name).pool) == k for name in names)
    if only_draw and results.study.is_chosen:
        lines = [_best_of_all(results, [first, *others])]
    else:
        median = _median(results, best, partial(format_metric, select))
        lines = [f"With {pluralize(k, 'trial')} each, {first} has the best median {select}: {median}."]
        if not others:
            lines = [f"With {pluralize(k, 'trial')}, {first} has a median {select} of {median}."]
        if others and results.study.is_tested:
            lines += _separations(results, first, others)
        elif others:
            medians = [f"{name} ({format_metric(select, intervals[name].median)})" for name in others]
            lines.append(f"It is followed by {join_words(medians)}; this order is not tested.")
    if warning := pool_sentence(results.study):
        lines.append(warning)
    lines += _other_metric(results, [first, *others])
    lines += _precision(results, best.median)
    lines += [line for name in names if (line := _skewed(results, name))]
    return lines


def _best_of_all(results: Results, names: Sequence[str]) -> str:
    """Say what the best trials are, where these do not tell what fewer or others would have given."""
    select, k = results.study.select, results.k()
    best = [f"{format_metric(select, results.outcome(name).best(k).mean)} for {name}" for name in names]
    differ = "; whether a difference is chance was not tested" if len(names) > 1 else ""
    return f"Of all trials, the best {select} is {join_words(best)}{differ}."


def _median(results: Results, interval: Interval, text: Callable[[float], str]) -> str:
    """Return a median, with its confidence interval if the trials are independent."""
    return text(interval.median) + (f" ({_confidence(interval, text)})" if results.study.is_tested else "")


def _confidence(interval: Interval, text: Callable[[float], str]) -> str:
    """Return an interval in words.

    >>> _confidence(Interval(0.12, -math.inf, 0.13), format_percent)
    '90% confidence interval: at most 13%'
    """
    if math.isinf(interval.low) and math.isinf(interval.high):
        ends = "unknown"
    elif math.isinf(interval.low):
        ends = f"at most {text(interval.high)}"
    elif math.isinf(interval.high):
        ends = f"at least {text(interval.low)}"
    else:
        ends = f"{text(interval.low)} to {text(interval.high)}"
    return f"{LEVEL:.0%} confidence interval: {ends}"


def _separations(results: Results, first: str, others: Sequence[str]) -> list[str]:
    """Say which optimizers the first one beats, and which comparisons are open."""
    wins = {name: results.beats(first, name) for name in others}
    losses = {name: results.beats(name, first) for name in others}
    tied = [name for name in others if max(wins[name], losses[name]) < TIED]
    beaten = [name for name in others if (first, name) in results.separated()]
    ahead = [name for name in others if (name, first) in results.separated()]
    close = [name for name in others if name not in beaten + ahead + tied]
    lines = []
    if tied:
        lines.append(f"It ties with {join_words(tied)}.")
    if beaten:
        fewest = min(wins[name] for name in beaten)
        share = "all" if fewest > 1 - 1e-9 else f"at least {percent_rounded_down(fewest)} of"
        lines.append(f"It beats {join_words(beaten)} in {share} repetitions, more than chance explains.")
    for name in ahead:
        share = percent_rounded_down(losses[name])
        lines.append(f"However, {name} beats it in {share} of repetitions, more than chance explains.")
    if close:
        lines.append(_not_separated(results.pair_tests(), first, close, wins))
    if not results.separated():
        lines.append("These trials do not separate any two optimizers.")
    return lines


def _not_separated(tests: Sequence[PairTest], first: str, close: Sequence[str], wins: Mapping[str, float]) -> str:
    """Say who is not clearly different from the first, and what it would take to tell."""
    rates = [format_percent(wins[name]) for name in close]
    shown = [f"{close[0]} (which it beats in {rates[0]} of repetitions)"]
    shown += [f"{name} ({rate})" for name, rate in zip(close[1:], rates[1:], strict=True)]
    sentence = f"{first} is not clearly different from {join_words(shown, 'or')}."
    tested = {test.worse if test.better == first else test.better: test for test in tests if first in test.names}
    needed = {name: count for name in close if (count := tested[name].needed) is not None}
    if needed:
        easiest = min(needed, key=lambda name: needed[name])
        trials = f"{two_digits_up(needed[easiest]):,} trials of each"
        sentence += f" If the difference from {easiest} is what it seems, about {trials} would probably show it."
    return sentence


def _other_metric(results: Results, ranking: Sequence[str]) -> list[str]:
    """Say how the ranking looks by the test metric of the selected trial."""
    k, first = results.k(), ranking[0]
    metric = results.outcome(first).held_out_metric
    if metric is None:
        return []
    sign = results.outcome(first).metrics[metric].sign
    means = {name: results.outcome(name).best(k, metric).mean for name in ranking}
    order = sorted((name for name in ranking if math.isfinite(means[name])), key=lambda name: sign * means[name])
    if first not in order:
        return []
    own, best = (format_metric(metric, means[name]) for name in (first, order[0]))
    if own == best:
        return [f"The mean {metric} of {first}'s selected trials is {own}."]
    place = format_ordinal(order.index(first) + 1)
    return [
        f"By the mean {metric} of the selected trials, {order[0]} is first ({best}) and {first} is {place} ({own}); "
        f"this order is not tested."
    ]


def _precision(results: Results, value: float) -> list[str]:
    """Say how precise one value of the selection metric is, given the size of its evaluation set."""
    select = results.study.select
    examples = workload_of(results.study).examples.get(select.partition("_")[0])
    if examples is None or not is_share(select) or not 0 < value < 1:
        return []
    error = f"{100 * math.sqrt(value * (1 - value) / examples):.2g}"
    points = f"{error} {'point' if error == '1' else 'points'}"
    near = format_metric(select, value)
    return [f"A single {select} near {near} has a standard error of {points}, from {examples:,} examples."]


def _skewed(results: Results, name: str) -> str | None:
    """Explain a mean outside its own percentiles."""
    select, best = results.study.select, results.outcome(name).best(results.k())
    mean, *ends = (format_metric(select, value) for value in (best.mean, best.low, best.high))
    if best.low <= best.mean <= best.high or math.isnan(best.mean) or mean in ends:
        return None
    return (
        f"{name}'s mean ({mean}) lies outside its {PERCENTILES} range "
        f"({format_interval(select, best.low, best.high)}), because a few repetitions select a far worse trial."
    )


def _target(results: Results, names: Sequence[str]) -> list[str]:
    """Say who reaches the target in the fewest steps; a repetition that misses it counts as infinitely slow."""
    target, k = results.study.target, results.k()
    assert target
    shown = f"{target.metric} {format_metric(target.metric, target.value)}"
    outcomes = {name: results.outcome(name) for name in names}
    chance = {name: outcome.reached(k).probability for name, outcome in outcomes.items()}
    median = {name: outcome.steps_interval(k).median for name, outcome in outcomes.items()}
    if not any(chance.values()):
        return [f"No trial reached the target ({shown})."]
    first, *others = sorted(
        names, key=lambda name: (median[name], -chance[name], outcomes[name].steps_to_target(k).mean)
    )
    often = f"{format_percent(chance[first])} of repetitions"
    if math.isinf(median[first]):
        return [f"No optimizer reaches the target ({shown}) in most repetitions; {first} does most often ({often})."]
    steps = _median(results, outcomes[first].steps_interval(k), format_count)
    equal = [name for name in others if median[name] == median[first]]
    shared = f", as many as {join_words(equal)}" if equal else ""
    lines = [
        f"{first} has the fewest median steps to the target ({shown}): {steps}{shared}; it reaches the target in "
        f"{often}."
    ]
    separated = {(test.better, test.worse) for test in results.step_tests() if test.separated}
    slower = [name for name in others if (first, name) in separated]
    close = [name for name in others if (first, name) not in separated]
    described = {name: f"{name} ({_steps(median[name], chance[name])})" for name in others}
    if slower:
        lines.append(
            f"{first} is faster than {join_words([described[name] for name in slower])}, more than chance explains."
        )
    if close and results.study.is_tested:
        lines.append(f"{first} is not clearly faster than {join_words([described[name] for name in close], 'or')}.")
    evaluations = f"Evaluations are {pluralize(results.study.eval_interval, 'step')} apart"
    if results.study.eval_interval >= results.study.steps:
        evaluations = "Trials are evaluated only at the end of training"
    lines.append(f"{evaluations}, so steps to the target are known only that precisely.")
    transient = {name: outcome for name, outcome in outcomes.items() if outcome.transient}
    if transient:
        counts = [
            f"{outcome.transient} of {int(np.isfinite(outcome.steps).sum())} ({name})"
            for name, outcome in transient.items()
        ]
        lines.append(f"Some trials reached the target only for a while and ended short of it: {join_words(counts)}.")
    return lines


def _seconds(results: Results, names: Sequence[str]) -> list[str]:
    """Say what steps take, and, if they differ, who reaches the target in the least time."""
    times = {name: measured for name, measured in results.step_times.items() if name in names}
    if len(times) < 2:
        return []
    quick, *_, slow = sorted(times, key=lambda name: times[name].seconds)
    least, most = (format_seconds(times[name].seconds) for name in (quick, slow))
    source = step_time_source(times)
    if differ(times):
        ratio = f"{times[slow].seconds / times[quick].seconds:.2g}"
        line = f"A step of {slow} takes {ratio} times as long as one of {quick} ({most} and {least} {source})."
        return [line, *(_time_to_target(results, names) if results.study.target else [])]
    ends = least if least == most else f"{least} to {most}"
    if (factor := spread(times)) > NOTICEABLE:
        return [
            f"The steps of different optimizers cannot be compared in seconds ({ends} {source}): repeated "
            f"measurements of the same optimizer differ by a factor of {factor:.2g}. Evaluations may be too close "
            f"together, or other programs used the device."
        ]
    return [f"A step takes about as long with each optimizer ({ends} {source}), so seconds would compare the same."]


def step_time_source(times: Mapping[str, StepTime]) -> str:
    """Say where and how the times of steps were measured."""
    slots = sorted({each.slots for each in times.values()})
    trials = " to ".join(f"{count:,}" for count in dict.fromkeys((slots[0], slots[-1])))
    device = next(iter(times.values())).device
    beside = f"with {trials} trials side by side" if slots[-1] > 1 else "with one trial alone"
    return f"per trial, {beside} on {device}, without evaluations"


def _time_to_target(results: Results, names: Sequence[str]) -> list[str]:
    """Say who reaches the target in the least time. This is no claim: evaluations are far apart, also in seconds."""
    seconds = {name: results.outcome(name).seconds_interval(results.k()) for name in names}
    first, *others = sorted(names, key=lambda name: seconds[name].median)
    best = seconds[first]
    if not math.isfinite(best.median):
        return []
    reached = [name for name in others if math.isfinite(seconds[name].median)]
    after = join_words([f"{name} ({format_seconds(seconds[name].median)})" for name in reached])
    steps = min(results.study.eval_interval, results.study.steps)
    apart = sorted(steps * results.step_times[name].seconds for name in [first, *reached])
    known = " to ".join(dict.fromkeys((format_seconds(apart[0]), format_seconds(apart[-1]))))
    return [
        f"{first} has the least median time to the target: {format_seconds(best.median)} "
        f"({_confidence(best, format_seconds)}){f', before {after}' if after else ''}. This order is not tested; "
        f"evaluations are {known} apart."
    ]


def _steps(median: float, chance: float) -> str:
    steps = "no median" if math.isinf(median) else f"{format_count(median)} steps"
    return f"{steps}, {format_percent(chance)}"


def _inclusions(results: Results) -> list[str]:
    findings = [finding for finding in audit(results, results.k()) if finding.verdict is not Verdict.UNKNOWN]
    if not findings:
        return []
    groups = []
    for verdict in (Verdict.CONSISTENT, Verdict.NO_SEPARATION, Verdict.VIOLATED, Verdict.NOT_COVERED):
        members = [finding for finding in findings if finding.verdict is verdict]
        name = "not covered by this study's spaces" if verdict is Verdict.NOT_COVERED else verdict
        pairs = (f"{finding.edge.special} ⊆ {finding.edge.general} ({finding.coverage.text})" for finding in members)
        if members:
            groups.append(f"{name}: {', '.join(pairs)}")
    return [
        f"Inclusions (coverage in parentheses): {'; '.join(groups)}.",
        *(f"Coverage unknown: {obstacle}." for obstacle in coverage_obstacles(findings)),
        *(str(finding) for finding in findings if finding.loses),
    ]


def followed_sentences(results: Results) -> list[str]:
    """Describe the extra trials that imitate special optimizers' best trials."""
    select, lines = results.study.select, []
    for pair in results.followed:
        own, followed = (format_metric(select, trial.curve.final(select)) for trial in (pair.trial, pair.followed))
        lines.append(f"{pair.general} imitating {pair.special}'s best trial ({followed}): {own}")
    return lines


def rerun_sentences(results: Results, index: int | None = None) -> list[str]:
    """Compare each optimizer's best trial, or its trial at an index, with its reruns: the best is partly luck."""
    lines = []
    for rerun in reruns(results, index):
        outcome = results.outcome(rerun.optimizer)
        wanted = [outcome.select, *([outcome.held_out_metric] if outcome.held_out_metric else [])]
        metrics = [metric for metric in wanted if metric in rerun.metrics]
        trial = f"{rerun.optimizer}'s {'best trial' if index is None else f'trial {index}'}"
        again = pluralize(rerun.seeds, "rerun") + f" with {'a new seed' if rerun.seeds == 1 else 'new seeds'}"
        if not metrics:
            lines.append(f"{trial}: no feasible trial in {again}.")
            continue
        own, means = [], []
        for metric in metrics:
            spread = rerun.metrics[metric]
            shown = {key: format_metric(metric, value) for key, value in asdict(spread).items()}
            own.append(f"{metric} {shown['selected']}")
            means.append(shown["mean"] + (f" ({shown['min']} … {shown['max']})" if rerun.feasible > 1 else ""))
        infeasible = rerun.seeds - rerun.feasible
        again += f", {infeasible} of them infeasible," if infeasible else ""
        verb = "gives" if rerun.seeds == 1 else "average"
        lines.append(f"{trial} has {join_words(own)}; {again} {verb} {join_words(means)}.")
    return lines


def search_sentences(results: Results) -> list[str]:
    """Describe what is wrong with the searches: unusual ranges, ranges that the trials object to, and failed checks."""
    ranges = [str(departure) for departure in departures(results.study)]
    ranges += [str(boundary) for boundary in boundaries(results) if not boundary.settled]
    return ranges + [str(check) for check in health(results) if not check.healthy]
