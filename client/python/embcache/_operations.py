"""What each call asks and how its answer is read, once for both clients. Internal.

An operation is a generator: it yields calls (and work that blocks) and is sent the answers, or has
CacheErrors thrown in. `Client` drives it by blocking calls, `aio.Client` by awaiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc

from embcache import _fast, cuda
from embcache._claims import ClaimHold
from embcache._pin import Pin, expiry
from embcache._session import Session, internal_error
from embcache.errors import CacheError, InvalidArgument, error_of_number
from embcache.hit import (
    AnyView,
    Expect,
    Found,
    Hit,
    Pending,
    Tier,
    make_hit,
    make_pending,
    make_views,
    now,
)
from embcache.keys import Key
from embcache.tensors import TensorSpec
from embcache.v1 import embcache_pb2 as pb


class Call(NamedTuple):
    method: str
    request: Any
    wait: float = 0.0  # how long the daemon may keep it waiting


class Work(NamedTuple):
    run: Callable[[], Any]


T = TypeVar("T")
Operation = Generator["Call | Work", Any, T]

# A source is a NumPy array or a cuda.CudaSource.
Sources = Mapping[str, "tuple[TensorSpec, Any] | None"]
Specs = Mapping[str, "TensorSpec | None"]


def raise_for(status: pb.ItemStatus) -> None:
    if status.code:
        raise error_of_number(status.code, status.message)


def set_key(key: Key, out: pb.Key) -> None:
    out.model = key.model
    out.content_hash = key.content_hash
    out.variant = key.variant


def _only(results: Sequence[Any], call: str) -> Any:
    if len(results) != 1:
        raise internal_error(f"{call}: {len(results)} results for 1 item")
    return results[0]


def with_room(session: Session, operation: Callable[[], Operation[T]]) -> Operation[T]:
    """Pins that have ended here may still count against the session's quota, for they are given
    back in the background: what runs into the quota is tried once more when they have been."""
    try:
        return (yield from operation())
    except CacheError as error:
        if error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        if not (yield Work(session.releaser.flush)):
            raise
    return (yield from operation())


# --- Reading --------------------------------------------------------------------------------------


def _set_item(item: pb.GetItem, key: Key, expect: Expect | Sequence[Expect] | None) -> None:
    set_key(key, item.key)
    if expect is None:
        return
    for one in [expect] if isinstance(expect, Expect) else expect:
        item.expect.add(
            tensor=one.tensor,
            dtype=one.dtype or 0,
            shape=one.shape,
            rows=one.rows,
            bytes=one.nbytes,
        )


def _read_result(
    session: Session, key: Key, result: pb.GetResult, asked: float
) -> Hit | None:
    if result.verdict == pb.GetResult.HIT:
        return make_hit(session, key, result, asked)
    if result.verdict == pb.GetResult.MISS:
        return None
    raise_for(result.status)
    raise internal_error("a result without verdict")


def _read_waited(
    session: Session, key: Key, result: pb.GetResult, asked: float
) -> Hit | Pending | None:
    if result.verdict == pb.GetResult.PENDING:
        return make_pending(key, result.entry.tensors, result.entry.metadata)
    return _read_result(session, key, result, asked)


def get(
    session: Session,
    key: Key,
    expect: Expect | Sequence[Expect] | None,
    place: str = "any",
    wait: float = 0.0,
    accept_pending: bool = False,
) -> Operation[Hit | Pending | None]:
    request = pb.GetRequest(place=place_of(place), accept_pending=accept_pending)
    _set_item(request.items.add(), key, expect)
    if wait > 0 or accept_pending:
        request.on_miss = pb.ON_MISS_WAIT
        request.wait_ms = round(max(0.0, wait) * 1000)

    def once() -> Operation[Hit | Pending | None]:
        asked = now()
        response = yield Call("Get", request, wait)
        return _read_waited(session, key, _only(response.results, "Get"), asked)

    return with_room(session, once)


def get_or_claim(
    session: Session,
    key: Key,
    expect: Expect | Sequence[Expect] | None,
    wait: float,
    accept_pending: bool,
) -> Operation[Hit | Pending | ClaimHold | None]:
    """None: another session has the claim, and the wait was over."""
    request = pb.GetRequest(
        on_miss=pb.ON_MISS_CLAIM, wait_ms=round(wait * 1000), accept_pending=accept_pending
    )
    _set_item(request.items.add(), key, expect)

    def once() -> Operation[Hit | Pending | ClaimHold | None]:
        asked = now()
        response = yield Call("Get", request, wait)
        result = _only(response.results, "Get")
        if result.verdict == pb.GetResult.CLAIMED:
            return ClaimHold(session, result.claim)
        return _read_waited(session, key, result, asked)

    return with_room(session, once)


def get_many(
    session: Session,
    keys: Sequence[Key],
    expects: Sequence[Expect | Sequence[Expect] | None] | None,
    place: str = "any",
) -> Operation[list[Hit | CacheError | None]]:
    """In the order of `keys`, in one call per batch that the daemon allows. One bad key fails
    alone."""
    items = [(key, expects[i] if expects is not None else None) for i, key in enumerate(keys)]
    most = session.limits.max_batch or max(1, len(items))
    out: list[Hit | CacheError | None] = [None] * len(items)
    if place == "any":
        out = [_fast.get(session, *item) for item in items]
    missing = [i for i, hit in enumerate(out) if hit is None]
    for begin in range(0, len(missing), most):
        part = missing[begin : begin + most]
        results = yield from _get_batch(session, [items[i] for i in part], place)
        for i, result in zip(part, results, strict=True):
            out[i] = result
    # As with_room, for the keys that ran into the quota.
    again = [i for i, result in enumerate(out) if _is_exhausted(result)]
    if again and (yield Work(session.releaser.flush)):
        for begin in range(0, len(again), most):
            part = again[begin : begin + most]
            results = yield from _get_batch(session, [items[i] for i in part], place)
            for i, result in zip(part, results, strict=True):
                out[i] = result
    return out


def _get_batch(
    session: Session, items: Sequence[tuple[Key, Expect | Sequence[Expect] | None]], place: str
) -> Operation[list[Hit | CacheError | None]]:
    request = pb.GetRequest(place=place_of(place))
    for key, expect in items:
        _set_item(request.items.add(), key, expect)
    asked = now()
    response = yield Call("Get", request)
    if len(response.results) != len(items):
        raise internal_error(f"Get: {len(response.results)} results for {len(items)} items")
    out: list[Hit | CacheError | None] = []
    for (key, _), result in zip(items, response.results):
        try:
            out.append(_read_result(session, key, result, asked))
        except CacheError as error:
            out.append(error.with_traceback(None))  # whose frames would keep the session
    return out


def _is_exhausted(result: Hit | CacheError | None) -> bool:
    return isinstance(result, CacheError) and result.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def pop(session: Session, key: Key) -> Operation[Hit | None]:
    request = pb.PopRequest()
    set_key(key, request.key)
    # An entry taken out cannot be asked for again, so room for it is made before.
    yield Work(session.releaser.flush)
    asked = now()
    response = yield Call("Pop", request)
    return _read_result(session, key, response.result, asked)


def contains(session: Session, keys: Sequence[Key]) -> Operation[list[Tier | None]]:
    out: list[Tier | None] = []
    most = session.limits.max_batch or max(1, len(keys))
    for begin in range(0, len(keys), most):
        request = pb.ContainsRequest()
        for key in keys[begin : begin + most]:
            set_key(key, request.keys.add())
        response = yield Call("Contains", request)
        for result in response.results:
            raise_for(result.status)
            out.append(Tier(result.tier) if result.present else None)
    if len(out) != len(keys):
        raise internal_error(f"Contains: {len(out)} results for {len(keys)} keys")
    return out


def lookup(session: Session, keys: Sequence[Key]) -> Operation[list[Found]]:
    out: list[Found] = []
    most = session.limits.max_batch or max(1, len(keys))
    for begin in range(0, len(keys), most):
        part = keys[begin : begin + most]
        request = pb.ContainsRequest(lease=True)
        for key in part:
            set_key(key, request.keys.add())
        asked = now()
        response = yield Call("Contains", request)
        if len(response.results) != len(part):
            raise internal_error(f"Contains: {len(response.results)} results for {len(part)} keys")
        for key, result in zip(part, response.results, strict=True):
            raise_for(result.status)
            hit = None
            if result.HasField("hit") and result.hit.verdict == pb.GetResult.HIT:
                hit = make_hit(session, key, result.hit, asked)
            out.append(Found(Tier(result.tier) if result.present else None, hit))
    return out


# --- Writing --------------------------------------------------------------------------------------


class Reserved(NamedTuple):
    """A reservation that is there: its pin and where to write."""

    pin: Pin
    tensors: dict[str, AnyView | None]


def put_item(
    key: Key,
    specs: Specs,
    metadata: Mapping[str, bytes | str] | None,
    encode_cost: float,
    ttl: float | None,
) -> pb.PutItem:
    item = pb.PutItem()
    set_key(key, item.key)
    for name, spec in specs.items():
        if spec is None:
            item.tensors.add(name=name, absent=True)
        else:
            item.tensors.add(name=name, dtype=int(spec.dtype), shape=spec.shape, bytes=spec.nbytes)
    for name, value in (metadata or {}).items():
        item.metadata[name] = value.encode() if isinstance(value, str) else value
    item.encode_cost_us = max(0, round(encode_cost * 1e6))
    if ttl is not None:
        if ttl <= 0:
            raise ValueError(f"ttl: {ttl}; must be more than 0 s, or None")
        item.ttl_ms = max(1, round(ttl * 1000))
    return item


def place_of(place: str) -> pb.Place:
    try:
        return _PLACES[place]
    except KeyError:
        raise ValueError(f"place: {place!r}; must be 'any', 'device' or 'host'") from None


_PLACES = {"any": pb.PLACE_ANY, "device": pb.PLACE_DEVICE, "host": pb.PLACE_HOST}


def reserve(session: Session, item: pb.PutItem, place: str = "host") -> Operation[Reserved]:
    if not session.options.writer:
        raise CacheError(grpc.StatusCode.PERMISSION_DENIED, "this client was connected as a reader")
    request = pb.ReserveRequest(items=[item], place=place_of(place))

    def once() -> Operation[Reserved]:
        asked = now()
        response = yield Call("Reserve", request)
        result = _only(response.results, "Reserve")
        raise_for(result.status)
        pin = Pin(
            session,
            ("reservation", result.reservation),
            result.location,
            result.tensors,
            expiry(asked, session.limits.reservation_ttl_ms),
        )
        return Reserved(pin, make_views(pin, result.tensors, False))

    return with_room(session, once)


def commit(pin: Pin, keep_lease: bool) -> Operation[int]:
    """The generation. The reservation is over whatever the answer, except when nobody knows; then
    the pin's end gives it up."""
    if pin.hold is None or not pin.session.connected:
        raise CacheError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "the reservation is already over, or its daemon is gone",
        )
    request = pb.CommitRequest(reservations=[pin.hold[1]], keep_lease=keep_lease)
    asked = now()
    response = yield Call("Commit", request)
    result = _only(response.results, "Commit")
    if result.status.code or not keep_lease:
        pin.forget()
    else:
        pin.take_over(result.lease, expiry(asked, pin.session.limits.lease_ttl_ms))
    raise_for(result.status)
    return int(result.generation)


def abort(pin: Pin) -> Operation[None]:
    if pin.hold is None or not pin.session.connected:
        return
    request = pb.AbortRequest(reservations=[pin.hold[1]])
    pin.forget()
    yield Call("Abort", request)


def put(session: Session, item: pb.PutItem, sources: Sources) -> Operation[None]:
    on_device = any(
        source is not None and isinstance(source[1], cuda.CudaSource)
        for source in sources.values()
    )
    place = "device" if on_device and session.has_device else "host"
    reserved = yield from reserve(session, item, place)

    def copy() -> None:
        for name, source in sources.items():
            target = reserved.tensors[name]
            if source is not None and target is not None:
                cuda.copy_into(target, source[1])

    yield Work(copy)
    yield from commit(reserved.pin, keep_lease=False)


def put_exported(session: Session, item: pb.PutItem, sources: Sources) -> Operation[None]:
    """The daemon copies, out of the caller's own device memory."""
    given = [source for source in sources.values() if source is not None]
    if len(given) != 1 or not isinstance(given[0][1], cuda.CudaSource):
        raise InvalidArgument("export: takes one tensor, in device memory")
    source = given[0][1]
    handle, offset, uuid = yield Work(lambda: cuda.export(source))
    item.cuda.ipc_handle = handle
    item.cuda.offset = offset
    item.cuda.bytes = source.nbytes
    item.cuda.device_uuid = uuid
    response = yield Call("Put", pb.PutRequest(items=[item]))
    raise_for(_only(response.results, "Put").status)


# --- Keys, leases, counters -----------------------------------------------------------------------


def delete(session: Session, key: Key) -> Operation[bool]:
    request = pb.DeleteRequest()
    set_key(key, request.keys.add())
    response = yield Call("Delete", request)
    result = _only(response.results, "Delete")
    raise_for(result.status)
    return bool(result.existed)


def share(session: Session, hits: Sequence[Hit], ttl: float | None) -> Operation[bytes]:
    request = pb.ShareRequest(ttl_ms=round((ttl or 0) * 1000))
    for hit in hits:
        pin = hit._pin
        if pin is None or pin.hold is None or pin.session is not session:
            raise CacheError(
                grpc.StatusCode.FAILED_PRECONDITION, "hits: one is released, or of a lost session"
            )
        request.leases.append((yield from _lease_of(session, hit, pin)))
    response = yield Call("Share", request)
    return bytes(response.token)


def _lease_of(session: Session, hit: Hit, pin: Pin) -> Operation[int]:
    """The daemon knows a hit without a call as a pin only: a lease on the same entry is taken."""
    if isinstance(pin, _fast.FastPin):
        if pin.lease is None:
            request = pb.ContainsRequest(lease=True)
            set_key(hit.key, request.keys.add())
            asked = now()
            response = yield Call("Contains", request)
            found = _only(response.results, "Contains")
            raise_for(found.status)
            known = make_hit(session, hit.key, found.hit, asked)._pin if found.hit.lease else None
            if known is None or found.hit.generation != hit.generation:
                raise CacheError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "hits: the entry of one was deleted or replaced",
                )
            pin.lease = known
        pin = pin.lease
    assert pin.hold is not None
    return pin.hold[1]


def adopt(session: Session, token: bytes) -> Operation[list[Hit]]:
    def once() -> Operation[list[Hit]]:
        asked = now()
        response = yield Call("Adopt", pb.AdoptRequest(token=token))
        return [make_hit(session, None, result, asked) for result in response.results]

    return with_room(session, once)
