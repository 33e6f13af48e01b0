"""Tiers that shrink and grow under a client."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from conftest import Daemon, array

import embcache
from embcache import Key, aio
from embcache._session import Session
from embcache.v1 import admin_pb2, embcache_pb2

MIB = 1 << 20
ENTRIES = 20  # of 2 MiB


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """L1 is four segments of 16 MiB."""
    with tempfile.TemporaryDirectory(prefix="emb") as directory:
        daemon = Daemon(
            directory,
            "--device=host",
            "--l1-capacity=64MiB",
            "--l2-capacity=32MiB",
            "--segment-bytes=16MiB",
        )
        yield daemon
        daemon.kill()


def resize(daemon: Daemon, mib: int, timeout: float = 120.0) -> admin_pb2.ResizeResponse:
    with grpc.insecure_channel(f"unix:{daemon.directory}/embcached.sock") as channel:
        call = channel.unary_unary(
            "/embcache.v1.Admin/Resize",
            request_serializer=admin_pb2.ResizeRequest.SerializeToString,
            response_deserializer=admin_pb2.ResizeResponse.FromString,
        )
        request = admin_pb2.ResizeRequest(tier=embcache_pb2.L1, capacity_bytes=mib * MIB)
        return call(request, timeout=timeout)


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:embcache-l1" in line for line in maps)


def key(number: int) -> Key:
    return Key("resize", number.to_bytes(16, "little"))


def value(number: int) -> np.ndarray:
    return array(512, 1024, seed=number)


def test_after_a_shrink_the_client_has_unmapped_and_finds_what_it_put(daemon):
    before = mapped()
    with embcache.Client(daemon.directory, strict=True) as client:
        for number in range(ENTRIES):
            assert client.put(key(number), {"x": value(number)})
        assert client.get(key(ENTRIES - 1)) is not None  # what hits without a call remember
        assert mapped() == before + 4
        assert resize(daemon, 16).capacity_bytes == 16 * MIB
        assert mapped() == before + 1
        assert "has not given up" not in daemon.log()
        for number in range(ENTRIES):
            np.testing.assert_array_equal(client.get(key(number))["x"].numpy(), value(number))


def test_new_segments_are_used_by_a_client_that_was_there_before(daemon):
    with (
        embcache.Client(daemon.directory, strict=True) as client,
        embcache.Client(daemon.directory, strict=True) as reader,
    ):
        assert resize(daemon, 128).capacity_bytes == 128 * MIB
        for number in range(2 * ENTRIES):
            assert client.put(key(number), {"x": value(number)})
        for number in range(2 * ENTRIES):
            hit = reader.get(key(number))
            assert hit.tier == embcache.Tier.L1
            np.testing.assert_array_equal(hit["x"].numpy(), value(number))


def test_a_call_need_not_wait_for_the_thread_that_watches(daemon, monkeypatch):
    """What it is told of a new segment lies in the control socket, and it reads that itself."""
    handle_packet = Session.handle_packet

    def only_calls(session):
        if threading.current_thread().name == "emb-control":
            return False
        return handle_packet(session)

    with embcache.Client(daemon.directory, strict=True) as client:
        monkeypatch.setattr(Session, "handle_packet", only_calls)
        assert resize(daemon, 128).capacity_bytes == 128 * MIB
        for number in range(2 * ENTRIES):
            assert client.put(key(number), {"x": value(number)})
        np.testing.assert_array_equal(client.get(key(39))["x"].numpy(), value(39))
        monkeypatch.undo()


def test_a_view_keeps_its_bytes_and_is_waited_for(daemon):
    with embcache.Client(daemon.directory, strict=True) as client:
        for number in range(ENTRIES):
            assert client.put(key(number), {"x": value(number)})
        views = [client.get(key(number))["x"].numpy() for number in range(ENTRIES)]
        with pytest.raises(grpc.RpcError) as refused:
            resize(daemon, 16, timeout=1.0)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "instead of 16777216" in refused.value.details()
        for number, view in enumerate(views):
            np.testing.assert_array_equal(view, value(number))
        del views, view
        gc.collect()
        assert resize(daemon, 16).capacity_bytes == 16 * MIB


def test_whoever_keeps_a_segment_that_went_has_it_mapped_and_holds_nobody_up(daemon):
    with embcache.Client(daemon.directory, strict=True) as client:
        before = dict(client._connection.session()._segments)
        resize(daemon, 16)  # answers some seconds later: this client does not
        left = client._connection.session()._segments
        gone = [segment for number, segment in before.items() if number not in left]
        assert len(gone) == 3
        assert {segment.memory[0] for segment in gone} == {0}
        del before, gone
        assert client.put(key(1), {"x": value(1)})
    assert "has not given up" in daemon.log()


def test_the_asyncio_twin_follows(daemon):
    async def run() -> None:
        async with aio.Client(daemon.directory, strict=True) as client:
            for number in range(ENTRIES):
                assert await client.put(key(number), {"x": value(number)})
            await asyncio.to_thread(resize, daemon, 16)
            await asyncio.to_thread(resize, daemon, 96)
            for number in range(ENTRIES, 2 * ENTRIES):
                assert await client.put(key(number), {"x": value(number)})
            for number in range(ENTRIES, 2 * ENTRIES):
                hit = await client.get(key(number))
                np.testing.assert_array_equal(hit["x"].numpy(), value(number))

    asyncio.run(run())
