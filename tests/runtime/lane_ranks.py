"""One rank of two that send each other tensors over delegates. Arguments: rank, port."""

from __future__ import annotations

import sys

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pipesim.runtime import Lane, Receiver, Sender, open_lanes


def main(rank: int, port: int) -> None:
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    lanes = [
        Lane("there", 0, 1, delegates=2, slot_bytes=400 if rank else None),
        Lane("back", 1, 0, slot_bytes=None if rank else 400),
    ]
    ends = open_lanes(store, rank, lanes)
    sender = next(end for end in ends.values() if isinstance(end, Sender))
    receiver = next(end for end in ends.values() if isinstance(end, Receiver))
    with sender, receiver:
        for number in range(50):
            sender.isend(torch.full((100,), float(number + rank)))
            room = torch.empty(100)
            receiver.irecv(room).wait()
            assert (room == number + 1 - rank).all()
    sys.stdout.write("done")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
