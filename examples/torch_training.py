"""Compare optimizers on PyTorch training code: a small CNN on Fashion-MNIST at 14×14 pixels.

levelfield compare examples/torch_training.toml    # or: python examples/torch_training.py
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import levelfield as lf
from levelfield.workloads.fashion_mini import load

data = load()
IMAGES, LABELS = (torch.from_numpy(array) for array in data.train)
SPLITS = {name: tuple(torch.from_numpy(array) for array in split) for name, split in data.evaluation.items()}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images):
        return self.layers(images.unsqueeze(1).float() / 255)


def build_optimizer(trial, model):
    if trial.rule == "torch.AdamW":  # a rule that levelfield does not know: build it from its hyperparameters
        values = trial.hyperparameters
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=values["learning_rate"],
            betas=(values["beta1"], values["beta2"]),
            eps=values["epsilon"],
            weight_decay=values["weight_decay"],
        )
        relative = [trial.learning_rate(step) / values["learning_rate"] for step in range(trial.steps + 1)]
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, relative.__getitem__)
    return trial.optimizer(model.parameters()), None  # one of the paper's rules; it follows the schedule by itself


@torch.no_grad()
def evaluate(model):
    metrics = {}
    for split, (images, labels) in SPLITS.items():
        logits = model(images.to(model.layers[0].weight.device)).cpu()
        metrics[f"{split}_loss"] = cross_entropy(logits, labels.long())
        metrics[f"{split}_error"] = (logits.argmax(1) != labels).float().mean()
    return metrics


@lf.trainable(
    metrics={f"{split}_{metric}": "minimize" for split in SPLITS for metric in ("loss", "error")},
    select="valid_error",
    batch_size=64,
    kind="images",
    examples={"valid": 2_000, "test": 2_000},
)
def torch_cnn(trial):
    """Fashion-MNIST at 14×14, small CNN in PyTorch."""
    torch.manual_seed(trial.seed)
    model = Net().to(trial.device)
    optimizer, scheduler = build_optimizer(trial, model)
    for step in range(1, trial.steps + 1):
        batch = torch.randint(len(LABELS), (trial.batch_size,))
        loss = cross_entropy(model(IMAGES[batch].to(trial.device)), LABELS[batch].long().to(trial.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
        if trial.due(step):
            trial.report(step, **evaluate(model))


if __name__ == "__main__":
    study = lf.load_study(Path(__file__).with_suffix(".toml"))
    comparison = lf.compare(study, store="levelfield-out/torch_training/trials.db")
    for sentence in comparison.sentences():
        print(sentence)
    print(comparison.write_report("levelfield-out/torch_training/report.html"))
