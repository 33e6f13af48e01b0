"""Connection: keeps a client connected. Internal.

It owns the current session and the thread that watches the control socket, reconnects, and
acknowledges lost sessions once nothing of theirs is in use. Its threads outlive the client for as
long as views of its entries are held, so that these are given back one by one. Thread-safe.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import weakref
from collections.abc import Callable

import grpc

from embcache._releaser import Releaser
from embcache._session import Options, Session
from embcache.errors import CacheError, Unavailable

_FIRST_BACK_OFF = 0.01
_MAX_BACK_OFF = 1.0
# Seconds between looks at lost sessions, at segments that went, and at what a closed client holds.
_LOST_CHECK = 0.1


class Connection:
    def __init__(self, options: Options, strict: bool, on_session: Callable[[], None]) -> None:
        """Tries to connect once. When that fails: raises if `strict`, else goes on trying."""
        self.options = options
        self._reason = ""  # why there is no session
        self._stop_event = -1
        self._on_session = on_session
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._lost: list[Session] = []  # of the watching thread alone
        self._replaced: list[Session] = []  # likewise
        self._closing = False
        self.exiting = False
        self._releaser = Releaser()
        try:
            self._session = Session(options, self._releaser)
        except CacheError as error:
            self._reason = error.message
            if strict:
                self._releaser.stop()
                raise
        self._stop_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._watch, name="emb-control", daemon=True)
        self._thread.start()
        _connections.add(self)

    def __del__(self) -> None:
        if self._stop_event >= 0:
            os.close(self._stop_event)

    def session(self) -> Session:
        """Raises Unavailable at once while there is none."""
        if not self.in_own_process:
            raise CacheError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the client was connected before a fork; make one in each process",
            )
        if self._closing:
            raise Unavailable("the client is closed")
        with self._lock:
            session, reason = self._session, self._reason
        if session is None:
            raise Unavailable(reason or f"the daemon at {self.options.directory} went away")
        return session

    @property
    def draining(self) -> bool:
        with self._lock:
            return self._session is not None and self._session.draining

    @property
    def reason(self) -> str:
        """Why there is no session."""
        with self._lock:
            return self._reason

    @property
    def in_own_process(self) -> bool:
        return os.getpid() == self._pid

    def close(self) -> None:
        """No new calls; ends when nothing is held any more. Waits for nothing, takes no lock."""
        if self.in_own_process:
            self._closing = True
            os.eventfd_write(self._stop_event, 1)

    def exit(self) -> None:
        """The process is about to end: so do the threads, whatever is held."""
        self.exiting = True
        self.close()
        self.join(1.0)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._releaser.join(timeout)

    def holds_nothing(self) -> bool:
        with self._lock:
            return self._session is None or not self._session.held

    # --- The watching thread --------------------------------------------------------------------

    def _watch(self) -> None:
        current = self._session
        while not self._finished(current):
            if current is None:
                current = self._reconnect()
            elif not self._wait_for_end(current):
                break
            elif current.in_doubt:
                current = self._replace(current)
            else:
                self._lose(current)
                current = None
        self._releaser.stop()
        with self._lock:
            self._session = None

    def _finished(self, current: Session | None) -> bool:
        return self._closing and (self.exiting or current is None or not current.held)

    def _wait_for_end(self, session: Session) -> bool:
        """Until the session ends or is in doubt (True) or the client is finished with it (False)."""
        poll = select.poll()
        poll.register(session.control.fileno(), select.POLLIN)
        poll.register(self._stop_event, select.POLLIN)
        poll.register(session.wake_event, select.POLLIN)
        while not self._finished(session):
            mapped = session.tell_unmapped()  # what it shall not be for long
            waiting = self._lost or self._replaced or self._closing or mapped
            for descriptor, _ in poll.poll(_LOST_CHECK * 1000 if waiting else None):
                if descriptor == self._stop_event:
                    os.eventfd_read(self._stop_event)
                elif descriptor == session.wake_event:
                    os.eventfd_read(session.wake_event)
                elif session.handle_packet() is None:
                    session.in_doubt = False
                    return True
            self._acknowledge_lost(session)
            self._end_replaced()
            if session.in_doubt:
                return True
        return False

    def _replace(self, current: Session) -> Session:
        """A new session in place of one that may hold what nobody knows of; the old one when there
        is none to be had."""
        current.in_doubt = False
        try:
            session = Session(self.options, self._releaser, b"")
        except CacheError:
            if not self._wait_for_stop(_MAX_BACK_OFF):
                current.doubt()
            return current
        with self._lock:
            self._session = session
        self._replaced.append(current)
        self._on_session()
        return session

    def _end_replaced(self) -> None:
        """Ends replaced sessions that nothing uses any more."""
        still_used: list[Session] = []
        for session in self._replaced:
            over = session.handle_packet() is None
            session.tell_unmapped()
            if over:
                session.connected = False
                self._lost.append(session)
            elif session.held:
                still_used.append(session)
        self._replaced = still_used

    def _lose(self, session: Session) -> None:
        session.lose()
        with self._lock:
            self._session = None
            self._reason = ""
        self._lost.append(session)

    def _reconnect(self) -> Session | None:
        """Until there is a session again; None when the client ends."""
        back_off = _FIRST_BACK_OFF
        while not self._wait_for_stop(back_off):
            idle = next((lost for lost in self._lost if not lost.held), None)
            try:
                session = Session(self.options, self._releaser, idle.token if idle else b"")
            except CacheError as error:
                with self._lock:
                    self._reason = error.message
                back_off = min(back_off * 2, _MAX_BACK_OFF)
                continue
            if idle is not None:
                self._lost.remove(idle)
            with self._lock:
                self._session = session
            self._on_session()
            return session
        return None

    def _acknowledge_lost(self, current: Session) -> None:
        """Tells the daemon of `current` about lost sessions of the same daemon that nothing
        uses."""
        still_lost: list[Session] = []
        for lost in self._lost:
            if lost.epoch != current.epoch:
                continue  # the next daemon knows nothing of the sessions of the one before
            if lost.held:
                still_lost.append(lost)
                continue
            try:  # a session that exists only to say so, and ends at once
                Session(self.options, self._releaser, lost.token)
            except CacheError:
                still_lost.append(lost)
        self._lost = still_lost

    def _wait_for_stop(self, at_most: float) -> bool:
        poll = select.poll()  # select.select takes no descriptor above 1023
        poll.register(self._stop_event, select.POLLIN)
        return bool(poll.poll(at_most * 1000))


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _exit() -> None:
    for connection in list(_connections):
        if connection.in_own_process:
            connection.exit()
