"""Pin: a lease or a reservation, for as long as anybody can see its bytes. Internal.

Every view holds its pin, through NumPy's base objects and DLPack's capsules as well. The pin's end
is the end of the last of them, whenever and in whatever thread that is.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

from embcache._session import Session, internal_error
from embcache.errors import Unavailable
from embcache.v1 import embcache_pb2


def expiry(asked: float, ttl_ms: int) -> float:
    """From when the call was sent, by the monotonic clock."""
    return asked + ttl_ms / 1000 if ttl_ms else math.inf


class Pin:
    """Takes a hold of the session; raises CacheError when there is nothing to hold any more, after
    giving the lease or reservation back."""

    __slots__ = ("session", "hold", "address", "device", "host", "nbytes", "expires")

    def __init__(
        self,
        session: Session,
        hold: tuple[str, int],
        location: embcache_pb2.Location,
        tensors: Sequence[embcache_pb2.Tensor],
        expires: float,
    ) -> None:
        self.session = session
        self.hold: tuple[str, int] | None = hold
        self.nbytes: int = location.bytes
        self.expires = expires
        self._charge(self.nbytes)
        if not session.take_hold(hold):
            self._charge(-self.nbytes)
            self.hold = None
            raise Unavailable("the connection to the daemon was lost during the call")
        # From here on the finalizer gives it back.
        self.address, self.device, self.host = session.resolve(location)
        for tensor in tensors:  # offsets come from outside this process
            if tensor.offset + tensor.bytes > self.nbytes:
                raise internal_error(
                    f"tensor {tensor.name}: {tensor.bytes} bytes at {tensor.offset} lie outside "
                    f"its entry of {self.nbytes}"
                )

    @property
    def valid(self) -> bool:
        """Whether the daemon still holds the bytes for this pin."""
        return self.hold is not None and self.session.connected and time.monotonic() < self.expires

    def take_over(self, lease: int, expires: float) -> None:
        """After a commit: the reservation has become a lease on the same bytes."""
        before, hold = self.hold, ("lease", lease)
        self.session.held.add(hold)
        self.hold, self.expires = hold, expires
        if before is not None:
            self.session.held.discard(before)

    def forget(self) -> None:
        """The daemon has ended it."""
        hold, self.hold = self.hold, None
        if hold is not None:
            self._charge(-self.nbytes)
            self.session.held.discard(hold)

    def _charge(self, nbytes: int) -> None:
        if self.session.fast is not None:
            self.session.fast.charge(nbytes)

    def __del__(self) -> None:
        hold = self.hold
        # In a fork the pin is the parent's.
        if hold is None or os.getpid() != self.session.pid:
            return
        self._charge(-self.nbytes)
        self.session.held.discard(hold)
        self.session.releaser.add(self.session, hold, self.nbytes)
