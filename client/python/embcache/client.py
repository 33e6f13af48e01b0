"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import grpc

from embcache import _fast
from embcache import _operations as ops
from embcache._base import Base, BaseClaim, BaseReservation
from embcache._claims import Announced, ClaimHold, Turn, Turns
from embcache._session import Session, rpc_error
from embcache.errors import CacheError, carrying
from embcache.events import Event, event_of, watch_request
from embcache.hit import (
    Expect,
    Found,
    Hit,
    ListedEntry,
    Pending,
    Tier,
    encoded_hit,
    listed_entry,
    to_dict,
)
from embcache.keys import Key
from embcache.tensors import TensorSpec
from embcache.v1 import embcache_pb2 as pb

T = TypeVar("T")
_Hits = list["Hit | None"]
_Tiers = list["Tier | None"]
_Found = list[Found]


def _run(session: Session, operation: ops.Operation[T]) -> T:
    try:
        step = next(operation)
        while True:
            try:
                if isinstance(step, ops.Call):
                    answer = session.call(step.method, step.request, step.wait)
                else:
                    answer = step.run()
            except CacheError as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


class Client(Base):
    """A connection to the daemon on this machine.

    `address` is the directory of its sockets (default: $EMBCACHE_SOCKET_DIR, else
    $XDG_RUNTIME_DIR/embcache, else /run/embcache). A "reader" maps the memory read-only and cannot
    put. `timeout` bounds each call, in seconds. With `device_memory`, hits on the cache's CUDA device
    are given there, as CudaTensorView; CacheError when this process has no driver.

    When the daemon is away, `get` is a miss, `put` does nothing and `contains` knows nothing, with
    one warning and a counter, and the client reconnects by itself in the background. With `strict`
    they raise CacheError instead, also the constructor. Everything else raises either way.

    Thread-safe. Does not survive a fork: make one in each process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = Turns()

    # --- Reading --------------------------------------------------------------------------------

    @overload
    def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: Literal[False] = False,
    ) -> Hit | None: ...

    @overload
    def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: bool,
    ) -> Hit | Pending | None: ...

    def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: bool = False,
    ) -> Hit | Pending | None:
        """None is a miss. With `device_memory`, place="host" asks for bytes that the CPU can read.
        With `wait`, a missing key is waited for so many seconds: for those that cannot encode it
        themselves. With `accept_pending` the wait ends with a Pending as soon as whoever encodes
        has reserved room and so said what tensors and metadata there will be."""
        try:
            session = self._connection.session()
            hit = _fast.get(session, key, expect) if place == "any" else None
            return self._count_found(
                hit or _run(session, ops.get(session, key, expect, place, wait, accept_pending))
            )
        except CacheError as error:
            self._failed("get", error, misses=1)
            return None

    def get_many(
        self,
        keys: Sequence[Key],
        expects: Sequence[Expect | Sequence[Expect] | None] | None = None,
        *,
        place: str = "any",
    ) -> _Hits:
        """In the order of `keys`, in one call per batch that the daemon allows."""
        try:
            session = self._connection.session()
            results = _run(session, ops.get_many(session, keys, expects, place))
        except CacheError as error:
            self._failed("get", error, misses=len(keys))
            return [None] * len(keys)
        return self._read_many(results)

    def pop(self, key: Key) -> Hit | None:
        """Takes an entry out: as `get`, and it is gone for others."""
        try:
            session = self._connection.session()
            return _run(session, ops.pop(session, key))
        except CacheError as error:
            self._failed("pop", error)
            return None

    def contains(self, key: Key) -> Tier | None:
        """The fastest tier that has the key, without counting a hit or a miss; None: none."""
        return self.contains_many([key])[0]

    def contains_many(self, keys: Sequence[Key]) -> _Tiers:
        try:
            session = self._connection.session()
            return _run(session, ops.contains(session, keys))
        except CacheError as error:
            self._failed("contains", error)
            return [None] * len(keys)

    def lookup(self, keys: Sequence[Key]) -> _Found:
        """What is there, as a promise: keys in memory are leased where they are, with their tensors'
        types and shapes and their metadata; no bytes are touched, and no hit or miss is counted. For
        schedulers, which hand the hits on with `share`."""
        try:
            session = self._connection.session()
            return _run(session, ops.lookup(session, keys))
        except CacheError as error:
            self._failed("lookup", error)
            return [Found(None, None)] * len(keys)

    # --- Writing --------------------------------------------------------------------------------

    def put(
        self,
        key: Key,
        tensors: Any,
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
        export: bool = False,
    ) -> bool:
        """Stores a copy of `tensors`: a mapping of names to arrays (NumPy, torch, anything with
        __dlpack__ or __cuda_array_interface__, on the CPU or on a CUDA device; None stands for a
        tensor that is absent), or one array, named "data". `encode_cost` is what a miss costs, in
        seconds; `ttl` too is in seconds. With `export` the daemon copies the one tensor out of this
        process's device memory, instead of this process copying it into the cache's.

        False: not stored (with `strict` this raises)."""
        sources = self._sources(tensors)
        specs = {name: source and source[0] for name, source in sources.items()}
        return self._put(self._item(key, specs, metadata, encode_cost, ttl), sources, export)

    def _put(self, item: pb.PutItem, sources: ops.Sources, export: bool = False) -> bool:
        try:
            session = self._connection.session()
            put = ops.put_exported if export else ops.put
            _run(session, put(session, item, sources))
        except CacheError as error:
            self._failed("put", error, failed_puts=1)
            return False
        self._count(puts=1)
        return True

    def reserve(
        self,
        key: Key,
        tensors: Mapping[str, TensorSpec | None],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
        place: str = "host",
    ) -> Reservation:
        """For writing in place (with `device_memory`, also in place="device": synchronise what you
        have queued before the end of the block):

            with client.reserve(key, {"data": TensorSpec("float16", (576, 1024))}) as entry:
                encode(image, out=entry["data"].numpy())

        The end of the block commits, an exception aborts.
        """
        return self._reserve(self._item(key, tensors, metadata, encode_cost, ttl), None, place)

    def _reserve(
        self, item: pb.PutItem, claim: Claim | None, place: str = "host"
    ) -> Reservation:
        reserved: ops.Reserved | None = None
        try:
            session = self._connection.session()
            reserved = _run(session, ops.reserve(session, item, place))
        except CacheError as error:
            self._failed("put", error, failed_puts=1)
        return Reservation(self, reserved, item, claim)

    # --- Encoding once --------------------------------------------------------------------------

    def get_or_encode(
        self,
        key: Key,
        encode: Callable[[], Any],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        ttl: float | None = None,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
    ) -> Hit:
        """The entry, or what `encode()` gives: tensors as `put` takes them, or a pair of these and
        metadata. However many ask for a missing key, in whatever process, one of them encodes and
        stores it and the others wait, each for at most `wait` seconds.

        The Hit of what was encoded here is a view of the encoder's arrays; its tier is UNKNOWN. When it
        cannot be stored it is returned all the same; with `strict`, or when metadata or tensors are not
        what can be stored, the CacheError that is raised carries it as `encoded`."""
        found = self.claim(key, expect=expect, wait=wait)
        if isinstance(found, Hit):
            return found
        with found as claim:
            start = time.perf_counter()
            tensors, more = split_encoded(encode())
            cost = time.perf_counter() - start
            metadata = {**(metadata or {}), **more}
            hit = encoded_hit(key, self._sources(tensors), metadata, cost)
            with carrying(hit):
                claim.put(tensors, metadata=metadata, encode_cost=cost, ttl=ttl)
            return hit

    @overload
    def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: Literal[False] = False,
    ) -> Hit | Claim: ...

    @overload
    def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: bool,
    ) -> Hit | Claim | Pending: ...

    def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: bool = False,
    ) -> Hit | Claim | Pending:
        """A hit, at once or after another one's encode; else a Claim, with which to encode:

        found = client.claim(key)
        if isinstance(found, Claim):
            with found as claim:
                claim.put(encode(image))

        With `accept_pending` also a Pending, as soon as whoever encodes has reserved room and so said
        what tensors and metadata there will be.
        """
        claim = Claim(self, key)
        deadline = time.monotonic() + wait
        try:
            session = self._connection.session()
            while True:
                turn = self._turns.enter(key, claim, deadline, accept_pending)
                if isinstance(turn, Pending):
                    self._count_found(turn)
                    return turn
                if turn is Turn.LATE:
                    break
                left = max(0.0, deadline - time.monotonic())
                if turn is Turn.STORED:
                    found: Hit | Pending | ClaimHold | None = _run(
                        session, ops.get(session, key, expect)
                    )
                    if found is None:
                        continue
                else:
                    found = _run(
                        session, ops.get_or_claim(session, key, expect, left, accept_pending)
                    )
                if isinstance(found, (Hit, Pending)):
                    claim._leave(isinstance(found, Hit))
                    self._count_found(found)
                    return found
                claim._hold = found
                break
        except CacheError as error:
            claim._leave(False)
            self._failed("get", error, misses=1)
            return claim
        if claim._hold is None:
            claim._leave(False)
        self._count_get(None)
        return claim

    # --- Removing -------------------------------------------------------------------------------

    def delete(self, key: Key) -> bool:
        """Removes the entry from every tier; whether there was one. Hits held stay readable."""
        session = self._connection.session()
        return _run(session, ops.delete(session, key))

    def advance_epoch(self, model: str) -> int:
        """Ends every entry of `model` put before, or whose put began before: after an update of its
        weights. The model's new epoch."""
        session = self._connection.session()
        response = session.call("AdvanceEpoch", pb.AdvanceEpochRequest(model=model))
        return int(response.model_epoch)

    # --- Sharing --------------------------------------------------------------------------------

    def share(self, hits: Sequence[Hit], ttl: float | None = None) -> bytes:
        """A token with which other clients of the same daemon, in any process, take leases of their
        own on the same entries, within `ttl` seconds (None: the daemon's 30)."""
        session = self._connection.session()
        return _run(session, ops.share(session, hits, ttl))

    def adopt(self, token: bytes) -> Sequence[Hit]:
        """In the order of the hits shared."""
        session = self._connection.session()
        return _run(session, ops.adopt(session, token))

    # --- Looking around -------------------------------------------------------------------------

    def list(self, model: str = "", hash_hex_prefix: str = "") -> Iterator[ListedEntry]:
        """The entries of one model, or of all, in a stable order."""
        request = pb.ListRequest(
            model=model, content_hash_hex_prefix=hash_hex_prefix, page_size=1000
        )
        while True:
            response = self._connection.session().call("List", request)
            for entry in response.entries:
                yield listed_entry(entry)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def stats(self, *, per_model: bool = False, latencies: bool = False) -> dict[str, Any]:
        """The daemon's counters, with the field names of StatsResponse in embcache.proto."""
        request = pb.StatsRequest(per_model=per_model, latencies=latencies)
        return to_dict(self._connection.session().call("Stats", request))

    def watch(
        self, model: str = "", *, snapshot: bool = True, after: int = 0, epoch: bytes = b""
    ) -> Iterator[Event]:
        """What is there (a snapshot), then what happens, as it happens, for as long as it is
        iterated over; of one model or of all. `after`, the sequence of the last event seen, and the
        daemon's `epoch` of that time go on where an earlier watch stopped, if that is still known.
        Raises CacheError when the daemon goes away."""
        call = self._connection.session().watch(watch_request(model, snapshot, after, epoch))
        try:
            for response in call:
                for event in response.events:
                    yield event_of(event)
        except grpc.RpcError as error:
            raise rpc_error(error) from None
        finally:
            call.cancel()

    def ping(self) -> None:
        """An empty call. CacheError when the daemon does not answer, or knows no such session."""
        self._connection.session().call("Ping", pb.PingRequest())

    def close(self) -> None:
        """No further calls. Hits and views stay readable and pinned until they are gone."""
        held = not self._connection.holds_nothing()
        self._connection.close()
        if not held:
            self._connection.join(2.0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(BaseReservation):
    __doc__ = BaseReservation.__doc__

    def commit(self) -> bool:
        """Makes the entry visible. False: not stored (with `strict` this raises)."""
        self._end()
        if self._pin is None:
            return False
        try:
            _run(self._pin.session, self._commit())
        except CacheError as error:
            return self._not_committed(error)
        return self._committed()

    def abort(self) -> None:
        """Gives the memory up; whoever wrote to it must have stopped."""
        self._end()
        pin, self._pin = self._pin, None
        if pin is not None:
            try:
                _run(pin.session, ops.abort(pin))
            except CacheError:
                pass  # its time to live ends it

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._over:
            self.commit() if kind is None else self.abort()


def split_encoded(encoded: Any) -> tuple[Any, Mapping[str, bytes | str]]:
    """What an encode function gives: tensors, or a pair of tensors and metadata."""
    if isinstance(encoded, tuple) and len(encoded) == 2 and isinstance(encoded[1], Mapping):
        return encoded[0], encoded[1]
    return encoded, {}


class Claim(BaseClaim):
    __doc__ = BaseClaim.__doc__

    _client: Client

    def put(
        self,
        tensors: Any,
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
    ) -> bool:
        """As Client.put of the claimed key."""
        sources = self._client._sources(tensors)
        specs = {name: source and source[0] for name, source in sources.items()}
        item = self._client._item(self.key, specs, metadata, encode_cost, ttl)
        stored = self._client._put(self._claim_item(item), sources)
        if stored:
            self._stored()
        return stored

    def reserve(
        self,
        tensors: Mapping[str, TensorSpec | None],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
    ) -> Reservation:
        """As Client.reserve of the claimed key; its commit fulfils the claim."""
        item = self._client._item(self.key, tensors, metadata, encode_cost, ttl)
        return self._client._reserve(self._claim_item(item), self)

    def _announce(self, announced: Announced) -> None:
        self._client._turns.announce(self.key, self, announced)

    def _leave(self, stored: bool) -> None:
        self._client._turns.leave(self.key, self, stored)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
