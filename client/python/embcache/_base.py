"""What the blocking client and the asyncio client share: the connection, and what becomes of
failures. Internal."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import grpc
import numpy as np

from embcache import _cuda, cuda
from embcache._claims import Announced, ClaimHold
from embcache._connection import Connection
from embcache._operations import Reserved, Specs, commit, put_item
from embcache._session import Options, Session
from embcache.dtypes import DType
from embcache.errors import CacheError, InvalidArgument
from embcache.hit import AnyView, Counters, Hit, Pending, key_of, make_pending
from embcache.keys import Key
from embcache.tensors import TensorSpec, TensorView, source_of
from embcache.v1 import embcache_pb2 as pb

Role = Literal["reader", "writer"]

_log = logging.getLogger("embcache")

# The caller's own mistakes are raised, strict or not.
_ALWAYS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)


def default_socket_dir() -> str:
    """$EMBCACHE_SOCKET_DIR, else $XDG_RUNTIME_DIR/embcache, else /run/embcache."""
    given = os.environ.get("EMBCACHE_SOCKET_DIR")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/embcache" if runtime else "/run/embcache"


def _directory(address: str | os.PathLike[str] | None) -> str:
    if address is None:
        return default_socket_dir()
    path = os.fspath(address)
    return os.path.abspath(path[len("unix:") :] if path.startswith("unix:") else path)


class Base:
    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        name: str = "",
        role: Role = "writer",
        timeout: float = 5.0,
        strict: bool = False,
        device_memory: bool = False,
    ) -> None:
        if role not in ("reader", "writer"):
            raise ValueError(f"role: {role!r}; must be 'reader' or 'writer'")
        if device_memory:
            _cuda.driver()  # there is no getting one later
        self.strict = strict
        self._lock = threading.Lock()
        _clients.add(self)
        self._counts = {field.name: 0 for field in dataclasses.fields(Counters)}
        self._warned: set[tuple[str, grpc.StatusCode]] = set()
        options = Options(
            _directory(address),
            name or os.path.basename(sys.argv[0]) or "python",
            role == "writer",
            timeout,
            device_memory,
        )
        # The connection's thread must not keep the client alive.
        this = weakref.ref(self)

        def on_session() -> None:
            client = this()
            if client is not None:
                client._connected_again()

        self._connection = Connection(options, strict, on_session)
        self._finalizer = weakref.finalize(self, self._connection.close)
        self._finalizer.atexit = False  # the connections see to that themselves
        if not self.connected:
            self._warn("connect", grpc.StatusCode.UNAVAILABLE, self._connection.reason)

    # --- State ----------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        try:
            self._connection.session()
        except CacheError:
            return False
        return True

    @property
    def max_entry_bytes(self) -> int:
        """Bytes of the largest entry that the daemon can hold in memory; 0 while disconnected."""
        try:
            return self._connection.session().limits.max_entry_bytes
        except CacheError:
            return 0

    def _is_current(self, session: Session) -> bool:
        try:
            return self._connection.session() is session
        except CacheError:
            return False

    @property
    def epoch(self) -> bytes:
        """16 random bytes of the daemon's run; empty while disconnected."""
        try:
            return self._connection.session().epoch
        except CacheError:
            return b""

    @property
    def draining(self) -> bool:
        """The daemon has said that it is stopping."""
        return self._connection.draining

    @property
    def counters(self) -> Counters:
        with self._lock:
            return Counters(**self._counts)

    # --- Outcomes -------------------------------------------------------------------------------

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count

    def _connected_again(self) -> None:
        self._count(connections=1)
        with self._lock:
            warned, self._warned = self._warned, set()
        if warned:
            _log.info("embcache: connected to the daemon at %s", self._connection.options.directory)

    def _warn(self, operation: str, code: grpc.StatusCode, message: str) -> None:
        """Once for each connection, operation and kind of failure; without a daemon once for all."""
        away = code is grpc.StatusCode.UNAVAILABLE and not self.connected
        kind = ("connect" if away else operation, code)
        with self._lock:
            if kind in self._warned or self._connection.exiting:
                return
            self._warned.add(kind)
        if away:
            what = "gets are misses and puts do nothing while this lasts"
        else:
            what = f"this {operation} failed; further ones that fail so are counted only"
        _log.warning("embcache: %s; %s", message, what)

    def _failed(self, operation: str, error: CacheError, **counts: int) -> None:
        """A call in the serving path failed: raises if strict, else warns once and counts."""
        if self.strict or error.code in _ALWAYS:
            raise error
        self._warn(operation, error.code, str(error))
        self._count(errors=1, **counts)

    def _count_get(self, hit: Hit | None) -> Hit | None:
        self._count(hits=1) if hit is not None else self._count(misses=1)
        return hit

    def _count_found(self, found: Hit | Pending | None) -> Hit | Pending | None:
        self._count_get(found if isinstance(found, Hit) else None)
        return found

    def _read_many(self, results: Sequence[Hit | CacheError | None]) -> list[Hit | None]:
        """Counts, and answers errors as misses unless strict."""
        out: list[Hit | None] = []
        for result in results:
            if isinstance(result, CacheError):
                self._failed("get", result, misses=1)
                out.append(None)
            else:
                out.append(self._count_get(result))
        return out

    # --- Puts -----------------------------------------------------------------------------------

    @staticmethod
    def _sources(
        tensors: Any,
    ) -> dict[str, tuple[TensorSpec, Any] | None]:
        if not isinstance(tensors, Mapping):
            tensors = {"data": tensors}
        sources: dict[str, tuple[TensorSpec, Any] | None] = {}
        for name, value in tensors.items():
            try:
                if value is None:
                    sources[name] = None
                else:
                    on_device = cuda.is_cuda(value)
                    sources[name] = cuda.source_of(value) if on_device else source_of(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                raise InvalidArgument(f"tensors[{name!r}]: {error}") from error
        return sources

    @staticmethod
    def _item(
        key: Key,
        specs: Specs,
        metadata: Mapping[str, bytes | str] | None,
        encode_cost: float,
        ttl: float | None,
    ) -> pb.PutItem:
        return put_item(key, specs, metadata, encode_cost, ttl)


_clients: weakref.WeakSet[Base] = weakref.WeakSet()


def _in_forked_child() -> None:
    # Another thread of the parent may have held it.
    for client in _clients:
        client._lock = threading.Lock()


os.register_at_fork(after_in_child=_in_forked_child)


def scratch(specs: Specs) -> dict[str, TensorView | None]:
    """Memory of our own to write to when the daemon gives none."""
    tensors: dict[str, TensorView | None] = {}
    for name, spec in specs.items():
        if spec is None:
            tensors[name] = None
        else:
            memory = np.empty(spec.nbytes, np.uint8)
            tensors[name] = TensorView(spec, memory, memory.ctypes.data, False)
    return tensors


class BaseReservation:
    """Memory to write an entry into, invisible to others until the commit.

    Without a daemon it is memory of this process, and the commit does nothing: `stored` says
    afterwards whether there is an entry. After the end nothing may be written any more: after a commit
    that was refused or an abort the memory belongs to others.
    """

    def __init__(
        self,
        client: Base,
        reserved: Reserved | None,
        item: pb.PutItem,
        claim: BaseClaim | None = None,
    ) -> None:
        self.stored = False
        self._claim = claim
        self._client = client
        self._item = item
        self._over = False
        self._pin = reserved.pin if reserved is not None else None
        self.tensors: Mapping[str, AnyView | None] = (
            reserved.tensors
            if reserved is not None
            else scratch(
                {
                    tensor.name: None
                    if tensor.absent
                    else TensorSpec(DType(tensor.dtype), tensor.shape)
                    for tensor in item.tensors
                }
            )
        )
        if claim is not None and self._pin is not None:
            this = weakref.ref(self)
            claim._announce(lambda: _announced(this()))

    def __getitem__(self, name: str) -> AnyView:
        """Where to write the tensor `name`; KeyError when it is absent or the reservation over."""
        view = self.tensors[name]
        if view is None:
            raise KeyError(f"{name} is absent")
        return view

    def _end(self) -> None:
        if self._over:
            raise CacheError(grpc.StatusCode.FAILED_PRECONDITION, "the reservation is already over")
        self._over = True
        self.tensors = {}

    def _commit(self) -> Any:
        assert self._pin is not None
        # With a lease: it lasts as long as views of the memory do, mostly not at all.
        return commit(self._pin, keep_lease=True)

    def _committed(self) -> bool:
        self.stored = True
        if self._claim is not None:
            self._claim._stored()
        self._pin = None
        self._client._count(puts=1)
        return True

    def _not_committed(self, error: CacheError) -> bool:
        self._pin = None
        self._client._failed("put", error, failed_puts=1)
        return False


def _announced(reservation: BaseReservation | None) -> Pending | None:
    if reservation is None or reservation._over:
        return None
    item = reservation._item
    return make_pending(key_of(item.key), item.tensors, item.metadata)


class BaseClaim:
    """The right and duty to encode a key that is not in the cache: others wait for it. `put` or a
    reservation fulfils it; its end (`with`, `abandon`) without that gives it up, and the next one
    that waits encodes.

    `held` is False when there is nothing to fulfil: no daemon, or somebody else encodes and takes
    too long. Encode and put all the same.
    """

    def __init__(self, client: Base, key: Key) -> None:
        self.key = key
        self._client = client
        self._hold: ClaimHold | None = None

    @property
    def held(self) -> bool:
        return self._hold is not None and self._hold.id != 0 and self._hold.session.connected

    def _claim_item(self, item: pb.PutItem) -> pb.PutItem:
        # Another session's would be refused.
        if self.held and self._hold is not None and self._client._is_current(self._hold.session):
            item.claim = self._hold.id
        return item

    def _stored(self) -> None:
        if self._hold is not None:
            self._hold.forget()
        self._leave(True)

    def _announce(self, announced: Announced) -> None:
        raise NotImplementedError

    def _leave(self, stored: bool) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """Gives it up, in the background."""
        self._hold = None
        self._leave(False)
