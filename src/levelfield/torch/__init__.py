"""The paper's rules for PyTorch, as torch.optim optimizers.

    import levelfield.torch as lft
    optimizer = lft.Adam(model.parameters(), learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8)

They run the equations in levelfield.rules. Importing levelfield itself does not load PyTorch; importing this does.
"""

from __future__ import annotations

import importlib.util

from levelfield.errors import UsageError

if importlib.util.find_spec("torch") is None:
    raise UsageError("levelfield.torch needs PyTorch; install it with: pip install 'levelfield[torch]'")

from levelfield.torch.optimizers import (
    SGD,
    Adam,
    Momentum,
    NAdam,
    Nesterov,
    RMSProp,
    RMSterov,
    RuleOptimizer,
    optimizer,
)

__all__ = ["SGD", "Adam", "Momentum", "NAdam", "Nesterov", "RMSProp", "RMSterov", "RuleOptimizer", "optimizer"]
