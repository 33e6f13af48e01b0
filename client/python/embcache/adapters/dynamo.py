"""A cache as Dynamo's MultimodalEmbeddingCacheManager is used: `get`, `set`, `set_with_delta` and
`make_room_for` of a CachedEmbedding.

    cache = MultimodalEmbeddingCache(client=Client(), model="qwen2.5-vl-7b")

Entries outlive the process and are shared by all of a machine's, so a delta names only what this
object's own call changed. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from typing import Any

from embcache.adapters import _frameworks, _values
from embcache.client import Client
from embcache.keys import Key, name_hash


@dataclasses.dataclass
class CachedEmbedding:
    tensor: Any
    image_grid_thw: Any = None
    video_grid_thw: Any = None
    second_per_grid_ts: Any = None
    video_timestamps: Any = None


@dataclasses.dataclass
class CacheMutation:
    stored: bool
    added_keys: list[str] = dataclasses.field(default_factory=list)
    removed_keys: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class CacheReservation:
    admitted: bool
    removed_keys: list[str] = dataclasses.field(default_factory=list)


_FIELDS = tuple(field.name for field in dataclasses.fields(CachedEmbedding))
_DYNAMO = "dynamo.common.memory.multimodal_embedding_cache_manager"


def _type(ours: type) -> Any:
    """Dynamo's own of the same name, where it is installed and has it."""
    try:
        return getattr(importlib.import_module(_DYNAMO), ours.__name__)
    except (ImportError, AttributeError):
        return ours


class MultimodalEmbeddingCache:
    def __init__(
        self,
        capacity_bytes: int = 0,
        *,
        client: Client,
        model: str,
        variant: bytes = b"",
        framework: str = "torch",
        device: Any = None,
    ) -> None:
        """`capacity_bytes` is the daemon's to say, and ignored."""
        self._client = client
        self._model = model
        self._variant = variant
        self._convert = _frameworks.converter(framework, device)
        self._embedding = _type(CachedEmbedding)
        self._mutation = _type(CacheMutation)
        self._reservation = _type(CacheReservation)
        self._lock = threading.Lock()
        self._names: dict[bytes, str] = {}  # of keys that are no hex, set through this object
        self._hits = 0
        self._misses = 0

    def _key(self, key: str) -> Key:
        return Key(self._model, name_hash(key), self._variant)

    def get(self, key: str) -> Any:
        """A CachedEmbedding, or None."""
        hit = self._client.get(self._key(key))
        value: Any = None
        if hit is not None:
            try:
                value = _values.load(hit, self._convert)
            except KeyError:  # put by something else
                pass
        found = isinstance(value, dict) and "tensor" in value
        with self._lock:
            self._hits += found
            self._misses += not found
        if not found:
            return None
        return self._embedding(**{name: value[name] for name in _FIELDS if name in value})

    def make_room_for(self, key: str, size_bytes: int) -> Any:
        """Whether an entry of that size could be stored. The daemon makes the room, of what is used
        least by anyone, when the entry comes: nothing is removed here."""
        return self._reservation(size_bytes <= self._client.max_entry_bytes, [])

    def set(self, key: str, entry: Any) -> bool:
        return bool(self.set_with_delta(key, entry).stored)

    def set_with_delta(self, key: str, entry: Any) -> Any:
        was_there = self._client.contains(self._key(key)) is not None
        value = {name: getattr(entry, name, None) for name in _FIELDS}
        stored = _values.store(self._client, self._key(key), value)
        if stored:
            with self._lock:
                self._names[name_hash(key)] = key
        added = [key] if stored and not was_there else []
        return self._mutation(stored=stored, added_keys=added, removed_keys=[])

    def keys(self) -> list[str]:
        """Of all entries of the model and variant; as hex those that this object has not set."""
        with self._lock:
            names = dict(self._names)
        return [
            names.get(entry.key.content_hash, entry.key.content_hash.hex())
            for entry in self._client.list(self._model)
            if entry.key.variant == self._variant
        ]

    @property
    def stats(self) -> dict[str, Any]:
        """Sizes and evictions are the daemon's, hits and misses of this object."""
        tiers = _values.stats(self._client).get("tiers", [])
        memory = [tier for tier in tiers if tier["tier"] != "L3"]
        used = sum(tier["used_bytes"] for tier in memory)
        capacity = sum(tier["capacity_bytes"] for tier in memory)
        with self._lock:
            hits, misses = self._hits, self._misses
        return {
            "entries": sum(tier["entries"] for tier in memory),
            "current_bytes": used,
            "capacity_bytes": capacity,
            "utilization": used / capacity if capacity else 0.0,
            "hits": hits,
            "misses": misses,
            "evictions": sum(tier["evictions_capacity"] for tier in memory),
            "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
        }
