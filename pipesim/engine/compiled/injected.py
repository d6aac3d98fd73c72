"""Delays that change during a run, compiled: which events they delay, and who looks when.

The order of each sender's sends is that of the program, so only the times at which it looks at
the trace have to be found during a run: it is still one pass over the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.evaluator import CompiledProgram, Evaluation
from pipesim.engine.compiled.loops import injected_times
from pipesim.engine.compiled.recurrence import Recurrence
from pipesim.engine.compiled.weights import vector
from pipesim.engine.injection import Injection
from pipesim.engine.senders import senders
from pipesim.program import Program
from pipesim.scenario import Array, Scenario

__all__ = ["InjectedProgram"]

Numbers = NDArray[np.int32]
Counts = NDArray[np.int64]


class InjectedProgram:
    """A program, ready to be evaluated under any scenario of its shape and any injection.

    Parameters
    ----------
    program : Program
        Under any transport.

    Raises
    ------
    ScheduleError
        The order of a device's sends depends on times, see
        :func:`pipesim.engine.senders.senders`.
    """

    def __init__(self, program: Program) -> None:
        self._compiled = CompiledProgram(program)
        self._senders = senders(program)
        self._sends: dict[Recurrence, tuple[Numbers, Numbers]] = {}
        self._known: WeakKeyDictionary[Injection, tuple[Counts, Counts]] = WeakKeyDictionary()

    def evaluate(
        self,
        scenario: Scenario,
        injection: Injection,
        varied: Mapping[str, Array] | None = None,
    ) -> tuple[Evaluation, Array]:
        """Return what :func:`pipesim.engine.run` gives, and how long each message was delayed.

        Parameters
        ----------
        scenario : Scenario
            Operator times, latencies and message sizes.
        injection : Injection
            The delays; its senders remember what they have sent and seen.
        varied : mapping, optional
            Fields of operator times, shape [S, N], in place of the scenario's.

        Returns
        -------
        evaluation : Evaluation
            The times of operators.
        sent_ms : array, shape [S−1, 2, N]
            By link, direction and micro-batch; nan where nothing is sent.

        Raises
        ------
        ScheduleError
            The program or the trace does not fit the scenario.
        DeadlockError
            The program cannot finish, or a link that it needs has failed for ever.
        """
        program = self._compiled.program
        program.schedule.check_fits(scenario)
        injection.check_fits(scenario)
        events = self._compiled.events(scenario)
        message, sender = self._sends_of(events)
        places, every = self._known_to(injection)
        sent_ms = np.full((scenario.stages - 1, 2, scenario.microbatches), np.nan)
        memory = injection.memory[places]
        happened = injected_times(
            events.left,
            events.right,
            events.own,
            vector(scenario, program.transport, varied, injected=True),
            message,
            sender,
            every,
            injection.starts,
            injection.table.reshape(len(injection.table), -1),
            injection.start,
            injection.trace.by == "time",
            memory,
            sent_ms.ravel(),
        )
        injection.memory[places] = memory
        injection.check_sent(sent_ms)
        return self._compiled.evaluation(scenario, events, happened), sent_ms

    def _sends_of(self, events: Recurrence) -> tuple[Numbers, Numbers]:
        """For each event the message that it sends, as a place in ``sent_ms``, and the sender.

        −1 where it sends none.
        """
        if events not in self._sends:
            message, sender = np.full((2, len(events.own)), -1, dtype=np.int32)
            microbatches = self._compiled.program.schedule.microbatches
            for number, messages in enumerate(self._senders.values()):
                places = [events.sends[one.producer] for one in messages]
                assert (np.diff(places) > 0).all()  # events are ordered as they get ready
                sender[places] = number
                message[places] = [
                    (2 * one.link + one.direction) * microbatches + one.producer.microbatch
                    for one in messages
                ]
            self._sends[events] = message, sender
        return self._sends[events]

    def _known_to(self, injection: Injection) -> tuple[Counts, Counts]:
        """Where an injection remembers the senders, and after how many sends each looks."""
        if injection not in self._known:
            every = np.array(list(map(injection.looks_every, self._senders)), dtype=np.int64)
            self._known[injection] = injection.places(self._senders), every
        return self._known[injection]
