"""Activations that live in host memory between the forward and the backward that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["Host"]


class Host:
    """The host memory that one device uses, and its copies there and back.

    On CUDA it is pinned and all copies run on one stream of their own.

    Parameters
    ----------
    device : torch.device
        Where the tensors come from and go back to.
    staying : iterable of Tensor
        What never leaves the device, such as parameters; other tensors may be views of it.

    Attributes
    ----------
    held_bytes, most_held_bytes : int
        Held now; held at most.
    copied_out_bytes, copied_in_bytes : int
        Copied to the host, and back, in all.
    """

    def __init__(self, device: torch.device, staying: Iterable[Tensor] = ()) -> None:
        self.device = device
        self.held_bytes = self.most_held_bytes = 0
        self.copied_out_bytes = self.copied_in_bytes = 0
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in staying}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def keep(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copy a tensor to the host and return what copies it back, once.

        A tensor that stays, and one of whole numbers, is not copied.
        """
        if (
            tensor.untyped_storage().data_ptr() in self._staying
            or not tensor.dtype.is_floating_point
        ):
            return lambda: tensor
        return _Parcel(self, tensor.detach())

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context in which autograd keeps on the host what it saves for backward."""
        return torch.autograd.graph.saved_tensors_hooks(self.keep, lambda parcel: parcel())

    def copy_out(self, tensor: Tensor) -> Tensor:
        """Return a copy in host memory, there once the copies' stream has got that far."""
        copy = torch.empty_like(tensor, device="cpu", pin_memory=self._stream is not None)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            copy.copy_(tensor, non_blocking=True)
        self.copied_out_bytes += copy.nbytes
        self.held_bytes += copy.nbytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        return copy

    def copy_in(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, for the current stream, of what :meth:`copy_out` made."""
        with torch.cuda.stream(self._stream):
            copy = torch.empty_like(tensor, device=self.device)
            copy.copy_(tensor, non_blocking=True)
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            copy.record_stream(current)
        self.copied_in_bytes += tensor.nbytes
        self.held_bytes -= tensor.nbytes
        return copy


class _Parcel:
    """A tensor on the host. A call copies it back and lets the host's copy go."""

    def __init__(self, host: Host, tensor: Tensor) -> None:
        self._host = host
        self._copy: Tensor | None = host.copy_out(tensor)

    def __call__(self) -> Tensor:
        if self._copy is None:
            raise RuntimeError("an activation was copied back before")
        copy, self._copy = self._copy, None
        return self._host.copy_in(copy)
