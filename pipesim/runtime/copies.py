"""Copies between tensors and slots: on the spot for the CPU, by streams and events for CUDA.

CUDA's side has not been measured: its tests run it with stand-in streams and events.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pipesim.runtime.slots import Slots

__all__ = ["Copies", "Event", "shown_as"]


class Event(Protocol):
    """A mark on a stream, as of CUDA."""

    def query(self) -> bool:
        """Whether the stream has got that far."""

    def synchronize(self) -> None:
        """Wait until it has."""


def shown_as(content: Tensor, tensor: Tensor) -> Tensor:
    """Return the first bytes of a slot as a tensor of the type and shape of another; no copy."""
    return content[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


class Copies:
    """The copies between one GPU and slots.

    Parameters
    ----------
    slots : Slots
        Are pinned, so nobody waits for a copy.
    device : torch.device
        The GPU.
    """

    def __init__(self, slots: Slots, device: torch.device) -> None:
        slots.pin()
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def out(self, tensor: Tensor, content: Tensor) -> Event:
        """Copy to a slot, on a stream of its own, what the current one has computed by then."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            shown_as(content, tensor).copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        event: Event = self._stream.record_event()
        return event

    def wait(self, event: Event) -> None:
        """Make the current stream wait for a copy: then it may change the tensor."""
        torch.cuda.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def into(self, content: Tensor, tensor: Tensor) -> Event:
        """Copy from a slot on the current stream; until the event the slot must not change."""
        tensor.copy_(shown_as(content, tensor), non_blocking=True)
        event: Event = torch.cuda.current_stream(self._device).record_event()
        return event
