"""Hit, and the other things that calls answer with."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embcache._pin import Pin, expiry
from embcache._session import Session, internal_error
from embcache.cuda import CudaSource, CudaTensorView, view_of
from embcache.dtypes import DType
from embcache.keys import Key
from embcache.tensors import TensorSpec, TensorView
from embcache.v1 import embcache_pb2 as pb


# CudaTensorView in device memory, which only clients made with device_memory=True are given. Typed as
# Any, so that those that are not need no distinction.
AnyView = Any


class Tier(enum.IntEnum):
    UNKNOWN = 0
    L1 = 1
    L2 = 2
    L3 = 3


@dataclasses.dataclass(frozen=True)
class Expect:
    """What the caller expects of a tensor; what is left out is not compared. An entry that differs
    is removed from every tier and answered as a miss."""

    tensor: str = ""  # empty: the first one
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    rows: int = 0  # the first dimension
    nbytes: int = 0


class Found(NamedTuple):
    """What `lookup` says of a key."""

    tier: Tier | None  # the fastest that has it; None: nobody has
    hit: Hit | None  # leased where it is; None: on the SSD only, on its way, or over the quota


@dataclasses.dataclass(frozen=True)
class Pending:
    """What an entry will be that somebody is writing; its bytes are not there yet."""

    key: Key
    tensors: Mapping[str, TensorSpec | None]
    metadata: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class ListedEntry:
    key: Key
    tier: Tier  # the fastest that has it
    nbytes: int
    generation: int
    on_disk: bool
    pins: int
    created: float  # Unix time; memory tiers only
    encode_cost: float  # seconds; memory tiers only


@dataclasses.dataclass(frozen=True)
class Counters:
    """What this client has seen since it was made."""

    hits: int = 0
    misses: int = 0  # also those below
    errors: int = 0  # calls that failed and were answered as a miss or a put that did nothing
    puts: int = 0
    failed_puts: int = 0
    connections: int = 0  # sessions opened after the first attempt


class Hit:
    """An entry, readable in place. Its bytes neither change nor move while the Hit or anything made
    from its tensors is held; `release()` (or `with`) gives up the Hit's own part in that."""

    __slots__ = (
        "key",
        "tensors",
        "metadata",
        "encode_cost",
        "tier",
        "generation",
        "nbytes",
        "_pin",
        "__weakref__",
    )

    def __init__(
        self, pin: Pin | None, key: Key, tensors: Mapping[str, AnyView | None], generation: int
    ) -> None:
        self._pin: Pin | None = pin
        self.key = key
        self.tensors = tensors
        self.generation = generation  # which put of the key this is
        # Of the entry, with padding between tensors.
        self.nbytes = (
            pin.nbytes
            if pin is not None
            else sum(view.nbytes for view in tensors.values() if view is not None)
        )
        self.metadata: dict[str, bytes] = {}
        self.encode_cost = 0.0  # seconds
        self.tier = Tier.L1  # where it was found; UNKNOWN: encoded just now (get_or_encode)

    def __getitem__(self, name: str) -> AnyView:
        """The tensor `name`; KeyError when there is none or it is absent."""
        view = self.tensors[name]
        if view is None:
            raise KeyError(f"{name} is absent")
        return view

    @property
    def valid(self) -> bool:
        """Whether the daemon still knows of this hit. After a restart of the daemon the bytes stay
        what they were, but nobody else has them."""
        return self._pin is not None and self._pin.valid

    def release(self) -> None:
        self._pin = None
        self.tensors = {}

    def __enter__(self) -> Hit:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Hit({self.key.model}, {self.key.content_hash.hex()}, {dict(self.tensors)})"


def make_views(
    pin: Pin, tensors: Sequence[pb.Tensor], readonly: bool
) -> dict[str, AnyView | None]:
    views: dict[str, AnyView | None] = {}
    for tensor in tensors:
        if tensor.absent:
            views[tensor.name] = None
            continue
        try:
            spec = TensorSpec(DType(tensor.dtype), tensor.shape)
        except ValueError as error:
            raise internal_error(f"tensor {tensor.name}: {error}") from None
        if spec.nbytes != tensor.bytes:
            raise internal_error(f"tensor {tensor.name}: {tensor.bytes} bytes announced for {spec}")
        address = pin.address + tensor.offset
        if pin.device is not None:
            views[tensor.name] = CudaTensorView(spec, pin, pin.device, address)
        else:
            views[tensor.name] = TensorView(spec, pin, address, readonly)
    return views


def make_pending(
    key: Key, tensors: Sequence[pb.Tensor], metadata: Mapping[str, bytes]
) -> Pending:
    specs: dict[str, TensorSpec | None] = {}
    for tensor in tensors:
        try:
            spec = None if tensor.absent else TensorSpec(DType(tensor.dtype), tensor.shape)
        except ValueError as error:
            raise internal_error(f"tensor {tensor.name}: {error}") from None
        specs[tensor.name] = spec
    return Pending(key, specs, dict(metadata))


def make_hit(session: Session, key: Key | None, result: pb.GetResult, asked: float) -> Hit:
    """`key` is what was asked for; None takes it from the answer."""
    entry = result.entry
    pin = Pin(
        session,
        ("lease", result.lease),
        result.location,
        entry.tensors,
        expiry(asked, session.limits.lease_ttl_ms),
    )
    hit = Hit(pin, key or key_of(entry.key), make_views(pin, entry.tensors, True), result.generation)
    hit.metadata = dict(entry.metadata)
    hit.encode_cost = entry.encode_cost_us / 1e6
    hit.tier = Tier(result.source)
    return hit


def encoded_hit(
    key: Key,
    sources: Mapping[str, tuple[TensorSpec, np.ndarray[Any, Any] | CudaSource] | None],
    metadata: Mapping[str, bytes | str],
    encode_cost: float,
) -> Hit:
    """Of what was encoded in this process: in its own memory, and no lease on anything."""
    views: dict[str, TensorView | CudaTensorView | None] = {}
    for name, source in sources.items():
        if source is None:
            views[name] = None
        elif isinstance(source[1], CudaSource):
            views[name] = view_of(source[0], source[1])
        else:
            array = np.ascontiguousarray(source[1])
            views[name] = TensorView(source[0], array, array.ctypes.data, True)
    hit = Hit(None, key, views, 0)
    hit.metadata = {
        name: value.encode() if isinstance(value, str) else value
        for name, value in metadata.items()
    }
    hit.encode_cost = encode_cost
    hit.tier = Tier.UNKNOWN
    return hit


def key_of(key: pb.Key) -> Key:
    return Key(key.model, key.content_hash, key.variant)


def listed_entry(entry: pb.ListedEntry) -> ListedEntry:
    return ListedEntry(
        key=key_of(entry.key),
        tier=Tier(entry.tier),
        nbytes=entry.bytes,
        generation=entry.generation,
        on_disk=entry.on_disk,
        pins=entry.pins,
        created=entry.created_unix_ms / 1000,
        encode_cost=entry.encode_cost_us / 1e6,
    )


def to_dict(message: Any) -> dict[str, Any]:
    """A message as plain Python: enums by name, bytes as hex."""
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_list = not isinstance(value, (str, bytes)) and hasattr(value, "__len__")
        if field.message_type is not None:
            out[field.name] = [to_dict(item) for item in value] if is_list else to_dict(value)
        elif field.enum_type is not None:
            out[field.name] = field.enum_type.values_by_number[value].name
        else:
            out[field.name] = value.hex() if isinstance(value, bytes) else value
    return out


def now() -> float:
    return time.monotonic()
