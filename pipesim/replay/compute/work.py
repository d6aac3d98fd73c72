"""What the operators of a device do: all that kinds of compute differ in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pipesim.schedule import Op

__all__ = ["Payload", "Work"]


class Payload(NamedTuple):
    """Shape and type of the tensor that crosses a link, in either direction."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def empty(self, device: torch.device) -> Tensor:
        """Return a tensor to receive one."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def of_bytes(self, content: Tensor) -> Tensor:
        """Return a copy of bytes, shape [size], as such a tensor."""
        return content.clone().view(self.dtype).view(self.shape)

    @staticmethod
    def bytes_of(tensor: Tensor) -> Tensor:
        """Return a tensor as bytes, shape [size]; no copy if it is contiguous."""
        return tensor.detach().contiguous().view(-1).view(torch.uint8)


class Work(Protocol):
    """The operators of one device, run one after the other in its order.

    On CUDA every call but :meth:`payload` is made with the compute stream current, and only
    launches.
    """

    def payload(self, link: int) -> Payload:
        """Return what crosses ``link``."""

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration, outside its time."""

    def run(self, op: Op, received: Tensor | None, start_ns: int) -> Tensor | None:
        """Run an operator.

        Parameters
        ----------
        op : Op
            One of this device's.
        start_ns : int
            From when its time counts, on this process's clock.
        received : Tensor, optional
            What the operator of the neighbouring stage that it needs has sent: an activation
            for F, a gradient for B and BW.

        Returns
        -------
        Tensor, optional
            What the neighbouring stage needs of it.
        """

    def finish(self) -> None:
        """End an iteration, outside its time."""

    def report(self) -> dict[str, object]:
        """Return what there is to report on all iterations, in JSON types."""
