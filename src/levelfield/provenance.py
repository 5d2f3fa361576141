"""What is recorded with the trials of a study, besides what the executor measures."""

from __future__ import annotations

from collections.abc import Iterable

from levelfield.datasets import dataset_packages
from levelfield.rules import rule_packages
from levelfield.study import Study, workload_of
from levelfield.workloads import workload_packages


def package_versions(study: Study, optimizers: Iterable[str]) -> dict[str, str]:
    """Return the packages that have the rules of some optimizers, the workload or its data set, with their versions."""
    dataset = getattr(workload_of(study), "dataset", None)
    found = workload_packages(study.workload) | (dataset_packages(dataset) if dataset else {})
    for name in optimizers:
        found |= rule_packages(study.optimizer(name).rule.name)
    return dict(sorted(found.items()))
