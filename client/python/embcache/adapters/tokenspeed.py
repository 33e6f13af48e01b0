"""An embedding cache as TokenSpeed's encode worker has it: `get(key)` and `put(key, value,
nbytes)`, where a value is a pair (main, deepstack or None) or a bare tensor, and a key an int or a
string.

    cache = EmbeddingCache(Client(), model="qwen3-vl-8b", variant=variant(revision="3f2a"))

takes the place of what `_make_embedding_cache` returns. One for each tensor-parallel rank; all of
them see the same entries. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from embcache.adapters import _frameworks, _values
from embcache.client import Client
from embcache.errors import CacheError
from embcache.hit import Hit, Tier
from embcache.keys import Key, name_hash

_log = logging.getLogger("embcache")


class EmbeddingCache:
    def __init__(
        self,
        client: Client,
        *,
        model: str,
        variant: bytes = b"",
        framework: str = "torch",
        device: Any = None,
    ) -> None:
        """`device`: where values of a get shall be; None leaves them in the cache's host memory,
        without a copy, and they must not be written to."""
        self._client = client
        self._model = model
        self._variant = variant
        self._convert = _frameworks.converter(framework, device)
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0
        self.l1_hits = 0
        self.l2_hits = 0  # also those from the SSD

    def _key(self, key: int | str | bytes) -> Key:
        return Key(self._model, name_hash(key), self._variant)

    def get(self, key: int | str | bytes) -> Any:
        """The value, or None."""
        return self._value(self._client.get(self._key(key)))

    def put(self, key: int | str | bytes, value: Any, nbytes: int = 0) -> None:
        """`nbytes` is not needed: tensors know their size. A value that cannot be stored ends the
        one before it, which would be wrong from now on."""
        if _values.store(self._client, self._key(key), value):
            return
        try:
            self._client.delete(self._key(key))
        except CacheError as error:
            _log.debug("embcache: the value before of %r may still be there: %s", key, error)

    def pop(self, key: int | str | bytes, default: Any = None) -> Any:
        hit = self._client.pop(self._key(key))
        return default if hit is None else _values.load(hit, self._convert)

    def _value(self, hit: Hit | None) -> Any:
        try:
            value = None if hit is None else _values.load(hit, self._convert)
        except KeyError:  # put by something else
            hit = value = None
        with self._lock:
            if hit is None:
                self.misses += 1
            else:
                self.hits += 1
                if hit.tier is Tier.L1:
                    self.l1_hits += 1
                else:
                    self.l2_hits += 1
        return value

    def __contains__(self, key: int | str | bytes) -> bool:
        return self._client.contains(self._key(key)) is not None

    def _of_model(self) -> dict[str, Any]:
        for model in _values.stats(self._client, per_model=True).get("models", []):
            if model["model"] == self._model:
                found: dict[str, Any] = model
                return found
        return {}

    def __len__(self) -> int:
        """Entries of the model in memory, whoever put them."""
        return int(self._of_model().get("entries", 0))

    @property
    def current_bytes(self) -> int:
        """Bytes of the model in memory, whoever put them."""
        return int(self._of_model().get("bytes", 0))

    @property
    def promotions(self) -> int:
        """Of the daemon, all models together."""
        return int(_values.stats(self._client).get("promotions", 0))

    @property
    def demotions(self) -> int:
        """Of the daemon, all models together."""
        return int(_values.stats(self._client).get("demotions", 0))
