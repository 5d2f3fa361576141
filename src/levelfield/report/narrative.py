"""All sentences about results, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from levelfield.analysis.boundaries import boundaries
from levelfield.analysis.health import health
from levelfield.analysis.reruns import reruns
from levelfield.analysis.results import Results
from levelfield.formatting import format_metric, format_percent, join_words, percent_rounded_down, pluralize
from levelfield.rounding import two_digits_up
from levelfield.taxonomy.audit import audit
from levelfield.user_code import is_other_version

_MOSTLY = 0.75  # from this win rate on, a worse mean needs an explanation


def sentences(results: Results) -> list[str]:
    """Return the result in words: caveats, the ranking, incomplete pools, the target, and the inclusions."""
    study = results.study
    ready = [name for name, outcome in results.outcomes.items() if any(map(math.isfinite, outcome.values()))]
    lines = caveats(results)
    for name in [name for name in results.outcomes if name not in ready]:
        outcome = results.outcome(name)
        missing = study.select if outcome.pool else f"feasible trials ({outcome.tried} tried)"
        lines.append(f"{name} has no {missing}; it is left out of the ranking.")
    if len(ready) > 1:
        lines += _ranking(results, ready)
    for name in ready:
        count = results.count(name)
        if not count.full:
            trials = f"{count.feasible} of {count.n} feasible trials"
            where = "in that part of its space" if results.narrowed_spaces else "so far"
            lines.append(f"{name} has {trials} {where}.")
    if study.target and ready:
        lines.append(_target(results, ready))
    return lines + _inclusions(results)


def caveats(results: Results) -> list[str]:
    """Return what a reader must know before anything else."""
    study, lines = results.study, []
    if study.scale < 1:
        lines.append(f"Scaled to {study.scale:.2g} of the study's steps, trials, and pool: a dry run, not a result.")
    lines += _other_code(results)
    if study.select.startswith("test_"):
        held_out = next(iter(results.outcomes.values())).test_metric
        instead = f"see {held_out} instead" if held_out else "no other data are held out"
        lines.append(f"Trials are selected by {study.select}, so their {study.select} is optimistic; {instead}.")
    return lines


def _other_code(results: Results) -> list[str]:
    """Say which trials were trained with another version of the study's custom code than the current one."""
    study, outdated, mixed = results.study, [], []
    file = Path(study.code or "").name
    for name, trials in results.trials.items():
        current = study.code_version(name)
        codes = [trial.code or current for trial in trials]
        old, versions = sum(is_other_version(code, current) for code in codes), len(set(codes))
        if old == len(trials) and versions == 1:
            outdated.append(name)
        elif old:
            mixed.append(
                f"{old} of {len(trials)} trials of {name} were trained with a different version of {file} than the "
                f"current one; its results mix {versions} versions, which may not be comparable."
            )
    if outdated:
        names = join_words(outdated)
        mixed.insert(0, f"All trials of {names} were trained with a different version of {file} than the current one.")
    for name, outcome in results.reruns.items():
        best = results.outcome(name).best_trial
        if study.code_version(name) and best and any(is_other_version(run.code, best.code) for run in outcome.pool):
            mixed.append(f"{name}'s reruns were trained with a different version of {file} than its best trial.")
    for pair in results.followed:
        depends = study.code_version(pair.special) or study.code_version(pair.general)
        if depends and is_other_version(pair.trial.code, pair.followed.code):
            mixed.append(
                f"The trial in which {pair.general} imitates {pair.special} was trained with a different version of "
                f"{file} than the trial that it imitates."
            )
    return mixed


def _ranking(results: Results, names: Sequence[str]) -> list[str]:
    study, k = results.study, results.study.trials
    means = {name: results.outcome(name).best(k).mean for name in names}
    first, *others = [name for name in results.ranking() if name in means]
    if math.isnan(means[first]):
        return [f"No optimizer has an expected {study.select}: too many of the best of {k} are not finite."]
    best = format_metric(study.select, means[first])
    lines = [f"With {pluralize(k, 'trial')} each, {first} has the best expected {study.select}: {best}."]
    wins = {name: results.beats(first, name) for name in others}
    losses = {name: results.beats(name, first) for name in others}
    tied = [name for name in others if max(wins[name], losses[name]) < 0.005]
    beaten = [name for name in others if (first, name) in results.separated() and name not in tied]
    ahead = [name for name in others if losses[name] >= _MOSTLY]
    close = [name for name in others if name not in beaten + ahead + tied]
    if tied:
        lines.append(f"It ties with {join_words(tied)}.")
    if beaten:
        fewest = min(wins[name] for name in beaten)
        share = "all" if fewest > 1 - 1e-9 else f"at least {percent_rounded_down(fewest)} of"
        lines.append(f"It beats {join_words(beaten)} in {share} repetitions, more than chance explains.")
    for name in ahead:
        lines.append(
            f"However, {name} wins {percent_rounded_down(losses[name])} of repetitions against it; in the others it is "
            f"so much worse that its mean is worse."
        )
    if close:
        lines.append(_not_separated(results, first, close, wins))
    settled = results.settles()
    if settled and 1 < settled <= k <= min(len(results.outcome(name).pool) for name in names):
        lines.append(f"The ranking is the same from {settled} trials on.")
    elif settled and settled > k:
        lines.append(f"The ranking has not settled: it still changes up to {settled} trials.")
    if not results.separated():
        lines.append("These trials do not separate any two optimizers.")
    return lines


def _not_separated(results: Results, first: str, close: Sequence[str], wins: Mapping[str, float]) -> str:
    """Say who is not clearly different from the first, and what it would take to tell."""
    rates = [f"{round(100 * wins[name])}%" for name in close]
    shown = [f"{close[0]} (wins {rates[0]} of repetitions)"]
    shown += [f"{name} ({rate})" for name, rate in zip(close[1:], rates[1:], strict=True)]
    sentence = f"Not clearly different from {join_words(shown, 'or')}."
    tests = {frozenset((test.ours, test.theirs)): test for test in results.pair_tests()}
    needed = {name: tests[frozenset((first, name))].needed for name in close}
    known = {name: trials for name, trials in needed.items() if trials is not None}
    if known:
        easiest = min(known, key=lambda name: known[name])
        trials = f"{two_digits_up(known[easiest]):,} trials"
        sentence += f" If the difference from {easiest} is what it seems, about {trials} of each would show it."
    return sentence


def _target(results: Results, names: Sequence[str]) -> str:
    target, k = results.study.target, results.study.trials
    assert target
    shown = f"{target.metric} {format_metric(target.metric, target.value)}"
    reached = {name: results.outcome(name).steps_to_target(k) for name in names}
    able = {name: steps for name, steps in reached.items() if steps.probability > 0}
    if not able:
        return f"No trial reached the target ({shown})."
    fewest = round(min(steps.mean for steps in able.values()))
    fastest = [name for name, steps in able.items() if round(steps.mean) == fewest]
    shares = {name: format_percent(able[name].probability) for name in fastest}
    if len(set(shares.values())) == 1:
        often = f"{shares[fastest[0]]} of repetitions"
    else:
        often = join_words([f"{share} ({name})" for name, share in shares.items()]) + " of repetitions"
    verb = "reaches" if len(fastest) == 1 else "reach"
    return f"{join_words(fastest)} {verb} the target ({shown}) fastest: {fewest:,} steps on average, in {often}."


def _inclusions(results: Results) -> list[str]:
    findings = [finding for finding in audit(results, results.k()) if finding.verdict != "unknown"]
    if not findings:
        return []
    verdicts = [finding.verdict.value for finding in findings]
    kinds = ("consistent", "no separation", "violated")
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in kinds if verdict in verdicts]
    return [
        f"Inclusions (each general optimizer against its special case): {', '.join(counts)}.",
        *(str(finding) for finding in findings if finding.verdict == "violated"),
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
        wanted = [outcome.select, *([outcome.test_metric] if outcome.test_metric else [])]
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
    """Describe what is wrong with the searches: ranges that the trials object to, and failed checks."""
    ranges = [str(boundary) for boundary in boundaries(results) if not boundary.settled]
    return ranges + [str(check) for check in health(results) if not check.healthy]
