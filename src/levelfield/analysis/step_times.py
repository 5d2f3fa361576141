"""Wall-clock time as a currency: what a step of each optimizer takes, measured on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levelfield.trial import StepTime

NOTICEABLE = 1.2  # times as long; stretches of the same optimizer usually differ by less


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

    Stretches of the same optimizer differ, too, above all short ones: two optimizers must differ by more than that.
    """
    seconds = [each.seconds for each in times.values()]
    return bool(seconds) and max(seconds) > NOTICEABLE * spread(times) * min(seconds)


def spread(times: Mapping[str, StepTime]) -> float:
    """Return the upper quartile of the stretches divided by the lower one, for the optimizer where that is largest."""
    return max((each.spread for each in times.values()), default=1.0)
