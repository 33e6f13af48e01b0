"""What calls raise: always for wrong arguments, otherwise with `strict=True` only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from embcache.hit import Hit

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class CacheError(Exception):
    """A call that failed; `code` is the canonical status, `message` the daemon's words. `encoded` is
    what get_or_encode had encoded, when it was the storing that failed: an encode is never lost."""

    encoded: Hit | None = None

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class Unavailable(CacheError):
    """There is no daemon, it is draining, or it did not answer in time."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(code, message)


class InvalidArgument(CacheError, ValueError):
    """The caller's mistake: the message names the field. Raised also without `strict`."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, message)


def make_error(code: grpc.StatusCode, message: str) -> CacheError:
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument(message)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Unavailable(message, code)
    return CacheError(code, message)


def error_of_number(code: int, message: str) -> CacheError:
    return make_error(_CODES.get(code, grpc.StatusCode.UNKNOWN), message)


@contextmanager
def carrying(encoded: Hit) -> Iterator[None]:
    """Whatever CacheError leaves the block carries `encoded`."""
    try:
        yield
    except CacheError as error:
        error.encoded = encoded
        raise
