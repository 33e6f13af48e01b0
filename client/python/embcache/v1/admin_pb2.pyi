from embcache.v1 import embcache_pb2 as _embcache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClearRequest(_message.Message):
    __slots__ = ["all", "model"]
    ALL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    model: str
    def __init__(self, model: _Optional[str] = ..., all: bool = ...) -> None: ...

class ClearResponse(_message.Message):
    __slots__ = ["models"]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: int
    def __init__(self, models: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ResizeRequest(_message.Message):
    __slots__ = ["capacity_bytes", "tier"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    tier: _embcache_pb2.Tier
    def __init__(self, tier: _Optional[_Union[_embcache_pb2.Tier, str]] = ..., capacity_bytes: _Optional[int] = ...) -> None: ...

class ResizeResponse(_message.Message):
    __slots__ = ["capacity_bytes", "previous_bytes"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    previous_bytes: int
    def __init__(self, previous_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ["age_ms", "leases", "name", "pid", "pinned_bytes", "reservations", "state", "uid", "writer"]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    leases: int
    name: str
    pid: int
    pinned_bytes: int
    reservations: int
    state: str
    uid: int
    writer: bool
    def __init__(self, name: _Optional[str] = ..., writer: bool = ..., pid: _Optional[int] = ..., uid: _Optional[int] = ..., state: _Optional[str] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SessionsResponse(_message.Message):
    __slots__ = ["sessions"]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ["level"]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ["previous"]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    previous: str
    def __init__(self, previous: _Optional[str] = ...) -> None: ...

class VerifyL3Request(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class VerifyL3Response(_message.Message):
    __slots__ = ["bytes", "damaged", "records", "unreadable"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    damaged: int
    records: int
    unreadable: int
    def __init__(self, records: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., unreadable: _Optional[int] = ...) -> None: ...
