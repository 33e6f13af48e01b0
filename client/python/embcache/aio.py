"""The asyncio twin of `embcache.Client`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import grpc

from embcache import _fast
from embcache import _operations as ops
from embcache._base import Base, BaseReservation
from embcache._session import (
    CHANNEL_OPTIONS,
    Session,
    channel_target,
    make_stubs,
)
from embcache.errors import CacheError
from embcache.hit import Expect, Hit, ListedEntry, Tier, listed_entry, to_dict
from embcache.keys import Key
from embcache.tensors import TensorSpec
from embcache.v1 import embcache_pb2 as pb

T = TypeVar("T")
_Hits = list["Hit | None"]
_Tiers = list["Tier | None"]


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

    async def get(
        self, key: Key, expect: Expect | Sequence[Expect] | None = None, *, place: str = "any"
    ) -> Hit | None:
        try:
            session = self._connection.session()
            hit = _fast.get(session, key, expect) if place == "any" else None
            return self._count_get(
                hit or await self._run(session, ops.get(session, key, expect, place))
            )
        except CacheError as error:
            self._failed(error, misses=1)
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
            self._failed(error, misses=len(keys))
            return [None] * len(keys)
        return self._read_many(results)

    async def pop(self, key: Key) -> Hit | None:
        try:
            session = self._connection.session()
            return await self._run(session, ops.pop(session, key))
        except CacheError as error:
            self._failed(error)
            return None

    async def contains(self, key: Key) -> Tier | None:
        return (await self.contains_many([key]))[0]

    async def contains_many(self, keys: Sequence[Key]) -> _Tiers:
        try:
            session = self._connection.session()
            return await self._run(session, ops.contains(session, keys))
        except CacheError as error:
            self._failed(error)
            return [None] * len(keys)

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
        item = self._item(key, specs, metadata, encode_cost, ttl)
        try:
            session = self._connection.session()
            put = ops.put_exported if export else ops.put
            await self._run(session, put(session, item, sources))
        except CacheError as error:
            self._failed(error, failed_puts=1)
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
        item = self._item(key, tensors, metadata, encode_cost, ttl)
        reserved: ops.Reserved | None = None
        try:
            session = self._connection.session()
            reserved = await self._run(session, ops.reserve(session, item, place))
        except CacheError as error:
            self._failed(error, failed_puts=1)
        return Reservation(self, reserved, item)

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

    async def ping(self) -> None:
        await self._call("Ping", pb.PingRequest())

    async def close(self) -> None:
        channels = [channel for channel, _ in self._stubs.values()]
        self._stubs.clear()
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

    async def _call_of(self, session: Session, method: str, request: Any) -> Any:
        stubs = self._stubs.get(session)
        if stubs is None:
            channel = grpc.aio.insecure_channel(
                channel_target(session.options.directory), options=CHANNEL_OPTIONS
            )
            stubs = self._stubs[session] = (channel, make_stubs(channel))
        try:
            return await stubs[1][method](
                request, timeout=session.options.timeout, metadata=session.metadata
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
                        answer = await self._call_of(session, step.method, step.request)
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
