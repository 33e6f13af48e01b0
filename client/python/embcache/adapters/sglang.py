"""A backend of SGLang's EmbeddingStore. Register it before the encoder server starts:

    EmbeddingStoreFactory.register_backend(
        "embcache", "embcache.adapters.sglang", "EmbcacheStore")

SGLang makes it without arguments, so the environment says the rest: EMBCACHE_SOCKET_DIR,
SGLANG_EMBCACHE_MODEL (default "sglang") and SGLANG_EMBCACHE_VARIANT (any text that changes whenever
the model, its processor or a LoRA does: SGLang's hashes cover the picture alone).

Pointers are host addresses in SGLang's own pool, several per entry; bytes are copied in and out.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from embcache.client import Client
from embcache.dtypes import DType
from embcache.errors import CacheError
from embcache.hit import Expect
from embcache.keys import Key, name_hash, variant
from embcache.tensors import TensorSpec

_NAME = "data"


def _base() -> type:
    """SGLang's abstract class where it is installed, so that isinstance holds."""
    try:
        module = importlib.import_module("sglang.srt.mem_cache.embedding_store")
    except ImportError:
        return object
    found: type = module.EmbeddingStore
    return found


class EmbcacheStore(_base()):  # type: ignore[misc]
    def __init__(self, client: Client | None = None, **_: Any) -> None:
        self._client = client or Client(name="sglang")
        self._model = os.environ.get("SGLANG_EMBCACHE_MODEL", "sglang")
        self._variant = variant(sglang=os.environ.get("SGLANG_EMBCACHE_VARIANT", ""))

    def _key(self, mm_hash: str) -> Key:
        return Key(self._model, name_hash(mm_hash), self._variant)

    def get_key(self, mm_hash: str) -> str:
        return f"emb_{mm_hash}"

    def register_buffer(self, tensor: Any) -> None:
        """Nothing to do: bytes are copied by the CPU."""

    def batch_get(
        self, hashes: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[bool]:
        return self.batch_get_into_multi_buffers(
            hashes, [[ptr] for ptr in ptrs], [[size] for size in sizes]
        )

    def batch_put(
        self, hashes: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[bool]:
        return self.batch_put_from_multi_buffers(
            hashes, [[ptr] for ptr in ptrs], [[size] for size in sizes]
        )

    def batch_get_into_multi_buffers(
        self,
        hashes: Sequence[str],
        ptrs: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
    ) -> list[bool]:
        """False for a miss, and for an entry that has not exactly sum(sizes) bytes: that one is
        removed, and nothing is written to the buffers."""
        wanted = [_total(*item) for item in zip(ptrs, sizes, strict=True)]
        hits = self._client.get_many(
            [self._key(mm_hash) for mm_hash in hashes],
            [Expect(tensor=_NAME, nbytes=total) for total in wanted],
        )
        results: list[bool] = []
        for hit, total, to, parts in zip(hits, wanted, ptrs, sizes, strict=True):
            if hit is None or total == 0 or hit[_NAME].nbytes != total:
                results.append(False)
                continue
            data = hit[_NAME].flat()
            _scatter(data, to, parts)
            results.append(True)
        return results

    def batch_put_from_multi_buffers(
        self,
        hashes: Sequence[str],
        ptrs: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
    ) -> list[bool]:
        return [self._put(*item) for item in zip(hashes, ptrs, sizes, strict=True)]

    def _put(self, mm_hash: str, ptrs: Sequence[int], sizes: Sequence[int]) -> bool:
        total = _total(ptrs, sizes)
        if total == 0:
            return False
        spec = TensorSpec(DType.U8, (total,))
        try:
            with self._client.reserve(self._key(mm_hash), {_NAME: spec}) as entry:
                _gather(entry[_NAME].flat(), ptrs, sizes)
        except CacheError:
            return False
        return entry.stored

    def batch_is_exist(self, hashes: Sequence[str]) -> list[bool]:
        found = self._client.contains_many([self._key(mm_hash) for mm_hash in hashes])
        return [tier is not None for tier in found]


def _total(ptrs: Sequence[int], sizes: Sequence[int]) -> int:
    """0 for lists that do not fit together."""
    return sum(sizes) if len(ptrs) == len(sizes) and min(sizes, default=0) > 0 else 0


def _scatter(data: np.ndarray[Any, Any], ptrs: Sequence[int], sizes: Sequence[int]) -> None:
    at = data.ctypes.data
    for ptr, size in zip(ptrs, sizes, strict=True):
        ctypes.memmove(ptr, at, size)
        at += size


def _gather(data: np.ndarray[Any, Any], ptrs: Sequence[int], sizes: Sequence[int]) -> None:
    at = data.ctypes.data
    for ptr, size in zip(ptrs, sizes, strict=True):
        ctypes.memmove(at, ptr, size)
        at += size
