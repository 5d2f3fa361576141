"""Arithmetic on many tensors at once, so that the equations of the rules run on them."""

from __future__ import annotations

from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...] | list[torch.Tensor]


class TensorList:
    """A list of tensors with the operators that equations use: ``scale · tensors``, ``· times`` or ``/ over``.

    The operators call torch._foreach_*, which on a GPU is one kernel for all tensors. Products and quotients are
    computed together with the addition that follows, which saves passes and memory. Operands do not change, except
    a Buffer.
    """

    __array_ufunc__ = None  # numpy's numbers leave arithmetic to this class

    def __init__(
        self, tensors: Tensors, scale: float = 1.0, times: Tensors | None = None, over: Tensors | None = None
    ) -> None:
        self._tensors, self._scale, self._times, self._over = tensors, scale, times, over

    @property
    def tensors(self) -> Tensors:
        """The tensors of this list; new ones, unless there was nothing to compute."""
        unscaled = self._unscaled()
        return unscaled if self._scale == 1 else torch._foreach_mul(unscaled, self._scale)

    def _unscaled(self) -> Tensors:
        if self._times is not None:
            return torch._foreach_mul(self._tensors, self._times)
        if self._over is not None:
            return torch._foreach_div(self._tensors, self._over)
        return self._tensors

    def add_to(self, totals: Tensors) -> None:
        """Add these tensors to ``totals`` in place."""
        if self._times is not None:
            torch._foreach_addcmul_(totals, self._tensors, self._times, value=self._scale)
        elif self._over is not None:
            torch._foreach_addcdiv_(totals, self._tensors, self._over, value=self._scale)
        else:
            torch._foreach_add_(totals, self._tensors, alpha=self._scale)

    def __array_namespace__(self) -> Any:
        """Return where levelfield.arrays finds functions such as sqrt."""
        return TensorList

    def sqrt(self) -> TensorList:
        return Buffer(list(torch._foreach_sqrt(self.tensors)))

    def __add__(self, other: Any) -> TensorList:
        if not isinstance(other, TensorList):
            return TensorList(torch._foreach_add(self.tensors, float(other)))
        if isinstance(other, Buffer):
            return other + self
        plain = self._times is None and self._over is None
        if plain and self._scale == 1:
            if other._times is None and other._over is None:
                return TensorList(torch._foreach_add(self._tensors, other._tensors, alpha=other._scale))
            return other + self
        totals = self.tensors  # new ones
        other.add_to(totals)
        return TensorList(totals)

    def __mul__(self, other: Any) -> TensorList:
        if not isinstance(other, TensorList):
            return TensorList(self._tensors, self._scale * float(other), self._times, self._over)
        return TensorList(self._unscaled(), self._scale * other._scale, times=other._unscaled())

    def __truediv__(self, other: Any) -> TensorList:
        if not isinstance(other, TensorList):
            return self * (1 / float(other))
        return TensorList(self._unscaled(), self._scale, over=other.tensors)

    def __rtruediv__(self, other: float) -> TensorList:
        return TensorList(torch._foreach_reciprocal(self.tensors), float(other))

    def __pow__(self, exponent: int) -> TensorList:
        return self * self if exponent == 2 else TensorList(torch._foreach_pow(self.tensors, exponent))

    def __neg__(self) -> TensorList:
        return self * -1

    def __sub__(self, other: Any) -> TensorList:
        difference: TensorList = self + other * -1
        return difference

    def __rsub__(self, other: float) -> TensorList:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__


class Buffer(TensorList):
    """Tensors that nothing else uses, so that the next sum can be written into them.

    The sum empties the list that was given: equations that use the old values again fail.
    """

    def __init__(self, tensors: list[torch.Tensor], scale: float = 1.0) -> None:
        super().__init__(tensors, scale)
        self._list = tensors

    def __mul__(self, other: Any) -> TensorList:
        if isinstance(other, TensorList):
            return super().__mul__(other)
        return Buffer(self._list, self._scale * float(other))

    def __add__(self, other: Any) -> TensorList:
        totals = list(self._list)
        if self._scale != 1:
            torch._foreach_mul_(totals, self._scale)
        if isinstance(other, TensorList):
            other.add_to(totals)
        else:
            torch._foreach_add_(totals, float(other))
        self._list.clear()
        return TensorList(totals)

    __radd__ = __add__
    __rmul__ = __mul__
