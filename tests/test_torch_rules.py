"""The rules for PyTorch: equal to those for JAX and to the paper's equations, and good citizens of torch.optim."""

from __future__ import annotations

import copy
import importlib
import io
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import jax
import numpy as np
import pytest
from helpers import REPOSITORY
from test_docs import blocks
from test_rules import (
    CASES,
    HYPERPARAMETERS,
    SCHEDULES,
    STEPS,
    gradients,
    named,
    paper_trajectory,
    relative_error,
    rows,
    trajectory,
    tree,
)

from levelfield.errors import SpaceError, UnknownName, UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; levelfield.torch needs it")
lft: Any = importlib.import_module("levelfield.torch")

CLASSES = {
    "sgd": lft.SGD,
    "momentum": lft.Momentum,
    "nesterov": lft.Nesterov,
    "rmsprop": lft.RMSProp,
    "rmsterov": lft.RMSterov,
    "adam": lft.Adam,
    "nadam": lft.NAdam,
}
USUAL = {rule: settings[0] for rule, settings in HYPERPARAMETERS.items()}
ADAM = USUAL["adam"]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64(True):
        yield
    torch.set_default_dtype(before)


def parameters(*shapes: tuple[int, ...], seed: int = 0, **options: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, **options)) for shape in shapes]


def give_gradients(params: list[Any], step: int) -> None:
    """Set gradients that depend on the step and on the place in the list."""
    for i, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * step + i)
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def train(optimizer: Any, params: list[Any], steps: range) -> list[Any]:
    for step in steps:
        give_gradients(params, step)
        optimizer.step()
    return [param.detach().clone() for param in params]


def assert_identical(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


# The equations


def torch_trajectory(rule: str, kind: str, rows_of_gradients: np.ndarray, hyperparameters: dict) -> np.ndarray:
    """θ_1 … θ_T from θ_0 = 0."""
    start = tree(np.zeros(rows_of_gradients.shape[1]))
    arrays = [start["layer"]["w"], start["layer"]["b"], start["scale"]]
    params = [torch.nn.Parameter(torch.from_numpy(np.array(array))) for array in arrays]
    optimizer = lft.optimizer(rule, params, hyperparameters | SCHEDULES[kind], kind, STEPS)
    path = []
    for row in rows_of_gradients:
        seen = tree(row)
        for param, gradient in zip(params, [seen["layer"]["w"], seen["layer"]["b"], seen["scale"]], strict=True):
            param.grad = torch.from_numpy(np.array(gradient))
        optimizer.step()
        w, b, scale = (param.detach().numpy().copy() for param in params)
        path.append(rows({"layer": {"w": w, "b": b}, "scale": scale}))
    assert isinstance(optimizer, CLASSES[rule])
    return np.array(path)


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("rule", "hyperparameters"), CASES, ids=named)
def test_a_rule_is_the_papers_and_that_for_jax(rule, kind, hyperparameters):
    seen = gradients(300)
    path = torch_trajectory(rule, kind, seen, hyperparameters)
    assert path.dtype == np.float64
    assert relative_error(path, paper_trajectory(rule, kind, seen, hyperparameters)) <= 1e-12
    assert relative_error(path, trajectory(rule, kind, seen, hyperparameters)) <= 1e-12


def test_the_operators_of_a_list_are_those_of_its_tensors():
    from levelfield.torch.tensors import Buffer, TensorList

    x, y = ([torch.rand(3), torch.rand(2, 2)] for _ in range(2))
    half, a = np.float64(0.5), 0.25
    for expression in (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: 3 * x + y,
        lambda x, y: y + 3 * x,
        lambda x, y: half * x + a * y,
        lambda x, y: x * y + y,
        lambda x, y: y + x * y,
        lambda x, y: half * (x * y) + 2 * (x / y),
        lambda x, y: (x / y) * (2 * x) / (3 * y),
        lambda x, y: 1 - (1 - a * x) / 2,
        lambda x, y: x + 1 - 2 * y,
        lambda x, y: a / (2 * x) * y,
        lambda x, y: (2 * x) ** 2 + (-y) ** 3,
        lambda x, y: -(x + y) * half,
    ):
        expected = [expression(one, other) for one, other in zip(x, y, strict=True)]
        before = [tensor.clone() for tensor in [*x, *y]]
        for actual in (expression(TensorList(x), TensorList(y)), expression(Buffer(copy.deepcopy(x)), TensorList(y))):
            torch.testing.assert_close(list(actual.tensors), expected, rtol=1e-15, atol=1e-15)
        assert_identical([*x, *y], before)


def test_a_buffer_that_is_used_after_it_was_overwritten_fails():
    from levelfield.torch.tensors import Buffer, TensorList

    tensors = [torch.ones(2)]
    buffer, gradient = Buffer(list(tensors)), TensorList([torch.ones(2)])
    assert torch.equal((2 * buffer + gradient).tensors[0], torch.tensor([3.0, 3.0]))
    assert torch.equal(tensors[0], torch.tensor([3.0, 3.0]))
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        buffer + gradient


# As other optimizers of PyTorch


@pytest.mark.parametrize("rule", CLASSES)
def test_training_continues_exactly_from_a_state_dict(rule):
    """Also with groups, functions of the step, and parameters that started later."""

    def build(params):
        groups = [{"params": params[:2]}, {"params": params[2:], "learning_rate": lambda step: 0.1 / (1 + step)}]
        return CLASSES[rule](groups, **USUAL[rule])

    def late(params, steps):
        for step in steps:
            give_gradients(params, step)
            if step < 3:
                params[1].grad = None
            optimizer.step()

    params = parameters((3, 2), (4,), (2,))
    optimizer = build(params)
    late(params, range(5))
    file = io.BytesIO()
    torch.save({"params": [param.detach().clone() for param in params], "optimizer": optimizer.state_dict()}, file)
    late(params, range(5, 10))
    expected = [param.detach().clone() for param in params]

    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    params = [torch.nn.Parameter(tensor) for tensor in loaded["params"]]
    optimizer = build(params)
    optimizer.load_state_dict(loaded["optimizer"])
    late(params, range(5, 10))
    assert_identical([param.detach() for param in params], expected)


def test_a_copy_trains_on_its_own():
    params = parameters((3,))
    optimizer = lft.Adam(params, **ADAM | {"learning_rate": lambda step: 0.1 / (1 + step)})
    train(optimizer, params, range(3))
    copied = copy.deepcopy({"params": params, "optimizer": optimizer})
    expected = train(optimizer, params, range(3, 6))
    assert_identical(train(copied["optimizer"], copied["params"], range(3, 6)), expected)
    assert copied["optimizer"].param_groups[0]["lr"] == 0.1 / 6


@pytest.mark.parametrize("rule", CLASSES)
def test_groups_have_their_own_hyperparameters(rule):
    first, second = USUAL[rule], HYPERPARAMETERS[rule][-1] | {"learning_rate": 0.03}
    together = parameters((3,), (2, 2))
    groups = [{"params": together[:1]}, {"params": together[1:], **second}]
    train(CLASSES[rule](groups, **first), together, range(5))
    apart = parameters((3,), (2, 2))
    optimizers = [CLASSES[rule](apart[:1], **first), CLASSES[rule](apart[1:], **second)]
    for step in range(5):
        give_gradients(apart, step)
        for optimizer in optimizers:
            optimizer.step()
    assert_identical(together, apart)
    assert groups[1].keys() == {"params", *second}  # the caller's


def test_a_group_can_be_added_later_and_follows_the_schedule():
    params = parameters((3,), (2,))
    optimizer = lft.SGD(params[:1], lambda step: 0.1 / (1 + step))
    train(optimizer, params[:1], range(4))
    optimizer.add_param_group({"params": params[1:]})
    before = params[1].detach().clone()
    params[1].grad = torch.ones(2)
    optimizer.step()
    torch.testing.assert_close(before - params[1].detach(), torch.full((2,), 0.1 / 5))


def test_named_parameters_are_taken():
    model = torch.nn.Linear(2, 1)
    optimizer = lft.SGD(model.named_parameters(), 0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20, cycle_momentum=False),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("rule", ["momentum", "rmsprop", "nadam"])
def test_schedulers_of_pytorch_set_the_learning_rate(rule, make):
    params, rates = parameters((3,)), []
    optimizer = CLASSES[rule](params, **USUAL[rule])
    scheduler = make(optimizer)
    for step in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        train(optimizer, params, range(step, step + 1))
        scheduler.step()
    assert len(set(rates)) == 10
    again = parameters((3,))
    train(CLASSES[rule](again, **USUAL[rule] | {"learning_rate": rates.__getitem__}), again, range(10))
    assert_identical(params, again)


def test_the_group_shows_the_rate_of_the_last_step():
    params = parameters((3,))
    optimizer = lft.SGD(params, lambda step: 1.0 / (1 + step))
    assert optimizer.param_groups[0]["lr"] == 1.0
    train(optimizer, params, range(4))
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_every_hyperparameter_can_be_a_function_of_the_step():
    params, again = parameters((3,)), parameters((3,))
    scheduled = lft.Momentum(params, 0.1, momentum=lambda step: 0.5 + 0.01 * step)
    constant = lft.Momentum(again, 0.1, momentum=0.5)
    for step in range(5):
        constant.param_groups[0]["momentum"] = 0.5 + 0.01 * step
        assert_identical(train(scheduled, params, range(step, step + 1)), train(constant, again, range(step, step + 1)))


def test_a_scheduler_on_top_of_a_function_is_refused():
    params = parameters((3,))
    optimizer = lft.SGD(params, lambda step: 0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    give_gradients(params, 0)
    with pytest.raises(UsageError, match="learning_rate is a function, and a scheduler of PyTorch sets it, too"):
        optimizer.step()


def test_a_closure_computes_gradients_and_returns_the_loss():
    (param,) = params = parameters((3,))
    optimizer, start = lft.SGD(params, 0.1), param.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == (start**2).sum().item()
    torch.testing.assert_close(param.detach(), start - 0.1 * 2 * start)
    assert optimizer.step() is None


@pytest.mark.parametrize("rule", CLASSES)
def test_a_parameter_without_gradient_is_left_alone_and_counts_its_own_steps(rule):
    params = parameters((3,), (2,))
    start = params[1].detach().clone()
    optimizer = CLASSES[rule](params, **USUAL[rule])
    for step in range(5):
        give_gradients(params, step)
        params[1].grad = None
        optimizer.step()
    assert torch.equal(params[1], start)
    assert params[1] not in optimizer.state
    train(optimizer, params, range(5, 9))
    alone = parameters((3,), (2,))
    give_gradients(alone, 0)
    fresh = CLASSES[rule](alone[1:], **USUAL[rule])
    for step in range(5, 9):
        give_gradients(alone, step)
        fresh.step()
    assert_identical(params[1:], alone[1:])


@pytest.mark.parametrize("rule", CLASSES)
def test_types_can_be_mixed_in_a_group(rule):
    def mixed() -> list[Any]:
        types = (torch.float32, torch.float64, torch.bfloat16, torch.float32)
        return [parameters((3, 2), seed=i, dtype=dtype)[0] for i, dtype in enumerate(types)]

    together, apart = mixed(), mixed()
    train(CLASSES[rule](together, **USUAL[rule]), together, range(4))
    optimizers = [CLASSES[rule]([param], **USUAL[rule]) for param in apart]
    for step in range(4):
        give_gradients(apart, step)
        for optimizer in optimizers:
            optimizer.step()
    assert_identical(together, apart)
    assert [param.dtype for param in together] == [param.dtype for param in mixed()]


def test_memory_layouts_can_be_mixed():
    plain, last = parameters((2, 3, 4, 4)), parameters((2, 3, 4, 4))
    last[0].data = last[0].data.to(memory_format=torch.channels_last)
    assert_identical(train(lft.Adam(last, **ADAM), last, range(4)), train(lft.Adam(plain, **ADAM), plain, range(4)))


def test_loss_scaling_skips_steps_with_infinite_gradients():
    (param,) = params = parameters((3,))
    (other,) = others = parameters((3,))
    scheduled = ADAM | {"learning_rate": lambda step: 0.1 / (1 + step)}
    optimizer, plain = lft.Adam(params, **scheduled), lft.Adam(others, **scheduled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, math.inf, 2.0, 3.0):
        optimizer.zero_grad()
        scaler.scale((factor * param**2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if math.isfinite(factor):
            plain.zero_grad()
            (factor * other**2).sum().backward()
            plain.step()
    assert_identical(params, others)
    assert optimizer.state[param]["step"] == 3
    assert optimizer.param_groups[0]["lr"] == 0.1 / 3


@pytest.mark.gpu
@pytest.mark.parametrize("rule", CLASSES)
def test_devices_can_be_mixed_in_a_group(rule):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    cpu, mixed = parameters((3,), (2, 2)), parameters((3,), (2, 2))
    mixed[1] = torch.nn.Parameter(mixed[1].detach().cuda())
    expected = train(CLASSES[rule](cpu, **USUAL[rule]), cpu, range(5))
    optimizer = CLASSES[rule](mixed, **USUAL[rule])
    for step in range(5):
        give_gradients(cpu, step)
        for param, reference in zip(mixed, cpu, strict=True):
            param.grad = reference.grad.to(param.device)
        optimizer.step()
    torch.testing.assert_close([param.detach().cpu() for param in mixed], expected, rtol=1e-12, atol=1e-12)


# What is refused


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match="sparse gradients are not supported; use layers with sparse=False"):
        lft.SGD(embedding.parameters(), 0.1).step()


def test_complex_parameters_are_refused():
    param = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    param.grad = torch.ones_like(param)
    with pytest.raises(UsageError, match="complex parameters are not supported"):
        lft.SGD([param], 0.1).step()


@pytest.mark.parametrize(
    ("rule", "changes", "error", "line"),
    [
        ("sgd", {"learning_rate": -0.1}, SpaceError, "learning_rate = -0.1 is outside (0, inf]"),
        ("sgd", {"learning_rate": math.nan}, SpaceError, "learning_rate = nan is outside (0, inf]"),
        ("momentum", {"momentum": 1.5}, SpaceError, "momentum = 1.5 is outside [0, 1]"),
        ("adam", {"beta2": np.float32(2.0)}, SpaceError, "beta2 = 2 is outside [0, 1]"),
        ("adam", {"epsilon": "x"}, SpaceError, "epsilon = 'x': expected a number or a function from the step to a"),
        ("adam", {"epsilon": None}, SpaceError, "epsilon = None: expected a number or a function from the step to a"),
        ("adam", {"betas": (0.9, 0.999)}, UnknownName, "unknown hyperparameter 'betas' of adam; did you mean 'beta2'?"),
        ("adam", {"lr": 0.1}, UnknownName, "unknown hyperparameter 'lr' of adam; expected one of: beta1, beta2,"),
    ],
)
def test_hyperparameters_are_checked(rule, changes, error, line):
    with pytest.raises(error) as raised:
        CLASSES[rule](parameters((3,)), **USUAL[rule] | changes)
    assert str(raised.value).startswith(line)


def test_hyperparameters_of_groups_are_checked():
    first, second = parameters((3,), (2,))
    with pytest.raises(SpaceError, match=r"momentum = 2 is outside \[0, 1\]"):
        lft.Momentum([{"params": [first], "momentum": 2}], 0.1, momentum=0.9)
    with pytest.raises(UnknownName, match="unknown hyperparameter 'momentun' of momentum; did you mean 'momentum'"):
        lft.Momentum([{"params": [first], "momentun": 0.2}], 0.1, momentum=0.9)
    optimizer = lft.Momentum([{"params": [first], "lr": 0.3}], 0.1, momentum=0.9)
    assert optimizer.param_groups[0]["lr"] == 0.3
    with pytest.raises(SpaceError, match="learning_rate = 0 is outside"):
        optimizer.add_param_group({"params": [second], "lr": 0})
    assert len(optimizer.param_groups) == 1


def test_a_missing_hyperparameter_is_named():
    with pytest.raises(SpaceError, match="adam needs beta2"):
        lft.Adam(parameters((3,)), 0.1, beta1=0.9, epsilon=1e-8)


# The optimizer of a trial


LINEAR = {"decay_steps": 0.5, "decay_factor": 0.1}


def test_a_trials_optimizer_applies_the_schedule():
    params, rates = parameters((3,)), []
    optimizer = lft.optimizer("momentum", params, {"learning_rate": 2.0, "momentum": 0.9} | LINEAR, "linear", 10)
    for step in range(10):
        train(optimizer, params, range(step, step + 1))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([2.0, 1.64, 1.28, 0.92, 0.56, 0.2, 0.2, 0.2, 0.2, 0.2])


@pytest.mark.parametrize(
    ("rule", "schedule", "steps", "changes", "line"),
    [
        (
            "optax.adamw",
            "linear",
            10,
            {},
            "rule 'optax.adamw' is not one of levelfield.torch; expected one of: sgd, momentum",
        ),
        ("adma", "linear", 10, {}, "rule 'adma' is not one of levelfield.torch; did you mean 'adam'?"),
        ("adam", "cosin", 10, {}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ("adam", "constant", 0, {"warmup_steps": 0.1}, "steps = 0: a constant schedule with a warmup"),
        ("adam", "cosine", 10, {"clip_norm": 1.0}, "clip_norm is not a hyperparameter of adam but an option"),
        ("adam", "linear", 0, {}, "steps = 0: a linear schedule needs the length of the training, at least 1"),
        ("adam", "step", 10, {}, "unknown hyperparameter 'decay_steps' of adam; did you mean 'decay_every'?"),
        ("adam", "constant", 10, {}, "unknown hyperparameter 'decay_steps' of adam"),
        ("adam", "linear", 10, {"decay_factor": 2.0}, "decay_factor = 2 is outside [0, 1]"),
        ("adam", "linear", 10, {"rho": 0.5}, "unknown hyperparameter 'rho' of adam"),
    ],
)
def test_what_cannot_be_a_trials_optimizer_is_refused(rule, schedule, steps, changes, line):
    with pytest.raises(UsageError) as raised:
        lft.optimizer(rule, parameters((3,)), ADAM | LINEAR | changes, schedule, steps)
    assert str(raised.value).startswith(line)


# The package


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_only_levelfield_torch_loads_pytorch():
    listing = "; import sys; print(*sys.modules)"
    assert "torch" not in run(f"import levelfield, levelfield.rules, levelfield.study{listing}").split()
    loaded = set(run(f"import levelfield.torch{listing}").split())
    assert "torch" in loaded
    assert not loaded & {"jax", "optax", "flax"}


def test_without_pytorch_one_line_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
try:
    import levelfield.torch
except Exception as error:
    print(type(error).__name__, error)
"""
    line = "UsageError levelfield.torch needs PyTorch; install it with: pip install 'levelfield[torch]'\n"
    assert run(code) == line


def test_the_documented_differences_are_those_of_a_run():
    torch.set_default_dtype(torch.float32)  # as users have it
    out = io.StringIO()
    with redirect_stdout(out):
        for code in blocks("docs/torch.md", "python"):
            exec(compile(code, "docs/torch.md", "exec"), {})
    table = [line for line in out.getvalue().splitlines() if line.startswith("|")]
    assert len(table) == 10
    assert "\n".join(table) in (REPOSITORY / "docs/torch.md").read_text("utf-8")
