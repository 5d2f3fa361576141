"""A custom workload: its data, and three functions that describe a single trial.

levelfield compare examples/custom_workload.toml
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import levelfield as lf


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.tanh(nn.Dense(32)(x))
        return nn.Dense(1)(x)[:, 0]


net = Net()


def load():
    """Make a noisy two-armed spiral. Any arrays work, as long as their first axis is the example."""
    random = np.random.default_rng(0)
    arm = random.integers(0, 2, 3_000)
    turn = 3 * np.pi * np.sqrt(random.random(3_000))
    points = np.stack([np.cos(turn + np.pi * arm), np.sin(turn + np.pi * arm)], 1) * turn[:, None] / np.pi
    points += 0.15 * random.standard_normal(points.shape)
    splits = np.split(np.arange(3_000), [1_000, 2_000])
    train, valid, test = ((points[rows].astype(np.float32), arm[rows].astype(np.float32)) for rows in splits)
    return lf.Data(train=train, evaluation={"train": train, "valid": valid, "test": test})


def init(key):
    """Return the parameters and any other state of the model, such as batch statistics. This model has none."""
    return net.init(key, jnp.zeros((1, 2))), ()


def loss(params, state, batch, key, hyperparameters):
    """Return the mean loss of a batch and the new state."""
    points, arm = batch
    return optax.sigmoid_binary_cross_entropy(net.apply(params, points), arm).mean(), state


def evaluate(params, state, batch):
    """Return one value per example for each metric. levelfield averages them over each split."""
    points, arm = batch
    logits = net.apply(params, points)
    return {"loss": optax.sigmoid_binary_cross_entropy(logits, arm), "accuracy": (logits > 0) == (arm > 0.5)}


lf.register_workload(
    lf.Workload(
        name="spiral",
        summary="a two-armed spiral, a network with two hidden layers",
        batch_size=64,
        eval_interval=50,
        metrics={
            f"{split}_{metric}": direction
            for split in ("train", "valid", "test")
            for metric, direction in (("loss", "minimize"), ("accuracy", "maximize"))
        },
        select="valid_accuracy",
        load=load,
        init=init,
        loss=loss,
        evaluate=evaluate,
    )
)
