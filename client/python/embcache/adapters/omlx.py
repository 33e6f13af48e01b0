"""A cache of vision features as oMLX has it: features, one array or a list of them, and a grid, for
an image's hash and a model's name.

    cache = VisionFeatureCache(Client(), variant=variant(processor={...}))

Thread-safe.
"""

from __future__ import annotations

import threading
from typing import Any

from embcache.adapters import _frameworks, _values
from embcache.client import Client
from embcache.keys import Key, name_hash


class VisionFeatureCache:
    def __init__(self, client: Client, *, variant: bytes = b"", framework: str = "mlx") -> None:
        """`variant` stands for what else changes the features; see embcache.keys."""
        self._client = client
        self._variant = variant
        self._convert = _frameworks.converter(framework)
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0

    def _key(self, image_hash: int | str | bytes, model_name: str) -> Key:
        return Key(model_name, name_hash(image_hash), self._variant)

    def _load(self, image_hash: int | str | bytes, model_name: str) -> dict[str, Any] | None:
        hit = self._client.get(self._key(image_hash, model_name))
        try:
            value = None if hit is None else _values.load(hit, self._convert)
        except KeyError:
            return None
        return value if isinstance(value, dict) and "features" in value else None

    def get(self, image_hash: int | str | bytes, model_name: str) -> Any:
        """The features as they were put, or None."""
        value = self._load(image_hash, model_name)
        with self._lock:
            if value is None:
                self._misses += 1
            else:
                self._hits += 1
        return None if value is None else value["features"]

    def put(
        self, image_hash: int | str | bytes, model_name: str, features: Any, grid: Any = None
    ) -> bool:
        """A list is one entry: all of it is there or nothing."""
        key = self._key(image_hash, model_name)
        return _values.store(self._client, key, {"features": features, "grid": grid})

    def get_grid(self, image_hash: int | str | bytes, model_name: str) -> Any:
        value = self._load(image_hash, model_name)
        return None if value is None else value["grid"]

    @property
    def stats(self) -> dict[str, Any]:
        with self._lock:
            own = {"hits": self._hits, "misses": self._misses}
        return {**own, "daemon": _values.stats(self._client)}

    def close(self) -> None:
        """Nothing is lost: what was put is the daemon's to keep."""
        self._client.close()
