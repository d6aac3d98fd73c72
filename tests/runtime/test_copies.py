"""Messages of a GPU, without one: its streams run when the test says so, its tensors pretend.

A copy that is launched happens when its stream gets to it: who reads or writes too early is seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from tests.processes import waited_for
from tests.runtime.pairs import a_lane

DEVICE = torch.device("cuda", 0)


class FakeEvent:
    def __init__(self) -> None:
        self._happened = threading.Event()
        self.happen, self.query, self.synchronize = (
            self._happened.set,
            self._happened.is_set,
            self._happened.wait,
        )


class FakeStream:
    """Tasks in their order; one that says False is not over."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], object]] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.tasks.append(event.query)

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self) -> FakeEvent:
        event = FakeEvent()
        self.tasks.append(event.happen)
        return event

    def run(self) -> None:
        while self.tasks and self.tasks[0]() is not False:
            del self.tasks[0]


class FakeCuda:
    """Stands in for what is used of ``torch.cuda``."""

    def __init__(self) -> None:
        self.main = self.current = FakeStream()
        self.streams = [self.main]
        self.pinned: dict[int, int] = {}
        self.lent: list[FakeStream] = []

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802
        assert device == DEVICE
        self.streams.append(FakeStream())
        return self.streams[-1]

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, place: int, size: int, flags: int) -> int:  # noqa: N802
        self.pinned[place] = size
        return 0

    def cudaHostUnregister(self, place: int) -> int:  # noqa: N802
        del self.pinned[place]
        return 0

    def check_error(self, code: int) -> None:
        assert code == 0

    def run(self, step: int = 1) -> None:
        """Run all streams as far as they get: the main one first, or last."""
        for stream in 3 * self.streams[::step]:
            stream.run()


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, and whose copies are launched."""

    cuda: ClassVar[FakeCuda]
    device = DEVICE  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.cuda.lent.append(stream)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.copy_:
            assert kwargs == {"non_blocking": True}
            plain = [each.as_subclass(torch.Tensor) for each in args]
            return cls.cuda.current.tasks.append(lambda: plain[0].copy_(plain[1]))
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    OnGpu.cuda = cuda = FakeCuda()
    for name in ("Stream", "current_stream", "stream", "cudart", "check_error"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    return cuda


def on_gpu(value: float) -> Any:
    return torch.full((2,), float(value)).as_subclass(OnGpu)


def plain(tensor: Any) -> list[float]:
    return tensor.as_subclass(torch.Tensor).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("step", [1, -1])
def test_what_is_sent_is_what_the_current_stream_had_computed(cuda: FakeCuda, step: int) -> None:
    with a_lane(slots=2, slot_bytes=8) as (sender, receiver):
        tensor, room = on_gpu(0), torch.zeros(2)
        data = tensor.as_subclass(torch.Tensor)
        received = receiver.irecv(room)
        cuda.main.tasks.append(lambda: data.fill_(7))
        sent = sender.isend(tensor)
        assert not sent.is_completed()
        assert sent.handed_ns is None
        assert cuda.lent == [cuda.streams[1]]
        sent.wait()
        cuda.main.tasks.append(lambda: data.fill_(8))  # changes it once it has been copied
        cuda.run(step)
        assert sent.is_completed()
        waited_for(received.is_completed, "the message")
        assert room.tolist() == [7, 7]
        assert plain(tensor) == [8, 8]
        assert sent.handed_ns is not None


def test_messages_of_a_gpu_and_of_the_host_keep_their_order(cuda: FakeCuda) -> None:
    with a_lane(slots=4, slot_bytes=8) as (sender, receiver):
        first = sender.isend(on_gpu(1))
        sender.isend(torch.full((2,), 2.0))  # is handed over before the first
        rooms = [torch.zeros(2) for _ in range(2)]
        handles = [receiver.irecv(room) for room in rooms]
        waited_for(handles[1].is_completed, "the message of the host")
        assert not handles[0].is_completed()
        cuda.run()
        first.wait()
        handles[0].wait()
        assert [room.tolist() for room in rooms] == [[1, 1], [2, 2]]


def test_a_slot_is_not_used_again_before_it_is_copied(cuda: FakeCuda) -> None:
    with a_lane(slots=1, slot_bytes=8) as (sender, receiver):
        for value in range(2):
            sender.isend(torch.full((2,), float(value)))
        rooms = [on_gpu(-1), on_gpu(-1)]
        first, second = (receiver.irecv(room) for room in rooms)
        first.wait()
        end = time.monotonic() + 0.1  # nothing shall happen: a slower machine sees less of it
        while time.monotonic() < end:
            assert not second.is_completed()
        cuda.run()
        second.wait()
        cuda.run()
        assert [plain(room) for room in rooms] == [[0, 0], [1, 1]]


def test_slots_are_pinned_once_and_not_for_longer_than_they_are_there(cuda: FakeCuda) -> None:
    with a_lane(delegates=2, slots=4, slot_bytes=100) as (sender, receiver):
        for _ in range(2):
            sender.isend(on_gpu(1))
            receiver.irecv(on_gpu(0))
        assert list(cuda.pinned.values()) == [4 * 128]
        receiver.pin()
        receiver.pin()
        assert list(cuda.pinned.values()) == 2 * [4 * 128]
        cuda.run()
    assert cuda.pinned == {}


def test_a_message_of_a_gpu_that_cannot_be_handed_over_is_an_error(cuda: FakeCuda) -> None:
    with a_lane(slots=2, slot_bytes=8) as (sender, _):
        sent = sender.isend(on_gpu(1))
        sender.delegates[0].process.kill()
        sender.delegates[0].process.wait()
        cuda.run()

        def fails() -> bool:
            try:
                sent.wait()
            except ConnectionError as error:
                return "was killed by SIGKILL" in str(error)
            return False

        waited_for(fails, "the error")
