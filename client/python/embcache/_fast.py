"""Hits without a call. Internal.

A hit costs one call into the library, which answers in one number. What an entry says (tensors,
metadata, place) is read once for each publication and kept; a publication never changes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embcache._fast_index import FastIndex, library
from embcache._pin import Pin
from embcache.cuda import CudaTensorView
from embcache.dtypes import DType
from embcache.errors import CacheError
from embcache.hit import Expect, Hit, Tier
from embcache.keys import Key
from embcache.tensors import TensorSpec, TensorView

if TYPE_CHECKING:
    from embcache import _cuda
    from embcache._session import Session

_PIN_BITS = 10
_PIN_MASK = (1 << _PIN_BITS) - 1
_MAX_KNOWN = 65536  # entries whose description is kept

if library is not None:
    _get_number = library.embcache_fast_get_number
    _release = library.embcache_fast_release


# As in storage/fast_layout.h.
class _Blob(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("publication", "generation", "segment_generation")),
        *((name, ctypes.c_uint64) for name in ("offset", "bytes", "encode_cost_us")),
        *((name, ctypes.c_uint32) for name in ("segment", "tier", "blob_bytes", "key_at")),
        *((name, ctypes.c_uint32) for name in ("key_bytes", "tensors", "metadata", "unused")),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("shape", ctypes.c_int64 * 8),
        ("name_at", ctypes.c_uint32),
        ("name_bytes", ctypes.c_uint16),
        ("dtype", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("absent", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32) for name in ("name_at", "name_bytes", "value_at", "value_bytes")
    ]


class _Key(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
        ("hash", ctypes.c_uint64 * 2),
    ]


def _prepare(key: Key) -> tuple[int, _Key]:
    """The key as the library wants it, made once and kept with the key."""
    model = key.model.encode()
    encoded = b"%c%b%c%b%b%b" % (
        len(model),
        model,
        len(key.content_hash),
        key.content_hash,
        len(key.variant).to_bytes(2, "little"),
        key.variant,
    )
    prepared = _Key(encoded, len(encoded))
    library.embcache_fast_hash(encoded, len(encoded), ctypes.addressof(prepared.hash))
    kept = ctypes.addressof(prepared), prepared
    object.__setattr__(key, "_fast", kept)
    return kept


class FastPin(Pin):
    """A pin that the daemon sees in this session's pin table."""

    __slots__ = ("_handle", "_number", "lease")

    def __init__(self, session: Session, handle: int, number: int, known: _Known) -> None:
        self.session = session
        self._handle = handle
        self._number = number
        self.address = known.address  # in device memory: from the start of the segment
        self.device: _cuda.Segment | None = None
        self.host = known.host
        self.nbytes = known.nbytes
        self.expires = math.inf
        self.lease: Pin | None = None  # a second pin, which can be shared
        self.hold = ("fast", number)
        session.held.add(self.hold)

    def __del__(self) -> None:
        hold = self.hold
        if hold is None:
            return
        # The library knows a fork by itself, and then does nothing.
        _release(self._handle, self._number & _PIN_MASK)
        self.session.held.discard(hold)


class _Known:
    """What an entry says. `address` is in this process, or in device memory from the start of
    `segment`, which is looked up at each hit: what is kept here must not keep it open."""

    __slots__ = (
        "address",
        "on_device",
        "segment",
        "host",
        "nbytes",
        "generation",
        "tier",
        "encode_cost",
        "tensors",
        "metadata",
    )

    def __init__(self, session: Session, at: int) -> None:
        blob = _Blob.from_address(at)

        def text(begin: int, size: int) -> bytes:
            return ctypes.string_at(at + begin, size)

        self.host = session.segment_of(
            blob.segment, blob.segment_generation, blob.offset, blob.bytes
        )
        self.segment: int = blob.segment
        self.on_device = self.host.memory is None
        self.address = blob.offset if self.on_device else self.host.address + blob.offset
        self.nbytes: int = blob.bytes
        self.generation: int = blob.generation
        self.tier = Tier(blob.tier)
        self.encode_cost = blob.encode_cost_us / 1e6
        self.tensors: list[tuple[str, TensorSpec | None, int]] = []
        at_tensors = at + ctypes.sizeof(_Blob)
        for tensor in (_Tensor * blob.tensors).from_address(at_tensors):
            spec = None
            if not tensor.absent:
                spec = TensorSpec(DType(tensor.dtype), tensor.shape[: tensor.rank])
                if spec.nbytes != tensor.bytes or tensor.offset + tensor.bytes > self.nbytes:
                    raise ValueError("a tensor that does not fit its entry")
            name = text(tensor.name_at, tensor.name_bytes).decode()
            self.tensors.append((name, spec, tensor.offset))
        at_metadata = at_tensors + blob.tensors * ctypes.sizeof(_Tensor)
        self.metadata = {
            text(item.name_at, item.name_bytes).decode(): text(item.value_at, item.value_bytes)
            for item in (_Metadata * blob.metadata).from_address(at_metadata)
        }

    def meets(self, expect: Expect | Sequence[Expect]) -> bool:
        for want in [expect] if isinstance(expect, Expect) else expect:
            found = next(
                (spec for name, spec, _ in self.tensors if want.tensor in ("", name)), None
            )
            if found is None:
                return False
            rows = found.shape[0] if found.shape else 1
            if not (
                want.dtype in (None, found.dtype)
                and want.shape in ((), found.shape)
                and want.rows in (0, rows)
                and want.nbytes in (0, found.nbytes)
            ):
                return False
        return True


def get(session: Session, key: Key, expect: Expect | Sequence[Expect] | None) -> Hit | None:
    """None: ask the daemon. Counts a hit and nothing otherwise: an entry that does not meet
    `expect` is left for the daemon to find."""
    fast = session.fast
    if fast is None:
        return None
    prepared = key.__dict__.get("_fast") or _prepare(key)
    at_once = expect is None and session.all_mapped
    number: int = _get_number(fast.handle, prepared[0], at_once)
    if not number:
        return None
    publication = number >> _PIN_BITS
    known = fast.known.get(publication) or _read(session, fast, number)
    if known is None:
        _release(fast.handle, number & _PIN_MASK)
        return None
    pin = FastPin(session, fast.handle, number, known)
    if not session.connected or (expect is not None and not known.meets(expect)):
        return None
    if known.on_device and not _open(session, pin, known.segment):
        return None
    if not at_once and not library.embcache_fast_touch(fast.handle, publication):
        return None
    device, address = pin.device, pin.address
    hit = Hit(
        pin,
        key,
        {
            name: None
            if spec is None
            else TensorView(spec, pin, address + offset, True)
            if device is None
            else CudaTensorView(spec, pin, device, address + offset)
            for name, spec, offset in known.tensors
        },
        known.generation,
    )
    hit.metadata = known.metadata.copy()
    hit.encode_cost = known.encode_cost
    hit.tier = known.tier
    return hit


def _open(session: Session, pin: FastPin, segment: int) -> bool:
    """From here on the pin knows where it is, and keeps the segment open. False: the memory is not,
    and cannot be opened; by call the caller is told why."""
    device = session.device_segment(segment)
    if device is None:
        return False
    try:
        pin.address += device.address
    except CacheError:
        return False
    pin.device = device
    return True


def _read(session: Session, fast: FastIndex, number: int) -> _Known | None:
    """What a pinned entry says; None when it is nothing that this client can show."""
    try:
        known = _Known(session, library.embcache_fast_entry(fast.handle, number & _PIN_MASK))
    except (CacheError, ValueError):
        return None
    if len(fast.known) >= _MAX_KNOWN:
        fast.known.clear()
    fast.known[number >> _PIN_BITS] = known
    return known
