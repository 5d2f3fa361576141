"""The paper's rules as torch.optim optimizers."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from levelfield import schedules
from levelfield.errors import SpaceError, UnknownName, UsageError, suggestion
from levelfield.rules import Equations, Rule, get_rule
from levelfield.schedules import SCHEDULES, WARMUP
from levelfield.torch.tensors import Buffer, TensorList

Value = float | Callable[[int], Any]  # a number, or a function from the step, counted from 0, to a number

_OF_TORCH = ("params", "param_names", "initial_lr", "differentiable")  # in groups, besides hyperparameters


class RuleOptimizer(Optimizer):
    """A rule as an optimizer for PyTorch. The subclasses say which.

    Every hyperparameter is a number or a function from the step, counted from 0, to a number. Parameter groups may have
    their own. In ``param_groups`` the learning rate is called ``lr``, as PyTorch's schedulers expect, and a
    hyperparameter that is a function has the value of the last step.

    A parameter without a gradient is left alone, and bias corrections count the steps of each parameter. Functions get
    the number of earlier calls of ``step``.
    """

    rule: ClassVar[Rule]

    def __init__(self, params: ParamsT, learning_rate: Value, **hyperparameters: Value) -> None:
        self.rule.check_names({"learning_rate": learning_rate, **hyperparameters})
        self._functions: list[dict[str, Callable[[int], Any]]] = []  # of each parameter group
        super().__init__(params, {"lr": learning_rate, **hyperparameters})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters that may have hyperparameters of their own, to train from the next step on."""
        values = _by_name(self.defaults) | _by_name(param_group)
        _check(self.rule, values)
        t = self.param_groups[0]["step"] if self.param_groups else 0
        now = {_key(name): float(value(t) if callable(value) else value) for name, value in values.items()}
        kept = {key: value for key, value in param_group.items() if key in _OF_TORCH}
        super().add_param_group(kept | now | {"step": t})
        self._functions.append({_key(name): value for name, value in values.items() if callable(value)})

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_functions": self._functions}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one step. ``closure``, if given, computes the gradients first and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, functions in zip(self.param_groups, self._functions, strict=True):
            if "lr" in functions and "initial_lr" in group:
                raise UsageError("learning_rate is a function, and a scheduler of PyTorch sets it, too; use only one")
            group.update({key: float(function(group["step"])) for key, function in functions.items()})
            hyperparameters = {name: group[_key(name)] for name in self.rule.hyperparameters}
            for params in self._alike(group["params"]):
                self._update(params, hyperparameters)
            group["step"] += 1
        return loss

    def _alike(self, params: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return the parameters that have gradients, in lists of the same step, device and type."""
        alike = defaultdict(list)
        for param in params:
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                raise UsageError("sparse gradients are not supported; use layers with sparse=False")
            if param.is_complex():
                raise UsageError("complex parameters are not supported; train torch.view_as_real of them")
            alike[self.state[param].get("step", 0), param.device, param.dtype].append(param)
        return list(alike.values())

    def _update(self, params: list[torch.Tensor], hyperparameters: Mapping[str, float]) -> None:
        """Apply the rule to parameters of the same step."""
        equations = self.rule.equations
        assert equations is not None
        names = _buffers(equations)
        states = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if not state:
                starts = zip(names, equations.buffers, strict=True)
                state.update({"step": 0} | {name: torch.full_like(param, start) for name, start in starts})
        gradients = TensorList([param.grad for param in params if param.grad is not None])
        held = [Buffer([state[name] for state in states]) for name in names]
        change, *buffers = equations.update(states[0]["step"], gradients, *held, **hyperparameters)
        change.add_to(params)
        for state, *tensors in zip(states, *(buffer.tensors for buffer in buffers), strict=True):
            state.update(zip(names, tensors, strict=True), step=state["step"] + 1)


def _key(name: str) -> str:
    """Return the name of a hyperparameter in a parameter group."""
    return "lr" if name == "learning_rate" else name


def _by_name(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a parameter group."""
    return {"learning_rate" if key == "lr" else key: value for key, value in group.items() if key not in _OF_TORCH}


def _check(rule: Rule, values: Mapping[str, Any]) -> None:
    rule.check_names(values)
    for name, value in values.items():
        if not callable(value) and not isinstance(value, numbers.Real):
            raise SpaceError(f"{name} = {value!r}: expected a number or a function from the step to a number")
    rule.check_values(values)


@functools.cache
def _buffers(equations: Equations) -> list[str]:
    """Return the names of the buffers: the arguments after the step and the gradient."""
    return list(inspect.signature(equations.update).parameters)[2 : 2 + len(equations.buffers)]


class SGD(RuleOptimizer):
    rule = get_rule("sgd")


class Momentum(RuleOptimizer):
    rule = get_rule("momentum")


class Nesterov(RuleOptimizer):
    rule = get_rule("nesterov")


class RMSProp(RuleOptimizer):
    rule = get_rule("rmsprop")


class RMSterov(RuleOptimizer):
    rule = get_rule("rmsterov")


class Adam(RuleOptimizer):
    rule = get_rule("adam")


class NAdam(RuleOptimizer):
    rule = get_rule("nadam")


_CLASSES = {cls.rule.name: cls for cls in (SGD, Momentum, Nesterov, RMSProp, RMSterov, Adam, NAdam)}


def optimizer(
    rule: str, params: ParamsT, hyperparameters: Mapping[str, float], schedule: str = "constant", steps: int = 0
) -> RuleOptimizer:
    """Return the optimizer of a trial: a rule with a schedule, which ``step`` applies.

    ``hyperparameters`` are the rule's and the schedule's. ``steps`` is the length of the training; only a constant
    schedule without a warmup needs none.
    """
    if rule not in _CLASSES:
        raise UsageError(
            f"rule {rule!r} is not one of levelfield.torch{suggestion(rule, _CLASSES)}; build any other optimizer from "
            f"trial.rule and trial.hyperparameters"
        )
    if schedule not in SCHEDULES:
        raise UnknownName.of("schedule", schedule, SCHEDULES)
    if (schedule != "constant" or WARMUP in hyperparameters) and steps < 1:
        kind = f"{schedule} schedule{' with a warmup' if WARMUP in hyperparameters else ''}"
        raise SpaceError(f"steps = {steps}: a {kind} needs the length of the training, at least 1")
    chosen = _CLASSES[rule]
    _check(
        replace(chosen.rule, hyperparameters={**SCHEDULES[schedule], **chosen.rule.hyperparameters}), hyperparameters
    )
    own = {name: hyperparameters[name] for name in chosen.rule.hyperparameters}
    return chosen(params, **own | {"learning_rate": schedules.schedule(schedule, steps, hyperparameters)})
