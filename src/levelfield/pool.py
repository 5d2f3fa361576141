"""What a pool is: the shortest prefix of an optimizer's points that holds N feasible trials.

Taking the first N trials to *finish* would favor fast ones. Taking the shortest prefix does not: the pool depends
neither on the order in which trials finish nor on interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.trial import Status


def pool_window(statuses: Mapping[int, Status], n: int) -> range:
    """Return the shortest prefix that could hold n feasible trials, if all unfinished ones were feasible."""
    end = n
    for index in sorted(index for index, status in statuses.items() if status is Status.INFEASIBLE):
        if index >= end:
            break
        end += 1
    return range(end)


@dataclass(frozen=True)
class PoolCount:
    """How far an optimizer's pool is filled."""

    n: int  # feasible trials that the study asks for
    feasible: int
    infeasible: int
    points: float = math.inf  # how many points the search has: finite for a grid

    @classmethod
    def of(cls, statuses: Mapping[int, Status], n: int, points: float) -> PoolCount:
        """Count the finished trials inside the pool's window."""
        inside = [statuses[index] for index in pool_window(statuses, n) if index in statuses]
        return cls(n, inside.count(Status.FEASIBLE), inside.count(Status.INFEASIBLE), points)

    @property
    def tried(self) -> int:
        return self.feasible + self.infeasible

    @property
    def exhausted(self) -> bool:
        """Whether no point is left to try."""
        return self.tried >= self.points

    @property
    def full(self) -> bool:
        """Whether the pool holds N feasible trials, or all that its grid has."""
        return self.feasible >= self.n or (self.exhausted and self.feasible > 0)

    @property
    def limit(self) -> float:
        """How many points a run tries at most: 10 N, or max(N, 20) while none is feasible."""
        return min(self.points, 10 * self.n if self.feasible else max(self.n, 20))

    @property
    def wanted(self) -> int:
        """How many points the pool needs by now, if all unfinished ones turn out feasible, and a run would try."""
        return int(min(self.n + self.infeasible, self.limit))

    @property
    def given_up(self) -> bool:
        """Whether a run would try no more points although the pool is not full."""
        return not self.full and self.tried >= self.limit
