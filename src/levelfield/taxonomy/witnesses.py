"""Witnesses: how a general rule must be set to follow a special one, and the witnesses that levelfield knows.

A witness is a function from the special rule's hyperparameters at a step to the general rule's. It takes by name what
it needs: any of the special rule's hyperparameters, ``step`` (counted from 0), and ``previous``, the special rule's
hyperparameters one step earlier. Its keyword-only parameters are hyperparameters of the general rule that it leaves
open: they may have any value, or, for a limit, a large enough one. If it takes a hyperparameter of the special rule
that has the same name, the open one ends in an underscore, as in ``b2_``.

With the function comes a declaration of what the caller cannot see in it: which of the values vary with the step, and
under which names hyperparameters are passed on. Verification catches a witness whose declaration is wrong.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

Function = Callable[..., Mapping[str, Any]]
_RATE = frozenset({"learning_rate"})


@dataclass(frozen=True, eq=False)
class Witness:
    """A function from the special rule's hyperparameters to the general rule's, and what varies with the step."""

    function: Function
    varies: Collection[str] | None = None  # vary at a constant rate, too; by default the rate if it takes ``step``
    varies_with_rate: Collection[str] | None = None  # vary when the special rule's rate does; by default the rate
    renames: Mapping[str, str] = field(default_factory=dict)  # hyperparameters that are passed on under another name

    @functools.cached_property
    def takes(self) -> frozenset[str]:
        """What the function takes: hyperparameters of the special rule, ``step``, ``previous``."""
        parameters = inspect.signature(self.function).parameters.values()
        return frozenset(parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY)

    @functools.cached_property
    def open(self) -> dict[str, Any]:
        """The hyperparameters of the general rule that the function leaves open, with their defaults."""
        return {_unmarked(name): default for name, default in self._keywords.items()}

    @functools.cached_property
    def _keywords(self) -> dict[str, Any]:
        parameters = inspect.signature(self.function).parameters.values()
        return {
            parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
        }

    @property
    def equations(self) -> str:
        """The map in the paper's symbols."""
        return inspect.getdoc(self.function) or ""

    def varying(self, given: Collection[str]) -> frozenset[str]:
        """Return which of the general rule's values vary with the step if the ``given`` ones of the special rule do."""
        always = self.varies if self.varies is not None else _RATE if "step" in self.takes else ()
        declared = self.varies_with_rate if self.varies_with_rate is not None else _RATE
        with_rate = declared if "learning_rate" in given else ()
        passed_on = (self.renames.get(name, name) for name in given if name != "learning_rate")
        return frozenset([*always, *with_rate, *passed_on])

    def image(self, given: Mapping[str, Any], open: Mapping[str, Any], lifts: bool) -> dict[str, Any]:
        """Return the general rule's hyperparameters: numbers, or functions of the step if they vary with it.

        Unless the inclusion ``lifts`` to learning rates that vary, ``previous`` is the same as the present step.
        """
        chosen = {name: open[_unmarked(name)] for name in self._keywords}

        def values(step: Any) -> dict[str, Any]:
            return {name: value(step) if callable(value) else value for name, value in given.items()}

        def at(step: Any) -> Mapping[str, Any]:
            now = values(step)
            extra = {"step": step, "previous": values((step - 1) * (step > 0)) if lifts else now}
            taken = {name: value for name, value in {**now, **extra}.items() if name in self.takes}
            return self.function(**taken, **chosen)

        varying = self.varying([name for name, value in given.items() if callable(value)])
        return {name: _component(at, name) if name in varying else value for name, value in at(0).items()}


def _unmarked(name: str) -> str:
    """Return the hyperparameter that a keyword of a witness stands for."""
    return name.removesuffix("_")


def _component(at: Callable[[Any], Mapping[str, Any]], name: str) -> Callable[[Any], Any]:
    return lambda step: at(step)[name]


def witness(**declaration: Any) -> Callable[[Function], Witness]:
    """Declare a witness: ``varies``, ``varies_with_rate`` and ``renames`` as in Witness."""
    return lambda function: Witness(function, **declaration)


# From one of the paper's rules to another (Appendix A), with the errata corrected


@witness()
def sgd_in_momentum(learning_rate: Any) -> Mapping[str, Any]:
    """γ = 0"""
    return {"learning_rate": learning_rate, "momentum": 0.0}


@witness()
def sgd_in_rmsprop(learning_rate: Any, *, epsilon: Any = 0.0) -> Mapping[str, Any]:
    """γ = 0, ρ = 1, any ε, α_t = η_t √(1 + ε)"""
    rate = learning_rate * (1 + epsilon) ** 0.5
    return {"learning_rate": rate, "momentum": 0.0, "rho": 1.0, "epsilon": epsilon}


@witness()
def sgd_in_rmsprops_limit(learning_rate: Any, *, epsilon: Any, rho: Any = 0.0) -> Mapping[str, Any]:
    """γ = 0, any ρ, α_t = η_t √ε"""
    return {"learning_rate": learning_rate * epsilon**0.5, "momentum": 0.0, "rho": rho, "epsilon": epsilon}


@witness(varies_with_rate=("learning_rate", "momentum"))
def momentum_in_rmsprop(learning_rate: Any, momentum: Any, previous: Any, *, epsilon: Any = 0.0) -> Mapping[str, Any]:
    """ρ = 1, any ε, α_t = η_t √(1 + ε), γ_t = γ η_t / η_(t−1)"""
    return {
        "learning_rate": learning_rate * (1 + epsilon) ** 0.5,
        "momentum": momentum * _ratio(learning_rate, previous["learning_rate"]),
        "rho": 1.0,
        "epsilon": epsilon,
    }


@witness(varies_with_rate=("learning_rate", "momentum"))
def momentum_in_rmsprops_limit(
    learning_rate: Any, momentum: Any, previous: Any, *, epsilon: Any, rho: Any = 0.0
) -> Mapping[str, Any]:
    """any ρ, α_t = η_t √ε, γ_t = γ η_t / η_(t−1)"""
    return {
        "learning_rate": learning_rate * epsilon**0.5,
        "momentum": momentum * _ratio(learning_rate, previous["learning_rate"]),
        "rho": rho,
        "epsilon": epsilon,
    }


def _ratio(now: Any, before: Any) -> Any:
    return now / (before + (before == 0))  # a rate that has fallen to zero stays there


@witness(renames={"momentum": "beta1"})
def momentum_in_adam(
    step: Any, learning_rate: Any, momentum: Any, *, epsilon: Any, beta2: Any = 0.0
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / ((1 − γ) √(1 − β₂^(t+1)))"""
    correction = (1 - momentum ** (step + 1)) / (1 - beta2 ** (step + 1)) ** 0.5
    return {
        "learning_rate": epsilon * learning_rate * correction / (1 - momentum),
        "beta1": momentum,
        "beta2": beta2,
        "epsilon": epsilon,
    }


# Among optax's optimizers, and from the paper's rules to them


@witness()
def momentum_in_optax_sgd(learning_rate: Any, momentum: Any) -> Mapping[str, Any]:
    """the same, nesterov = False"""
    return {"learning_rate": learning_rate, "momentum": momentum, "nesterov": False}


@witness()
def nesterov_in_optax_sgd(learning_rate: Any, momentum: Any) -> Mapping[str, Any]:
    """the same, nesterov = True"""
    return {"learning_rate": learning_rate, "momentum": momentum, "nesterov": True}


@witness(renames={"rho": "decay", "epsilon": "eps"})
def rmsprop_in_optax(learning_rate: Any, momentum: Any, rho: Any, epsilon: Any) -> Mapping[str, Any]:
    """v₀ = 1, ε inside the root"""
    return {
        "learning_rate": learning_rate,
        "momentum": momentum,
        "decay": rho,
        "eps": epsilon,
        "initial_scale": 1.0,
        "eps_in_sqrt": True,
        "centered": False,
        "nesterov": False,
        "bias_correction": False,
    }


@witness(renames={"rho": "decay", "epsilon": "eps"})
def rmsterov_in_optax(learning_rate: Any, momentum: Any, rho: Any, epsilon: Any) -> Mapping[str, Any]:
    """v₀ = 1, ε inside the root, nesterov = True"""
    return {**rmsprop_in_optax.function(learning_rate, momentum, rho, epsilon), "nesterov": True}


@witness(renames={"momentum": "b1"})
def optax_sgd_in_adam(
    step: Any, learning_rate: Any, momentum: Any = None, *, eps: Any, b2: Any = 0.999
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / (1 − γ)"""
    return {**optax_sgd_in_adamax.function(step, learning_rate, momentum, eps=eps, b2=b2), "eps_root": 0.0}


@witness(renames={"momentum": "b1"})
def optax_sgd_in_adamax(
    step: Any, learning_rate: Any, momentum: Any = None, *, eps: Any, b2: Any = 0.999
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / (1 − γ)"""
    momentum = 0.0 if momentum is None else momentum
    rate = eps * learning_rate * (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": rate, "b1": momentum, "b2": b2, "eps": eps}


@witness(renames={"momentum": "b1"})
def optax_sgd_in_novograd(learning_rate: Any, momentum: Any = None, *, eps: Any, b2: Any = 0.25) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, weight decay 0, α_t = ε η_t"""
    momentum = 0.0 if momentum is None else momentum
    same = {"b1": momentum, "b2": b2, "eps": eps, "eps_root": 0.0, "weight_decay": 0.0}
    return {"learning_rate": eps * learning_rate, **same}


@witness()
def sgd_in_optax_adagrad(learning_rate: Any, *, initial_accumulator_value: Any, eps: Any = 0.0) -> Mapping[str, Any]:
    """α_t = η_t √(the first sum of squares)"""
    rate = learning_rate * initial_accumulator_value**0.5
    return {"learning_rate": rate, "initial_accumulator_value": initial_accumulator_value, "eps": eps}


@witness()
def without_decay(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, nesterov: Any = None
) -> Mapping[str, Any]:
    """weight decay 0"""
    same = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    return {**same, "weight_decay": 0.0} | ({} if nesterov is None else {"nesterov": nesterov})


@witness()
def adamax_without_decay(learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Mapping[str, Any]:
    """weight decay 0"""
    return {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "weight_decay": 0.0}


@witness()
def sign_sgd_in_signum(learning_rate: Any) -> Mapping[str, Any]:
    """β = 0"""
    return {"learning_rate": learning_rate, "beta": 0.0}


@witness(renames={"beta": "b1"})
def signum_in_lion(learning_rate: Any, beta: Any = 0.9) -> Mapping[str, Any]:
    """β₁ = β₂ = β, weight decay 0"""
    return {"learning_rate": learning_rate, "b1": beta, "b2": beta, "weight_decay": 0.0}


@witness()
def sign_sgd_in_adam(learning_rate: Any, *, eps: Any) -> Mapping[str, Any]:
    """β₁ = β₂ = 0"""
    return {"learning_rate": learning_rate, "b1": 0.0, "b2": 0.0, "eps": eps, "eps_root": 0.0}


# From adam


@witness()
def adam_in_soap(learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> Mapping[str, Any]:
    """no axis has a basis (max_precondition_dim = 1), weight decay 0"""
    same = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return {**same, "weight_decay": 0.0, "max_precondition_dim": 1}


@witness(renames={"beta1": "betas_1", "beta2": "betas_2", "epsilon": "eps"})
def adam_in_prodigy(
    learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any, *, estim_lr0: Any = 1e-6
) -> Mapping[str, Any]:
    """estim_lr_coef = 0, any d₀ (estim_lr0), weight decay 0, α_t = η_t / d₀"""
    return {
        "learning_rate": learning_rate / estim_lr0,
        "betas_1": beta1,
        "betas_2": beta2,
        "eps": epsilon,
        "estim_lr0": estim_lr0,
        "estim_lr_coef": 0.0,
        "weight_decay": 0.0,
    }


@witness()
def adamw_in_ademamix(
    learning_rate: Any,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    weight_decay: Any = 1e-4,
    *,
    b3: Any = 0.9999,
) -> Mapping[str, Any]:
    """α = 0, any β₃"""
    same = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    return {**same, "weight_decay": weight_decay, "b3": b3, "alpha": 0.0}


@witness()
def adam_in_simplified_ademamix(
    step: Any, learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0
) -> Mapping[str, Any]:
    """α = 0, weight decay 0, α_t = η_t (1 − β₁) / (1 − β₁^(t+1))"""
    rate = learning_rate * (1 - b1) / (1 - b1 ** (step + 1))
    same = {"b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    return {"learning_rate": rate, **same, "alpha": 0.0, "weight_decay": 0.0}


@witness(renames={"b2": "b3"})
def adam_in_adan(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, *, b2_: Any
) -> Mapping[str, Any]:
    """β₃ = β₂, weight decay 0"""
    same = {"learning_rate": learning_rate, "b1": b1, "eps": eps, "eps_root": eps_root}
    return {**same, "b2": b2_, "b3": b2, "weight_decay": 0.0}


@witness()
def adam_in_momo_adam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, *, lower_bound: Any
) -> Mapping[str, Any]:
    """weight decay 0, a lower bound that does not adapt"""
    same = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "weight_decay": 0.0}
    return {**same, "lower_bound": lower_bound, "adapt_lower_bound": False}


@witness()
def adam_in_optimistic_adam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, nesterov: Any = False
) -> Mapping[str, Any]:
    """α = 1, β = 0"""
    same = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    return {**same, "nesterov": nesterov, "alpha": 1.0, "beta": 0.0}


@witness()
def nadam_in_optimistic_adam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, nesterov: Any = True
) -> Mapping[str, Any]:
    """α = 1, β = 0"""
    return adam_in_optimistic_adam.function(learning_rate, b1, b2, eps, eps_root, nesterov)


# From sgd, to rules that need the loss or draw noise, and to limits


@witness(renames={"momentum": "b1"})
def sgd_in_radam(step: Any, learning_rate: Any, momentum: Any = None, *, b2: Any = 0.999) -> Mapping[str, Any]:
    """β₁ = γ, any β₂ < 1, threshold 2 / (1 − β₂), α_t = η_t (1 − γ^(t+1)) / (1 − γ)"""
    momentum = 0.0 if momentum is None else momentum
    rate = learning_rate * (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": rate, "b1": momentum, "b2": b2, "threshold": 2 / (1 - b2), "nesterov": False}


@witness()
def sgd_in_adadelta(learning_rate: Any, *, eps: Any, rho: Any = 0.9) -> Mapping[str, Any]:
    """any ρ, weight decay 0, α_t = η_t"""
    return {"learning_rate": learning_rate, "rho": rho, "eps": eps, "weight_decay": 0.0}


@witness()
def sgd_in_acprop(learning_rate: Any, *, eps: Any, b1: Any = 0.9, b2: Any = 0.999) -> Mapping[str, Any]:
    """any β₁ and β₂, weight decay 0, α_t = ε η_t"""
    return {
        "learning_rate": eps * learning_rate,
        "b1": b1,
        "b2": b2,
        "eps": eps,
        "eps_root": 1e-16,
        "weight_decay": 0.0,
    }


@witness()
def sgd_in_noisy_sgd(learning_rate: Any, *, gamma: Any = 0.55) -> Mapping[str, Any]:
    """no noise (η = 0)"""
    return {"learning_rate": learning_rate, "eta": 0.0, "gamma": gamma}


@witness()
def sgd_in_optimistic_gradient_descent(learning_rate: Any) -> Mapping[str, Any]:
    """α = 1, β = 0"""
    return {"learning_rate": learning_rate, "alpha": 1.0, "beta": 0.0}


@witness()
def sgd_in_momo(learning_rate: Any, *, lower_bound: Any) -> Mapping[str, Any]:
    """β = 0, weight decay 0, a lower bound that does not adapt"""
    same = {"learning_rate": learning_rate, "beta": 0.0, "weight_decay": 0.0}
    return {**same, "lower_bound": lower_bound, "adapt_lower_bound": False}


@witness()
def sgd_in_polyak_sgd(learning_rate: Any, *, f_min: Any) -> Mapping[str, Any]:
    """a largest rate of 1, scaled by η_t"""
    return {"learning_rate": learning_rate, "max_learning_rate": 1.0, "f_min": f_min, "eps": 0.0}
