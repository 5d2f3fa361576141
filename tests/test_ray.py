"""The Ray executor on a cluster of several nodes on this machine: the same trials, whatever is lost on the way."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.executors import get_executor
from levelfield.executors._jax import JaxExecutor
from levelfield.executors.base import Take, hand_out
from levelfield.search import Search
from levelfield.trial import Batch, Progress, Trial
from levelfield.user_code import code_files, place_code

ray = pytest.importorskip("ray", reason="Ray is not installed")
from levelfield.executors import ray as module  # noqa: E402

pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\):RuntimeWarning")  # of JAX, where Ray starts nodes

Trials = dict[tuple[str, int], Trial]

STUDY = lf.Study(
    workload="wilson",
    steps=20_000,
    eval_interval=1_000,
    trials=2,
    pool=10,
    optimizers={
        "sgd": {"learning_rate": {"log": [1e-2, 1e1]}},  # diverges at the upper end
        "momentum": {"learning_rate": {"log": [1e-3, 1e-2]}, "momentum": 0.9},
    },
)
QUICK = STUDY.replace(steps=200, eval_interval=100)
ENDLESS = STUDY.replace(steps=10**9).only(["momentum"])

# A study's code: in trials whose seed is in a list, reading data ends the process, or raises.
CODE = """
import os
import jax.numpy as jnp
import numpy as np
import levelfield as lf
from levelfield.data import Stream
from neighbor import END

def batches(seed, batch_size):
    while True:
        if seed in END:
            os._exit(1)
        yield (np.ones((batch_size, 1), np.float32),)

lf.register_workload(lf.Workload(
    name="fragile",
    summary="ends the process in some trials",
    batch_size=2,
    eval_interval=5,
    metrics={"train_loss": "minimize"},
    select="train_loss",
    load=lambda: lf.Data(Stream(4, (np.ones(1, np.float32),), batches), {"train": (np.ones((4, 1), np.float32),)}),
    init=lambda key: (jnp.ones(()), ()),
    loss=lambda params, state, batch, key, hyperparameters: ((params * batch[0]).mean() ** 2, state),
    evaluate=lambda params, state, batch: {"loss": params ** 2 * batch[0][:, 0]},
))
"""


@pytest.fixture(scope="module")
def nodes(ray_cluster) -> Iterator[Callable[[int], list[Any]]]:
    """Add nodes until the cluster has that many beside its head; they stay for the tests of this module."""

    def at_least(count: int) -> list[Any]:
        missing = count - len(ray_cluster.worker_nodes)
        for _ in range(missing):
            ray_cluster.add_node(wait=False, num_cpus=1)
        ray_cluster.wait_for_nodes()
        return sorted(ray_cluster.worker_nodes, key=lambda node: node.unique_id)

    yield at_least
    for node in list(ray_cluster.worker_nodes):
        ray_cluster.remove_node(node)


def all_points(study: lf.Study) -> Take:
    """Hand out every point of every optimizer once."""
    waiting = {name: [Search(study, name).point(index) for index in range(study.pool)] for name in study.optimizers}

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        name = optimizer or max(waiting, key=lambda name: len(waiting[name]))
        chosen, waiting[name] = waiting[name][:count], waiting[name][count:]
        return Batch(name, chosen) if chosen else None

    return take


def collect(progress: Iterator[Progress]) -> Trials:
    """Return the trials of a training in which nothing fails; each must be reported once."""
    trials: Trials = {}
    for stretch in progress:
        assert not stretch.failed
        for trial in stretch.finished:
            assert (stretch.optimizer, trial.point.index) not in trials
            trials[stretch.optimizer, trial.point.index] = trial
    return trials


@pytest.fixture(scope="module")
def undisturbed() -> Trials:
    return collect(JaxExecutor(2).train(STUDY, all_points(STUDY)))


def assert_same(ours: Trials, theirs: Trials) -> None:
    assert ours.keys() == theirs.keys()
    for key, trial in ours.items():
        assert trial.point == theirs[key].point
        assert trial.status is theirs[key].status
        np.testing.assert_array_equal(trial.curve.steps, theirs[key].curve.steps)
        np.testing.assert_allclose(
            trial.curve.values["train_loss"], theirs[key].curve.values["train_loss"], rtol=1e-4, atol=1e-9
        )


def wait_for_free_cpus() -> None:
    """Wait until no worker holds a CPU of the cluster."""
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


# On one node


def test_the_driver_of_a_run_on_a_given_cluster_imports_no_jax(ray_cluster, tmp_path):
    wait_for_free_cpus()
    (tmp_path / "study.toml").write_text(QUICK.to_toml())
    program = "import sys; from levelfield.cli import main\ntry: main()\nfinally: print('jax' in sys.modules)"
    command = ["run", "study.toml", "--executor", "ray", "--ray-address", ray_cluster.address, "--slots", "2"]
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["complete", "False"]
    with lf.Store.open(tmp_path / "levelfield-out/study/trials.db", create=False) as store:
        trials = lf.Comparison.load(QUICK, store).trials
    stored = {(name, trial.point.index): trial for name in trials for trial in trials[name]}
    here: Trials = {}
    for name in QUICK.optimizers:
        taken = [trial.point for trial in trials[name]]
        here |= collect(JaxExecutor(2).train(QUICK, hand_out(name, taken)))
    assert_same(stored, here)


def fragile(folder: Path, ending: list[int], text: str = CODE) -> lf.Study:
    """Return a study whose trials of these indices end the process of their worker."""

    def study(seeds: list[int]) -> lf.Study:
        (folder / "neighbor.py").write_text(f"END = {seeds}")
        (folder / "code.py").write_text(text)
        optimizers = {"sgd": {"learning_rate": {"log": [1e-3, 1e-2]}}}
        content = {"workload": "fragile", "steps": 10, "trials": 1, "pool": 4, "optimizers": optimizers}
        return lf.Study(code=str(folder / "code.py"), **content)

    search = Search(study([]), "sgd")
    return study([search.point(index).seed for index in ending])


def test_a_trial_that_takes_down_its_worker_three_times_fails_and_the_others_finish(ray_cluster, tmp_path):
    study = fragile(tmp_path, ending=[2])
    executor = get_executor("ray", 4)
    executor.check(study)
    stretches = list(executor.train(study, all_points(study)))
    assert sorted(trial.point.index for stretch in stretches for trial in stretch.finished) == [0, 1, 3]
    (failure,) = [failure for stretch in stretches for failure in stretch.failed]
    assert failure.point == Search(study, "sgd").point(2)
    assert failure.reason.startswith("3 workers were lost with it, the last one because its process ended")
    assert "\n" not in failure.reason


def test_a_study_that_no_node_can_train_is_refused_in_one_line(ray_cluster, tmp_path):
    broken = CODE.replace("load=lambda: lf.Data(", "load=lambda: open('missing.bin').read() or lf.Data(")
    with pytest.raises(UsageError, match=r"^workload fragile: code.py, line \d+, FileNotFoundError: .*missing.bin'$"):
        get_executor("ray", 1).check(fragile(tmp_path, [], broken))


def test_a_worker_uses_its_cpus_and_ends_when_the_training_is_closed(ray_cluster):
    progress = get_executor("ray", 2).train(ENDLESS, all_points(ENDLESS))
    stretch = next(stretch for stretch in progress if stretch.trial_steps)
    assert stretch.running == 2
    assert stretch.provenance["devices"] == 1
    begun = time.monotonic()
    progress.close()
    wait_for_free_cpus()
    assert time.monotonic() - begun < 10


# On several nodes


def test_a_node_that_is_added_during_a_run_is_used(ray_cluster, nodes):
    progress = get_executor("ray", 2).train(ENDLESS, all_points(ENDLESS))
    assert next(stretch for stretch in progress if stretch.trial_steps).running == 2
    nodes(1)
    deadline = time.monotonic() + 60
    while next(progress).running < 4:
        assert time.monotonic() < deadline
    progress.close()


def disturbed(executor: Any, cluster: Any, nodes: Callable[[int], list[Any]], seed: int) -> Iterator[Progress]:
    """Train and kill two of five nodes and a worker at random moments; a new node comes."""
    random_, trials = random.Random(seed), 0
    events = [lambda: cluster.remove_node(random_.choice(nodes(0)), allow_graceful=False) for _ in range(2)]
    events.append(lambda: ray.kill(random_.choice(executor._crew.members).actor))
    events.append(lambda: nodes(4))
    moments = sorted(random_.sample(range(1, 12), len(events)))
    random_.shuffle(events)
    for stretch in executor.train(STUDY, all_points(STUDY)):
        yield stretch
        trials += len(stretch.finished)
        while moments and trials >= moments[0]:
            moments.pop(0)
            events.pop()()
    assert not events


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_five_nodes_of_which_two_are_killed_finish_with_the_undisturbed_pool(ray_cluster, nodes, undisturbed, seed):
    nodes(4)
    executor = get_executor("ray", 2)
    executor.check(STUDY)
    assert_same(collect(disturbed(executor, ray_cluster, nodes, seed)), undisturbed)


def test_a_node_whose_gpu_jax_does_not_use_is_refused(ray_cluster):
    """Its workers would share the CPUs without a word. JAX of this cluster is kept on the CPU."""
    node = ray_cluster.add_node(num_cpus=1, num_gpus=1)
    try:
        with pytest.raises(UsageError, match=r"^JAX does not use the GPU; .*levelfield\[cuda\]"):
            get_executor("ray", 1).check(QUICK)
    finally:
        ray_cluster.remove_node(node)


# On a cluster of its own


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_own_cluster_without_a_traceback(tmp_path, number):
    (tmp_path / "study.toml").write_text(ENDLESS.to_toml())
    program = "from levelfield.cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", program, "run", "study.toml", "--executor", "ray"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = running.stderr.readline()  # the first line of progress
    assert "running" in first
    running.send_signal(number)
    _, rest = running.communicate(timeout=30)
    assert running.returncode == 130, first + rest
    assert "Traceback" not in rest
    assert "Resume with: levelfield run study.toml --executor ray" in rest


# Without a cluster


def test_code_is_run_where_it_lies_or_else_in_a_temporary_folder(tmp_path):
    study = fragile(tmp_path, [1])
    files = code_files(study.code)
    assert set(files) == {"code.py", "neighbor.py"}
    assert place_code(study.code, files) == study.code
    (tmp_path / "neighbor.py").unlink()
    elsewhere = Path(place_code(study.code, files))
    assert elsewhere.parent != tmp_path
    assert {path.name: path.read_bytes() for path in elsewhere.parent.iterdir()} == files


def test_without_ray_the_executor_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'levelfield\[ray\]'"):
        get_executor("ray")


def test_an_address_where_no_cluster_answers_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for prefix in ("", "ray://"):
            with pytest.raises(UsageError, match=f"^no Ray cluster answers at {prefix}{address} .*check the address"):
                get_executor("ray", ray_address=prefix + address)


def test_an_address_needs_the_ray_executor(command):
    assert command("run", "quadratic", "--ray-address", "auto") == (
        2,
        "",
        "levelfield: --ray-address auto needs --executor ray, not local\n",
    )


def test_a_cluster_without_resources_is_refused(ray_cluster, monkeypatch):
    monkeypatch.setattr(module, "_JOIN", 0.5)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "head", "Alive": True, "Resources": {"memory": 1.0}}])
    with pytest.raises(UsageError, match="neither GPUs nor CPUs"):
        get_executor("ray").check(QUICK)
