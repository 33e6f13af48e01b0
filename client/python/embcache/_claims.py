"""Claims: who encodes a missing key, among sessions (the daemon says) and among the threads or tasks
of one client, which share a session (the Turns here say). Internal."""

from __future__ import annotations

import asyncio
import enum
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from embcache._session import Session
from embcache.hit import Pending
from embcache.keys import Key

# How often those that wait look whether whoever has the turn was dropped without a word.
_LOOK = 0.05


class ClaimHold:
    """A claim of the daemon's: its end gives the claim up, in the background."""

    __slots__ = ("session", "id", "__weakref__")

    def __init__(self, session: Session, claim: int) -> None:
        self.session = session
        self.id = claim
        session.held.add(("claim", claim))

    def forget(self) -> None:
        """It has ended with a put."""
        self.session.held.discard(("claim", self.id))
        self.id = 0

    def __del__(self) -> None:
        if self.id and os.getpid() == self.session.pid:
            self.session.held.discard(("claim", self.id))
            self.session.releaser.add(self.session, ("claim", self.id), 0)


class Turn(enum.Enum):
    MINE = 0  # `leave` has to follow, or the end of the owner
    STORED = 1  # another one has had it, and the value should be there
    LATE = 2  # another one still has it


# What the owner has announced of its value; None: nothing, or no more.
Announced = Callable[[], "Pending | None"]


class _Slot:
    def __init__(self, owner: Any) -> None:
        self.owner = weakref.ref(owner)
        self.over = False
        self.stored = False
        self.announced: Announced = lambda: None

    def pending(self, wanted: bool) -> Pending | None:
        return self.announced() if wanted and not self.over else None


class Turns:
    """Of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slots: dict[Key, _Slot] = {}

    def enter(
        self, key: Key, owner: Any, deadline: float, accept_pending: bool
    ) -> Turn | Pending:
        with self._changed:
            while True:
                slot = self._slots.get(key)
                if slot is None or slot.owner() is None:
                    self._slots[key] = _Slot(owner)
                    return Turn.MINE
                while not slot.over and slot.owner() is not None:
                    if (pending := slot.pending(accept_pending)) is not None:
                        return pending
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return Turn.LATE
                    self._changed.wait(min(left, _LOOK))
                if slot.stored:
                    return Turn.STORED

    def announce(self, key: Key, owner: Any, announced: Announced) -> None:
        with self._changed:
            slot = self._slots.get(key)
            if slot is not None and slot.owner() is owner:
                slot.announced = announced
                self._changed.notify_all()

    def leave(self, key: Key, owner: Any, stored: bool) -> None:
        with self._changed:
            slot = self._slots.get(key)
            if slot is None or slot.owner() is not owner:
                return
            slot.over, slot.stored = True, stored
            del self._slots[key]
            self._changed.notify_all()


class _AsyncSlot(_Slot):
    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.changed = asyncio.Event()

    def notify_all(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class AsyncTurns:
    """Of the tasks of one event loop."""

    def __init__(self) -> None:
        self._slots: dict[Key, _AsyncSlot] = {}

    async def enter(
        self, key: Key, owner: Any, deadline: float, accept_pending: bool
    ) -> Turn | Pending:
        while True:
            slot = self._slots.get(key)
            if slot is None or slot.owner() is None:
                self._slots[key] = _AsyncSlot(owner)
                return Turn.MINE
            while not slot.over and slot.owner() is not None:
                if (pending := slot.pending(accept_pending)) is not None:
                    return pending
                left = deadline - time.monotonic()
                if left <= 0:
                    return Turn.LATE
                try:
                    await asyncio.wait_for(slot.changed.wait(), min(left, _LOOK))
                except asyncio.TimeoutError:
                    pass
            if slot.stored:
                return Turn.STORED

    def announce(self, key: Key, owner: Any, announced: Announced) -> None:
        slot = self._slots.get(key)
        if slot is not None and slot.owner() is owner:
            slot.announced = announced
            slot.notify_all()

    def leave(self, key: Key, owner: Any, stored: bool) -> None:
        slot = self._slots.get(key)
        if slot is None or slot.owner() is not owner:
            return
        slot.over, slot.stored = True, stored
        del self._slots[key]
        slot.notify_all()
