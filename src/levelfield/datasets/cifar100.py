"""CIFAR-100 (Krizhevsky 2009), with its fine labels."""

from __future__ import annotations

from levelfield.datasets.cifar import Cifar

CIFAR100 = Cifar(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    label_bytes=2,  # coarse, then fine
    classes=100,
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
)

DATASET = CIFAR100.dataset(
    "color photographs, 32×32, 100 classes: 50,000 for training and 10,000 for testing",
    "md5:03b5dce01913d631647c71ecec9e9cb8",
)
