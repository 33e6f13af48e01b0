"""Entries whose value is arrays in lists, tuples and dicts with plain data between them. Internal.

The arrays become tensors "0", "1", ...; their arrangement, as JSON, the metadata "embcache.value":
{"a": name} an array, {"l": [...]} a list, {"t": [...]} a tuple, {"d": {...}} a dict, {"v": ...}
what JSON has.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from embcache.adapters import _frameworks
from embcache.client import Client
from embcache.errors import CacheError, InvalidArgument
from embcache.hit import Hit
from embcache.keys import Key

_METADATA = "embcache.value"
_log = logging.getLogger("embcache")


def store(client: Client, key: Key, value: Any, encode_cost: float = 0.0) -> bool:
    """False, with a warning, also for what no entry can hold: a cache must not end its engine."""
    tensors: dict[str, Any] = {}
    try:
        arrangement = json.dumps(_pack(value, tensors), allow_nan=False)
        return client.put(key, tensors, metadata={_METADATA: arrangement}, encode_cost=encode_cost)
    except (InvalidArgument, TypeError, ValueError, KeyError) as error:
        _log.warning("embcache: not stored: %s", error)
        return False


def stats(client: Client, per_model: bool = False) -> dict[str, Any]:
    """The daemon's counters; empty when there is none."""
    try:
        return client.stats(per_model=per_model)
    except CacheError:
        return {}


def load(hit: Hit, convert: _frameworks.Converter) -> Any:
    """The value; KeyError when the entry was not put by `store`."""
    return _unpack(json.loads(hit.metadata[_METADATA]), hit, convert)


def _pack(value: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    if _frameworks.is_array(value):
        name = str(len(tensors))
        tensors[name] = _frameworks.source(value)
        return {"a": name}
    if isinstance(value, (list, tuple)):
        items = [_pack(item, tensors) for item in value]
        return {"l" if isinstance(value, list) else "t": items}
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("a dict with names that are not strings")
        return {"d": {name: _pack(item, tensors) for name, item in value.items()}}
    return {"v": value}


def _unpack(node: dict[str, Any], hit: Hit, convert: _frameworks.Converter) -> Any:
    ((kind, content),) = node.items()
    if kind == "a":
        return convert(hit[content])
    if kind in "lt":
        items = [_unpack(item, hit, convert) for item in content]
        return items if kind == "l" else tuple(items)
    if kind == "d":
        return {name: _unpack(item, hit, convert) for name, item in content.items()}
    return content
