"""The names of events in profiler traces, and what they say.

=============================  ===================================================
``PP:0F1``                     stage, action, micro-batch: torch's schedules from 2.9 on
``PP:(2F2;1B0)OVERLAP_F_B``    an overlapped pair of them (DualPipeV)
``Forward 1``, ``Backward 1``  micro-batch: torch's single-stage GPipe
``PP:0SEND_F1``, …             messages, sharding and gradients: no operators
``ProfilerStep#7``             the iteration
``gloo:recv``                  from the call of a receive to the end of the wait for it
``c10d::recv_``, …             the call alone
=============================  ===================================================

torch's actions are F, I (our B), W, and B, the full backward (our BW). Its single-stage 1F1B
annotates nothing (looked up in torch 2.13).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pipesim.scenario import Kind

__all__ = [
    "BACKWARD_OPERATOR",
    "COMMUNICATION",
    "COMMUNICATION_KERNEL",
    "EXCHANGE",
    "PIPELINE_GROUP",
    "RECEIVE",
    "SENDS_ON",
    "Action",
    "actions",
    "other",
    "shares_stage",
    "step_number",
]

_KINDS: dict[str, Kind] = {"F": "F", "I": "B", "W": "W", "B": "BW"}
"""torch's letters in ours."""

_OPERATOR = r"([0-9]{1,6})([FIWB])([0-9]{1,6})"
_ACTION = re.compile(f"PP:{_OPERATOR}")
_PAIR = re.compile(rf"PP:\({_OPERATOR};{_OPERATOR}\)OVERLAP_F_B")
_SINGLE = re.compile(r"(Forward|Backward) ([0-9]{1,6})")
_STEP = re.compile(r"ProfilerStep\s*#([0-9]{1,9})")
_OTHER = re.compile(
    r"PP:(?:[0-9]+(?:UNSHARD|RESHARD|REDUCE_GRAD|(?:SEND|RECV)_[FB])[0-9]*|:.*)", re.S
)

SENDS_ON = re.compile(r"PP:([0-9]{1,6})(?:SEND_F|RECV_B)[0-9]*")
"""Of a stage that is not the last."""

RECEIVE = re.compile(r"(?:gloo|mpi|ucc):recv.*", re.I | re.S)
"""A receive for which the host waits; NCCL's returns at once, and the GPU waits."""

COMMUNICATION = re.compile(r"(?:c10d::|record_param_comms|gloo:|nccl:|mpi:|ucc:).*", re.S)
COMMUNICATION_KERNEL = re.compile(r"(?:.*[^a-z])?[nr]ccl.*", re.I | re.S)
EXCHANGE = re.compile(
    r"(?:c10d::|gloo:|nccl:|mpi:|ucc:|(?:.*[^a-z])?[nr]ccl).*(?:send|recv).*", re.I | re.S
)
"""Communication between two ranks, as stages have it, on the host or as a kernel."""
BACKWARD_OPERATOR = "autograd::engine::evaluate_function"

PIPELINE_GROUP = re.compile(r"(?:.*[^a-z])?(?:pp|pipe|pipeline)(?:[^a-z].*)?", re.I | re.S)
"""Describes a process group with the ranks of a pipeline."""


_SHARING = {"tp", "tensor", "cp", "context", "ep", "expert"}
_COPIES = {"dp", "fsdp", "data", "pp", "pipe", "pipeline"}


class Action(NamedTuple):
    """What an annotation names; ``stage`` is None where it names none."""

    kind: Kind
    stage: int | None
    microbatch: int


def actions(name: str) -> tuple[Action, ...]:
    """Return the operators that an annotation names, in the order in which they start.

    Examples
    --------
    >>> actions("PP:3I12"), actions("aten::mm")
    ((Action(kind='B', stage=3, microbatch=12),), ())
    >>> actions("Backward 1")
    (Action(kind='BW', stage=None, microbatch=1),)
    >>> [action.kind for action in actions("PP:(2F2;1B0)OVERLAP_F_B")]
    ['F', 'BW']
    """
    if match := _ACTION.fullmatch(name) or _PAIR.fullmatch(name):
        parts = match.groups()
        named = tuple(
            Action(_KINDS[kind], int(stage), int(microbatch))
            for stage, kind, microbatch in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        )
        return named if len(set(named)) == len(named) else ()
    if match := _SINGLE.fullmatch(name):
        return (Action("F" if match[1] == "Forward" else "BW", None, int(match[2])),)
    return ()


def other(name: str) -> bool:
    """Whether an annotation of torch's schedules is known, and names no operator.

    Examples
    --------
    >>> other("PP:0SEND_F1"), other("PP::fwd_send"), other("PP:0F1"), other("PP:0X1")
    (True, True, False, False)
    """
    return _OTHER.fullmatch(name) is not None


def shares_stage(group: str) -> bool:
    """Whether a process group is of ranks that share a stage's work for one micro-batch.

    Examples
    --------
    >>> shares_stage("mesh_tp"), shares_stage("TENSOR_MODEL_PARALLEL_GROUP")
    (True, True)
    >>> shares_stage("mesh_dp_shard_cp"), shares_stage("default_pg")
    (False, False)
    """
    words = set(re.split("[^a-z]+", group.lower()))
    return bool(words & _SHARING) and not words & _COPIES


def step_number(name: str) -> int | None:
    """Return the number of a profiler step.

    Examples
    --------
    >>> step_number("ProfilerStep#7"), step_number("PP:0F0")
    (7, None)
    """
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None
