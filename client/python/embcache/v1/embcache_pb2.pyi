from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BF16: DType
BOOL: DType
C64: DType
DESCRIPTOR: _descriptor.FileDescriptor
DTYPE_UNSPECIFIED: DType
F16: DType
F32: DType
F4: DType
F64: DType
F6_E2M3: DType
F6_E3M2: DType
F8_E4M3: DType
F8_E4M3FNUZ: DType
F8_E5M2: DType
F8_E5M2FNUZ: DType
F8_E8M0: DType
I16: DType
I32: DType
I64: DType
I8: DType
L1: Tier
L2: Tier
L3: Tier
ON_MISS_CLAIM: OnMiss
ON_MISS_RETURN: OnMiss
ON_MISS_WAIT: OnMiss
PLACE_ANY: Place
PLACE_DEVICE: Place
PLACE_HOST: Place
TIER_UNSPECIFIED: Tier
U16: DType
U32: DType
U64: DType
U8: DType

class AbandonRequest(_message.Message):
    __slots__ = ["claims"]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, claims: _Optional[_Iterable[int]] = ...) -> None: ...

class AbandonResponse(_message.Message):
    __slots__ = ["abandoned", "unknown"]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    abandoned: int
    unknown: int
    def __init__(self, abandoned: _Optional[int] = ..., unknown: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ["reservations"]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    reservations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reservations: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ItemStatus]
    def __init__(self, results: _Optional[_Iterable[_Union[ItemStatus, _Mapping]]] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ["token"]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    def __init__(self, token: _Optional[bytes] = ...) -> None: ...

class AdoptResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GetResult, _Mapping]]] = ...) -> None: ...

class AdvanceEpochRequest(_message.Message):
    __slots__ = ["model"]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class AdvanceEpochResponse(_message.Message):
    __slots__ = ["model_epoch"]
    MODEL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    model_epoch: int
    def __init__(self, model_epoch: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ["keep_lease", "reservations"]
    KEEP_LEASE_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    keep_lease: bool
    reservations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reservations: _Optional[_Iterable[int]] = ..., keep_lease: bool = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ["generation", "lease", "status"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    lease: int
    status: ItemStatus
    def __init__(self, status: _Optional[_Union[ItemStatus, _Mapping]] = ..., lease: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ContainsRequest(_message.Message):
    __slots__ = ["keys", "lease"]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    lease: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., lease: bool = ...) -> None: ...

class ContainsResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ContainsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ContainsResult, _Mapping]]] = ...) -> None: ...

class ContainsResult(_message.Message):
    __slots__ = ["hit", "present", "status", "tier"]
    HIT_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    hit: GetResult
    present: bool
    status: ItemStatus
    tier: Tier
    def __init__(self, status: _Optional[_Union[ItemStatus, _Mapping]] = ..., present: bool = ..., tier: _Optional[_Union[Tier, str]] = ..., hit: _Optional[_Union[GetResult, _Mapping]] = ...) -> None: ...

class CudaSource(_message.Message):
    __slots__ = ["bytes", "device_uuid", "ipc_handle", "offset"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    IPC_HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    device_uuid: str
    ipc_handle: bytes
    offset: int
    def __init__(self, ipc_handle: _Optional[bytes] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ..., device_uuid: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ["keys"]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeleteResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DeleteResult, _Mapping]]] = ...) -> None: ...

class DeleteResult(_message.Message):
    __slots__ = ["existed", "status"]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    status: ItemStatus
    def __init__(self, status: _Optional[_Union[ItemStatus, _Mapping]] = ..., existed: bool = ...) -> None: ...

class DeviceStats(_message.Message):
    __slots__ = ["client_copies", "copied_bytes", "copies", "failed_copies", "lost", "name", "pageable_host_bytes", "pinned_host_bytes", "uuid"]
    CLIENT_COPIES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    FAILED_COPIES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGEABLE_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    client_copies: int
    copied_bytes: int
    copies: int
    failed_copies: int
    lost: bool
    name: str
    pageable_host_bytes: int
    pinned_host_bytes: int
    uuid: str
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., lost: bool = ..., copies: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., failed_copies: _Optional[int] = ..., client_copies: _Optional[int] = ..., pinned_host_bytes: _Optional[int] = ..., pageable_host_bytes: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ["bytes", "created_unix_ms", "encode_cost_us", "expires_unix_ms", "key", "metadata", "tensors"]
    class MetadataEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_COST_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    created_unix_ms: int
    encode_cost_us: int
    expires_unix_ms: int
    key: Key
    metadata: _containers.ScalarMap[str, bytes]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, bytes]] = ..., encode_cost_us: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., expires_unix_ms: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ["epoch_advanced", "gap", "moved", "removed", "sequence", "snapshot", "stored", "unix_ms"]
    class RemoveReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CAPACITY: Event.RemoveReason
    DELETED: Event.RemoveReason
    EPOCH: Event.RemoveReason
    EPOCH_ADVANCED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED: Event.RemoveReason
    GAP_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_DAMAGED: Event.RemoveReason
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_LOST: Event.RemoveReason
    REMOVED_MISMATCH: Event.RemoveReason
    REMOVE_REASON_UNSPECIFIED: Event.RemoveReason
    REPLACED: Event.RemoveReason
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    epoch_advanced: EventEpoch
    gap: EventGap
    moved: EventMoved
    removed: EventRemoved
    sequence: int
    snapshot: EventSnapshot
    stored: EventStored
    unix_ms: int
    def __init__(self, sequence: _Optional[int] = ..., unix_ms: _Optional[int] = ..., stored: _Optional[_Union[EventStored, _Mapping]] = ..., removed: _Optional[_Union[EventRemoved, _Mapping]] = ..., moved: _Optional[_Union[EventMoved, _Mapping]] = ..., epoch_advanced: _Optional[_Union[EventEpoch, _Mapping]] = ..., snapshot: _Optional[_Union[EventSnapshot, _Mapping]] = ..., gap: _Optional[_Union[EventGap, _Mapping]] = ...) -> None: ...

class EventEpoch(_message.Message):
    __slots__ = ["model", "model_epoch"]
    MODEL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    model_epoch: int
    def __init__(self, model: _Optional[str] = ..., model_epoch: _Optional[int] = ...) -> None: ...

class EventGap(_message.Message):
    __slots__ = ["lost"]
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: int
    def __init__(self, lost: _Optional[int] = ...) -> None: ...

class EventMoved(_message.Message):
    __slots__ = ["generation", "key", "to"]
    FROM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    generation: int
    key: Key
    to: Tier
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., to: _Optional[_Union[Tier, str]] = ..., generation: _Optional[int] = ..., **kwargs) -> None: ...

class EventRemoved(_message.Message):
    __slots__ = ["generation", "key", "reason"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    key: Key
    reason: Event.RemoveReason
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., generation: _Optional[int] = ..., reason: _Optional[_Union[Event.RemoveReason, str]] = ...) -> None: ...

class EventSnapshot(_message.Message):
    __slots__ = ["end", "epoch", "tiers"]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    end: bool
    epoch: bytes
    tiers: _containers.RepeatedCompositeFieldContainer[TierOccupancy]
    def __init__(self, end: bool = ..., epoch: _Optional[bytes] = ..., tiers: _Optional[_Iterable[_Union[TierOccupancy, _Mapping]]] = ...) -> None: ...

class EventStored(_message.Message):
    __slots__ = ["bytes", "encode_cost_us", "generation", "key", "tier"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODE_COST_US_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    encode_cost_us: int
    generation: int
    key: Key
    tier: Tier
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., bytes: _Optional[int] = ..., generation: _Optional[int] = ..., encode_cost_us: _Optional[int] = ...) -> None: ...

class Expectation(_message.Message):
    __slots__ = ["bytes", "dtype", "rows", "shape", "tensor"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    dtype: DType
    rows: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    tensor: str
    def __init__(self, tensor: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetItem(_message.Message):
    __slots__ = ["expect", "key"]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    expect: _containers.RepeatedCompositeFieldContainer[Expectation]
    key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., expect: _Optional[_Iterable[_Union[Expectation, _Mapping]]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ["accept_pending", "inline_limit", "items", "on_miss", "place", "wait_ms"]
    ACCEPT_PENDING_FIELD_NUMBER: _ClassVar[int]
    INLINE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ON_MISS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    accept_pending: bool
    inline_limit: int
    items: _containers.RepeatedCompositeFieldContainer[GetItem]
    on_miss: OnMiss
    place: Place
    wait_ms: int
    def __init__(self, items: _Optional[_Iterable[_Union[GetItem, _Mapping]]] = ..., inline_limit: _Optional[int] = ..., on_miss: _Optional[_Union[OnMiss, str]] = ..., wait_ms: _Optional[int] = ..., place: _Optional[_Union[Place, str]] = ..., accept_pending: bool = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GetResult, _Mapping]]] = ...) -> None: ...

class GetResult(_message.Message):
    __slots__ = ["claim", "entry", "generation", "inline", "lease", "location", "reason", "source", "status", "verdict"]
    class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ABSENT: GetResult.MissReason
    CLAIMED: GetResult.Verdict
    CLAIMED_ELSEWHERE: GetResult.MissReason
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    DAMAGED: GetResult.MissReason
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ERROR: GetResult.Verdict
    EXPIRED: GetResult.MissReason
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HIT: GetResult.Verdict
    INLINE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    MISMATCH: GetResult.MissReason
    MISS: GetResult.Verdict
    MISS_REASON_UNSPECIFIED: GetResult.MissReason
    PENDING: GetResult.Verdict
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    claim: int
    entry: Entry
    generation: int
    inline: bytes
    lease: int
    location: Location
    reason: GetResult.MissReason
    source: Tier
    status: ItemStatus
    verdict: GetResult.Verdict
    def __init__(self, verdict: _Optional[_Union[GetResult.Verdict, str]] = ..., reason: _Optional[_Union[GetResult.MissReason, str]] = ..., status: _Optional[_Union[ItemStatus, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., source: _Optional[_Union[Tier, str]] = ..., location: _Optional[_Union[Location, _Mapping]] = ..., lease: _Optional[int] = ..., inline: _Optional[bytes] = ..., generation: _Optional[int] = ..., claim: _Optional[int] = ...) -> None: ...

class ItemStatus(_message.Message):
    __slots__ = ["code", "message"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ["content_hash", "content_hash_hex", "model", "variant"]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_HEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    content_hash: bytes
    content_hash_hex: str
    model: str
    variant: bytes
    def __init__(self, model: _Optional[str] = ..., content_hash: _Optional[bytes] = ..., content_hash_hex: _Optional[str] = ..., variant: _Optional[bytes] = ...) -> None: ...

class L3Stats(_message.Message):
    __slots__ = ["corruptions", "disk_bytes_written", "dropped_writes", "enabled", "files", "io_errors", "load_failures", "loads", "payload_bytes", "queued_bytes", "queued_writes", "writable", "write_failures", "writes"]
    CORRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_WRITES_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    IO_ERRORS_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FAILURES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_WRITES_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    WRITE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    corruptions: int
    disk_bytes_written: int
    dropped_writes: int
    enabled: bool
    files: int
    io_errors: int
    load_failures: int
    loads: int
    payload_bytes: int
    queued_bytes: int
    queued_writes: int
    writable: bool
    write_failures: int
    writes: int
    def __init__(self, enabled: bool = ..., writable: bool = ..., loads: _Optional[int] = ..., load_failures: _Optional[int] = ..., writes: _Optional[int] = ..., write_failures: _Optional[int] = ..., dropped_writes: _Optional[int] = ..., queued_writes: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., corruptions: _Optional[int] = ..., io_errors: _Optional[int] = ..., disk_bytes_written: _Optional[int] = ..., files: _Optional[int] = ..., payload_bytes: _Optional[int] = ...) -> None: ...

class LatencyStats(_message.Message):
    __slots__ = ["count", "max_ns", "operation", "p50_ns", "p99_ns", "sum_ns"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_NS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    P50_NS_FIELD_NUMBER: _ClassVar[int]
    P99_NS_FIELD_NUMBER: _ClassVar[int]
    SUM_NS_FIELD_NUMBER: _ClassVar[int]
    count: int
    max_ns: int
    operation: str
    p50_ns: int
    p99_ns: int
    sum_ns: int
    def __init__(self, operation: _Optional[str] = ..., count: _Optional[int] = ..., sum_ns: _Optional[int] = ..., p50_ns: _Optional[int] = ..., p99_ns: _Optional[int] = ..., max_ns: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ["content_hash_hex_prefix", "model", "page_size", "page_token"]
    CONTENT_HASH_HEX_PREFIX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    content_hash_hex_prefix: str
    model: str
    page_size: int
    page_token: bytes
    def __init__(self, model: _Optional[str] = ..., content_hash_hex_prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ["entries", "next_page_token"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ListedEntry]
    next_page_token: bytes
    def __init__(self, entries: _Optional[_Iterable[_Union[ListedEntry, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class ListedEntry(_message.Message):
    __slots__ = ["bytes", "created_unix_ms", "encode_cost_us", "generation", "key", "on_disk", "pins", "tier"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_COST_US_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    created_unix_ms: int
    encode_cost_us: int
    generation: int
    key: Key
    on_disk: bool
    pins: int
    tier: Tier
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., bytes: _Optional[int] = ..., generation: _Optional[int] = ..., on_disk: bool = ..., pins: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., encode_cost_us: _Optional[int] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ["bytes", "offset", "segment", "segment_generation", "tier"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    offset: int
    segment: int
    segment_generation: int
    tier: Tier
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., segment: _Optional[int] = ..., segment_generation: _Optional[int] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ModelStats(_message.Message):
    __slots__ = ["bytes", "entries", "gets", "hits", "misses", "model", "model_epoch", "saved_us", "saves"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    GETS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    MODEL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SAVED_US_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    entries: int
    gets: int
    hits: int
    misses: int
    model: str
    model_epoch: int
    saved_us: int
    saves: int
    def __init__(self, model: _Optional[str] = ..., model_epoch: _Optional[int] = ..., gets: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., saves: _Optional[int] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., saved_us: _Optional[int] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class PingResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class PopRequest(_message.Message):
    __slots__ = ["key"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class PopResponse(_message.Message):
    __slots__ = ["result"]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: GetResult
    def __init__(self, result: _Optional[_Union[GetResult, _Mapping]] = ...) -> None: ...

class PutItem(_message.Message):
    __slots__ = ["claim", "cuda", "encode_cost_us", "inline", "key", "metadata", "tensors", "ttl_ms"]
    class MetadataEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    ENCODE_COST_US_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    claim: int
    cuda: CudaSource
    encode_cost_us: int
    inline: bytes
    key: Key
    metadata: _containers.ScalarMap[str, bytes]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    ttl_ms: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, bytes]] = ..., encode_cost_us: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., inline: _Optional[bytes] = ..., cuda: _Optional[_Union[CudaSource, _Mapping]] = ..., claim: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ["items"]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PutItem]
    def __init__(self, items: _Optional[_Iterable[_Union[PutItem, _Mapping]]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PutResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PutResult, _Mapping]]] = ...) -> None: ...

class PutResult(_message.Message):
    __slots__ = ["generation", "status"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    status: ItemStatus
    def __init__(self, status: _Optional[_Union[ItemStatus, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ["leases"]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, leases: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ["released", "unknown"]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    released: int
    unknown: int
    def __init__(self, released: _Optional[int] = ..., unknown: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ["items", "place"]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PutItem]
    place: Place
    def __init__(self, items: _Optional[_Iterable[_Union[PutItem, _Mapping]]] = ..., place: _Optional[_Union[Place, str]] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReserveResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReserveResult, _Mapping]]] = ...) -> None: ...

class ReserveResult(_message.Message):
    __slots__ = ["location", "reservation", "status", "tensors"]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    location: Location
    reservation: int
    status: ItemStatus
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, status: _Optional[_Union[ItemStatus, _Mapping]] = ..., reservation: _Optional[int] = ..., location: _Optional[_Union[Location, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ["bytes", "cuda_ipc_handle", "device_uuid", "generation", "id", "tier"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    cuda_ipc_handle: bytes
    device_uuid: str
    generation: int
    id: int
    tier: Tier
    def __init__(self, id: _Optional[int] = ..., generation: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., bytes: _Optional[int] = ..., device_uuid: _Optional[str] = ..., cuda_ipc_handle: _Optional[bytes] = ...) -> None: ...

class SegmentsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SegmentsResponse(_message.Message):
    __slots__ = ["epoch", "segments"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    epoch: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, epoch: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class ShareRequest(_message.Message):
    __slots__ = ["leases", "ttl_ms"]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    ttl_ms: int
    def __init__(self, leases: _Optional[_Iterable[int]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ShareResponse(_message.Message):
    __slots__ = ["expires_unix_ms", "token"]
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    expires_unix_ms: int
    token: bytes
    def __init__(self, token: _Optional[bytes] = ..., expires_unix_ms: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ["latencies", "per_model"]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    PER_MODEL_FIELD_NUMBER: _ClassVar[int]
    latencies: bool
    per_model: bool
    def __init__(self, per_model: bool = ..., latencies: bool = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ["claim_waits", "claims", "claims_failed", "claims_granted", "deletes", "demotions", "device", "draining", "epoch", "fast_hits", "gets", "hits", "l3", "latencies", "leases", "mismatches", "misses", "models", "promotions", "quarantined_bytes", "rejected_puts", "replaced", "reservations", "saved_us", "saves", "sessions", "tiers", "uptime_ms", "version"]
    CLAIMS_FAILED_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_GRANTED_FIELD_NUMBER: _ClassVar[int]
    CLAIM_WAITS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    DEMOTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAST_HITS_FIELD_NUMBER: _ClassVar[int]
    GETS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    L3_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROMOTIONS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PUTS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    SAVED_US_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    claim_waits: int
    claims: int
    claims_failed: int
    claims_granted: int
    deletes: int
    demotions: int
    device: DeviceStats
    draining: bool
    epoch: bytes
    fast_hits: int
    gets: int
    hits: int
    l3: L3Stats
    latencies: _containers.RepeatedCompositeFieldContainer[LatencyStats]
    leases: int
    mismatches: int
    misses: int
    models: _containers.RepeatedCompositeFieldContainer[ModelStats]
    promotions: int
    quarantined_bytes: int
    rejected_puts: int
    replaced: int
    reservations: int
    saved_us: int
    saves: int
    sessions: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    uptime_ms: int
    version: str
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[bytes] = ..., uptime_ms: _Optional[int] = ..., gets: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., mismatches: _Optional[int] = ..., saves: _Optional[int] = ..., replaced: _Optional[int] = ..., deletes: _Optional[int] = ..., promotions: _Optional[int] = ..., demotions: _Optional[int] = ..., rejected_puts: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., l3: _Optional[_Union[L3Stats, _Mapping]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., quarantined_bytes: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelStats, _Mapping]]] = ..., latencies: _Optional[_Iterable[_Union[LatencyStats, _Mapping]]] = ..., saved_us: _Optional[int] = ..., draining: bool = ..., claims: _Optional[int] = ..., claims_granted: _Optional[int] = ..., claims_failed: _Optional[int] = ..., claim_waits: _Optional[int] = ..., fast_hits: _Optional[int] = ..., device: _Optional[_Union[DeviceStats, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ["absent", "bytes", "dtype", "name", "offset", "shape"]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    absent: bool
    bytes: int
    dtype: DType
    name: str
    offset: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., absent: bool = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TierOccupancy(_message.Message):
    __slots__ = ["capacity_bytes", "entries", "tier", "used_bytes"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    entries: int
    tier: Tier
    used_bytes: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ["capacity_bytes", "entries", "evictions_capacity", "evictions_epoch", "evictions_expired", "fragmentation", "given_back_bytes", "hits", "pinned_bytes", "reserved_bytes", "tier", "used_bytes"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    entries: int
    evictions_capacity: int
    evictions_epoch: int
    evictions_expired: int
    fragmentation: float
    given_back_bytes: int
    hits: int
    pinned_bytes: int
    reserved_bytes: int
    tier: Tier
    used_bytes: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., entries: _Optional[int] = ..., hits: _Optional[int] = ..., fragmentation: _Optional[float] = ..., evictions_capacity: _Optional[int] = ..., evictions_expired: _Optional[int] = ..., evictions_epoch: _Optional[int] = ..., given_back_bytes: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ["after_sequence", "epoch", "model", "no_snapshot"]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NO_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    epoch: bytes
    model: str
    no_snapshot: bool
    def __init__(self, model: _Optional[str] = ..., after_sequence: _Optional[int] = ..., epoch: _Optional[bytes] = ..., no_snapshot: bool = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ["events"]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Place(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class OnMiss(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
