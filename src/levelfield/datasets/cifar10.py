"""CIFAR-10 (Krizhevsky 2009)."""

from __future__ import annotations

from levelfield.datasets.cifar import Cifar

CIFAR10 = Cifar(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    label_bytes=1,
    classes=10,
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
)

DATASET = CIFAR10.dataset(
    "color photographs, 32×32, 10 classes: 50,000 for training and 10,000 for testing",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
