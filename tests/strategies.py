"""Random scenarios, planned schedules and transports for property tests."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st

from pipesim.actions import Action, End, Op, Overlap, Upkeep, operators_of
from pipesim.errors import ScheduleError
from pipesim.lowering import lower
from pipesim.program import Compute
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport
from planners import names, plan


def tries(each: float) -> int:
    """How often to try: ``each`` times the number of examples that the profile sets."""
    return max(1, round(each * settings.default.max_examples))


def examples(fraction: float) -> settings:
    """Settings of a test with costly examples: it tries this fraction of the profile's number."""
    return settings(max_examples=tries(fraction))


times = st.one_of(
    st.just(0.0),
    st.integers(1, 20).map(float),
    st.floats(0.01, 50, allow_nan=False, allow_infinity=False),
)
_usual = st.floats(0, 100, allow_subnormal=False)  # parts of others lose all their digits
delays = st.one_of(st.just(0.0), st.sampled_from([5.0, 10.0, 20.0]), _usual)


def matrices(stages: int, microbatches: int) -> st.SearchStrategy[object]:
    """Durations as one number, one per stage, or one per stage and micro-batch."""
    row = st.lists(times, min_size=stages, max_size=stages)
    cells = st.lists(times, min_size=microbatches, max_size=microbatches)
    return st.one_of(times, row, st.lists(cells, min_size=stages, max_size=stages))


@st.composite
def placements(draw: st.DrawFn) -> tuple[int, ...]:
    kind = draw(st.sampled_from(["plain", "plain", "plain", "interleaved", "v"]))
    if kind == "plain":
        return Scenario.place("plain", draw(st.integers(1, 6)))
    return Scenario.place(kind, draw(st.integers(1, 3)), draw(st.integers(1, 3)))  # type: ignore[arg-type]


@st.composite
def scenarios(draw: st.DrawFn, *, limited: bool = False) -> Scenario:
    """S 1–6 stages (up to 9 virtual ones), N 1–12, any times, several slow links."""
    placement = draw(placements())
    stages, n = len(placement), draw(st.integers(1, 12))
    crossing = [placement[i] != placement[i + 1] for i in range(stages - 1)]

    def delay_table() -> list[list[float]]:
        return [[draw(delays), draw(delays)] if c else [0.0, 0.0] for c in crossing]

    parts = st.sampled_from([0.0, 0.5, 1.0, 1 / 3])
    slow = draw(st.sampled_from(["none", "latency", "occupancy", "both"]))
    limits = (
        [
            draw(st.one_of(st.just(float("inf")), st.integers(placement.count(d), 12).map(float)))
            for d in range(max(placement) + 1)
        ]
        if limited
        else float("inf")
    )
    return Scenario(
        stages=stages,
        microbatches=n,
        placement=placement,
        forward_ms=draw(matrices(stages, n)),
        backward_ms=draw(matrices(stages, n)),
        weight_ms=draw(matrices(stages, n)),
        fused_backward_ms=draw(st.none() | matrices(stages, n)),
        latency_ms=delay_table() if slow in ("latency", "both") and stages > 1 else 0.0,
        occupancy_ms=delay_table() if slow in ("occupancy", "both") and stages > 1 else 0.0,
        message_bytes=draw(st.sampled_from([0.0, 1e6])),
        activation_limit=limits,
        released_by_b=draw(parts | st.lists(parts, min_size=stages, max_size=stages)),
    )


def planned(scenario: Scenario) -> dict[str, Schedule]:
    """The schedules of all planners that take this placement."""
    schedules = {}
    for name in names():
        try:
            schedules[name] = plan(scenario, name)
        except ScheduleError as error:
            if "needs" not in str(error):  # another placement, or another N
                raise
    return schedules


@st.composite
def cases(draw: st.DrawFn, *, limited: bool = False) -> tuple[Scenario, Schedule]:
    """A random scenario with one planner's schedule for it."""
    scenario = draw(scenarios(limited=limited))
    schedules = planned(scenario)
    return scenario, schedules[draw(st.sampled_from(sorted(schedules)))]


def spelled_out(schedule: Schedule, scenario: Scenario) -> Schedule:
    """The same schedule, which says itself where lowering would send and receive."""
    program = lower(schedule, scenario, Nccl(fused=False))
    rows: list[list[Action]] = []
    for instructions in program.instructions:
        row: list[Action] = []
        for instruction in instructions:
            if isinstance(instruction, Compute):
                row.append(instruction.op)
            else:
                row += [message.sending for message in instruction.sends]
                row += [message.sending.other for message in instruction.receives]
        rows.append(row)
    return Schedule(
        schedule.orders,
        schedule.placement,
        schedule.microbatches,
        schedule.planner,
        schedule.assumed,
        rows,
    )


def _changed(
    draw: st.DrawFn, schedule: Schedule, change: Callable[[list[Action]], None]
) -> Schedule:
    """Change one device's actions; the schedule as it was, if it would not be one."""
    rows = [list(row) for row in schedule.actions or schedule.orders]
    change(rows[draw(st.integers(0, len(rows) - 1))])
    try:
        return Schedule(
            schedule.orders,
            schedule.placement,
            schedule.microbatches,
            schedule.planner,
            schedule.assumed,
            rows,
        )
    except ScheduleError:
        return schedule


@st.composite
def communicating(draw: st.DrawFn) -> tuple[Scenario, Schedule]:
    """A random scenario with a schedule whose sends and receives were moved about.

    It may hang where sends wait for their receives. It may have overlaps and upkeep, too.
    """
    scenario, schedule = draw(cases())
    made = spelled_out(schedule, scenario)

    def move(row: list[Action]) -> None:
        places = [place for place, action in enumerate(row) if isinstance(action, End)]
        if places:
            place = draw(st.sampled_from(places))
            row.insert(max(0, place + draw(st.integers(-4, 4))), row.pop(place))

    def overlap(row: list[Action]) -> None:
        place = draw(st.integers(0, len(row) - 1))
        if all(isinstance(action, Op) for action in row[place : place + 2]):
            row[place : place + 2] = [Overlap(tuple(operators_of(row[place : place + 2])))]

    def upkeep(row: list[Action]) -> None:
        stage = next(operators_of(row)).stage
        row.insert(draw(st.integers(0, len(row))), Upkeep("UNSHARD", stage))

    for change in draw(st.lists(st.sampled_from([move, move, move, overlap, upkeep]), max_size=12)):
        made = _changed(draw, made, change)
    return scenario, made


_costs = st.sampled_from([0.0, 0.5, 3.0])
_rates = st.sampled_from([float("inf"), 1e6])

transports: st.SearchStrategy[Transport] = st.one_of(
    st.builds(Ideal, base_ms=_costs, bytes_per_ms=_rates),
    st.builds(
        Nccl,
        p2p_streams=st.sampled_from(["device", "peer", "direction"]),
        fused=st.booleans(),
        base_ms=_costs,
        bytes_per_ms=_rates,
        eager_bytes=st.sampled_from([0.0, 1e6]),
    ),
    st.builds(Exchange, base_ms=_costs, bytes_per_ms=_rates),
    st.builds(
        Delegated,
        delegates=st.none() | st.integers(1, 3),
        only_slow=st.booleans(),
        base_ms=_costs,
        bytes_per_ms=_rates,
        copy_base_ms=_costs,
        copy_bytes_per_ms=_rates,
        copy_on_demand=st.booleans(),
    ),
    st.builds(Isolated, base_ms=_costs, bytes_per_ms=_rates),
)
