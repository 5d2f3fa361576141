"""Several sources as one: a file for each optimizer, or the parts of a sweep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levelfield.errors import UsageError
from levelfield.formatting import pluralize
from levelfield.imports.records import Record, Source, distinct, key_of, same_results
from levelfield.study import CHOSEN


def combined(sources: Mapping[str, Source]) -> Source:
    """Return the trials of several sources. Messages and notes call each source by its key."""
    records, notes = _records(sources)
    metrics = dict.fromkeys(metric for source in sources.values() for metric in source.directions)
    sampling = _agreed({where: source.sampling for where, source in sources.items()}, "sampling", "--sampling HOW")
    everywhere = all(source.sampling for source in sources.values())
    return Source(
        name=_agreed(
            {where: source.name for where, source in sources.items() if source.names_workload},
            "workload",
            "--map workload=NAME",
        )
        or "",
        records=records,
        directions={
            metric: _agreed(
                {where: source.directions.get(metric) for where, source in sources.items()},
                f"the direction of {metric}",
                f"--minimize {metric} or --maximize {metric}",
            )
            for metric in metrics
        },
        select=_agreed({where: source.select for where, source in sources.items()}, "select", "--select METRIC") or "",
        # That the points of one source are random says nothing about those of a source that does not tell.
        sampling=sampling if everywhere or sampling in CHOSEN else "",
        target=_agreed({where: source.target for where, source in sources.items()}, "target", ""),
        ranges=_ranges(sources),
        notes=[*_notes(sources), *notes],
    )


def _agreed(stated: Mapping[str, Any], what: str, option: str) -> Any:
    """Return what all sources that state something say; None if none does. Raise if two differ."""
    given = [(where, value) for where, value in stated.items() if value]
    for where, value in given[1:]:
        if value != given[0][1]:
            remedy = f"say which with {option}, or import them separately" if option else "import them separately"
            raise UsageError(f"{what}: {given[0][0]} says {given[0][1]}, {where} says {value}; {remedy}")
    return given[0][1] if given else None


def _records(sources: Mapping[str, Source]) -> tuple[list[Record], list[str]]:
    """Return the trials of all sources, those that several have only once, and notes about these."""
    kept: list[Record] = []
    known: dict[Any, list[Record]] = defaultdict(list)  # a trial may have another index in another export
    notes = []
    for where, source in sources.items():
        own = [(key_of(replace(record, index=None)), record) for record in source.records]
        new = [(key, record) for key, record in own if not any(same_results(record, old) for old in known[key])]
        if again := len(own) - len(new):
            notes.append(f"{pluralize(again, 'trial')} of {where} dropped, because another source has the same")
        for key, record in new:
            known[key].append(record)
            kept.append(replace(record, label=f"{where}: {record.label}"))
    _, repeated = distinct([replace(record, index=None) for record in kept], "the sources", labeled=True)
    return kept, [*notes, *repeated]


def _ranges(sources: Mapping[str, Source]) -> dict[str, dict[str, Any]]:
    """Return the dimensions that all sources of an optimizer state alike."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for source in sources.values():
        for name in dict.fromkeys(record.optimizer for record in source.records):
            found[name].append(source.ranges.get(name, {}))
    return {
        name: {key: spec for key, spec in first.items() if all(other.get(key) == spec for other in others)}
        for name, (first, *others) in found.items()
    }


def _notes(sources: Mapping[str, Source]) -> list[str]:
    """Return the notes of all sources; those that only some have say which."""
    counts = Counter(note for source in sources.values() for note in source.notes)
    notes = (
        note if counts[note] == len(sources) else f"{where}: {note}"
        for where, source in sources.items()
        for note in source.notes
    )
    return list(dict.fromkeys(notes))
