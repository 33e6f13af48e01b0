"""Releaser: gives pins back in batches, on one background thread. Internal.

The end of a pin happens in a finalizer, in any thread and in the middle of anything, also while
that thread holds a lock. So it costs only a put into a SimpleQueue, which is made for that; nothing
here takes a lock on that way. The thread sends what has gathered, at the latest 2 ms after the
first; at once when that alone is more than a sixteenth of what the session may pin.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import NamedTuple

import grpc

from embcache._session import Session
from embcache.errors import CacheError
from embcache.v1 import embcache_pb2

_MAX_DELAY = 0.002
_QUOTA_SHARE = 16
_RETRY_DELAY = 0.1
_MAX_FLUSH_WAIT = 1.0
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

_log = logging.getLogger("embcache")


class _Item(NamedTuple):
    session: Session
    hold: tuple[str, int]  # ("lease", "reservation" or "claim", id)
    nbytes: int


class _Flush:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.any = False


class Releaser:
    """Thread-safe; `add` also in finalizers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Item | _Flush | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emb-release", daemon=True)
        self._thread.start()

    def add(self, session: Session, hold: tuple[str, int], nbytes: int) -> None:
        """Pins of a lost session are dropped: the daemon keeps or ends those by its own rules."""
        if session.connected:
            self._queue.put(_Item(session, hold, nbytes))

    def flush(self) -> bool:
        """Waits until what was added before has been sent. False when there was nothing."""
        marker = _Flush()
        self._queue.put(marker)
        marker.done.wait(_MAX_FLUSH_WAIT)
        return marker.any

    def stop(self) -> None:
        """Lets the thread send what is queued and end. What is added later is dropped."""
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        sent_lately = False
        while True:
            batch, flushes, stop = self._next_batch()
            again = self._send(batch)
            for marker in flushes:
                # What was sent just before the flush may have made room as well.
                marker.any = bool(batch) or sent_lately
                marker.done.set()
            sent_lately = bool(batch)
            if stop:
                return
            if again:
                time.sleep(_RETRY_DELAY)
                for item in again:
                    self.add(*item)
            del batch, flushes, again  # the last reference to a session may be among them

    def _next_batch(self) -> tuple[list[_Item], list[_Flush], bool]:
        batch: list[_Item] = []
        flushes: list[_Flush] = []
        item = self._queue.get()
        if isinstance(item, _Item):
            quota = item.session.limits.max_pinned_bytes
            if quota == 0 or item.nbytes * _QUOTA_SHARE <= quota:
                time.sleep(_MAX_DELAY)
        while True:
            if item is None:
                return batch, flushes, True
            if isinstance(item, _Flush):
                flushes.append(item)
            else:
                batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, flushes, False

    def _send(self, batch: list[_Item]) -> list[_Item]:
        """Returns those that are to be tried again."""
        again: list[_Item] = []
        groups: dict[tuple[Session, str], list[_Item]] = {}
        for item in batch:
            if item.session.connected:
                groups.setdefault((item.session, item.hold[0]), []).append(item)
        for (session, kind), items in groups.items():
            most = max(1, session.limits.max_batch)
            for begin in range(0, len(items), most):
                part = items[begin : begin + most]
                if not self._call(session, kind, [item.hold[1] for item in part]):
                    again.extend(part)
        return again

    @staticmethod
    def _call(session: Session, kind: str, ids: list[int]) -> bool:
        try:
            if kind == "lease":
                session.call("Release", embcache_pb2.ReleaseRequest(leases=ids))
            elif kind == "claim":
                session.call("Abandon", embcache_pb2.AbandonRequest(claims=ids))
            else:
                session.call("Abort", embcache_pb2.AbortRequest(reservations=ids))
        except CacheError as error:
            # Trying again is safe. Any other error says that the daemon has no such pins.
            return error.code not in _AGAIN
        except Exception:
            _log.exception("embcache: releasing %d pins failed", len(ids))
        return True
