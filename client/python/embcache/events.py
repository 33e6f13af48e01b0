"""What `watch` tells: what is in the cache, and what happens to it."""

from __future__ import annotations

import dataclasses
from typing import Any

from embcache.hit import Tier, key_of
from embcache.keys import Key
from embcache.v1 import embcache_pb2 as pb


@dataclasses.dataclass(frozen=True)
class TierOccupancy:
    tier: Tier
    capacity: int  # bytes
    used: int
    entries: int


@dataclasses.dataclass(frozen=True)
class Event:
    """`kind` says which fields mean something:

    "stored"          key, tier, generation, nbytes, encode_cost: reachable from now on, instead of
                      what was there under the key. Also each row of a snapshot.
    "removed"         key, generation, reason ("replaced", "deleted", "capacity", "expired", "epoch",
                      "mismatch", "damaged"): not reachable any more, in any tier
    "moved"           key, generation, from_tier, tier: its fastest tier is another one now
    "epoch"           model, model_epoch: every older entry of the model is unreachable
    "snapshot_begin"  epoch (of the daemon), tiers: forget what you know, all that is there follows
    "snapshot_end"    the same: all that is there has been told
    "gap"             lost: events were missed, and a new snapshot follows
    """

    kind: str
    sequence: int  # rises by one; in a snapshot: of the last event that it includes
    time: float  # Unix time
    key: Key | None = None
    tier: Tier = Tier.UNKNOWN
    from_tier: Tier = Tier.UNKNOWN
    generation: int = 0
    nbytes: int = 0
    encode_cost: float = 0.0  # seconds
    reason: str = ""
    model: str = ""
    model_epoch: int = 0
    epoch: bytes = b""
    tiers: tuple[TierOccupancy, ...] = ()
    lost: int = 0


def watch_request(model: str, snapshot: bool, after: int, epoch: bytes) -> pb.WatchRequest:
    return pb.WatchRequest(
        model=model, no_snapshot=not snapshot, after_sequence=after, epoch=epoch
    )


def event_of(event: pb.Event) -> Event:
    which = event.WhichOneof("event")
    content: Any = getattr(event, which) if which else None
    common: dict[str, Any] = {"sequence": event.sequence, "time": event.unix_ms / 1000}
    if which in ("stored", "removed", "moved"):
        common |= {"key": key_of(content.key), "generation": content.generation}
    if which == "stored":
        return Event(
            "stored",
            tier=Tier(content.tier),
            nbytes=content.bytes,
            encode_cost=content.encode_cost_us / 1e6,
            **common,
        )
    if which == "removed":
        reason = pb.Event.RemoveReason.Name(content.reason).lower().removeprefix("removed_")
        return Event("removed", reason=reason, **common)
    if which == "moved":
        way: dict[str, Any] = {"from_tier": Tier(getattr(content, "from")), "tier": Tier(content.to)}
        return Event("moved", **way, **common)
    if which == "epoch_advanced":
        return Event("epoch", model=content.model, model_epoch=content.model_epoch, **common)
    if which == "snapshot":
        occupancy = tuple(
            TierOccupancy(Tier(one.tier), one.capacity_bytes, one.used_bytes, one.entries)
            for one in content.tiers
        )
        kind = "snapshot_end" if content.end else "snapshot_begin"
        return Event(kind, epoch=content.epoch, tiers=occupancy, **common)
    if which == "gap":
        return Event("gap", lost=content.lost, **common)
    return Event("unknown", **common)
