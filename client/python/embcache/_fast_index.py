"""libembcache_fast by ctypes: the library, and one session's shared index and pin table. Internal.

The library is looked for at $LIBEMBCACHE_FAST (a path; "off" for none), beside this file, and where
the system has its libraries; without it every hit is a call, and nothing else differs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

_LAYOUT_VERSION = 1


def _load() -> Any:
    given = os.environ.get("LIBEMBCACHE_FAST", "")
    beside = os.path.join(os.path.dirname(__file__), "libembcache_fast.so")
    if given:
        paths = [] if given == "off" else [given]
    else:
        paths = [beside, "libembcache_fast.so.1"]
    for path in paths:
        try:
            # Keeps the interpreter's lock: giving it up and taking it again costs more than the call.
            library = ctypes.PyDLL(path)
            if library.embcache_fast_version() != _LAYOUT_VERSION:
                continue
            pointer, number = ctypes.c_void_p, ctypes.c_uint64
            library.embcache_fast_open.argtypes = [ctypes.c_int, number, ctypes.c_int] + [number] * 2
            library.embcache_fast_open.restype = pointer
            library.embcache_fast_replace_index.argtypes = [pointer, ctypes.c_int, number]
            library.embcache_fast_close.argtypes = [pointer]
            library.embcache_fast_close.restype = None
            library.embcache_fast_hash.argtypes = [ctypes.c_char_p, ctypes.c_size_t, pointer]
            library.embcache_fast_hash.restype = None
            library.embcache_fast_get_number.argtypes = [pointer, pointer, ctypes.c_int]
            library.embcache_fast_get_number.restype = number
            library.embcache_fast_entry.argtypes = [pointer, ctypes.c_uint32]
            library.embcache_fast_entry.restype = pointer
            library.embcache_fast_charge.argtypes = [pointer, ctypes.c_int64]
            library.embcache_fast_charge.restype = None
            library.embcache_fast_touch.argtypes = [pointer, number]
            library.embcache_fast_release.argtypes = [pointer, ctypes.c_uint32]
            library.embcache_fast_release.restype = None
        except (OSError, AttributeError):
            continue
        return library
    return None


_library = _load()


library = _load()


def layout_version() -> int:
    """What a Hello says: 0 without the library."""
    return _LAYOUT_VERSION if library is not None else 0


class FastIndex:
    """Thread-safe, but for replace and close."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        # What entries say, by publication: of _fast.py.
        self.known: dict[int, Any] = {}

    @staticmethod
    def open(
        descriptors: Sequence[int], announced: Any, max_pinned_bytes: int
    ) -> FastIndex | None:
        """None, whatever is wrong with it: the session does without."""
        if library is None or announced.layout_version != _LAYOUT_VERSION or len(descriptors) != 2:
            return None
        handle = library.embcache_fast_open(
            descriptors[0],
            announced.index_bytes,
            descriptors[1],
            announced.pin_table_bytes,
            max_pinned_bytes,
        )
        return FastIndex(handle) if handle else None

    def replace(self, descriptor: int, nbytes: int) -> None:
        library.embcache_fast_replace_index(self.handle, descriptor, nbytes)

    def charge(self, nbytes: int) -> None:
        """What is held by leases and reservations: `nbytes` more, or less."""
        library.embcache_fast_charge(self.handle, nbytes)

    def close(self) -> None:
        library.embcache_fast_close(self.handle)
