"""The asyncio twin."""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pytest
from conftest import Daemon, array, until

import embcache
from embcache import Key, TensorSpec, aio


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@in_loop
async def test_put_get_and_the_rest(shared_daemon, key):
    async with aio.Client(shared_daemon.directory, strict=True) as client:
        assert await client.get(key) is None
        assert await client.put(key, {"x": array(5, 6)}, metadata={"a": "b"}, encode_cost=1)
        hit = await client.get(key)
        np.testing.assert_array_equal(hit["x"].numpy(), array(5, 6))
        assert await client.contains(key) == embcache.Tier.L1
        (adopted,) = await client.adopt(await client.share([hit]))
        assert adopted.generation == hit.generation
        assert [one is not None for one in await client.get_many([key, key])] == [True, True]
        assert key in [entry.key async for entry in client.list("m")]
        assert (await client.stats())["gets"] >= 3
        await client.ping()
        assert (await client.pop(key)).key == key
        assert await client.delete(key) is False
        assert await client.advance_epoch("aio model") >= 1


@in_loop
async def test_reserve_commits_or_aborts(shared_daemon, key):
    async with aio.Client(shared_daemon.directory, strict=True) as client:
        spec = {"x": TensorSpec("f4", (3,))}
        async with await client.reserve(key, spec) as entry:
            entry["x"].numpy()[:] = 2
        assert entry.stored
        other = Key("m", key.content_hash, b"other")
        with pytest.raises(ZeroDivisionError):
            async with await client.reserve(other, spec):
                1 / 0
        assert (await client.get(key))["x"].numpy().tolist() == [2, 2, 2]
        assert await client.get(other) is None


@in_loop
async def test_many_tasks_at_once(shared_daemon, key):
    async with aio.Client(shared_daemon.directory, strict=True) as client:
        keys = [Key("m", key.content_hash, bytes([i])) for i in range(50)]
        stored = await asyncio.gather(*(client.put(k, np.full(100, i)) for i, k in enumerate(keys)))
        assert all(stored)
        hits = await asyncio.gather(*(client.get(k) for k in keys))
        assert [hit["data"].numpy()[0] for hit in hits] == list(range(50))


@in_loop
async def test_a_cancelled_get_leaves_no_lease(own_daemon, key):
    async with aio.Client(own_daemon.directory, strict=True) as client:
        await client.put(key, array(4))
        for i in range(20):
            task = asyncio.create_task(client.get(key))
            await asyncio.sleep(0.0002 * i)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
        with embcache.Client(own_daemon.directory, strict=True) as observer:
            for _ in range(1000):
                if observer.stats()["leases"] == 0:
                    break
                await asyncio.sleep(0.005)
            assert observer.stats()["leases"] == 0


@in_loop
async def test_away_and_back(own_daemon: Daemon, key):
    async with aio.Client(own_daemon.directory) as client:
        await client.put(key, array(4))
        hit = await client.get(key)
        own_daemon.kill()
        until(lambda: not client.connected)
        assert await client.get(key) is None
        assert await client.put(key, array(4)) is False
        async with await client.reserve(key, {"x": TensorSpec("f4", (3,))}) as entry:
            entry["x"].numpy()[:] = 2
        assert not entry.stored
        own_daemon.start()
        until(lambda: client.connected)
        assert await client.put(key, array(4, seed=1))
        np.testing.assert_array_equal((await client.get(key))["data"].numpy(), array(4, seed=1))
        np.testing.assert_array_equal(hit["data"].numpy(), array(4))
