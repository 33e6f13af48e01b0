"""Whether a class still fits the engine's base class that is installed. Internal."""

from __future__ import annotations

import inspect


def check(cls: type, base: type) -> None:
    """TypeError, naming the method, when `base` asks for a method that `cls` does not have, or one
    of `cls` takes other parameters than that of `base`."""
    missing = sorted(getattr(cls, "__abstractmethods__", frozenset()))
    if missing:
        raise TypeError(f"{_name(base)} asks for methods that embcache does not have: {missing}")
    for name, method in vars(cls).items():
        expected = getattr(base, name, None)
        if name.startswith("_") or expected is None or not callable(method):
            continue
        ours = list(inspect.signature(method).parameters)
        theirs = list(inspect.signature(expected).parameters)
        if ours != theirs:
            raise TypeError(
                f"{_name(base)}.{name} takes {theirs}, embcache's {ours}; "
                "this version of the engine is not known"
            )


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
