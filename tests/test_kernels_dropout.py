"""The random bytes of dropout, against published words of their generator and what chance allows."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from levelfield.kernels.dropout import dropped, philox, random_bytes

# From the known answers of Random123, the library of those who invented the generator: counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[jax.Array]:
    return [jnp.uint32(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_generator_gives_the_known_answers(counter: str, key: str, expected: str) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox(words(counter), words(key))) == expected


def test_random_bytes_are_uniform_and_independent() -> None:
    shape, count = (7, 11, 1301), 6  # a size that is no multiple of four, and more arrays than words of a counter
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.jit(jax.vmap(lambda key: random_bytes(key, shape, count)))(keys)
    arrays = [np.asarray(array)[slot] for array in drawn for slot in range(2)]
    assert {(array.shape, array.dtype) for array in arrays} == {(shape, np.dtype(np.uint8))}
    most = 255 + 5 * (2 * 255) ** 0.5  # of χ², five standard deviations above its mean
    for array in arrays:
        assert chi_squared(array) < most
    for first, second in itertools.combinations(arrays, 2):
        assert chi_squared(first - second) < most  # modulo 256: equal or shifted arrays would have few differences
    first = arrays[0].ravel()
    for distance in (1, 2, 3, 4, 1301, 4 * 1301):
        assert chi_squared(first[distance:] - first[:-distance]) < most


def chi_squared(values: np.ndarray) -> float:
    counts, expected = np.bincount(values.ravel(), minlength=256), values.size / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_key_always_gives_the_same_bytes() -> None:
    """However many arrays are drawn, and alone or batched, as trials are."""
    keys = jax.random.split(jax.random.key(1), 3)
    together = jax.vmap(lambda key: random_bytes(key, (5, 9), 3))(keys)
    for slot, key in enumerate(keys):
        for array, alone in zip(together, random_bytes(key, (5, 9), 5)[:3], strict=True):
            np.testing.assert_array_equal(array[slot], alone)


def test_cpus_and_gpus_draw_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = random_bytes(jax.random.key(3), (7, 11), 6)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.tree.map(np.testing.assert_array_equal, on_cpu, random_bytes(jax.random.key(3), (7, 11), 6))


def test_bytes_are_drawn_on_every_device() -> None:
    """XLA does not compile every operation for several devices."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("slots",))
    keys = jax.random.split(jax.random.key(2), 2 * len(devices))

    def draw(keys: jax.Array) -> list[jax.Array]:
        return jax.vmap(lambda key: random_bytes(key, (5, 9), 3))(keys)

    slots = PartitionSpec("slots")
    spread = jax.shard_map(draw, mesh=mesh, in_specs=slots, out_specs=slots, check_vma=False)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(spread)(keys), draw(keys))


@pytest.mark.parametrize("drop", [51, 92])
def test_dropout_keeps_the_mean(drop: int) -> None:
    (noise,) = random_bytes(jax.random.key(0), (300, 301), 1)
    kept = dropped(jnp.ones(noise.shape), noise, drop)
    assert abs(float((kept > 0).mean()) - (1 - drop / 256)) < 0.008
    assert abs(float(kept.mean()) - 1) < 0.01
