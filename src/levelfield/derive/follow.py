"""Extra trials in which a general optimizer follows a special one's best trial, to show what it could reach.

Each trains the general rule at the hyperparameters that the inclusion's witness gives, with the seed of the trial that
it follows. These trials are stored separately and shown next to the outcomes; they are not counted in any statistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from levelfield.analysis.results import Followed, Results
from levelfield.rules import Rule, get_rule
from levelfield.space import Space
from levelfield.study import Study
from levelfield.study_optimizer import Optimizer
from levelfield.taxonomy.inclusions import Inclusion
from levelfield.taxonomy.order import inclusions
from levelfield.trial import Trial


@dataclass(frozen=True)
class Following:
    """A special optimizer's trial, and a study of the single trial in which the general optimizer follows it."""

    special: str
    general: str
    followed: Trial
    study: Study
    code: str = ""  # the current version of the custom code that it depends on

    def paired(self, trial: Trial) -> Followed:
        """Return the followed trial and the trial that followed it."""
        return Followed(self.special, self.general, self.followed, trial)


def followings(results: Results) -> list[Following]:
    """Return what to follow: each inclusion of the study whose special optimizer has a best trial."""
    study, planned = results.study, []
    for edge in inclusions(study):
        if (followed := results.outcome(edge.special).best_trial) is None:
            continue
        optimizer = Optimizer(
            edge.general,
            _following_rule(edge.ways[0]),
            study.optimizer(edge.special).schedule,
            Space.parse(followed.point.hyperparameters),
        )
        alone = study.replace(pool=1, trials=1, optimizers={edge.general: optimizer})
        code = study.code_version(edge.special) or study.code_version(edge.general)
        planned.append(Following(edge.special, edge.general, followed, alone, code))
    return planned


def _following_rule(inclusion: Inclusion) -> Rule:
    """Return the general rule as a function of the special rule's hyperparameters."""
    special, general = get_rule(inclusion.special), get_rule(inclusion.general)
    if not inclusion.witnesses:
        return special

    def build(**hyperparameters: Any) -> Any:
        return general(**inclusion.image(hyperparameters))

    # The name is part of the trial's identity.
    at = "".join(f"; {name} = {value:g}" for name, value in inclusion.open.items())
    name = f"{inclusion.general} as {inclusion.special}: {inclusion.equations}{at}"
    return Rule(name, special.hyperparameters, build, version=general.version)
