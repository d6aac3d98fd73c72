"""Groups of options: a command's dataclass parameter stands for all its fields.

Commands that share options then share one class, instead of repeating a dozen parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import get_type_hints

__all__ = ["grouped"]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer should see it: with the fields of its groups as options.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Shape:
    ...     stages: int = 4
    >>> @grouped
    ... def show(name: str, shape: Shape):
    ...     print(name, shape.stages)
    >>> list(signature(show).parameters), show(name="a", stages=8)
    a 8
    (['name', 'stages'], None)
    """
    groups: dict[str, Callable[..., object]] = {}
    flat: dict[str, list[Parameter]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[name] = hint
            flat[name] = _parameters(hint)
        else:
            flat[name] = [parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)]

    @wraps(command)
    def run(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in flat[name]})
        command(**values)

    parameters = [parameter for part in flat.values() for parameter in part]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(group: type) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
