"""The asyncio twin of `embcache.Client`."""

from __future__ import annotations

import asyncio
import inspect
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import grpc

from embcache import _fast
from embcache import _operations as ops
from embcache._base import Base, BaseClaim, BaseReservation
from embcache._claims import Announced, AsyncTurns, ClaimHold, Turn
from embcache._session import (
    CHANNEL_OPTIONS,
    Session,
    channel_target,
    make_stubs,
    make_watch,
    rpc_error,
)
from embcache.client import split_encoded
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


class Client(Base):
    """As `embcache.Client`, with the same arguments and rules; calls are awaited.

    Used from one event loop. What is awaited may be cancelled: what the daemon gives all the same
    is given back. Copies of a put run in a thread of the loop's executor.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A channel of grpc.aio for each session, made in the loop that uses it.
        self._stubs: weakref.WeakKeyDictionary[Session, tuple[Any, dict[str, Any]]] = (
            weakref.WeakKeyDictionary()
        )
        # The same for calls that the daemon may keep waiting; see Session.
        self._waiting: weakref.WeakKeyDictionary[Session, tuple[Any, dict[str, Any]]] = (
            weakref.WeakKeyDictionary()
        )
        self._turns = AsyncTurns()

    @overload
    async def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: Literal[False] = False,
    ) -> Hit | None: ...

    @overload
    async def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: bool,
    ) -> Hit | Pending | None: ...

    async def get(
        self,
        key: Key,
        expect: Expect | Sequence[Expect] | None = None,
        *,
        place: str = "any",
        wait: float = 0.0,
        accept_pending: bool = False,
    ) -> Hit | Pending | None:
        try:
            session = self._connection.session()
            hit = _fast.get(session, key, expect) if place == "any" else None
            return self._count_found(
                hit
                or await self._run(
                    session, ops.get(session, key, expect, place, wait, accept_pending)
                )
            )
        except CacheError as error:
            self._failed("get", error, misses=1)
            return None

    async def get_many(
        self,
        keys: Sequence[Key],
        expects: Sequence[Expect | Sequence[Expect] | None] | None = None,
        *,
        place: str = "any",
    ) -> _Hits:
        try:
            session = self._connection.session()
            results = await self._run(session, ops.get_many(session, keys, expects, place))
        except CacheError as error:
            self._failed("get", error, misses=len(keys))
            return [None] * len(keys)
        return self._read_many(results)

    async def pop(self, key: Key) -> Hit | None:
        try:
            session = self._connection.session()
            return await self._run(session, ops.pop(session, key))
        except CacheError as error:
            self._failed("pop", error)
            return None

    async def contains(self, key: Key) -> Tier | None:
        return (await self.contains_many([key]))[0]

    async def contains_many(self, keys: Sequence[Key]) -> _Tiers:
        try:
            session = self._connection.session()
            return await self._run(session, ops.contains(session, keys))
        except CacheError as error:
            self._failed("contains", error)
            return [None] * len(keys)

    async def lookup(self, keys: Sequence[Key]) -> _Found:
        try:
            session = self._connection.session()
            return await self._run(session, ops.lookup(session, keys))
        except CacheError as error:
            self._failed("lookup", error)
            return [Found(None, None)] * len(keys)

    async def put(
        self,
        key: Key,
        tensors: Any,
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
        export: bool = False,
    ) -> bool:
        sources = self._sources(tensors)
        specs = {name: source and source[0] for name, source in sources.items()}
        return await self._put(self._item(key, specs, metadata, encode_cost, ttl), sources, export)

    async def _put(self, item: pb.PutItem, sources: ops.Sources, export: bool = False) -> bool:
        try:
            session = self._connection.session()
            put = ops.put_exported if export else ops.put
            await self._run(session, put(session, item, sources))
        except CacheError as error:
            self._failed("put", error, failed_puts=1)
            return False
        self._count(puts=1)
        return True

    async def reserve(
        self,
        key: Key,
        tensors: Mapping[str, TensorSpec | None],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
        place: str = "host",
    ) -> Reservation:
        """async with await client.reserve(...) as entry: ..."""
        return await self._reserve(self._item(key, tensors, metadata, encode_cost, ttl), None, place)

    async def _reserve(
        self, item: pb.PutItem, claim: Claim | None, place: str = "host"
    ) -> Reservation:
        reserved: ops.Reserved | None = None
        try:
            session = self._connection.session()
            reserved = await self._run(session, ops.reserve(session, item, place))
        except CacheError as error:
            self._failed("put", error, failed_puts=1)
        return Reservation(self, reserved, item, claim)

    async def get_or_encode(
        self,
        key: Key,
        encode: Callable[[], Any],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        ttl: float | None = None,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
    ) -> Hit:
        """`encode` may be an async function; another one runs in a thread of the loop's executor."""
        found = await self.claim(key, expect=expect, wait=wait)
        if isinstance(found, Hit):
            return found
        async with found as claim:
            start = time.perf_counter()
            if inspect.iscoroutinefunction(encode):
                encoded = await encode()
            else:
                encoded = await asyncio.to_thread(encode)
            tensors, more = split_encoded(encoded)
            cost = time.perf_counter() - start
            metadata = {**(metadata or {}), **more}
            hit = encoded_hit(key, self._sources(tensors), metadata, cost)
            with carrying(hit):
                await claim.put(tensors, metadata=metadata, encode_cost=cost, ttl=ttl)
            return hit

    @overload
    async def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: Literal[False] = False,
    ) -> Hit | Claim: ...

    @overload
    async def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: bool,
    ) -> Hit | Claim | Pending: ...

    async def claim(
        self,
        key: Key,
        *,
        expect: Expect | Sequence[Expect] | None = None,
        wait: float = 30.0,
        accept_pending: bool = False,
    ) -> Hit | Claim | Pending:
        claim = Claim(self, key)
        deadline = time.monotonic() + wait
        try:
            session = self._connection.session()
            while True:
                turn = await self._turns.enter(key, claim, deadline, accept_pending)
                if isinstance(turn, Pending):
                    self._count_found(turn)
                    return turn
                if turn is Turn.LATE:
                    break
                left = max(0.0, deadline - time.monotonic())
                if turn is Turn.STORED:
                    found: Hit | Pending | ClaimHold | None = await self._run(
                        session, ops.get(session, key, expect)
                    )
                    if found is None:
                        continue
                else:
                    found = await self._run(
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
        except BaseException:  # cancelled: what the daemon gives all the same is dropped
            claim._leave(False)
            raise
        if claim._hold is None:
            claim._leave(False)
        self._count_get(None)
        return claim

    async def delete(self, key: Key) -> bool:
        session = self._connection.session()
        return await self._run(session, ops.delete(session, key))

    async def advance_epoch(self, model: str) -> int:
        response = await self._call("AdvanceEpoch", pb.AdvanceEpochRequest(model=model))
        return int(response.model_epoch)

    async def share(self, hits: Sequence[Hit], ttl: float | None = None) -> bytes:
        session = self._connection.session()
        return await self._run(session, ops.share(session, hits, ttl))

    async def adopt(self, token: bytes) -> Sequence[Hit]:
        session = self._connection.session()
        return await self._run(session, ops.adopt(session, token))

    async def list(self, model: str = "", hash_hex_prefix: str = "") -> AsyncIterator[ListedEntry]:
        request = pb.ListRequest(
            model=model, content_hash_hex_prefix=hash_hex_prefix, page_size=1000
        )
        while True:
            response = await self._call("List", request)
            for entry in response.entries:
                yield listed_entry(entry)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def stats(self, *, per_model: bool = False, latencies: bool = False) -> dict[str, Any]:
        request = pb.StatsRequest(per_model=per_model, latencies=latencies)
        return to_dict(await self._call("Stats", request))

    async def watch(
        self, model: str = "", *, snapshot: bool = True, after: int = 0, epoch: bytes = b""
    ) -> AsyncIterator[Event]:
        session = self._connection.session()
        channel, _ = self._stubs_of(session, waiting=True)
        request = watch_request(model, snapshot, after, epoch)
        call = make_watch(channel)(request, metadata=session.metadata)
        try:
            async for response in call:
                for event in response.events:
                    yield event_of(event)
        except grpc.RpcError as error:
            raise rpc_error(error) from None
        finally:
            call.cancel()

    async def ping(self) -> None:
        await self._call("Ping", pb.PingRequest())

    async def close(self) -> None:
        channels = [channel for channel, _ in (*self._stubs.values(), *self._waiting.values())]
        self._stubs.clear()
        self._waiting.clear()
        for channel in channels:
            await channel.close()
        self._connection.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Driving operations ---------------------------------------------------------------------

    async def _call(self, method: str, request: Any) -> Any:
        return await self._call_of(self._connection.session(), method, request)

    def _stubs_of(self, session: Session, waiting: bool) -> tuple[Any, dict[str, Any]]:
        of_session = self._waiting if waiting else self._stubs
        stubs = of_session.get(session)
        if stubs is None:
            channel = grpc.aio.insecure_channel(
                channel_target(session.options.directory), options=CHANNEL_OPTIONS
            )
            stubs = of_session[session] = (channel, make_stubs(channel))
        return stubs

    async def _call_of(
        self, session: Session, method: str, request: Any, wait: float = 0.0
    ) -> Any:
        _, stubs = self._stubs_of(session, waiting=wait > 0)
        try:
            return await stubs[method](
                request, timeout=session.options.timeout + wait, metadata=session.metadata
            )
        except grpc.RpcError as error:
            raise session.failed(error) from None

    def _run(self, session: Session, operation: ops.Operation[T]) -> Coroutine[Any, Any, T]:
        return _to_its_end(self._drive(session, operation))

    async def _drive(self, session: Session, operation: ops.Operation[T]) -> T:
        try:
            step = next(operation)
            while True:
                try:
                    if isinstance(step, ops.Call):
                        answer = await self._call_of(session, step.method, step.request, step.wait)
                    else:
                        answer = await asyncio.to_thread(step.run)
                except CacheError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Whoever awaits this may be cancelled; the work goes on, so that a lease that the daemon has
    given meanwhile is known, dropped, and with that given back."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


class Reservation(BaseReservation):
    __doc__ = BaseReservation.__doc__

    _client: Client

    async def commit(self) -> bool:
        self._end()
        if self._pin is None:
            return False
        try:
            await self._client._run(self._pin.session, self._commit())
        except CacheError as error:
            return self._not_committed(error)
        return self._committed()

    async def abort(self) -> None:
        self._end()
        pin, self._pin = self._pin, None
        if pin is not None:
            try:
                await self._client._run(pin.session, ops.abort(pin))
            except CacheError:
                pass  # its time to live ends it

    async def __aenter__(self) -> Reservation:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._over:
            await (self.commit() if kind is None else self.abort())


class Claim(BaseClaim):
    __doc__ = BaseClaim.__doc__

    _client: Client

    async def put(
        self,
        tensors: Any,
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
    ) -> bool:
        sources = self._client._sources(tensors)
        specs = {name: source and source[0] for name, source in sources.items()}
        item = self._client._item(self.key, specs, metadata, encode_cost, ttl)
        stored = await self._client._put(self._claim_item(item), sources)
        if stored:
            self._stored()
        return stored

    async def reserve(
        self,
        tensors: Mapping[str, TensorSpec | None],
        *,
        metadata: Mapping[str, bytes | str] | None = None,
        encode_cost: float = 0.0,
        ttl: float | None = None,
    ) -> Reservation:
        item = self._client._item(self.key, tensors, metadata, encode_cost, ttl)
        return await self._client._reserve(self._claim_item(item), self)

    def _announce(self, announced: Announced) -> None:
        self._client._turns.announce(self.key, self, announced)

    def _leave(self, stored: bool) -> None:
        self._client._turns.leave(self.key, self, stored)

    async def __aenter__(self) -> Claim:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()
