"""``model``: the stages of a small GPT that one device of a run trains."""

from __future__ import annotations

import math

import torch

from pipesim.replay.compute.gpt import GptShape
from pipesim.replay.compute.training import Training, gradient_errors, rounding_limit
from pipesim.replay.compute.work import Payload
from pipesim.replay.run.run import Run

__all__ = ["Model", "activation", "offloaded"]

_SHAPE = GptShape()
_TYPE = {"cpu": torch.float64, "cuda": torch.float32}


def activation(run: Run) -> Payload:
    """Return what crosses any link."""
    return Payload((_SHAPE.batch, _SHAPE.sequence, _SHAPE.width), _TYPE[run.device])


class Model(Training):
    """The stages of one device, whose gradients are compared with an unpipelined reference.

    Parameters
    ----------
    run : Run
        What is run.
    index : int
        The device of the plan.
    device : torch.device
        Where its stages are.
    """

    def __init__(self, run: Run, index: int, device: torch.device) -> None:
        super().__init__(
            run.scenario.stages_of[index],
            run.scenario.stages,
            run.scenario.microbatches,
            _SHAPE,
            device,
            _TYPE[run.device],
            run.seed,
            offloaded(run, index),
            record_gradients=True,
        )

    def report(self) -> dict[str, object]:
        """Return how far gradients and losses are off, and what the host held.

        ``wrong_gradients`` are those that rounding does not explain: iteration, stage, parameter
        and error. What is not finite, which JSON has no word for, is None.
        """
        errors = gradient_errors(self)
        limit = rounding_limit(self.dtype)
        return {
            "gradient_errors": [_finite(error.gradient) for error in errors],
            "wrong_gradients": [
                [iteration, int(stage), parameter, _finite(off)]
                for iteration, error in enumerate(errors)
                for name, off in error.wrong(limit).items()
                for stage, _, parameter in [name.partition(".")]
            ],
            "loss_errors": [_finite(error.loss) for error in errors if error.loss is not None],
            "losses": [_finite(loss) for loss in self.losses],
            "host_bytes": self.host.most_held_bytes,
            "copied_out_bytes": self.host.copied_out_bytes,
            "copied_in_bytes": self.host.copied_in_bytes,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def offloaded(run: Run, device: int) -> frozenset[tuple[int, int]]:
    """Return the (stage, micro-batch) whose activations a device has no room for.

    They are those of the forwards that run while it holds as many as it may.
    """
    limit = float(run.scenario.activation_limit[device])
    held = 0.0
    away: set[tuple[int, int]] = set()
    for op in run.schedule.orders[device]:
        at = (op.stage, op.microbatch)
        if op.kind == "F":
            if held + 1 > limit:
                away.add(at)
            else:
                held += 1
        elif at not in away:
            held -= float(run.scenario.released(op.kind)[op.stage])
    return frozenset(away)
