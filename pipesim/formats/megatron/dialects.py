"""How Megatron-LM and its relatives print an iteration, timers and their arguments.

Everything that is looked for in a log stands in the tables of this module, with a line that
shows it: :data:`DIALECTS` of iterations, :data:`ONE_LINE` and :data:`BLOCK` of timers,
:data:`ARGUMENTS` of what a run was started with, and :data:`FOREIGN` of
other programs that write to the same log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = [
    "AFTER",
    "ARGUMENTS",
    "BATCH",
    "BLOCK",
    "DIALECTS",
    "FOREIGN",
    "ONE_LINE",
    "OPERATORS",
    "UNITS_MS",
    "Dialect",
    "arguments",
    "foreign",
]

UNITS_MS = {"ms": 1.0, "s": 1000.0, "us": 0.001}
"""Milliseconds in a unit of time."""

_NUMBER = re.compile(r"(?P<value>[0-9]{1,15}(\.[0-9]{1,9})?)(?P<power>)")
_SCIENTIFIC = re.compile(r"(?P<value>[0-9]{1,15}(\.[0-9]{1,9})?(e[+-]?[0-9]{1,2})?)(?P<power>)")
_SHORT = re.compile(r"(?P<value>[0-9]{1,15}(\.[0-9]{1,9})?)(?P<power>[KM]?)")
_POWERS = {"": 1.0, "K": 1e3, "M": 1e6}


# -- iterations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """One way to print the time of an iteration.

    Parameters
    ----------
    name : str
        Who prints it so.
    examples : mapping of str to str
        A line of each program that does.
    number : pattern
        Finds the iteration: group ``number``.
    time : pattern
        Finds its time behind that: groups ``time``, ``unit`` if the line tells it, ``end``
        (what ends the field, empty at the end of the line), ``mean`` where there is a second
        number.
    value : pattern
        A whole ``time``: groups ``value`` and ``power``.
    closed : bool
        Whether every field ends with a bar: what has none is cut short.
    refreshed : bool
        Whether the line is a progress bar, printed again and again; the last counts.
    """

    name: str
    examples: Mapping[str, str]
    number: re.Pattern[str]
    time: re.Pattern[str]
    value: re.Pattern[str] = field(default=_NUMBER)
    closed: bool = False
    refreshed: bool = False

    def read(self, text: str) -> float | None:
        """Return the number that a time is printed as; None: it is none."""
        found = self.value.fullmatch(text)
        return float(found["value"]) * _POWERS[found["power"]] if found else None


DIALECTS = (
    Dialect(
        "NeMo 2",
        {
            "NeMo 2": "Training epoch 0, iteration 7/99 | lr: 2.1e-05 | global_batch_size: 16 | "
            "global_step: 7 | reduced_train_loss: 10.9 | train_step_timing in s: 1.225 | "
            "consumed_samples: 128"
        },
        re.compile(r"Training epoch [0-9]{1,9}, iteration (?P<number>[0-9]{1,9})/[0-9]{1,9}\s*\|"),
        re.compile(
            r"(?<!\w)train_step_timing in (?P<unit>[^\s:|]{1,20}):[ \t]*(?P<time>[^\s|]*)\s*"
            r"(?P<end>\||$)"
        ),
        _SCIENTIFIC,
    ),
    Dialect(
        "NeMo 1",
        {
            "NeMo 1": "Epoch 0: :  16%|█▌        | 8/50 [00:10<00:52, v_num=0, "
            "reduced_train_loss=10.80, global_step=7.000, consumed_samples=128.0, "
            "train_step_timing in s=1.225]"
        },
        re.compile(
            r"Epoch [0-9]{1,9}:[^|\n]{0,40}\|[^|\n]{0,200}\| (?P<number>[0-9]{1,9})/[0-9]{1,9} \["
        ),
        re.compile(
            r"(?<!\w)train_step_timing in (?P<unit>[^\s=,\]]{1,20})=(?P<time>[^\s,\]]*)"
            r"(?P<end>[,\]]|$)"
        ),
        _SCIENTIFIC,
        refreshed=True,
    ),
    Dialect(
        "Megatron-LM",
        {
            "Megatron-LM": " [2025-03-01 10:20:30] iteration        8/      50 | consumed samples: "
            "         128 | elapsed time per iteration (ms): 1225.0 | learning rate: 2.1E-05 | "
            "global batch size:    16 | lm loss: 1.09E+01 | number of nan iterations:   0 |",
            "Megatron-LM v1": " iteration        8/      50 | elapsed time per iteration (ms): "
            "1225.0 | learning rate 2.100E-05 | lm loss 1.090000E+01 | loss scale 131072.0 |",
            "GPT-NeoX": " samples/sec: 13.061 | iteration        8/      50 | elapsed time per "
            "iteration (ms): 1225.0 | learning rate: 2.1E-05 | lm_loss: 1.09E+01 |",
            "Megatron-LM of AMD": " iteration        8/      50 | consumed samples:          128 | "
            "elapsed time per iteration (ms): 1225.0/1228.4 | throughput per GPU (TFLOP/s/GPU): "
            "210.3/209.7 | global batch size:    16 | lm loss: 1.09E+01 |",
            "Megatron-DeepSpeed of BigScience": "[default7]: iteration        8/      50 | "
            "consumed samples:          128 | consumed tokens:       262144 | elapsed time per "
            "iteration (s): 1.23 | learning rate: 2.100E-05 | global batch size:    16 | lm loss: "
            "1.09E+01 | samples per second: 13.061 | TFLOPs: 101.20 |",
        },
        re.compile(
            r"(?<![\w-])iteration\s+(?P<number>[0-9]{1,9})\s*/\s*(?:[0-9]{1,9}|infinity)\s*\|"
        ),
        re.compile(
            r"elapsed time per iteration(?:\s*\((?P<unit>[^()|]{0,20})\))?\s*:[ \t]*"
            r"(?P<time>[^\s|/]*)(?:/(?P<mean>[^\s|]*))?\s*(?P<end>\|?)"
        ),
        closed=True,
    ),
    Dialect(
        "key=value",
        {
            "Megatron-DeepSpeed of Argonne": "[2025-03-01 10:20:30][I][training.py:88] iteration="
            "       8/      50 | consumed_samples=         128 | elapsed_time_per_iteration_ms="
            "1225.0 | learning_rate=2.1e-05 | global_batch_size=   16 | lm loss=10.900000 |",
            "plain": "iteration=8 elapsed_time_per_iteration_ms=1225.0 global_batch_size=16",
        },
        re.compile(
            r"(?<![\w-])iteration=\s*(?P<number>[0-9]{1,9})(?:\s*/\s*[0-9]{1,9})?(?=[\s|,])"
        ),
        re.compile(
            r"(?<!\w)elapsed_time_per_iteration_(?P<unit>\w{1,20})=[ \t]*(?P<time>[^\s|,]*)"
            r"(?P<end>[\s|,]|$)"
        ),
    ),
    Dialect(
        "nanotron",
        {
            "nanotron": "03/01/2025 10:20:30 [INFO|DP=0|PP=3|TP=0]: iteration: 8 / 50 | "
            "consumed_tokens: 262K | elapsed_time_per_iteration_ms: 1.22K | "
            "tokens_per_sec: 26.7K | global_batch_size: 16 | lm_loss: 10.9 | lr: 2.1e-05"
        },
        re.compile(r"(?<![\w-])iteration: (?P<number>[0-9]{1,9}) / [0-9]{1,9} \|"),
        re.compile(
            r"(?<!\w)elapsed_time_per_iteration_(?P<unit>\w{1,20}):[ \t]*(?P<time>[^\s|]*)\s*"
            r"(?P<end>\||$)"
        ),
        _SHORT,
    ),
    Dialect(
        "DeepSpeed",
        {
            "DeepSpeed's pipeline engine": "steps: 8 loss: 10.9000 iter time (s): 1.225 "
            "samples/sec: 13.061"
        },
        re.compile(r"(?<![\w-])steps: (?P<number>[0-9]{1,9}) loss: "),
        re.compile(r"iter time \((?P<unit>[^()]{0,20})\):[ \t]*(?P<time>[^\s|]*)(?P<end>\s|$)"),
    ),
)
"""The first that occurs in a log is the one that is read: DeepSpeed also speaks beside others."""

BATCH = re.compile(r"glo(?:ba|ab)l[ _]batch[ _]size\s*[:=]\s*([0-9]{1,9})(?![\w.])")
"""Samples of an iteration, on its line; one fork spells them with the letters swapped."""


# -- timers ----------------------------------------------------------------------------------

BLOCK = re.compile(r"(?:\(min, max\) |max )?times? across ranks \((?P<unit>[^()]{0,20})\):\s*$")
"""Above the timers of Megatron-LM core: ``times across ranks (ms):`` of ``--timing-log-option
all``, ``(min, max) time across ranks (ms):`` and ``max time across ranks (ms):``."""

ONE_LINE = re.compile(
    r"(?:(?:rank=|\[Rank )(?P<rank>[0-9]{1,7})\]? )?(?<![\w-])time \((?P<unit>[^()]{0,20})\)"
    r"(?P<timers>(?:\s*\|[^|]*)+)$"
)
"""Timers of one rank: ``time (ms) | forward-compute: 81.20 | backward-compute: 160.40``, which
Megatron-LM v1 and v2 print of the last rank after its iteration, and ``rank=0 time (ms) |
fwd_microstep: …``, which DeepSpeed prints of rank 0 before it."""

OPERATORS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Megatron-LM": (("forward-compute", "forward"), ("backward-compute", "backward")),
    "DeepSpeed": (
        ("fwd", "forward", "fwd_microstep", "forward_microstep"),
        ("bwd", "backward", "bwd_microstep", "backward_microstep"),
    ),
}
"""The timers of F and of BW, the surest name first."""

AFTER = (
    "all-grads-sync",
    "backward-params-all-reduce",
    "backward-embedding-all-reduce",
    "optimizer",
)
"""Timers of what follows the pipeline, none of which holds another."""


# -- what the run was started with -----------------------------------------------------------

ARGUMENTS = {
    "pipeline_model_parallel_size": "stages",
    "world_size": "ranks",
    "num_microbatches": "micro-batches",
    "tensor_model_parallel_size": "tensor-parallel ranks",
    "context_parallel_size": "context-parallel ranks",
    "data_parallel_size": "data-parallel ranks",
    "expert_model_parallel_size": "expert-parallel ranks",
    "virtual_pipeline_model_parallel_size": "chunks",
    "num_virtual_stages_per_pipeline_rank": "chunks",
    "num_layers_per_virtual_pipeline_stage": "layers of a chunk",
    "microbatch_group_size_per_vp_stage": "micro-batches of a group",
    "num_layers": "layers",
    "decoder_first_pipeline_num_layers": "layers of the first stage",
    "decoder_last_pipeline_num_layers": "layers of the last stage",
    "num_layers_in_first_pipeline_stage": "layers of the first stage",
    "num_layers_in_last_pipeline_stage": "layers of the last stage",
    "global_batch_size": "samples of a batch",
    "micro_batch_size": "samples of a micro-batch",
    "use_tp_pp_dp_mapping": "pipeline before data",
    "account_for_embedding_in_pipeline_split": "embedding as a layer",
    "account_for_loss_in_pipeline_split": "loss as a layer",
    "standalone_embedding_stage": "embedding on a stage of its own",
    "pipeline_model_parallel_layout": "layout",
    # of Huawei's and AMD's forks
    "num_layer_list": "layers by stage",
    "decoder_pipeline_manual_split_list": "layers by device",
    "schedules_method": "order by schedules_method",
    "pp_algorithm": "order by pp_algorithm",
    "enable_zero_bubble": "order by enable_zero_bubble",
    "zero_bubble_v_schedule": "order by zero_bubble_v_schedule",
    "enable_1f1b_v": "order by enable_1f1b_v",
    # as GPT-NeoX calls them
    "pipe_parallel_size": "stages",
    "model_parallel_size": "tensor-parallel ranks",
    "gradient_accumulation_steps": "micro-batches",
    "train_batch_size": "samples of a batch",
    "train_micro_batch_size_per_gpu": "samples of a micro-batch",
}
"""Arguments as they are printed, ``  world_size ........ 8``, by NeMo ``world_size: 8``, and what
they tell."""

_WORDS = re.compile("layout|layers by .*|order by .*")
"""Which of them are no number."""
_UNSET = ("None", "null", "False", "false", "0", "[]")

_DUMPED = re.compile(r"(?<![\w-])([a-z][a-z0-9_]*) \.+ (\S(?:.{0,998}\S)?)\s*$")
_YAML = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*):[ \t]+(\S{1,40})\s*$")
_SIZES = {
    "using world size": "ranks",
    "tensor-model-parallel size": "tensor-parallel ranks",
    "context-parallel size": "context-parallel ranks",
    "pipeline-model-parallel size": "stages",
    "data-parallel size": "data-parallel ranks",
    "data-parallel-size": "data-parallel ranks",
}
_SIZED = re.compile(rf"(?<![\w-])({'|'.join(_SIZES)}): ([0-9]{{1,9}})(?![\w.])")
"""``using world size: 8, data-parallel size: 2, …``, the first line of a run."""
_CONSTANT = re.compile(
    r"(?<![\w-])setting number of micro-?batches to constant ([0-9]{1,9})(?![\w.])"
)
_PROCESSES = re.compile(
    r"All distributed processes registered\. Starting with ([0-9]{1,9}) processes"
)
"""What NeMo's trainer says of the ranks."""
_ORIGIN = re.compile(r"\.{3,}(?:default|updated)$")
"""What GPT-NeoX adds to a value."""
_FLAGS = {"True": 1, "False": 0, "true": 1, "false": 0}


def arguments(line: str, *, nemo: bool) -> Iterator[tuple[str, int | str, bool]]:
    """Yield what a line tells of the run.

    Which of :data:`ARGUMENTS`, its value, and whether nobody but Megatron-LM says it so.

    Examples
    --------
    >>> list(arguments("using world size: 8, pipeline-model-parallel size: 4 ", nemo=False))
    [('ranks', 8, True), ('stages', 4, True)]
    >>> list(arguments("  use_tp_pp_dp_mapping ............. True", nemo=False))
    [('pipeline before data', 1, False)]
    """
    if "size: " in line:
        for found in _SIZED.finditer(line):
            yield _SIZES[found[1]], int(found[2]), True
    if constant := _CONSTANT.search(line) if "constant" in line else None:
        yield "micro-batches", int(constant[1]), True
    if processes := _PROCESSES.search(line) if nemo else None:
        yield "ranks", int(processes[1]), True
    written = _DUMPED.search(line) if " ." in line else _YAML.search(line) if nemo else None
    if written and (what := ARGUMENTS.get(written[1])):
        text = _ORIGIN.sub("", written[2])
        if _WORDS.fullmatch(what):
            if text not in _UNSET:
                yield what, text, False
        elif text in _FLAGS:
            yield what, _FLAGS[text], False
        elif re.fullmatch("[0-9]{1,9}", text):
            # GPT-NeoX says 0 of a pipeline that is none
            yield what, max(int(text), int(written[1] == "pipe_parallel_size")), False


# -- other programs --------------------------------------------------------------------------

_OWN = "arguments|training|initialize|global_vars|microbatches|num_microbatches_calculator"

FOREIGN = {
    "DeepSpeed": (
        "[2025-03-01 10:20:30,123] [INFO] [config.py:960:print]   world_size ............... 2",
        re.compile(r"\[[A-Z]{4,8}\]\s*\[(?!(?:[\w./-]*/)?(?:" + _OWN + r")\.py)[\w./-]+\.py:\d+:"),
    ),
    "NCCL": (
        "node3:4711:4711 [0] NCCL INFO comm 0x5581 rank 0 nranks 8 cudaDev 0",
        re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b"),
    ),
    "torch's launcher": (
        "INFO:torch.distributed.launcher.api:  world_size ........ 2",
        re.compile(r"\btorch\.distributed\b|\btorchrun\b|\[torch/distributed/"),
    ),
    "Lightning": (
        "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]",
        re.compile(r"\bLOCAL_RANK: \d|\bGLOBAL_RANK: \d|\bpytorch_lightning\b|\blightning\."),
    ),
    "the environment": (
        "WORLD_SIZE=2",
        re.compile(r"^\s*(?:declare -x |export |\+ )?[A-Z][A-Z0-9_]{2,}="),
    ),
    "another program": (
        "2025-03-01 10:20:30 INFO engine.py:77 -   world_size ........ 2",
        re.compile(
            r"(?<![\w./-])(?!(?:[\w./-]*/)?(?:" + _OWN + r"|pretrain_\w+)\.py)[\w./-]{1,200}\.py:\d"
            r"|(?<![\w./-])(?:deepspeed|colossalai|accelerate|transformers)(?:\.\w+){0,9}"
            r"(?:\]|:| -)"
        ),
    ),
}
"""Programs whose lines are not Megatron-LM's, whatever they say: each a line, and what gives it
away, before all the name of the file or module that printed it."""


def foreign(line: str) -> str:
    """Return whose line it is, if not Megatron-LM's; nothing otherwise.

    Examples
    --------
    >>> foreign("[2025-03-01 10:20:30,123] [INFO] [engine.py:12:f] world_size .... 2")
    'DeepSpeed'
    >>> foreign("  world_size .... 8")
    ''
    """
    return next((name for name, (_, mark) in FOREIGN.items() if mark.search(line)), "")
