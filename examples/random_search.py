"""A random search that knows nothing of levelfield: it writes one row for each trial, for `levelfield import`.

python examples/random_search.py random_search.csv
"""

import csv
import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

IMAGES, LABELS = load_digits(return_X_y=True)
TRAIN, REST, TRAIN_LABELS, REST_LABELS = train_test_split(IMAGES / 16, LABELS, test_size=800, random_state=0)
VALID, TEST, VALID_LABELS, TEST_LABELS = train_test_split(REST, REST_LABELS, test_size=400, random_state=0)
STEPS = 200
COLUMNS = ["optimizer", "learning_rate", "momentum", "beta_1", "beta_2", "seed", "step", "valid_error", "test_error"]


def draw(optimizer, random):
    """Return random hyperparameters."""
    if optimizer == "sgd":
        return {"learning_rate": 10 ** random.uniform(-3, 0), "momentum": random.uniform(0.0, 0.99)}
    return {
        "learning_rate": 10 ** random.uniform(-4, -1),
        "beta_1": random.uniform(0.0, 0.99),
        "beta_2": random.uniform(0.9, 0.9999),
    }


def errors(optimizer, hyperparameters, seed):
    """Train a small network on batches of handwritten digits and return its errors."""
    values = dict(hyperparameters)
    rate = values.pop("learning_rate")
    model = MLPClassifier((32,), solver=optimizer, learning_rate_init=rate, random_state=seed, **values)
    random = np.random.default_rng(seed)
    for _ in range(STEPS):
        batch = random.integers(len(TRAIN), size=32)
        model.partial_fit(TRAIN[batch], TRAIN_LABELS[batch], classes=np.arange(10))
    return {
        "step": STEPS,
        "valid_error": round(1 - model.score(VALID, VALID_LABELS), 6),
        "test_error": round(1 - model.score(TEST, TEST_LABELS), 6),
    }


def main(path, trials=40):
    random = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for seed in range(trials):
            for optimizer in ("sgd", "adam"):
                values = draw(optimizer, random)
                writer.writerow({"optimizer": optimizer, **values, "seed": seed, **errors(optimizer, values, seed)})


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
