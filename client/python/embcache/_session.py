"""Session: one connection to the daemon: the control socket, the segments mapped from it, and the
gRPC channel of the same daemon. Internal.

Shared by the Connection and by every pin taken through it, so that the mappings live as long as
anybody may look at them. When the last reference goes, the daemon is told Goodbye and the memory is
unmapped. A session belongs to one run of the daemon: bytes of a dead one are never taken for those
of the next.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import socket
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import numpy as np

from embcache import _cuda
from embcache._fast_index import FastIndex, layout_version
from embcache.errors import CacheError, Unavailable, error_of_number, make_error
from embcache.v1 import control_pb2, embcache_pb2

if TYPE_CHECKING:
    from embcache._releaser import Releaser

_PROTOCOL_VERSION = 1
_MAX_PACKET = 64 << 10
_MAX_DESCRIPTORS = 64
_MAX_NAME = 64

_METHODS = (
    "Get Put Reserve Commit Abort Release Share Adopt Abandon Contains Delete Pop AdvanceEpoch List "
    "Stats Ping"
).split()

# As the C++ client has them: what a call to a neighbour process does not need costs a third of its
# time, and a new session must not wait out the back-off of the one before.
CHANNEL_OPTIONS = [
    ("grpc.minimal_stack", 1),
    ("grpc.enable_deadline_checking", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 10000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


@dataclasses.dataclass(frozen=True)
class Options:
    directory: str
    name: str
    writer: bool
    timeout: float
    device_memory: bool = False


def internal_error(message: str) -> CacheError:
    return CacheError(grpc.StatusCode.INTERNAL, message)


def channel_target(directory: str) -> str:
    return f"unix:{directory}/embcached.sock"


def make_stubs(channel: Any) -> dict[str, Any]:
    """Callables by method name, of a channel of grpc or grpc.aio."""
    return {
        method: channel.unary_unary(
            f"/embcache.v1.Cache/{method}",
            request_serializer=getattr(embcache_pb2, method + "Request").SerializeToString,
            response_deserializer=getattr(embcache_pb2, method + "Response").FromString,
        )
        for method in _METHODS
    }


def make_watch(channel: Any) -> Any:
    return channel.unary_stream(
        "/embcache.v1.Cache/Watch",
        request_serializer=embcache_pb2.WatchRequest.SerializeToString,
        response_deserializer=embcache_pb2.WatchResponse.FromString,
    )


def rpc_error(error: Any) -> CacheError:
    return make_error(error.code(), error.details() or "")


@dataclasses.dataclass(frozen=True)
class Segment:
    """A mapped segment, which `memory` keeps mapped, or one in device memory, which
    `Session._device` has. Unmapped with its last reference: the session's while the daemon has the
    segment, and those of pins."""

    generation: int
    nbytes: int
    address: int
    memory: mmap.mmap | None


class Place(NamedTuple):
    """Where an entry is; `device` is its segment if that is in device memory, `host` otherwise."""

    address: int
    device: _cuda.Segment | None
    host: Segment | None


class Session:
    """Opening one connects, or raises CacheError. Thread-safe."""

    def __init__(self, options: Options, releaser: Releaser, acknowledges: bytes = b"") -> None:
        self.options = options
        self.releaser = releaser
        self.pid = os.getpid()
        self.connected = True
        # What is pinned through this session. Added to and taken from in single steps, which a
        # finalizer may do in the middle of anything.
        self.held: set[tuple[str, int]] = set()
        # Set off when the connection's thread shall look at the session.
        self.wake_event = -1
        # A call has gone unanswered for too long: the daemon may have granted a lease or reservation
        # that nobody here knows of. Only the session's end is sure to give it back.
        self.in_doubt = False
        self._segments: dict[int, Segment] = {}
        self._device: dict[int, _cuda.Segment] = {}
        self._all_mapped = True
        self.draining = False
        self._control_lock = threading.Lock()  # of whoever takes packets off the control socket
        # Segments that a change removed, until nothing here has them any more.
        self._removed: list[tuple[int, list[weakref.ref[Any]]]] = []
        self.fast: FastIndex | None = None
        self._welcomed = False
        self.control = self._connect()
        _sessions.add(self)
        try:
            self.wake_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._hello(acknowledges)
            self.channel = grpc.insecure_channel(
                channel_target(options.directory), options=CHANNEL_OPTIONS
            )
            self._stubs = make_stubs(self.channel)
            self._waiting_stubs: dict[str, Any] | None = None
            self.call("Ping", embcache_pb2.PingRequest())  # both sockets are the same daemon's
        except BaseException:
            self._goodbye()
            raise

    def __del__(self) -> None:
        if getattr(self, "control", None) is not None and os.getpid() == self.pid:
            self._goodbye()
            if self.fast is not None:
                self.fast.close()
        if getattr(self, "wake_event", -1) >= 0:
            os.close(self.wake_event)

    def handle_packet(self) -> bool | None:
        """Takes one packet off the control socket. False: none is there. None: the connection is
        over."""
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        descriptors: list[int] = []
        with self._control_lock:
            try:
                data, ancillary, _, _ = self.control.recvmsg(
                    _MAX_PACKET, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
                descriptors = _descriptors_of(ancillary)
                if not data:
                    return None
                self._take(control_pb2.ServerPacket.FromString(data), descriptors)
            except (BlockingIOError, InterruptedError):
                return False
            except Exception:  # of the socket, or a packet that is not embcache's
                return None
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        return True

    def _take(self, packet: control_pb2.ServerPacket, descriptors: list[int]) -> None:
        if packet.HasField("draining"):
            self.draining = True
        if packet.HasField("fast_index_moved") and self.fast and descriptors:
            self.fast.replace(descriptors[0], packet.fast_index_moved.index_bytes)
        if packet.HasField("segments_changed"):
            self._change_segments(packet.segments_changed, descriptors)

    def _change_segments(
        self, changed: control_pb2.SegmentsChanged, descriptors: list[int]
    ) -> None:
        try:
            self._map_segments(self.epoch, changed.added, descriptors)
        except CacheError:
            pass  # what cannot be mapped stays unknown, and calls that name it fail
        if not changed.removed:
            return
        gone: list[Any] = []
        for number in changed.removed:
            gone += [self._segments.pop(number, None), self._device.pop(number, None)]
        references = [weakref.ref(segment) for segment in gone if segment is not None]
        self._removed.append((changed.change, references))

    def tell_unmapped(self) -> bool:
        """Tells the daemon of segments that went and that nothing has here any more. True if others
        are left."""
        if not self._removed:
            return False
        with self._control_lock:
            left: list[tuple[int, list[weakref.ref[Any]]]] = []
            if self.fast is not None:
                self.fast.known.clear()  # which may name them
            for change, references in self._removed:
                if any(reference() is not None for reference in references):
                    left.append((change, references))
                    continue
                packet = control_pb2.ClientPacket()
                packet.segments_seen.change = change
                try:
                    self.control.send(packet.SerializeToString(), socket.MSG_DONTWAIT)
                except OSError:
                    left.append((change, references))
            self._removed = left
        return bool(left)

    def doubt(self) -> None:
        self.in_doubt = True
        os.eventfd_write(self.wake_event, 1)

    # --- Calls ----------------------------------------------------------------------------------

    def call(self, method: str, request: Any, wait: float = 0.0) -> Any:
        """One unary call with the session's token and deadline, which the daemon may keep waiting
        for `wait` seconds."""
        stubs = self._waiting() if wait > 0 else self._stubs
        try:
            return stubs[method](
                request, timeout=self.options.timeout + wait, metadata=self.metadata
            )
        except grpc.RpcError as error:
            raise self.failed(error) from None

    def watch(self, request: Any) -> Any:
        """A call of Watch, to be iterated over and cancelled."""
        self._waiting()
        return make_watch(self.waiting_channel)(request, metadata=self.metadata)

    def failed(self, error: Any) -> CacheError:
        """What to raise for a call that ended with `error`."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            self.doubt()
        return rpc_error(error)

    def _waiting(self) -> dict[str, Any]:
        """Of a connection of its own: calls that wait would fill that of the others, which bears
        only so many at a time."""
        stubs = self._waiting_stubs
        if stubs is None:
            self.waiting_channel = grpc.insecure_channel(
                channel_target(self.options.directory), options=CHANNEL_OPTIONS
            )
            stubs = self._waiting_stubs = make_stubs(self.waiting_channel)
        return stubs

    # --- Pins -----------------------------------------------------------------------------------

    def take_hold(self, hold: tuple[str, int]) -> bool:
        """False once the session is lost, so that after that an empty set stays empty and the
        daemon may be told that nothing is touched any more."""
        self.held.add(hold)
        if self.connected:
            return True
        self.held.discard(hold)
        return False

    @property
    def has_device(self) -> bool:
        """Whether this session is served from device memory."""
        return bool(self._device)

    def lose(self) -> None:
        """The connection is over. From here on pins alone keep device memory open: until it is
        closed, a daemon started anew may find no memory on the device."""
        self.connected = False
        self._device = {}

    def resolve(self, location: embcache_pb2.Location) -> Place:
        """Opens device memory when it is the first of its segment."""
        segment = self.segment_of(
            location.segment, location.segment_generation, location.offset, location.bytes
        )
        if segment.memory is not None:
            return Place(segment.address + location.offset, None, segment)
        device = self.device_segment(location.segment)
        if device is None:
            raise Unavailable("the connection to the daemon was lost during the call")
        return Place(device.address + location.offset, device, None)

    def device_segment(self, number: int) -> _cuda.Segment | None:
        """None once the session is lost."""
        return self._device.get(number)

    def segment_of(self, number: int, generation: int, offset: int, nbytes: int) -> Segment:
        """What a place is in."""
        segment = self._segments.get(number)
        # The daemon announces a segment before it names it, so it is in what there is to read.
        while segment is None and self.handle_packet():
            segment = self._segments.get(number)
            os.eventfd_write(self.wake_event, 1)  # the packet may have left something to be told
        # Once more: the thread that watches the socket may have handled the last packet.
        segment = self._segments.get(number)
        if segment is None or segment.generation != generation:
            raise internal_error(
                f"location: segment {number} generation {generation} is not one of this session's"
            )
        if offset + nbytes > segment.nbytes:
            raise internal_error(
                f"location: {nbytes} bytes at {offset} lie outside segment {number} of "
                f"{segment.nbytes}"
            )
        return segment

    @property
    def all_mapped(self) -> bool:
        """Whether no segment is in device memory."""
        return self._all_mapped

    # --- The control socket ---------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        path = os.path.join(self.options.directory, "control.sock")
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(self.options.timeout)
        try:
            control.connect(path)
        except OSError as error:
            control.close()
            raise Unavailable(f"no daemon at {path}: {error.strerror or error}") from None
        return control

    def _hello(self, acknowledges: bytes) -> None:
        packet = control_pb2.ClientPacket()
        packet.hello.protocol_version = _PROTOCOL_VERSION
        packet.hello.name = self.options.name.encode()[:_MAX_NAME].decode(errors="ignore")
        packet.hello.role = (
            control_pb2.Hello.WRITER if self.options.writer else control_pb2.Hello.READER
        )
        packet.hello.acknowledges = acknowledges
        if self.options.device_memory:
            packet.hello.device_uuids.extend(_cuda.driver().uuids)
        packet.hello.fast_path_version = layout_version()
        packet.hello.segment_changes = True
        descriptors: list[int] = []
        try:
            self.control.sendall(packet.SerializeToString())
            welcome = self._receive_welcome(descriptors)
            rest = self._map_segments(welcome.epoch, welcome.segments, descriptors)
            if welcome.HasField("fast_path"):
                self.fast = FastIndex.open(rest, welcome.fast_path, welcome.limits.max_pinned_bytes)
        except OSError as error:
            raise Unavailable(f"control.sock: {error.strerror or error}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.token: bytes = welcome.token
        self.epoch: bytes = welcome.epoch
        self.limits = welcome.limits
        self.metadata = (("embcache-session", welcome.token.hex()),)
        self._welcomed = True

    def _receive_welcome(self, descriptors: list[int]) -> control_pb2.Welcome:
        welcome = control_pb2.Welcome()
        more = True
        while more:
            packet = self._receive(descriptors)
            if packet.HasField("refusal"):
                raise error_of_number(packet.refusal.code, packet.refusal.message)
            if not packet.HasField("welcome"):
                raise internal_error("control.sock: expected Welcome or Refusal")
            more = packet.welcome.more
            welcome.MergeFrom(packet.welcome)
        if welcome.protocol_version != _PROTOCOL_VERSION:
            raise CacheError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the daemon (version {welcome.version}) speaks protocol "
                f"{welcome.protocol_version}; this client speaks {_PROTOCOL_VERSION}",
            )
        return welcome

    def _receive(self, descriptors: list[int]) -> control_pb2.ServerPacket:
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        while True:
            try:
                data, ancillary, flags, _ = self.control.recvmsg(
                    _MAX_PACKET, space, socket.MSG_CMSG_CLOEXEC
                )
                break
            except ConnectionResetError:
                # Only says that the daemon closed without reading all we sent, and is said once;
                # its Refusal comes next.
                continue
        descriptors.extend(_descriptors_of(ancillary))
        if not data:
            raise Unavailable("control.sock: closed by the daemon")
        if flags & socket.MSG_CTRUNC:
            raise CacheError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "control.sock: descriptors were lost; is this process out of file descriptors?",
            )
        try:
            return control_pb2.ServerPacket.FromString(data)
        except Exception:
            raise internal_error("control.sock: a packet that is not embcache's") from None

    def _map_segments(
        self,
        epoch: bytes,
        segments: Iterable[control_pb2.WelcomeSegment],
        descriptors: list[int],
    ) -> list[int]:
        """The descriptors that are not segments'."""
        left = iter(descriptors)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.options.writer else 0)
        for announced in segments:
            segment = announced.segment
            if not announced.passed_by_descriptor:
                self._all_mapped = False
                self._device[segment.id] = _cuda.share(
                    epoch,
                    segment.id,
                    segment.generation,
                    segment.device_uuid,
                    segment.cuda_ipc_handle,
                )
                self._segments[segment.id] = Segment(segment.generation, segment.bytes, 0, None)
                continue
            descriptor = next(left, None)
            if descriptor is None:
                raise internal_error(f"control.sock: {len(descriptors)} descriptors; too few")
            try:
                memory = mmap.mmap(descriptor, segment.bytes, mmap.MAP_SHARED, protection)
            except (OSError, ValueError) as error:
                raise CacheError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"segment {segment.id}: mmap of {segment.bytes} bytes: {error}",
                ) from None
            if hasattr(mmap, "MADV_DONTDUMP"):
                memory.madvise(mmap.MADV_DONTDUMP)  # core files stay small
            address = np.frombuffer(memory, np.uint8).ctypes.data
            self._segments[segment.id] = Segment(segment.generation, segment.bytes, address, memory)
        return list(left)

    def _goodbye(self) -> None:
        """Whatever is held through this session ends now."""
        self.connected = False
        if self._welcomed:
            packet = control_pb2.ClientPacket()
            packet.goodbye.SetInParent()
            try:
                self.control.send(packet.SerializeToString(), socket.MSG_DONTWAIT)
            except OSError:
                pass  # there may be no daemon any more
        self._welcomed = False
        self.control.close()


def _descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(content) // 4
            descriptors.extend(memoryview(content[: count * 4]).cast("i").tolist())
    return descriptors


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _in_forked_child() -> None:
    # Only the parent's copy shall keep the session open.
    for session in _sessions:
        session.control.close()


os.register_at_fork(after_in_child=_in_forked_child)
