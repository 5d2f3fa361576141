"""A methods section for a paper's appendix: what was done in a study, as Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from levelfield.analysis.intervals import LEVEL, SIGNIFICANCE, needed_permutations, needed_trials
from levelfield.analysis.permutation import PERMUTATIONS
from levelfield.analysis.results import Results
from levelfield.formatting import format_metric, join_words, pluralize
from levelfield.report.caveats import code_sentences, provenance_sentences, sampling_sentence, stopped_sentences
from levelfield.report.columns import PERCENTILES, reported_metric
from levelfield.report.latex import latex
from levelfield.report.spaces import space_tables
from levelfield.schedules import WARMUP
from levelfield.study import Refined, Study, workload_of
from levelfield.study_optimizer import Optimizer
from levelfield.taxonomy.order import inclusions
from levelfield.workload import Workload

Section = tuple[str, list[str]]  # heading and sentences


def methods(results: Results) -> dict[str, str]:
    """Return the section by file name."""
    sections = [("Setup", list(_setup(results))), ("Search", list(_search(results)))]
    sections += [("Statistics", list(_statistics(results))), ("Software", list(_software(results)))]
    return {"methods.md": _markdown(results, sections), "methods.tex": _latex(sections)}


def _setup(results: Results) -> Iterator[str]:
    study = results.study
    workload = workload_of(study)
    names = join_words(list(study.optimizers))
    yield f"We compared {names} on the workload {study.workload}: {workload.summary}."
    yield (
        f"Each trial trained for {pluralize(study.steps, 'step')}{_batch(study)} and was evaluated {evaluated(study)}."
    )
    yield from _precision(study)
    schedules = join_words(list(dict.fromkeys(map(_schedule, study.optimizers.values()))), "or")
    yield f"Learning-rate schedule: {schedules}."
    if study.scale < 1:
        yield f"This was a dry run at {study.scale:.2g} of the study's steps, trials, and pool."


def _schedule(optimizer: Optimizer) -> str:
    warmup = WARMUP in optimizer.scheduled and WARMUP in optimizer.space.names
    return f"{optimizer.schedule}{' after a linear warmup' if warmup else ''}"


def _batch(study: Study) -> str:
    return f" with a batch size of {study.batch_size:,}" if study.batch_size else ""


def _precision(study: Study) -> Iterator[str]:
    if not isinstance(workload_of(study), Workload):  # other training code may do as it likes
        return
    if study.precision == "bfloat16":
        yield "Losses and gradients were computed in bfloat16 from weights kept in float32."
    elif study.precision == "float32":
        yield "All products were computed in float32."


def evaluated(study: Study) -> str:
    return "at the end" if study.eval_interval >= study.steps else f"every {pluralize(study.eval_interval, 'step')}"


def _search(results: Results) -> Iterator[str]:
    study = results.study
    if study.sampling:
        yield f"The trials were not trained by levelfield but imported. {sampling_sentence(study)}"
        yield from stopped_sentences(study, results.states)
    elif study.search == "grid":
        yield "Each optimizer's hyperparameters were searched over a grid of its own."
    else:
        yield (
            "Each optimizer's hyperparameters were searched over a space of its own with scrambled Sobol' points (seed "
            f"{study.seed}), following Choi et al. (2020)."
        )
    yield "The search spaces are listed below."
    if changes := [change for change in study.refined if change.optimizer in study.optimizers]:
        changed = pluralize(len({(change.optimizer, change.axis) for change in changes}), "range")
        earlier = join_words(list(dict.fromkeys(change.study for change in changes)))
        outside = _outside_trials(changes)
        beyond = f", after {pluralize(outside, 'trial')} outside the ranges" if outside else ""
        yield f"{changed} of them had been changed after earlier searches ({earlier}){beyond}."
    pools = sorted({len(outcome.pool) for outcome in results.outcomes.values()})
    if pools == [study.pool]:
        yield f"The pool of each optimizer holds its first {pluralize(study.pool, 'feasible trial')}."
    else:
        counts = [f"{len(outcome.pool):,} ({name})" for name, outcome in results.outcomes.items()]
        yield f"The pools were not all complete; of {study.pool:,} feasible trials they hold {join_words(counts)}."
    lost = {name: outcome.tried - len(outcome.pool) for name, outcome in results.outcomes.items()}
    yield "A trial is feasible if its training loss stays finite."
    if any(lost.values()):
        counts = [f"{count:,} ({name})" for name, count in lost.items() if count]
        yield f"Infeasible trials were left out and replaced by the next points: {join_words(counts)}."
    else:
        yield "All trials were feasible."


def _outside_trials(changes: Sequence[Refined]) -> int:
    """Return how many trials were run outside the ranges; those of an optimizer's round are counted once."""
    counts: dict[tuple[str, str], int] = {}
    for change in changes:
        key = (change.study, change.optimizer)
        counts[key] = max(counts.get(key, 0), change.outside_trials)
    return sum(counts.values())


def _statistics(results: Results) -> Iterator[str]:
    study, k = results.study, results.k()
    reported = reported_metric(results)
    also = f"; for the selected trial we also report {reported}" if reported != study.select else ""
    yield f"The best of K = {k} trials is selected by {study.select} at the last step{also}."
    yield (
        f"We report the median best of {k}: the quantile of {study.select} over single trials at 1 − 0.5^(1/{k}) = "
        f"{1 - 0.5 ** (1 / k):.2g}, counted from the best."
    )
    if study.is_tested:
        yield (
            f"Its {LEVEL:.0%} confidence interval lies between two order statistics of the pool. For independent "
            f"trials it covers the median with at least that probability, whatever the distribution."
        )
        if study.pool < (needed := needed_trials(k)) and study.search != "grid":
            yield f"It is open on the better side, because bounding it takes at least {needed} trials."
    how = "with replacement, as in Choi et al. (2020)" if study.replacement else "without replacement"
    yield (
        f"The mean and the {PERCENTILES} range describe the luck of tuning: the distribution of the best of {k} trials "
        f"drawn from the pool {how}, computed exactly."
    )
    pairs = math.comb(len(results.outcomes), 2)
    if pairs and study.is_tested:
        permutations = max(PERMUTATIONS, needed_permutations(pairs))
        yield (
            f"One optimizer is said to beat another only if a two-sided permutation test of their win rates (at most "
            f"{permutations:,} permutations) rejects chance at {SIGNIFICANCE:.0%} for the whole study, with Holm's "
            f"correction over {pluralize(pairs, 'pair')}."
        )
    if study.target:
        value = format_metric(study.target.metric, study.target.value)
        yield (
            f"Steps to the target ({study.target.metric} {value}) are those of the fastest of {k} trials. A trial that "
            f"misses the target counts as infinitely slow."
        )
        if pairs and study.is_tested:
            yield "Steps to the target are tested in the same way, with a correction of their own."
    if study.is_tested and (edges := len(inclusions(study))):
        yield (
            f"For each inclusion between the optimizers ({edges} in all), a one-sided permutation test with "
            f"Holm's correction asks whether the more general optimizer is worse than its special case."
        )
    if results.reruns:
        seeds = sorted({outcome.tried for outcome in results.reruns.values()})
        counts = join_words([str(count) for count in seeds], "or")
        yield f"The best trials of {join_words(list(results.reruns))} were trained again with {counts} new seeds."


def _software(results: Results) -> Iterator[str]:
    yield from code_sentences(results)
    yield from provenance_sentences(results)
    codes = {entry["code"] for entry in results.provenance if "code" in entry}
    if codes:
        yield f"Custom code: {results.study.code_name} ({', '.join(sorted(code[:12] for code in codes))})."


def _markdown(results: Results, sections: Sequence[Section]) -> str:
    parts = ["# Methods"]
    parts += [f"**{heading}.** {' '.join(sentences)}" for heading, sentences in sections if sentences]
    rows = ["| optimizer | hyperparameter | range |", "|---|---|---|"]
    for table in space_tables(results.study):
        rows += [f"| {table.optimizer} | {row.hyperparameter} | {row.range} |" for row in table.rows]
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def _latex(sections: Sequence[Section]) -> str:
    """Return paragraphs and the table of search spaces, which spaces.tex beside it holds."""
    paragraphs = [
        rf"\paragraph{{{latex(heading)}.}} {latex(' '.join(sentences))}" for heading, sentences in sections if sentences
    ]
    table = [r"\begin{table}[h]", r"\centering", r"\input{spaces.tex}", r"\caption{Search spaces.}", r"\end{table}"]
    return "\n\n".join([*paragraphs, "\n".join(table)]) + "\n"
