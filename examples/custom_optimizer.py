"""Compare a custom optimizer with tuned momentum: register its rule, declare an inclusion, and run a study.

python examples/custom_optimizer.py
"""

import jax.numpy as jnp
import optax

import levelfield as lf


def soft_sign(learning_rate, momentum, softness):
    """Momentum on gradients squashed to (−1, 1): between sign descent (softness 0) and plain momentum."""
    squash = optax.stateless_with_tree_map(lambda g, _: g / (jnp.abs(g) + softness))
    return optax.chain(squash, optax.trace(momentum), optax.scale_by_learning_rate(learning_rate))


lf.register_rule(
    "soft_sign",
    soft_sign,
    {
        "learning_rate": lf.Hyperparameter(low=0.0),
        "momentum": lf.Hyperparameter(low=0.0, high=1.0),
        "softness": lf.Hyperparameter(low=0.0),
    },
)


# With a large softness s, soft_sign takes the steps of momentum if its learning rate is s times as large.
def as_momentum(learning_rate, momentum, *, softness):
    """α_t = s η_t, the same γ"""
    return {"learning_rate": learning_rate * softness, "momentum": momentum, "softness": softness}


inclusion = lf.register_inclusion("momentum", "soft_sign", as_momentum, limit="softness")

study = lf.Study(
    name="custom_optimizer",
    workload="quadratic",
    steps=300,
    trials=10,
    pool=50,
    optimizers={
        "momentum": {
            "learning_rate": {"log": [1e-2, 1e1]},
            "one_minus_momentum": {"log": [1e-2, 1]},
        },
        "soft_sign": {
            "learning_rate": {"log": [1e-4, 1e0]},
            "one_minus_momentum": {"log": [1e-2, 1]},
            "softness": {"log": [1e-3, 1e2]},
        },
    },
)

if __name__ == "__main__":
    print(inclusion, "verified:", lf.verify(inclusion).holds)
    for line in lf.coverage(study).lines():
        print(line)
    comparison = lf.compare(study, store="levelfield-out/custom_optimizer/trials.db")
    for sentence in comparison.sentences():
        print(sentence)
    print(comparison.write_report("levelfield-out/custom_optimizer/report.html"))
