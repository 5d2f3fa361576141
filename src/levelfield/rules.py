"""The update rules: the paper's, with their equations and hyperparameters; optax's; registered and installed ones.

The paper's rules are Table 1 with its errata. Two details set them apart from rules of the same name elsewhere: adam
and nadam add ε to √v *before* the bias correction, which then multiplies the whole step; rmsprop starts from v = 1 and
has ε inside the root and the learning rate inside the momentum buffer.

The equations run on numpy and on JAX arrays alike. Importing this module loads neither JAX nor optax; building an
optax transformation does.
"""

from __future__ import annotations

import functools
import importlib
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from levelfield.arrays import sqrt
from levelfield.errors import SpaceError, UnknownName, UsageError, closest
from levelfield.hyperparameters import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Hyperparameter,
    check_hyperparameters,
)
from levelfield.optax_optimizers import (
    build_optimizer,
    by_short_name,
    is_part,
    optimizer_hyperparameters,
    refusal,
)
from levelfield.optax_signatures import function_hyperparameters
from levelfield.options import check_no_option
from levelfield.registry import Packaged, Registry

Update = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Equations:
    """``update(t, gradient, *buffers, **hyperparameters at t)`` → (change, *buffers), applied to every parameter."""

    update: Update
    buffers: tuple[float, ...]  # their values before the first step


@dataclass(frozen=True, eq=False)
class Rule:
    """An update rule: its hyperparameters, and the function that builds its optax transformation.

    A package declares its rules by entry points of the group ``levelfield.rules``.
    """

    name: str
    hyperparameters: Mapping[str, Hyperparameter]
    build: Callable[..., Any]  # (**hyperparameters) → optax.GradientTransformation
    scheduled: bool = False  # any hyperparameter can be a function of the step, not only the learning rate
    version: int = 1  # raise it when a change alters what trials compute, so that stored trials stay apart
    built_in: bool = False  # levelfield's own, so that it needs no check before it trains
    equations: Equations | None = None  # of the paper's rules
    # (optimizer state, params) → the weights to evaluate, if they are not those that are trained
    evaluated: Callable[[Any, Any], Any] | None = None
    seed_argument: str = ""  # the argument that takes a trial's seed, if the rule draws random numbers

    def __post_init__(self) -> None:
        _check_name(self.name)
        label = f"rule {self.name!r}"
        if not callable(self.build):
            raise UsageError(
                f"{label}: build = {self.build!r}: expected a function of the hyperparameters that returns an optax "
                f"transformation"
            )
        if self.evaluated is not None and not callable(self.evaluated):
            raise UsageError(f"{label}: evaluated = {self.evaluated!r}: expected a function of (state, params)")
        check_hyperparameters(label, self.hyperparameters)

    def __call__(self, **hyperparameters: Any) -> Any:
        """Return the optax.GradientTransformation of this rule."""
        self.check_names(hyperparameters)
        return self.build(**hyperparameters)

    def check_names(self, values: Mapping[str, Any]) -> None:
        """Raise if a hyperparameter is unknown or missing."""
        for name in values:
            if name not in self.hyperparameters:
                check_no_option(name, self.name)
                raise UnknownName.of(f"hyperparameter of {self.name}", name, self.hyperparameters)
        for name, hyperparameter in self.hyperparameters.items():
            if hyperparameter.required and name not in values:
                raise SpaceError(f"{self.name} needs {name}; give it a range or a value")

    def check_values(self, values: Mapping[str, Any]) -> None:
        """Raise if a number is outside the values that its hyperparameter can take, or text is given for a number."""
        for name, value in values.items():
            hyperparameter = self.hyperparameters[name]
            if isinstance(value, str) and hyperparameter.numeric:
                raise SpaceError(f"{name} = {value!r}: expected a number or a function from the step to a number")
            if isinstance(value, numbers.Real) and not hyperparameter.allows(float(value)):
                raise SpaceError(f"{name} = {value:g} is outside {hyperparameter.interval}")


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError(f"rule {name!r}: expected a name, such as 'adam' or 'optax.lion'")


class RuleState(NamedTuple):
    """The state of a paper's rule as an optax transformation."""

    step: Any
    buffers: tuple[Any, ...]


def _transformation(equations: Equations, **hyperparameters: Any) -> Any:
    """Return the optax transformation. Every hyperparameter is a number or a function of the step."""
    jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    jnp = jax.numpy

    def init(params: Any) -> RuleState:
        buffers = tuple(
            jax.tree.map(functools.partial(jnp.full_like, fill_value=start), params) for start in equations.buffers
        )
        return RuleState(jnp.zeros((), jnp.int32), buffers)

    def step(gradients: Any, state: RuleState, params: Any = None) -> tuple[Any, RuleState]:
        t = state.step
        now = {name: value(t) if callable(value) else value for name, value in hyperparameters.items()}
        results = jax.tree.map(lambda g, *held: equations.update(t, g, *held, **now), gradients, *state.buffers)
        changes, *buffers = jax.tree.transpose(jax.tree.structure(gradients), None, results)
        return changes, RuleState(t + 1, tuple(buffers))

    return optax.GradientTransformation(init, step)


# The paper's rules

_RULES: dict[str, Rule] = {}

# The values that people use: the defaults of TensorFlow, PyTorch and optax, and what papers report, with room to spare.
RATE = replace(POSITIVE, group="learning rate", usual_range=(1e-5, 1e2))  # recurrent networks take tens
HEAVY_RATE = replace(RATE, usual_range=(1e-5, 3e1))  # momentum adds to each step
STEP_SIZE = replace(RATE, usual_range=(1e-5, 1e-1))  # with a small ε, the learning rate is how far a step goes

_HEAVY = (0.5, 0.999)
_MOMENTUM = (0.0, 0.999)
_BETA1 = (0.0, 0.995)  # 0 when training generative adversarial networks
_BETA2 = (0.8, 0.99999)
_RHO = (0.8, 0.9999)
_EPSILON = (1e-16, 1e10)  # a large ε turns an adaptive rule into momentum


def decay(usual: float, usual_range: tuple[float, float]) -> Hyperparameter:
    """A decay rate of a moving average; ``usual`` is TensorFlow's default."""
    return replace(FRACTION, usual=usual, group="momentum", usual_range=usual_range)


def damping(usual: float) -> Hyperparameter:
    """An ε; ``usual`` is TensorFlow's default."""
    return replace(NOT_NEGATIVE, usual=usual, group="epsilon", usual_range=_EPSILON)


def optional(hyperparameter: Hyperparameter) -> Hyperparameter:
    """A hyperparameter whose usual value is its default."""
    return replace(hyperparameter, required=False, default=hyperparameter.usual)


def size(usual: int) -> Hyperparameter:
    """A whole number of at least 1, which shapes the compiled program."""
    return optional(Hyperparameter(low=1, usual=usual, kind="integer", traced=False))


_DECAY = optional(replace(NOT_NEGATIVE, usual=0.0, usual_range=(0.0, 1e1)))
_RMS = {"rho": decay(0.9, _RHO), "epsilon": damping(1e-10)}
_MOMENTS = {"beta1": decay(0.9, _BETA1), "beta2": decay(0.999, _BETA2), "epsilon": damping(1e-8)}


def rule(*, buffers: tuple[float, ...] = (), **hyperparameters: Hyperparameter) -> Callable[[Update], Update]:
    """Declare one of the paper's rules by its equations.

    The function takes the step t (counted from 0), the gradient, the buffers and the hyperparameters, and returns the
    change of the parameters and the new buffers.
    """

    def declare(update: Update) -> Update:
        name, equations = update.__name__, Equations(update, buffers)
        build = functools.partial(_transformation, equations)
        _RULES[name] = Rule(name, hyperparameters, build, scheduled=True, built_in=True, equations=equations)
        return update

    return declare


@rule(learning_rate=RATE)
def sgd(t: Any, g: Any, learning_rate: Any) -> tuple[Any, ...]:
    return (-learning_rate * g,)


@rule(buffers=(0.0,), learning_rate=HEAVY_RATE, momentum=decay(0.9, _HEAVY))
def momentum(t: Any, g: Any, v: Any, learning_rate: Any, momentum: Any) -> tuple[Any, ...]:
    v = momentum * v + g
    return -learning_rate * v, v


@rule(buffers=(0.0,), learning_rate=HEAVY_RATE, momentum=decay(0.9, _HEAVY))
def nesterov(t: Any, g: Any, v: Any, learning_rate: Any, momentum: Any) -> tuple[Any, ...]:
    v = momentum * v + g
    return -learning_rate * (momentum * v + g), v


@rule(buffers=(1.0, 0.0), learning_rate=STEP_SIZE, momentum=decay(0.0, _MOMENTUM), **_RMS)
def rmsprop(
    t: Any, g: Any, v: Any, m: Any, learning_rate: Any, momentum: Any, rho: Any, epsilon: Any
) -> tuple[Any, ...]:
    v = rho * v + (1 - rho) * g**2
    m = momentum * m + learning_rate / sqrt(v + epsilon) * g
    return -m, v, m


@rule(buffers=(1.0, 0.0), learning_rate=STEP_SIZE, momentum=decay(0.9, _MOMENTUM), **_RMS)
def rmsterov(
    t: Any, g: Any, v: Any, m: Any, learning_rate: Any, momentum: Any, rho: Any, epsilon: Any
) -> tuple[Any, ...]:
    v = rho * v + (1 - rho) * g**2
    scaled = learning_rate / sqrt(v + epsilon) * g
    m = momentum * m + scaled
    return -(momentum * m + scaled), v, m


@rule(buffers=(0.0, 0.0), learning_rate=STEP_SIZE, **_MOMENTS)
def adam(t: Any, g: Any, m: Any, v: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> tuple[Any, ...]:
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    b = sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
    return -learning_rate * m / (sqrt(v) + epsilon) * b, m, v


@rule(buffers=(0.0, 0.0), learning_rate=STEP_SIZE, **_MOMENTS)
def nadam(t: Any, g: Any, m: Any, v: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> tuple[Any, ...]:
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    b = sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
    ahead = beta1 * m + (1 - beta1) * g
    return -learning_rate * ahead / (sqrt(v) + epsilon) * b, m, v


# Rules of other papers that optax does not have. Each is a function like optax's optimizers.


def transformation(**hyperparameters: Hyperparameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a rule by a function of its hyperparameters that returns an optax transformation."""

    def declare(build: Callable[..., Any]) -> Callable[..., Any]:
        _RULES[build.__name__] = Rule(build.__name__, hyperparameters, build, built_in=True)
        return build

    return declare


@transformation(
    learning_rate=STEP_SIZE,
    beta1=optional(decay(0.95, _BETA1)),
    beta2=optional(decay(0.95, _BETA2)),
    epsilon=optional(damping(1e-8)),
    weight_decay=_DECAY,
    precondition_frequency=size(10),
    max_precondition_dim=size(10_000),
)
def soap(**hyperparameters: Any) -> Any:
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024)."""
    return importlib.import_module("levelfield.soap").soap(**hyperparameters)


@transformation(
    learning_rate=STEP_SIZE,
    beta1=optional(decay(0.9, _BETA1)),
    beta2=optional(decay(0.999, _BETA2)),
    epsilon=optional(damping(1e-8)),
    weight_decay=_DECAY,
)
def cautious_adamw(**hyperparameters: Any) -> Any:
    """AdamW that leaves out what disagrees with the gradient (Liang et al. 2024)."""
    return importlib.import_module("levelfield.cautious").cautious_adamw(**hyperparameters)


# Rules from elsewhere: optax's and registered ones

_USUAL_OF_NAME = {
    "momentum": _MOMENTUM,
    **dict.fromkeys(("beta1", "b1", "betas_1", "adam_b1"), _BETA1),
    **dict.fromkeys(("beta2", "b2", "b3", "betas_2", "adam_b2"), _BETA2),
    **dict.fromkeys(("epsilon", "eps", "eps_root"), _EPSILON),
}

_USUAL_IN_OPTAX = _USUAL_OF_NAME | {"decay": _RHO, "rho": _RHO, "weight_decay": (0.0, 1e1)}

# The rates of optax's optimizers that are not those of adam. None: nothing is usual.
_RATES_IN_OPTAX = {
    "lbfgs": None,
    **dict.fromkeys(("sgd", "noisy_sgd", "optimistic_gradient_descent", "lars"), RATE.usual_range),
    **dict.fromkeys(("lion", "sign_sgd", "signum"), (1e-6, 1e-2)),  # every parameter moves by the full rate
    **dict.fromkeys(("adadelta", "adafactor", "adagrad", "sm3"), (1e-5, 1e1)),
}

_GROUP_OF_NAME = {
    **dict.fromkeys(("learning_rate", "adam_learning_rate"), "learning rate"),
    **dict.fromkeys(("momentum", "beta", "beta1", "beta2", "rho", "decay", "b1", "b2", "b3"), "momentum"),
    **dict.fromkeys(("betas_1", "betas_2", "adam_b1", "adam_b2"), "momentum"),
    **dict.fromkeys(("epsilon", "eps", "eps_root", "adam_eps_root"), "epsilon"),
}


def _packaged(name: str, item: Any) -> Rule | None:
    """Return what a package has as a rule of this name; None if it is neither a rule nor a function that makes one."""
    if isinstance(item, Rule):
        return replace(item, name=name, hyperparameters=_completed(item.hyperparameters, _USUAL_OF_NAME))
    hyperparameters = function_hyperparameters(item)
    return Rule(name, _completed(hyperparameters, _USUAL_OF_NAME), item) if hyperparameters else None


_registered: Registry[Rule] = Registry(
    "rule",
    lambda name: name in _RULES or name.startswith("optax."),
    Packaged(
        "levelfield.rules",
        "an lf.Rule, or a function that takes learning_rate and returns an optax transformation",
        _packaged,
    ),
)


def _completed(
    hyperparameters: Mapping[str, Hyperparameter], usual: Mapping[str, tuple[float, float] | None]
) -> dict[str, Hyperparameter]:
    """Assign groups, and ranges of usual values, by name to the hyperparameters that declare none."""
    return {
        name: replace(
            hyperparameter,
            group=hyperparameter.group or _GROUP_OF_NAME.get(name, ""),
            usual_range=hyperparameter.usual_range or _usual_range(hyperparameter, usual.get(name)),
        )
        for name, hyperparameter in hyperparameters.items()
    }


def _usual_range(hyperparameter: Hyperparameter, usual_range: tuple[float, float] | None) -> tuple[float, float] | None:
    """Extend a range to the hyperparameter's default, which is always usual."""
    if usual_range is None or not hyperparameter.numeric:
        return None
    defaults = [] if hyperparameter.default is None else [hyperparameter.default]
    return min([*usual_range, *defaults]), max([*usual_range, *defaults])


def register_rule(
    name: str,
    build: Callable[..., Any],
    hyperparameters: Mapping[str, Hyperparameter],
    version: int = 1,
    evaluated: Callable[[Any, Any], Any] | None = None,
) -> Rule:
    """Make a rule available to studies. ``build(**hyperparameters)`` returns an optax transformation.

    ``evaluated(state, params)`` returns the weights to evaluate, from the transformation's state and the weights that
    are trained, for a rule that averages them or looks ahead; by default, they are the same.

    Under a schedule, its learning_rate is a function of the step, as in optax's optimizers. Hyperparameters with the
    name of a built-in rule's (``momentum``, ``b1``, ``eps``, …) have its group in a ladder of tuning protocols and its
    usual values unless they declare their own; a learning rate has no usual values unless it declares them. Registering
    a name again replaces the rule but not its stored trials; raise ``version`` when a change alters what they compute.
    """
    rule = Rule(name, hyperparameters, build, version=version, evaluated=evaluated)
    return _registered.add(name, replace(rule, hyperparameters=_completed(hyperparameters, _USUAL_OF_NAME)))


def get_rule(name: str) -> Rule:
    """Return a rule by name: the paper's, a registered one, a package's, or an optax optimizer as ``optax.<name>``.

    A package's rule has the name of its entry point or is ``module:name``.
    """
    _check_name(name)
    if name.startswith("optax."):
        return _optax_rule(name)
    if name in _registered:
        return _registered[name]
    if name not in _RULES:
        own = {known.lower(): known for known in (*_RULES, *_registered)}
        known = {short: f"optax.{full}" for short, full in by_short_name().items()} | own
        if other := closest(name.rpartition(".")[2].lower(), known):
            raise UnknownName(f"unknown rule {name!r}; did you mean {known[other]!r}?")
        raise UnknownName.of("rule", name, [*_RULES, *_registered, "optax.adamw"])
    return _RULES[name]


def declared_rule(name: str, hyperparameters: Iterable[str]) -> Rule:
    """Return a rule that levelfield does not know: custom training code knows what it means."""

    def build(**values: Any) -> Any:
        raise UnknownName.of("rule", name, [*_RULES, *_registered])

    declared = dict.fromkeys(hyperparameters, Hyperparameter(required=False, kind="any"))
    return Rule(name, _completed(declared, {}), build)


def rule_file(name: str) -> str:
    """Return the code file that registered a rule, or "" if none did."""
    return _registered.file_of(name)


def rule_packages(name: str) -> dict[str, str]:
    """Return the installed packages that have a rule, with their versions; none if it is built in or registered."""
    return _registered.versions_of(name)


@functools.cache
def _optax_rule(name: str) -> Rule:
    function = name.removeprefix("optax.")
    if reason := refusal(function):
        raise SpaceError(f"{name} cannot be trained: {reason}")
    hyperparameters = optimizer_hyperparameters(function)
    if hyperparameters is None:
        if is_part(function):
            raise UnknownName(
                f"{name!r} is part of an optimizer; register a combination as a rule (docs/optimizers.md)"
            )
        known = by_short_name()
        other = closest(function.rpartition(".")[2].lower(), known)
        hint = f"did you mean 'optax.{known[other]}'?" if other else "docs/optimizers.md lists them all"
        raise UnknownName(f"unknown optax optimizer {name!r}; {hint}")
    usual = _USUAL_IN_OPTAX | {"learning_rate": _RATES_IN_OPTAX.get(function, STEP_SIZE.usual_range)}
    return Rule(
        name,
        _completed(hyperparameters, usual),
        functools.partial(build_optimizer, function),
        seed_argument="key" if "key" in hyperparameters else "",
    )


def optimizer(name: str, **hyperparameters: Any) -> Any:
    """Return a rule as an optax.GradientTransformation, by the paper's names.

    Each hyperparameter (learning_rate, momentum, rho, beta1, beta2, epsilon, as the rule has them) is a number or
    a function from the step to a number. ``optax.<name>`` gives optax's own optimizer, by optax's names.

    >>> optimizer("adma", learning_rate=1e-3)
    Traceback (most recent call last):
    levelfield.errors.UnknownName: unknown rule 'adma'; did you mean 'adam'?
    """
    rule = get_rule(name)
    rule.check_names(hyperparameters)
    rule.check_values(hyperparameters)
    return rule(**hyperparameters)
