"""Claims, and events, from Python: threads, tasks and processes."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import embcache
from conftest import EMBCACHED, Daemon, array, until
from embcache import aio


def waits(client: embcache.Client) -> int:
    return int(client.stats()["claim_waits"])


def test_threads_of_one_client_encode_once(client: embcache.Client, key: embcache.Key) -> None:
    encodes = []

    def encode() -> dict[str, np.ndarray]:
        encodes.append(1)
        time.sleep(0.05)
        return {"data": array(4, 8)}

    hits: list[embcache.Hit] = []
    threads = [
        threading.Thread(target=lambda: hits.append(client.get_or_encode(key, encode)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(encodes) == 1
    assert len(hits) == 20
    for hit in hits:
        np.testing.assert_array_equal(hit["data"].numpy(), array(4, 8))
    assert sum(hit.tier is embcache.Tier.UNKNOWN for hit in hits) == 1


def test_tasks_of_one_client_encode_once(shared_daemon: Daemon, key: embcache.Key) -> None:
    encodes = []

    async def encode() -> tuple[dict[str, np.ndarray], dict[str, str]]:
        encodes.append(1)
        await asyncio.sleep(0.05)
        return {"data": array(4, 8)}, {"grid": "1,2,3"}

    async def run() -> list[embcache.Hit]:
        async with aio.Client(shared_daemon.directory, strict=True) as client:
            return await asyncio.gather(*(client.get_or_encode(key, encode) for _ in range(100)))

    hits = asyncio.run(run())
    assert len(encodes) == 1
    assert all(hit.metadata["grid"] == b"1,2,3" for hit in hits)


def test_clients_encode_once_across_threads_and_asyncio(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    go_on = threading.Event()
    before = waits(client)

    def encode() -> np.ndarray:
        assert go_on.wait(30)
        return array(3)

    async def wait_for_it() -> embcache.Hit:
        async with aio.Client(shared_daemon.directory, strict=True) as other:
            return await other.get_or_encode(key, lambda: pytest.fail("encoded twice"))

    hits: list[embcache.Hit] = []
    encoder = threading.Thread(target=lambda: hits.append(client.get_or_encode(key, encode)))
    encoder.start()
    until(lambda: client.stats()["claims"] >= 1)
    waiter = threading.Thread(target=lambda: hits.append(asyncio.run(wait_for_it())))
    waiter.start()
    until(lambda: waits(client) > before)
    go_on.set()
    encoder.join()
    waiter.join()
    assert len(hits) == 2


def test_an_encode_that_fails_hands_the_claim_on(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        client.get_or_encode(key, fail)
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        hit = other.get_or_encode(key, lambda: array(3))
    assert hit.tier is embcache.Tier.UNKNOWN


def test_a_claim_that_is_dropped_is_given_up(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    claim = client.claim(key)
    assert isinstance(claim, embcache.Claim) and claim.held
    del claim
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        found = other.claim(key, wait=30)
        assert isinstance(found, embcache.Claim) and found.held
        with found as claim:
            assert claim.put(array(3))
    hit = client.claim(key)
    assert isinstance(hit, embcache.Hit)


def test_a_reservation_fulfils_a_claim(client: embcache.Client, key: embcache.Key) -> None:
    found = client.claim(key)
    assert isinstance(found, embcache.Claim)
    with found as claim:
        with claim.reserve({"data": embcache.TensorSpec("float32", (4,))}) as entry:
            entry["data"].numpy()[:] = 7
        assert entry.stored and not claim.held
    hit = client.get(key)
    assert hit is not None and hit["data"].numpy().tolist() == [7, 7, 7, 7]


def test_who_waits_too_long_may_encode_all_the_same(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    claim = client.claim(key)
    assert isinstance(claim, embcache.Claim)
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        late = other.claim(key, wait=0.02)
        assert isinstance(late, embcache.Claim) and not late.held
        assert late.put(array(3))
    assert client.get(key) is not None
    claim.abandon()


def test_a_reader_waits_for_a_value(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    before = waits(client)
    with embcache.Client(shared_daemon.directory, role="reader", strict=True) as reader:
        hits: list[embcache.Hit | None] = []
        thread = threading.Thread(target=lambda: hits.append(reader.get(key, wait=30)))
        thread.start()
        until(lambda: waits(client) > before)
        client.put(key, array(3))
        thread.join()
        assert hits[0] is not None
        assert reader.get(embcache.Key("m", b"nothing there"), wait=0.02) is None
        with pytest.raises(embcache.CacheError):
            reader.claim(key)


def test_a_cancelled_task_leaves_no_claim(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    holder = client.claim(key)
    assert isinstance(holder, embcache.Claim)
    before = waits(client)

    async def run() -> None:
        async with aio.Client(shared_daemon.directory, strict=True) as other:
            task = asyncio.ensure_future(other.claim(key, wait=30))
            while waits(client) == before:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            holder.abandon()
            # The claim that came for the cancelled task is given back.
            again = await other.claim(key, wait=30)
            assert isinstance(again, aio.Claim) and again.held
            again.abandon()

    asyncio.run(run())


def test_a_killed_claimer_wakes_the_next(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    program = (
        "import embcache, sys, time\n"
        "client = embcache.Client(sys.argv[1], strict=True)\n"
        "claim = client.claim(embcache.Key('m', bytes.fromhex(sys.argv[2])))\n"
        "print(claim.held, flush=True)\n"
        "time.sleep(60)\n"
    )
    claimer = subprocess.Popen(
        [sys.executable, "-c", program, shared_daemon.directory, key.content_hash.hex()],
        stdout=subprocess.PIPE,
    )
    assert claimer.stdout is not None and claimer.stdout.readline() == b"True\n"
    before = waits(client)
    found: list[embcache.Hit | embcache.Claim] = []
    waiter = threading.Thread(target=lambda: found.append(client.claim(key, wait=30)))
    waiter.start()
    until(lambda: waits(client) > before)
    claimer.kill()
    claimer.wait()
    claimer.stdout.close()
    waiter.join(20)
    assert isinstance(found[0], embcache.Claim) and found[0].held
    found[0].abandon()


def test_without_a_daemon_everybody_encodes(key: embcache.Key) -> None:
    client = embcache.Client("/nonexistent/embcache")
    hit = client.get_or_encode(key, lambda: {"data": array(3), "none": None}, metadata={"a": "b"})
    np.testing.assert_array_equal(hit["data"].numpy(), array(3))
    assert hit.tensors["none"] is None and hit.metadata == {"a": b"b"} and not hit.valid
    client.close()


def test_events(client: embcache.Client, key: embcache.Key) -> None:
    client.put(key, array(3))
    events = client.watch(key.model)
    first = next(events)
    assert first.kind == "snapshot_begin" and first.epoch == client.epoch
    assert first.tiers[0].tier is embcache.Tier.L1 and first.tiers[0].capacity > 0
    there = []
    for event in events:
        if event.kind == "snapshot_end":
            break
        there.append(event.key)
    assert key in there
    client.delete(key)
    event = next(events)
    assert (event.kind, event.key, event.reason) == ("removed", key, "deleted")
    events.close()
    client.put(key, array(3))
    again = client.watch(after=event.sequence, epoch=client.epoch)
    stored = next(again)
    assert (stored.kind, stored.key, stored.sequence) == ("stored", key, event.sequence + 1)
    again.close()


def test_events_with_asyncio(shared_daemon: Daemon, key: embcache.Key) -> None:
    async def run() -> embcache.Event:
        async with aio.Client(shared_daemon.directory, strict=True) as client:
            events = client.watch(snapshot=False)
            task = asyncio.ensure_future(anext(events))
            # A watch without a snapshot tells nothing of when it begins.
            while not task.done():
                await client.put(key, array(3))
                await asyncio.sleep(0.01)
            event = await task
            await events.aclose()
            return event

    event = asyncio.run(run())
    assert event.kind == "stored" and event.key == key


def test_lookup_is_a_promise_that_outlives_the_scheduler(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, {"features": array(4, 8)}, metadata={"grid": "1,2"})
    absent = embcache.Key("m", b"nobody has it")
    before = client.stats()
    scheduler = embcache.Client(shared_daemon.directory, strict=True, name="scheduler")
    there, nowhere = scheduler.lookup([key, absent])
    assert there.tier is embcache.Tier.L1 and there.hit is not None
    assert there.hit["features"].shape == (4, 8) and there.hit.metadata["grid"] == b"1,2"
    assert nowhere == (None, None)
    after = client.stats()
    assert (after["gets"], after["hits"]) == (before["gets"], before["hits"])
    token = scheduler.share([there.hit])
    adopted = [
        embcache.Client(shared_daemon.directory, strict=True, name=f"rank-{rank}")
        for rank in range(3)
    ]
    hits = [rank.adopt(token)[0] for rank in adopted]
    del there
    scheduler.close()
    client.delete(key)
    for hit in hits:
        assert hit.valid
        np.testing.assert_array_equal(hit["features"].numpy(), array(4, 8))
    del hits
    for rank in adopted:
        rank.close()


def reserve_announcing(claim: embcache.Claim) -> embcache.Reservation:
    specs = {"data": embcache.TensorSpec("float32", (4, 8)), "absent": None}
    return claim.reserve(specs, metadata={"grid": "1,2"})


def check_pending(pending: object, key: embcache.Key) -> None:
    assert isinstance(pending, embcache.Pending)
    assert pending.key == key
    assert pending.tensors == {"data": embcache.TensorSpec("float32", (4, 8)), "absent": None}
    assert pending.metadata == {"grid": b"1,2"}


def test_what_was_encoded_comes_with_the_error_that_it_could_not_be_stored(
    client: embcache.Client, key: embcache.Key
) -> None:
    def encode() -> tuple[dict[str, np.ndarray], dict[str, str]]:
        client.advance_epoch(key.model)  # so that what is encoded now is refused
        return {"data": array(4, 8)}, {"grid": "1,2"}

    with pytest.raises(embcache.CacheError, match="epoch") as raised:
        client.get_or_encode(key, encode)
    hit = raised.value.encoded
    assert hit is not None and hit.key == key and hit.metadata == {"grid": b"1,2"}
    np.testing.assert_array_equal(hit["data"].numpy(), array(4, 8))
    assert hit.tier is embcache.Tier.UNKNOWN
    assert client.get(key) is None
    # The claim has ended: the next one encodes, and does not wait.
    assert client.get_or_encode(key, lambda: array(3), wait=0.0).encode_cost > 0


def test_asyncio_too_brings_what_it_could_not_store(
    shared_daemon: Daemon, key: embcache.Key
) -> None:
    async def run() -> None:
        async with aio.Client(shared_daemon.directory, strict=True) as client:

            async def encode() -> np.ndarray:
                await client.advance_epoch(key.model)
                return array(4, 8)

            with pytest.raises(embcache.CacheError, match="epoch") as raised:
                await client.get_or_encode(key, encode)
            assert raised.value.encoded is not None
            np.testing.assert_array_equal(raised.value.encoded["data"].numpy(), array(4, 8))

    asyncio.run(run())


def test_what_cannot_be_stored_at_all_comes_with_the_error_too(
    shared_daemon: Daemon, key: embcache.Key
) -> None:
    with embcache.Client(shared_daemon.directory) as tolerant:  # not strict
        with pytest.raises(embcache.InvalidArgument) as raised:
            tolerant.get_or_encode(key, lambda: (array(4), {"": "a name that is empty"}))
        assert raised.value.encoded is not None
        np.testing.assert_array_equal(raised.value.encoded["data"].numpy(), array(4))


def test_what_is_announced_is_told_before_the_bytes_are_there(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    claim = client.claim(key)
    assert isinstance(claim, embcache.Claim)
    before = waits(client)
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        assert other.get(key, accept_pending=True) is None  # nothing is announced yet
        found: list[object] = []
        waiter = threading.Thread(
            target=lambda: found.append(other.claim(key, accept_pending=True))
        )
        waiter.start()
        until(lambda: waits(client) > before)
        with reserve_announcing(claim) as entry:
            waiter.join()
            check_pending(found[0], key)
            check_pending(other.get(key, accept_pending=True), key)
            check_pending(other.claim(key, accept_pending=True), key)
            check_pending(client.get(key, accept_pending=True), key)
            assert other.get(key) is None
            entry["data"].numpy()[:] = 7
        assert isinstance(other.claim(key, accept_pending=True), embcache.Hit)
        assert isinstance(other.get(key, accept_pending=True), embcache.Hit)
        assert other.counters.misses == 5 and other.counters.hits == 2


def test_asyncio_is_told_of_what_is_announced(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    claim = client.claim(key)
    assert isinstance(claim, embcache.Claim)
    before = waits(client)

    async def run() -> None:
        async with aio.Client(shared_daemon.directory, strict=True) as other:
            task = asyncio.ensure_future(other.claim(key, accept_pending=True))
            while waits(client) == before:
                await asyncio.sleep(0.005)
            with reserve_announcing(claim) as entry:
                check_pending(await task, key)
                check_pending(await other.get(key, wait=30, accept_pending=True), key)
                entry["data"].numpy()[:] = 7
            assert isinstance(await other.claim(key, accept_pending=True), embcache.Hit)

    asyncio.run(run())


def test_threads_of_the_claimers_client_are_told_of_what_it_announces(
    client: embcache.Client, key: embcache.Key
) -> None:
    claim = client.claim(key)
    assert isinstance(claim, embcache.Claim)
    found: list[object] = []
    waiter = threading.Thread(target=lambda: found.append(client.claim(key, accept_pending=True)))
    waiter.start()
    entry = reserve_announcing(claim)
    waiter.join()
    check_pending(found[0], key)
    check_pending(client.claim(key, accept_pending=True), key)
    entry.abort()
    late = client.claim(key, accept_pending=True, wait=0.02)
    assert isinstance(late, embcache.Claim) and not late.held  # it is announced no more
    claim.abandon()


def test_tasks_of_the_claimers_client_are_told_of_what_it_announces(
    shared_daemon: Daemon, key: embcache.Key
) -> None:
    async def run() -> None:
        async with aio.Client(shared_daemon.directory, strict=True) as client:
            claim = await client.claim(key)
            assert isinstance(claim, aio.Claim)
            task = asyncio.ensure_future(client.claim(key, accept_pending=True))
            await asyncio.sleep(0)
            specs = {"data": embcache.TensorSpec("float32", (4, 8)), "absent": None}
            async with await claim.reserve(specs, metadata={"grid": "1,2"}) as entry:
                check_pending(await task, key)
                entry["data"].numpy()[:] = 7
            assert isinstance(await client.claim(key, accept_pending=True), embcache.Hit)

    asyncio.run(run())


# A test program of the C++ client, which acts as another process when told to.
CPP_CLIENT = pathlib.Path(EMBCACHED).with_name("claims_test")


@pytest.mark.skipif(not CPP_CLIENT.exists(), reason=f"there is no {CPP_CLIENT}")
@pytest.mark.parametrize("encoder", ["C++", "Python", "C++, killed"])
def test_clients_of_both_languages_encode_once(
    shared_daemon: Daemon, client: embcache.Client, key: embcache.Key, encoder: str
) -> None:
    other = subprocess.Popen(
        [
            CPP_CLIENT,
            "--gtest_also_run_disabled_tests",
            "--gtest_filter=OtherProcess.DISABLED_GetsOrEncodes",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None

    def say(line: str) -> None:
        assert other.stdin is not None
        other.stdin.write(line + "\n")
        other.stdin.flush()

    def hear() -> str:
        assert other.stdout is not None
        return next(line.strip() for line in other.stdout if line.startswith("@"))

    say(shared_daemon.directory)
    before = waits(client)
    found: list[embcache.Hit | embcache.Claim] = []
    waiter = threading.Thread(target=lambda: found.append(client.claim(key, wait=30)))
    if encoder == "Python":
        claim = client.claim(key)
        assert isinstance(claim, embcache.Claim) and claim.held
        say(key.content_hash.hex())
        until(lambda: waits(client) > before)
        claim.put(np.full(4, 9, np.uint8))
    else:
        say(key.content_hash.hex())
        assert hear() == "@encodes"
        waiter.start()
        until(lambda: waits(client) > before)
        if encoder == "C++":
            say("go on")
        else:
            other.kill()
        waiter.join()
    if encoder == "Python":
        assert hear() == "@has 9"
    elif encoder == "C++":
        assert hear() == "@has 5"
        assert isinstance(found[0], embcache.Hit)
        assert found[0]["main"].numpy().tolist() == [5, 5, 5, 5]
    else:
        assert isinstance(found[0], embcache.Claim) and found[0].held
        found[0].abandon()
    other.communicate()
    assert (other.returncode == 0) == (encoder != "C++, killed")
