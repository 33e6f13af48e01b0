from embcache.v1 import embcache_pb2 as _embcache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientPacket(_message.Message):
    __slots__ = ["goodbye", "hello", "segments_seen"]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_SEEN_FIELD_NUMBER: _ClassVar[int]
    goodbye: Goodbye
    hello: Hello
    segments_seen: SegmentsSeen
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., segments_seen: _Optional[_Union[SegmentsSeen, _Mapping]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class FastIndexMoved(_message.Message):
    __slots__ = ["index_bytes"]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    index_bytes: int
    def __init__(self, index_bytes: _Optional[int] = ...) -> None: ...

class FastPath(_message.Message):
    __slots__ = ["index_bytes", "layout_version", "pin_table_bytes"]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PIN_TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    index_bytes: int
    layout_version: int
    pin_table_bytes: int
    def __init__(self, layout_version: _Optional[int] = ..., index_bytes: _Optional[int] = ..., pin_table_bytes: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ["acknowledges", "device_uuids", "fast_path_version", "name", "protocol_version", "role", "segment_changes"]
    class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACKNOWLEDGES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUIDS_FIELD_NUMBER: _ClassVar[int]
    FAST_PATH_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    READER: Hello.Role
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    WRITER: Hello.Role
    acknowledges: bytes
    device_uuids: _containers.RepeatedScalarFieldContainer[str]
    fast_path_version: int
    name: str
    protocol_version: int
    role: Hello.Role
    segment_changes: bool
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[_Union[Hello.Role, str]] = ..., acknowledges: _Optional[bytes] = ..., device_uuids: _Optional[_Iterable[str]] = ..., fast_path_version: _Optional[int] = ..., segment_changes: bool = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ["inline_limit", "lease_ttl_ms", "max_batch", "max_entry_bytes", "max_leases", "max_pinned_bytes", "reservation_ttl_ms"]
    INLINE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASES_FIELD_NUMBER: _ClassVar[int]
    MAX_PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    inline_limit: int
    lease_ttl_ms: int
    max_batch: int
    max_entry_bytes: int
    max_leases: int
    max_pinned_bytes: int
    reservation_ttl_ms: int
    def __init__(self, max_batch: _Optional[int] = ..., inline_limit: _Optional[int] = ..., max_leases: _Optional[int] = ..., max_pinned_bytes: _Optional[int] = ..., max_entry_bytes: _Optional[int] = ..., reservation_ttl_ms: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ["code", "message"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class SegmentsChanged(_message.Message):
    __slots__ = ["added", "change", "removed"]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    added: _containers.RepeatedCompositeFieldContainer[WelcomeSegment]
    change: int
    removed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, change: _Optional[int] = ..., added: _Optional[_Iterable[_Union[WelcomeSegment, _Mapping]]] = ..., removed: _Optional[_Iterable[int]] = ...) -> None: ...

class SegmentsSeen(_message.Message):
    __slots__ = ["change"]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    change: int
    def __init__(self, change: _Optional[int] = ...) -> None: ...

class ServerPacket(_message.Message):
    __slots__ = ["draining", "fast_index_moved", "refusal", "segments_changed", "welcome"]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FAST_INDEX_MOVED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    draining: Draining
    fast_index_moved: FastIndexMoved
    refusal: Refusal
    segments_changed: SegmentsChanged
    welcome: Welcome
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., segments_changed: _Optional[_Union[SegmentsChanged, _Mapping]] = ..., fast_index_moved: _Optional[_Union[FastIndexMoved, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ["epoch", "fast_path", "limits", "more", "protocol_version", "segments", "token", "version"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAST_PATH_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: bytes
    fast_path: FastPath
    limits: Limits
    more: bool
    protocol_version: int
    segments: _containers.RepeatedCompositeFieldContainer[WelcomeSegment]
    token: bytes
    version: str
    def __init__(self, protocol_version: _Optional[int] = ..., token: _Optional[bytes] = ..., epoch: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[WelcomeSegment, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., more: bool = ..., version: _Optional[str] = ..., fast_path: _Optional[_Union[FastPath, _Mapping]] = ...) -> None: ...

class WelcomeSegment(_message.Message):
    __slots__ = ["passed_by_descriptor", "segment"]
    PASSED_BY_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    passed_by_descriptor: bool
    segment: _embcache_pb2.Segment
    def __init__(self, segment: _Optional[_Union[_embcache_pb2.Segment, _Mapping]] = ..., passed_by_descriptor: bool = ...) -> None: ...
