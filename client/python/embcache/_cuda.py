"""Device memory, by ctypes on the CUDA driver: nothing of CUDA is needed to install or import the
package. Internal.

Everything runs in a device's primary context, which is the one that frameworks use, and copies on
the default stream. The driver is loaded, and segments are opened, when they are first needed.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from embcache.errors import CacheError

_LIBRARY = "libcuda.so.1"
_INVALID_CONTEXT = 201
_LAZY_ENABLE_PEER_ACCESS = 1
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

_NO_EXPORT = (
    "this memory cannot be handed to another process: it comes from a memory pool, or from PyTorch "
    "with expandable_segments. Put it without export=True, or reserve(place='device') and compute "
    "into that"
)


def error(message: str) -> CacheError:
    return CacheError(grpc.StatusCode.FAILED_PRECONDITION, message)


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


_address = ctypes.c_uint64
_pointer = ctypes.POINTER
_PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuGetErrorName": [ctypes.c_int, _pointer(ctypes.c_char_p)],
    "cuGetErrorString": [ctypes.c_int, _pointer(ctypes.c_char_p)],
    "cuDeviceGetCount": [_pointer(ctypes.c_int)],
    "cuDeviceGetUuid_v2": [_pointer(_Uuid), ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [_pointer(ctypes.c_void_p), ctypes.c_int],
    "cuDevicePrimaryCtxGetState": [
        ctypes.c_int, _pointer(ctypes.c_uint), _pointer(ctypes.c_int)
    ],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [_pointer(ctypes.c_void_p)],
    "cuCtxSynchronize": [],
    "cuStreamSynchronize": [ctypes.c_void_p],
    "cuMemGetAddressRange_v2": [_pointer(_address), _pointer(ctypes.c_size_t), _address],
    "cuPointerGetAttribute": [ctypes.c_void_p, ctypes.c_int, _address],
    "cuIpcGetMemHandle": [_pointer(_Handle), _address],
    "cuIpcOpenMemHandle_v2": [_pointer(_address), _Handle, ctypes.c_uint],
    "cuIpcCloseMemHandle": [_address],
    "cuMemcpyDtoD_v2": [_address, _address, ctypes.c_size_t],
    "cuMemcpyHtoD_v2": [_address, ctypes.c_void_p, ctypes.c_size_t],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, _address, ctypes.c_size_t],
}


class Driver:
    """The CUDA driver of this process. Making one loads and initialises it, or raises CacheError
    that names what is missing."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(_LIBRARY)
            self._functions = {name: getattr(library, name) for name in _PROTOTYPES}
        except (OSError, AttributeError) as why:
            raise error(f"no CUDA driver: {why}") from None
        for name, function in self._functions.items():
            function.argtypes = _PROTOTYPES[name]
            function.restype = ctypes.c_int
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.uuids = [self._uuid(ordinal) for ordinal in range(count.value)]
        # Used in single steps: a finalizer may come in the middle of anything.
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if code:
            raise error(self._say(name, code))

    def _say(self, name: str, code: int) -> str:
        known, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._functions["cuGetErrorName"](code, ctypes.byref(known))
        self._functions["cuGetErrorString"](code, ctypes.byref(text))
        return (
            f"{name.removesuffix('_v2')}: {(known.value or b'unknown').decode()} ({code}): "
            f"{(text.value or b'an error that the driver does not name').decode()}"
        )

    def _uuid(self, ordinal: int) -> str:
        uuid = _Uuid()
        self.call("cuDeviceGetUuid_v2", ctypes.byref(uuid), ordinal)
        text = bytes(uuid.bytes).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def ordinal_of(self, uuid: str) -> int:
        for ordinal, known in enumerate(self.uuids):
            if known.lower() == uuid.lower():
                return ordinal
        raise error(f"the cache's device {uuid} is none of those that this process sees")

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        """The device's primary context is current in this thread. Once used it is kept."""
        context = self._contexts.get(ordinal)
        if context is None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
            context = self._contexts.setdefault(ordinal, context)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._functions["cuCtxPopCurrent_v2"](ctypes.byref(ctypes.c_void_p()))

    def open(self, handle: bytes) -> int:
        """Needs a current context, as does what follows unless it says otherwise."""
        address = _address()
        code = self._functions["cuIpcOpenMemHandle_v2"](
            ctypes.byref(address), _Handle.from_buffer_copy(handle), _LAZY_ENABLE_PEER_ACCESS
        )
        if code == _INVALID_CONTEXT:
            raise error(
                "cuIpcOpenMemHandle: CUDA opens device memory only in another process than the one "
                "that exported it, and this process does both"
            )
        if code:
            raise error(self._say("cuIpcOpenMemHandle", code))
        return address.value

    def ordinal_at(self, address: int) -> int:
        """The device of an address in this process's device memory; needs no current context."""
        why = error(f"{address:#x} is no address of this process's device memory")
        for ordinal in range(len(self.uuids)):
            # Where the process has memory it has a context; on other devices none shall be made.
            flags, active, found = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int(-1)
            self.call(
                "cuDevicePrimaryCtxGetState", ordinal, ctypes.byref(flags), ctypes.byref(active)
            )
            if not active.value:
                continue
            try:
                with self.current(ordinal):
                    self.call(
                        "cuPointerGetAttribute", ctypes.byref(found), _DEVICE_ORDINAL, address
                    )
                return found.value
            except CacheError as refused:
                why = refused
        raise why

    def synchronize(self, stream: int | None) -> None:
        """What is queued on a stream, or on all of the context, is done."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)

    def copy(self, to: int, to_device: bool, source: int, from_device: bool, nbytes: int) -> None:
        """At least one of the two is on the device. Between two device addresses it may still be
        under way afterwards: synchronize()."""
        if not from_device:
            self.call("cuMemcpyHtoD_v2", to, source, nbytes)
        elif not to_device:
            self.call("cuMemcpyDtoH_v2", to, source, nbytes)
        else:
            self.call("cuMemcpyDtoD_v2", to, source, nbytes)

    def export(self, address: int) -> tuple[bytes, int]:
        """Handle of the allocation at an address, and the address's offset in it."""
        handle, base, size = _Handle(), _address(), ctypes.c_size_t()
        try:
            self.call(
                "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address
            )
            self.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        except CacheError as why:
            raise error(f"{_NO_EXPORT} ({why.message})") from None
        return bytes(handle.bytes), address - base.value


_lock = threading.Lock()
_driver: Driver | None = None


def driver() -> Driver:
    """The one of this process; raises CacheError when there is none."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = Driver()
        return _driver


class Segment:
    """One of the cache's segments in device memory. Opened once in a process, by the first that
    asks for its address; closed when nobody has it any more. Thread-safe."""

    def __init__(self, uuid: str, handle: bytes) -> None:
        self.uuid = uuid
        self._handle = handle
        self._pid = os.getpid()
        self._once = threading.Lock()
        self._address = 0
        self.ordinal = -1  # of the device, in this process; known with the address

    @property
    def address(self) -> int:
        with self._once:
            if not self._address:
                cuda = driver()
                self.ordinal = cuda.ordinal_of(self.uuid)
                with cuda.current(self.ordinal):
                    self._address = cuda.open(self._handle)
            return self._address

    def __del__(self) -> None:
        # A fork has no part in its parent's mappings, nor may it use the driver.
        if not self._address or os.getpid() != self._pid or _driver is None:
            return
        try:
            with _driver.current(self.ordinal):
                _driver.call("cuIpcCloseMemHandle", self._address)
        except CacheError:
            pass  # the process is ending, or its device is lost


# By (epoch, segment, generation), and never by handle or address, which come again with other bytes.
_segments: weakref.WeakValueDictionary[tuple[bytes, int, int], Segment] = (
    weakref.WeakValueDictionary()
)


def share(epoch: bytes, segment: int, generation: int, uuid: str, handle: bytes) -> Segment:
    """Makes no driver call."""
    with _lock:
        key = (epoch, segment, generation)
        shared = _segments.get(key)
        if shared is None:
            shared = _segments[key] = Segment(uuid, handle)
        return shared


def _in_forked_child() -> None:
    # The parent's driver cannot be used; a fork that needs one fails in cuInit with its reason.
    global _driver, _lock
    _driver, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_in_forked_child)
