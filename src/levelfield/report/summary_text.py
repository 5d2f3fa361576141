"""A summary of several studies in words: the columns of its table and its sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levelfield.analysis.intervals import SIGNIFICANCE, needed_trials
from levelfield.analysis.profiles import Bounds
from levelfield.analysis.summary import Standing, Standings, StudyStanding
from levelfield.formatting import MISSING, format_ends, join_words, pluralize
from levelfield.report.caveats import caveats as study_caveats
from levelfield.report.columns import CONFIDENCE, PERCENTILES, Text

_RANK_CONFIDENCE = f"{100 * (1 - SIGNIFICANCE):.0f}% CI"
_COARSE = 2  # evaluations: a ratio to so few of them says little


@dataclass(frozen=True)
class SummaryColumn:
    key: str
    heading: Text
    text: Callable[[Standing], Text]
    is_number: bool = True
    needs_target: bool = False


def columns(summary: Standings) -> list[SummaryColumn]:
    """Return the columns of the table; without a target that anybody reaches, only the ranks."""
    return [column for column in _COLUMNS if summary.counted or not column.needs_target]


def format_decimal(value: float) -> str:
    """
    >>> format_decimal(1.5), format_decimal(2.0), format_decimal(math.inf), format_decimal(math.nan)
    ('1.5', '2', '∞', '–')
    """
    if math.isnan(value):
        return MISSING
    return "∞" if math.isinf(value) else f"{value:.2f}".rstrip("0").rstrip(".")


def format_bounds(bounds: Bounds) -> str:
    """
    >>> format_bounds(Bounds(2, 1, 3.5)), format_bounds(Bounds(2, 1, math.inf)), format_bounds(Bounds(1, 1, 1))
    ('1 – 3.5', '≥ 1', '1')
    """
    low, high = format_decimal(bounds.low), format_decimal(bounds.high)
    return low if low == high else format_ends(low, high, bounds.low, bounds.high)


def _name_text(row: Standing) -> Text:
    return Text(row.optimizer, f"missing in {join_words(row.missing)}" if row.missing else "")


def _luck_text(row: Standing) -> Text:
    luck = row.rank_in_repetitions
    return Text(format_decimal(luck.mean), f"{format_decimal(luck.low)} – {format_decimal(luck.high)}")


def _mean_ratio_text(row: Standing) -> Text:
    complete = len(row.reached) == row.counted
    return Text(format_decimal(row.geometric_mean), "" if complete else f"over {len(row.reached)} reached")


def _worst_text(row: Standing) -> Text:
    if row.worst is None:
        return Text(MISSING)
    if row.missed:
        return Text("missed", join_words(row.missed))
    ratio = row.ratios[row.worst].value
    return Text(format_decimal(ratio), row.worst if ratio > 1 else "")


def _reached_text(row: Standing) -> Text:
    missing = row.counted - len(row.ratios)
    return Text(f"{len(row.reached)} of {len(row.ratios)}", f"{missing} missing" if missing else "")


_COLUMNS = (
    SummaryColumn("optimizer", Text("optimizer"), _name_text, is_number=False),
    SummaryColumn(
        "rank",
        Text("mean rank", _RANK_CONFIDENCE),
        lambda row: Text(format_decimal(row.mean_rank.value), format_bounds(row.mean_rank)),
    ),
    SummaryColumn("luck", Text("rank in repetitions", PERCENTILES), _luck_text),
    SummaryColumn(
        "score",
        Text("score", CONFIDENCE),
        lambda row: Text(format_decimal(row.score.value), format_bounds(row.score)) if row.ratios else Text(MISSING),
        needs_target=True,
    ),
    SummaryColumn("ratio", Text("steps / best", "geometric mean"), _mean_ratio_text, needs_target=True),
    SummaryColumn("worst", Text("worst", "steps / best"), _worst_text, needs_target=True),
    SummaryColumn("reached", Text("target reached", "studies"), _reached_text, needs_target=True),
)


# ---------------------------------------------------------------------------- sentences


def title(summary: Standings) -> str:
    return f"Summary of {join_words([study.results.title for study in summary.studies])}"


def caveats(summary: Standings) -> list[str]:
    """Return what a reader must know before anything else."""
    return [f"{study.name}: {line}" for study in summary.studies for line in study_caveats(study.results)]


def sentences(summary: Standings) -> list[str]:
    """Return the result in words: caveats, the studies, the ranks, the steps to the targets, and what is missing."""
    return [
        *caveats(summary),
        *_setting(summary),
        *_ranks(summary),
        *_steps(summary),
        *_misses(summary),
        *_absences(summary),
        *_limits(summary),
    ]


def _setting(summary: Standings) -> list[str]:
    studies = join_words([_title(study) for study in summary.studies])
    lines = [f"{pluralize(len(summary.optimizers), 'optimizer')}, matched by name, in {studies}."]
    for row in summary.optimizers:
        rules: dict[str, list[str]] = {}
        for study in summary.studies:
            if row.optimizer in study.places:
                rules.setdefault(study.results.study.optimizer(row.optimizer).rule.name, []).append(study.name)
        if len(rules) > 1:
            parts = [f"{rule} in {join_words(names)}" for rule, names in rules.items()]
            lines.append(f"Caution: {row.optimizer} is not the same rule everywhere: {join_words(parts)}.")
    return lines


def _title(study: StudyStanding) -> str:
    """Return a study's name, its K, and what else differs from the study's own settings."""
    changes = {setting: value for setting, value in study.results.overrides.items() if setting != "trials"}
    return f"{study.name} ({', '.join([f'K = {study.k}', *(f'{key} = {value}' for key, value in changes.items())])})"


def _ranks(summary: Standings) -> list[str]:
    complete = [row for row in summary.optimizers if not row.missing]
    lines = ["No optimizer is in all studies, so mean ranks are not comparable."] if not complete else []
    pairs = sum(len(study.places) * (len(study.places) - 1) // 2 for study in summary.studies)
    separated = sum(len(study.separated) for study in summary.studies)
    if len(complete) > 1:
        best = complete[0].mean_rank
        first = [row for row in complete if row.mean_rank.value == best.value]
        others = [row.optimizer for row in complete if row not in first and row.mean_rank.low <= best.high]
        lines.append(f"{_leaders(first, 'the best mean rank')}: {_estimate(first, best, _RANK_CONFIDENCE)}.")
        if others and separated:
            lines.append(f"That of {join_words(others, 'or')} may be as good: the intervals overlap.")
    if not separated:
        lines.append("The trials do not separate any two optimizers in any study, so any order is possible.")
    else:
        lines.append(f"The trials separate {separated} of {pluralize(pairs, 'pair')} in these studies.")
    return lines


def _leaders(rows: Sequence[Standing], what: str) -> str:
    names = [row.optimizer for row in rows]
    return f"{join_words(names)} {_are(names, 'has', 'share')} {what}"


def _estimate(rows: Sequence[Standing], bounds: Bounds, name: str) -> str:
    """Return an estimate with its interval; without it if several optimizers share the estimate."""
    value = format_decimal(bounds.value)
    return value if len(rows) > 1 else f"{value} ({_confidence(bounds, name)})"


def _confidence(bounds: Bounds, name: str) -> str:
    """
    >>> _confidence(Bounds(2, 1, 3.5), "90% CI")
    '90% confidence interval: 1 to 3.5'
    """
    return f"{name.replace('CI', 'confidence interval')}: {format_bounds(bounds).replace(' – ', ' to ')}"


def _steps(summary: Standings) -> list[str]:
    if not summary.counted:
        return []
    rows = sorted(summary.optimizers, key=lambda row: -row.score.value)
    best = rows[0].score
    first = [row for row in rows if row.score.value == best.value]
    others = [row.optimizer for row in rows if row not in first and row.score.high >= best.low]
    lines = [
        f"{_leaders(first, 'the highest score for steps to target, from 0 to 1')}: "
        f"{_estimate(first, best, CONFIDENCE)}."
    ]
    if others:
        lines.append(f"That of {join_words(others, 'or')} may be as high: the intervals overlap.")
    return lines + _closest(summary)


def _closest(summary: Standings) -> list[str]:
    """Say who is never far from the best."""
    worst = {
        row.optimizer: max(ratio.value for ratio in row.ratios.values())
        for row in summary.optimizers
        if len(row.reached) == row.counted
    }
    if not worst:
        return ["No optimizer reaches the target in all studies that have one."]
    least = min(worst.values())
    names = [name for name, ratio in worst.items() if ratio == least]
    counted = summary.optimizers[0].counted
    where = "every study"
    if counted < len(summary.studies):
        where = f"{'the only study' if counted == 1 else f'all {counted} studies'} whose target is reached"
    fewest = f"{_are(names, 'takes', 'take')} the fewest steps in {where}"
    times = f"never {_are(names, 'takes', 'take')} more than {format_decimal(least)} times the fewest steps"
    line = f"{join_words(names)} {fewest if least == 1 else times}"
    if len(names) > 1:
        return [f"{line}."]
    (row,) = [row for row in summary.optimizers if row.optimizer in names]
    bound = max(ratio.high for ratio in row.ratios.values())
    intervals = CONFIDENCE.replace("CI", "confidence intervals")
    if math.isinf(bound):
        return [f"{line}; the {intervals} do not bound how many times the fewest it may take."]
    return [f"{line} (up to {format_decimal(bound)} times within the {intervals})."]


def _misses(summary: Standings) -> list[str]:
    lines = []
    for row in summary.optimizers:
        if row.missed:
            lines.append(
                f"{row.optimizer} misses the target in {join_words(row.missed)}, in more than half of the repetitions."
            )
    for study in summary.studies:
        if study.results.study.target is None:
            lines.append(f"{study.name} has no target, so only its ranks count.")
        elif not study.counted:
            lines.append(
                f"No optimizer reaches the target of {study.name} in at least half of the repetitions, so only its "
                f"ranks count."
            )
    return lines


def _absences(summary: Standings) -> list[str]:
    absent: dict[tuple[str, ...], list[str]] = {}
    few: dict[tuple[str, ...], list[str]] = {}
    for row in summary.optimizers:
        missing = [study for study in summary.studies if study.name in row.missing]
        for reason, names in (
            (absent, [study.name for study in missing if row.optimizer not in study.results.outcomes]),
            (few, [study.name for study in missing if row.optimizer in study.results.outcomes]),
        ):
            if names:
                reason.setdefault(tuple(names), []).append(row.optimizer)
    lines = [f"{join_words(names)} {_are(names)} not in {join_words(studies)}." for studies, names in absent.items()]
    lines += [
        f"{join_words(names)} {_are(names, 'has', 'have')} too few feasible trials in {join_words(studies)}."
        for studies, names in few.items()
    ]
    if lines:
        score = ", and a score counts it as a miss" if summary.counted else ""
        lines.append(f"A mean rank leaves out a study that an optimizer is missing in{score}.")
    return lines


def _are(names: Sequence[str], singular: str = "is", plural: str = "are") -> str:
    return singular if len(names) == 1 else plural


def _limits(summary: Standings) -> list[str]:
    lines = []
    shared: dict[str, list[str]] = {}
    for study in summary.studies:
        shared.setdefault(study.results.study.workload, []).append(study.name)
    for workload, names in shared.items():
        if len(names) > 1:
            lines.append(f"{join_words(names)} share a workload, {workload}, and count separately.")
    lines += _incomplete(summary.studies)
    coarse = [
        f"{study.name} (the best takes {fewest:,.0f} steps, evaluated every {study.first_evaluation:,})"
        for study in summary.counted
        if (fewest := _fewest_steps(study)) <= _COARSE * study.first_evaluation
    ]
    if coarse:
        lines.append(f"Ratios of steps are coarse in {join_words(coarse)}.")
    return lines


def _fewest_steps(study: StudyStanding) -> float:
    return min(place.steps.median for place in study.places.values() if place.steps)


def _incomplete(studies: Sequence[StudyStanding]) -> list[str]:
    lines = []
    for study in studies:
        results = study.results
        short = {name: results.count(name) for name in study.places if not results.count(name).full}
        if short:
            counts = [f"{name} ({count.feasible} of {count.n})" for name, count in short.items()]
            lines.append(f"{study.name} is incomplete: {join_words(counts)}.")
    tested = [study for study in studies if study.results.study.is_tested]
    small = [study.name for study in tested if study.results.study.pool < needed_trials(study.k)]
    if small:
        pools = "pool" if len(small) == 1 else "pools"
        lines.append(f"The {pools} of {join_words(small)} {_are(small)} smaller than 4.3 × K, so intervals are wide.")
    return lines
