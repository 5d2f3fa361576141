"""Wall-clock time as a currency: what a step of each optimizer takes, measured on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levelfield.trial import StepTime

NOTICEABLE = 1.2  # times as long; on a machine that does nothing else, stretches differ by less


def on_one_device(measured: Mapping[str, Sequence[StepTime]]) -> dict[str, StepTime]:
    """Return the step times of all optimizers on the same device; empty if no device has all of them.

    Of several such devices, the one with the most stretches of training counts.
    """
    by_device: dict[str, dict[str, StepTime]] = {}
    for name, times in measured.items():
        for each in times:
            by_device.setdefault(each.device, {})[name] = each
    complete = [times for times in by_device.values() if len(times) == len(measured)]
    return max(complete, key=lambda times: sum(each.stretches for each in times.values()), default={})


def differ(times: Mapping[str, StepTime]) -> bool:
    """Return whether the steps of some optimizers take noticeably longer than those of others.

    On a busy machine, stretches of the same optimizer differ; a difference between two must be larger than that.
    """
    seconds = [each.seconds for each in times.values()]
    return bool(seconds) and max(seconds) > NOTICEABLE * slowdown(times) * min(seconds)


def slowdown(times: Mapping[str, StepTime]) -> float:
    """Return the median stretch divided by the fastest one, for the optimizer where that is largest."""
    return max((each.slowdown for each in times.values()), default=1.0)
