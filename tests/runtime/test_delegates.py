"""What happens when a delegate, a rank or nobody ends: one clear error, and nothing left."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.distributed import HashStore

from pipesim.runtime import (
    DelegateError,
    Lane,
    PeerError,
    Receiver,
    Sender,
    SilenceError,
    open_lanes,
)
from pipesim.runtime.delegate import LOST_PEER
from pipesim.runtime.delegates import is_stopped
from pipesim.runtime.slots import Slots
from tests.processes import Background, all_pids, read, waited_for
from tests.runtime.pairs import a_lane, both, opened

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def delegates_of(process: int) -> list[int]:
    """The delegates that a process has."""
    parent = f"PPid:\t{process}\n".encode()
    return [
        pid
        for pid in all_pids()
        if parent in read(pid, "status") and b"runtime/delegate.py" in read(pid, "cmdline")
    ]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads, files = set(threading.enumerate()), sum(1 for _ in Path("/proc/self/fd").iterdir())
    yield
    waited_for(lambda: set(threading.enumerate()) <= threads, "threads to end")
    assert delegates_of(os.getpid()) == []
    gc.collect()  # memory stays open as long as an error shows where it was used
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= files


def once(end: Sender | Receiver, number: signal.Signals) -> int:
    """Send a signal to the first delegate of an end; returns its process."""
    process = end.delegates[0].process.pid
    os.kill(process, number)
    return process


def sends_until_it_fails(sender: Sender, size: int = 1) -> None:
    while True:
        sender.isend(torch.ones(size))


@pytest.mark.parametrize("whose", [0, 1])
def test_a_killed_delegate_is_named_and_its_pair_s_worker_hears_of_it(whose: int) -> None:
    with a_lane(slots=2, slot_bytes=8) as (sender, receiver):
        tasks: list[Callable[[], object]] = [
            lambda: sends_until_it_fails(sender),
            lambda: receiver.irecv().wait(),
        ]
        once((sender, receiver)[whose], signal.SIGKILL)
        with pytest.raises(DelegateError, match=r"^delegate 0 of lane was killed by SIGKILL$"):
            tasks[whose]()
        with pytest.raises(PeerError, match=r"^delegate 0 of lane lost the delegate at the other"):
            tasks[1 - whose]()
        with pytest.raises(DelegateError):
            (sender, receiver)[whose].check()


def test_a_delegate_whose_pair_is_gone_ends_though_nobody_sends() -> None:
    with a_lane(slots=2, slot_bytes=8) as (sender, receiver):
        once(receiver, signal.SIGKILL)
        waited_for(lambda: sender.delegates[0].process.poll() == LOST_PEER, "its end")


def test_what_has_landed_before_the_sender_ended_is_received() -> None:
    with a_lane(slots=2, slot_bytes=8) as (sender, receiver):
        sender.isend(torch.tensor([7.0]))
        sender.close()
        assert sender.delegates[0].process.returncode == 0  # by itself
        room = torch.zeros(1)
        receiver.irecv(room).wait()
        assert room.item() == 7
        with pytest.raises(PeerError):
            receiver.irecv(room).wait()


def test_a_stopped_delegate_is_named() -> None:
    with a_lane(slots=1, slot_bytes=8, timeout_s=0.1) as (_, receiver):
        process = once(receiver, signal.SIGSTOP)
        waited_for(lambda: is_stopped(process), "the delegate to stop")
        with pytest.raises(SilenceError, match=r"^delegate 0 of lane is stopped \(SIGSTOP\)$"):
            receiver.irecv().wait()


def test_who_says_nothing_is_named_and_may_be_waited_for_again() -> None:
    with a_lane(slots=1, slot_bytes=8, timeout_s=0.1) as (sender, receiver):
        received = receiver.irecv(torch.zeros(1))
        assert not received.is_completed()
        with pytest.raises(SilenceError, match=r"rank 0 does not answer on lane lane for 0\.1 s"):
            received.wait()
        sender.isend(torch.ones(1))
        waited_for(received.is_completed, "the message")


def test_a_sender_whose_messages_nobody_takes_gives_up() -> None:
    with (
        a_lane(slots=1, slot_bytes=2**24, timeout_s=0.2) as (sender, _),
        pytest.raises(SilenceError, match=r"rank 1 does not answer on lane lane for 0\.2 s"),
    ):
        sends_until_it_fails(sender, 2**22)  # more than two slots, and what the connection holds


def test_an_end_that_was_closed_says_so_to_whoever_waits() -> None:
    with a_lane(slots=1, slot_bytes=8) as (_, receiver):
        errors: list[DelegateError] = []

        def wait() -> None:
            with pytest.raises(DelegateError, match="delegate 0 of lane was closed") as caught:
                receiver.irecv().wait()
            errors.append(caught.value)

        waiting = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        receiver.close()
        for thread in waiting:
            thread.join()
        wait()
        assert len(errors) == 4


def test_what_does_not_fit_is_refused_at_either_end() -> None:
    with a_lane(slots=1, slot_bytes=8) as (sender, receiver):
        with pytest.raises(ValueError, match="a message has 12 bytes, more than the 8 of a slot"):
            sender.isend(torch.ones(3))
        for value in range(4):  # the slots of those that were refused are free again
            sender.isend(torch.full((1,), float(value)))
            room = torch.zeros(2 if value < 3 else 1)
            received = receiver.irecv(room)
            if value < 3:
                with pytest.raises(ValueError, match=f"message {value} has 4 bytes, .* it 8"):
                    received.wait()
            else:
                received.wait()
                assert room.item() == 3


def test_many_threads_wait_for_messages_of_one_lane() -> None:
    with a_lane(delegates=2, slots=64, slot_bytes=8) as (sender, receiver):
        rooms = [torch.zeros(1) for _ in range(32)]
        handles = [receiver.irecv(room) for room in rooms]
        waiting = [threading.Thread(target=handle.wait) for handle in (*handles, *handles)]
        for thread in reversed(waiting):
            thread.start()
        for value in range(32):
            sender.isend(torch.full((1,), float(value)))
        for thread in waiting:
            thread.join()
        assert [room.item() for room in rooms] == list(range(32))


# -- opening -------------------------------------------------------------------------------


def test_a_name_may_be_used_again() -> None:
    store = HashStore()
    for _ in range(3):
        lanes = [Lane("again", 0, 1, slot_bytes=8)]
        ends = both(lambda: open_lanes(store, 0, lanes), lambda: open_lanes(store, 1, lanes))  # noqa: B023
        for opened_ends in ends:
            opened_ends["again"].close()  # type: ignore[index]


def test_lanes_in_a_ring_open_in_whatever_order_they_are_given() -> None:
    lanes = [Lane(f"{a}→{b}", a, b, slot_bytes=8) for a, b in ((0, 1), (1, 0))]
    store = HashStore()
    ends = both(
        lambda: open_lanes(store, 0, lanes), lambda: open_lanes(store, 1, [*reversed(lanes)])
    )
    for side in ends:
        assert sorted(side) == ["0→1", "1→0"]  # type: ignore[call-overload]
        for end in side.values():  # type: ignore[attr-defined]
            end.close()


def test_a_rank_that_does_not_come_is_named() -> None:
    lane = Lane("alone", 0, 1, slot_bytes=8)
    with pytest.raises(SilenceError, match="rank 1 has not opened lane alone"):
        open_lanes(HashStore(), 0, [lane], timeout_s=0.1)
    with pytest.raises(SilenceError, match="nobody has connected for lane alone"):
        open_lanes(HashStore(), 1, [lane], timeout_s=0.1)


def test_a_stranger_who_connects_is_shown_out() -> None:
    class Told(HashStore):  # type: ignore[misc]
        """A store that brings a stranger, as soon as there is somebody to connect to."""

        strangers: ClassVar[list[socket.socket]] = []

        def set(self, key: str, value: str) -> None:
            host, port = value.strip("[").replace('"', "").split(", ")[:2]
            stranger = socket.create_connection((host, int(port)))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            self.strangers.append(stranger)
            super().set(key, value)

    store, lane = Told(), Lane("lane", 0, 1, slot_bytes=8)
    out, into = both(lambda: open_lanes(store, 0, [lane]), lambda: open_lanes(store, 1, [lane]))
    with store.strangers.pop() as stranger:
        stranger.settimeout(60)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    out["lane"].isend(torch.ones(1))  # type: ignore[index]
    into["lane"].irecv(torch.zeros(1)).wait()  # type: ignore[index]
    out["lane"].close()  # type: ignore[index]
    into["lane"].close()  # type: ignore[index]


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        ({"slot_bytes": 8}, {"slot_bytes": 16}, r"its sender has .* slots of 8 bytes, .* 16"),
        ({"delegates": 2}, {"slot_bytes": 16}, "its sender has 2 delegates .* its receiver 1"),
    ],
)
def test_ends_that_are_unlike_are_refused(
    here: dict[str, int], there: dict[str, int], message: str
) -> None:
    store = HashStore()

    def receive() -> None:
        with pytest.raises(DelegateError):
            open_lanes(store, 1, [Lane("lane", 0, 1, **there)], timeout_s=0.1)

    def send() -> None:
        with pytest.raises(ValueError, match=message):
            open_lanes(store, 0, [Lane("lane", 0, 1, **here)])

    both(send, receive)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"receiver": 0}, "rank 0 would send to itself"),
        ({"delegates": 0}, "at least one delegate"),
        ({"slots": 0}, "at least one .* slot"),
        ({"slots": 1025}, "at most 1,024 slots"),
        ({"slot_bytes": -1}, "cannot have -1 bytes"),
    ],
)
def test_lanes_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"lane lane: .*{message}"):
        Lane(**{"name": "lane", "sender": 0, "receiver": 1, **options})  # type: ignore[arg-type]


def test_too_little_memory_is_an_error() -> None:
    with pytest.raises(MemoryError, match=r"no room for .* KiB of messages in shared memory"):
        Slots(1, 1, 2**60)


def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(DelegateError, match="GLOO_SOCKET_IFNAME=nowhere0: No such device"):
        open_lanes(HashStore(), 1, [Lane("lane", 0, 1, slot_bytes=8)])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with a_lane(slot_bytes=8):
        pass


# -- processes that end --------------------------------------------------------------------

HOLDER = """\
import os, signal, sys
import torch
from pipesim.runtime import Lane
from tests.runtime.pairs import opened
how = sys.argv[1]
with opened(Lane("lane", 0, 1, delegates=2, slot_bytes=8)) as (out, into):
    out["lane"].isend(torch.ones(1))
    into["lane"].irecv(torch.zeros(1)).wait()
    if how == "forked" and os.fork() == 0:
        out["lane"].close()
        sys.exit()  # its end is nobody's end
    print("ready", flush=True)
    if how == "held" and os.fork() == 0:
        how = "pause"  # it has all pipes too, and goes on
    if how in ("pause", "held"):
        signal.pause()
    os.wait()
    out["lane"].isend(torch.ones(1))
    into["lane"].irecv(torch.zeros(1)).wait()
    print("still there")
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_delegates_end_with_a_worker_that_is_killed(tmp_path: Path, stopped: bool) -> None:
    with Background(tmp_path, sys.executable, "-c", HOLDER, "pause") as run:
        waited_for(lambda: "ready" in run.output, "delegates")
        processes = delegates_of(run.process.pid)
        assert len(processes) == 4
        if stopped:
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            waited_for(lambda: all(map(has_stopped, processes)), "delegates to stop")
        run.process.kill()
        run.ended()
        assert run.said == ""


@pytest.mark.slow
def test_delegates_end_with_their_worker_though_a_process_that_it_forked_goes_on(
    tmp_path: Path,
) -> None:
    with Background(tmp_path, sys.executable, "-c", HOLDER, "held") as run:
        waited_for(lambda: "ready" in run.output, "delegates")
        waited_for(lambda: len(run.pids()) == 6, "the forked process")
        run.process.kill()
        waited_for(lambda: len(run.pids()) == 1, "delegates to end")


@pytest.mark.slow
def test_a_forked_process_does_not_end_its_parent_s_delegates(tmp_path: Path) -> None:
    with Background(tmp_path, sys.executable, "-c", HOLDER, "forked") as run:
        run.ended()
        assert (run.output.split("\n")[-2], run.said) == ("still there", "")


def has_stopped(process: int) -> bool:
    """Whether all threads of a process have: until then Linux does not take it as stopped."""
    tasks = Path(f"/proc/{process}/task")
    return all(is_stopped(int(task.name)) for task in tasks.iterdir())


UNCLOSED = """\
import torch
from torch.distributed import HashStore
from pipesim.runtime import Lane, open_lanes
from tests.runtime.pairs import both
store, lanes = HashStore(), [Lane("lane", 0, 1, slot_bytes=8)]
out, into = both(lambda: open_lanes(store, 0, lanes), lambda: open_lanes(store, 1, lanes))
out["lane"].isend(torch.ones(1))
print("left open")
"""


@pytest.mark.slow
def test_who_does_not_close_leaves_nothing_either(tmp_path: Path) -> None:
    with Background(tmp_path, sys.executable, "-c", UNCLOSED) as run:
        run.ended()
        assert (run.process.returncode, run.output, run.said) == (0, "left open\n", "")


def test_an_end_that_nobody_holds_ends() -> None:
    with opened(Lane("lane", 0, 1, slot_bytes=8)) as (out, into):
        process = out["lane"].delegates[0].process
        out.clear()  # type: ignore[attr-defined]
        assert process.poll() is not None
        into.clear()  # type: ignore[attr-defined]


FOREIGN = ["simpy", "numba", "pandas", "scipy", "networkx", "rich", "typer", "matplotlib"]


@pytest.mark.slow
def test_the_library_takes_nothing_of_the_simulator_along(tmp_path: Path) -> None:
    code = f"import pipesim.runtime, sys; print([m for m in {FOREIGN} if m in sys.modules])"
    code += "; print([m for m in sys.modules if m.startswith('pipesim') and 'runtime' not in m])"
    with Background(tmp_path, sys.executable, "-c", code) as run:
        run.ended()
        assert (run.output, run.said) == ("[]\n['pipesim']\n", "")
