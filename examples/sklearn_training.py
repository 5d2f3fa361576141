"""Compare optimizers on training code in scikit-learn: a small network on its handwritten digits.

levelfield compare examples/sklearn_training.toml
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import levelfield as lf

IMAGES, LABELS = load_digits(return_X_y=True)
TRAIN, REST, TRAIN_LABELS, REST_LABELS = train_test_split(IMAGES / 16, LABELS, test_size=800, random_state=0)
VALID, TEST, VALID_LABELS, TEST_LABELS = train_test_split(REST, REST_LABELS, test_size=400, random_state=0)
CLASSES = np.unique(LABELS)


@lf.trainable(
    metrics={"train_loss": "minimize", "valid_error": "minimize", "test_error": "minimize"},
    select="valid_error",
    batch_size=32,
    examples={"valid": 400, "test": 400},
)
def digits(trial):
    """Handwritten digits at 8×8, MLPClassifier of scikit-learn."""
    values = dict(trial.hyperparameters)
    model = MLPClassifier(
        hidden_layer_sizes=(32,),
        solver=trial.rule.removeprefix("sklearn."),
        learning_rate_init=values.pop("learning_rate"),
        batch_size=trial.batch_size,
        random_state=trial.seed,
        **values,  # the study uses scikit-learn's names for the others
    )
    generator = np.random.default_rng(trial.seed)
    for step in range(1, trial.steps + 1):
        batch = generator.integers(len(TRAIN), size=trial.batch_size)
        model.partial_fit(TRAIN[batch], TRAIN_LABELS[batch], classes=CLASSES)
        if trial.due(step):
            trial.report(
                step,
                train_loss=log_loss(TRAIN_LABELS, model.predict_proba(TRAIN)),
                valid_error=1 - model.score(VALID, VALID_LABELS),
                test_error=1 - model.score(TEST, TEST_LABELS),
            )
