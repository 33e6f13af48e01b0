"""The daemon goes away, hangs, comes back."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import Daemon, array, until

import embcache


@pytest.fixture
def client(own_daemon: Daemon):
    with embcache.Client(own_daemon.directory) as client:
        yield client


def warnings(caplog):
    return [record for record in caplog.records if record.levelno == logging.WARNING]


def test_while_the_daemon_is_away_gets_miss_and_puts_do_nothing(client, own_daemon, key, caplog):
    client.put(key, array(4))
    own_daemon.kill()
    until(lambda: not client.connected)
    begin = time.monotonic()
    assert client.get(key) is None
    assert client.get_many([key, key]) == [None, None]
    assert client.put(key, array(4)) is False
    assert client.contains(key) is None
    assert client.pop(key) is None
    with client.reserve(key, {"x": embcache.TensorSpec("f4", (3,))}) as entry:
        entry["x"].numpy()[:] = 1  # into memory of our own
    assert not entry.stored
    assert time.monotonic() - begin < 1
    assert len(warnings(caplog)) == 1
    counters = client.counters
    assert (counters.misses, counters.failed_puts, counters.errors) == (3, 2, 6)


def test_each_operation_that_fails_is_warned_of_once(client, key, caplog):
    def messages():
        return [record.getMessage() for record in warnings(caplog)]

    # Pins near the quota: puts and gets of more are refused, with the same code.
    keys = [embcache.Key(key.model, key.content_hash, bytes([i])) for i in range(4)]
    for k in keys:
        assert client.put(k, np.zeros(7 << 20, np.uint8))
    held = client.get_many(keys)
    assert all(held)
    for _ in range(2):
        assert not client.put(key, np.zeros(8 << 20, np.uint8))
        assert client.get(keys[0]) is None
    for message, operation in zip(messages(), ("put", "get"), strict=True):
        assert message.startswith("embcache: RESOURCE_EXHAUSTED: ")
        assert message.endswith(
            f"; this {operation} failed; further ones that fail so are counted only"
        )
    assert client.counters.errors == 4


def test_what_must_not_be_lost_silently_raises(client, own_daemon, key):
    own_daemon.kill()
    until(lambda: not client.connected)
    for call in (
        lambda: client.delete(key),
        lambda: client.advance_epoch("m"),
        lambda: client.stats(),
        lambda: client.adopt(b"x" * 16),
        lambda: next(client.list()),
    ):
        with pytest.raises(embcache.Unavailable):
            call()


def test_strict_raises(own_daemon, key):
    with embcache.Client(own_daemon.directory, strict=True) as client:
        own_daemon.kill()
        until(lambda: not client.connected)
        with pytest.raises(embcache.Unavailable):
            client.get(key)
        with pytest.raises(embcache.Unavailable):
            client.put(key, array(4))


def test_views_of_a_dead_daemon_stay_readable_and_are_not_valid(client, own_daemon, key):
    client.put(key, array(64))
    hit = client.get(key)
    x = hit["data"].numpy()
    assert hit.valid
    own_daemon.kill()
    until(lambda: not hit.valid)
    np.testing.assert_array_equal(x, array(64))
    own_daemon.start()
    until(lambda: client.connected)
    client.put(key, array(64, seed=1))
    np.testing.assert_array_equal(x, array(64))  # never taken for the new one's
    np.testing.assert_array_equal(client.get(key)["data"].numpy(), array(64, seed=1))
    assert not hit.valid
    with pytest.raises(embcache.CacheError, match="lost session"):
        client.share([hit])
    del x, hit
    until(lambda: client.stats()["leases"] == 0)


def test_a_client_reconnects_by_itself_and_says_so_once(client, own_daemon, key, caplog):
    caplog.set_level(logging.INFO, "embcache")
    for round in range(1, 3):
        epoch = client.epoch
        own_daemon.kill()
        until(lambda: not client.connected)
        client.get(key)
        client.get(key)
        own_daemon.start()
        until(lambda: client.connected)
        assert client.put(key, array(4))
        assert client.get(key) is not None
        assert client.epoch != epoch
        assert client.counters.connections == round
        assert len(warnings(caplog)) == round


def test_a_client_reconnects_in_a_process_with_many_descriptors(own_daemon, key):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    many = [os.dup(0) for _ in range(1100)]
    try:
        with embcache.Client(own_daemon.directory) as client:
            assert client.put(key, array(4))
            own_daemon.kill()
            until(lambda: not client.connected)
            own_daemon.start()
            until(lambda: client.put(key, array(4)))
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_may_come_before_its_daemon(own_daemon, key, caplog):
    own_daemon.stop()
    with embcache.Client(own_daemon.directory) as client:
        assert client.get(key) is None
        assert len(warnings(caplog)) == 1
        own_daemon.start()
        until(lambda: client.connected)
        assert client.put(key, array(4))
    with pytest.raises(embcache.Unavailable, match="no daemon at"):
        embcache.Client(own_daemon.directory + "/nowhere", strict=True)


def test_a_daemon_that_hangs_costs_one_timeout(own_daemon, key):
    with embcache.Client(own_daemon.directory, timeout=0.2) as client:
        own_daemon.pause()
        try:
            begin = time.monotonic()
            assert client.get(key) is None
            assert client.put(key, array(4)) is False
            assert time.monotonic() - begin < 2
        finally:
            own_daemon.resume()
        until(lambda: client.put(key, array(4)))


def test_after_a_call_without_an_answer_the_session_is_another(own_daemon, key):
    """The daemon may have granted in the old one what nobody here knows of."""
    with embcache.Client(own_daemon.directory, timeout=0.2) as client:
        assert client.put(key, array(4))
        hit = client.get(key)
        before = client._connection.session()
        other = embcache.Key("m", embcache.keys.name_hash("not there"))
        own_daemon.pause()
        try:
            assert client.get(other) is None  # a call, unlike a hit
        finally:
            own_daemon.resume()
        until(lambda: client._connection.session() is not before)
        del before
        np.testing.assert_array_equal(hit["data"].numpy(), array(4))  # pinned in the old one
        until(lambda: client.stats()["sessions"] == 2)
        del hit
        gc.collect()
        until(lambda: client.stats()["sessions"] == 1)
        assert client.stats()["leases"] == 0


def test_a_reservation_of_a_dead_daemon_commits_to_nothing(client, own_daemon, key):
    with client.reserve(key, {"x": embcache.TensorSpec("f4", (1000,))}) as entry:
        own_daemon.kill()
        until(lambda: not client.connected)
        entry["x"].numpy()[:] = 1
    assert not entry.stored
    assert client.counters.failed_puts == 1


def test_a_socket_that_may_not_be_opened_is_an_outage(own_daemon):
    os.chmod(own_daemon.directory, 0o700)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            else:
                os.chmod(os.path.join(own_daemon.directory, "control.sock"), 0)
            with pytest.raises(embcache.Unavailable, match="Permission denied"):
                embcache.Client(own_daemon.directory, strict=True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_draining_daemon_is_an_outage(client, own_daemon, key):
    client.put(key, array(4))
    hit = client.get(key)
    stopping = threading.Thread(target=own_daemon.stop)
    stopping.start()
    until(lambda: client.draining or not client.connected)
    assert client.get(key) is None
    np.testing.assert_array_equal(hit["data"].numpy(), array(4))
    hit.release()
    stopping.join()


def test_a_killed_holder_of_many_leases_is_cleaned_up_after(client, own_daemon, key):
    client.put(key, array(4))
    code = (
        "import embcache, sys; c = embcache.Client(sys.argv[1], strict=True);"
        "k = embcache.Key(sys.argv[2], bytes.fromhex(sys.argv[3]));"
        "hits = c.get_many([k] * 1000); print(len(hits), flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, own_daemon.directory, key.model, key.content_hash.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"1000\n"
    assert client.stats()["leases"] == 1000
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    until(lambda: client.stats()["leases"] == 0, seconds=3)


def test_restarts_under_load_give_only_whole_entries(client, own_daemon, key):
    stop = threading.Event()
    wrong = []

    def work(seed):
        i = seed
        while not stop.is_set():
            i += 1
            client.put(key, np.full(5000, i))
            hit = client.get(key)
            if hit is not None and len(set(hit["data"].numpy())) != 1:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed * 10**6,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        own_daemon.kill()
        own_daemon.start()
        puts = client.counters.puts
        until(lambda: client.counters.puts > puts + 5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    until(lambda: client.stats()["leases"] == 0)


@pytest.fixture
def small_disk(tmp_path):
    """A daemon with its L3 on a file system of its own, and what is in the way of filling that."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root, or a kernel that lets users make mount namespaces")
    script = f'mount -t tmpfs -o size=48m tmpfs {disk} && exec "$@"'
    launcher = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    directory = tmp_path / "sockets"
    directory.mkdir()
    flags = ("--l3-write=through", f"--l3-dir={disk}/l3", "--l3-capacity=32MiB")
    daemon = Daemon(str(directory), *flags, launcher=launcher)
    # The daemon's own view of it.
    yield daemon, f"/proc/{daemon.pid}/root{disk}/filler"
    daemon.kill()


def test_a_daemon_whose_disk_is_full_serves_from_memory_and_recovers(small_disk, key):
    daemon, filler = small_disk

    def put(n):
        name = embcache.Key("m", embcache.keys.name_hash(f"{key} {n}"))
        client.put(name, {"x": array(1 << 18, seed=n)})
        return name

    with embcache.Client(daemon.directory, strict=True) as client:

        def l3():
            return client.stats()["l3"]

        put(0)
        until(lambda: l3()["writes"] == 1)
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        names = [put(n) for n in range(1, 9)]
        until(lambda: l3()["write_failures"] + l3()["dropped_writes"] > 0)
        for n, name in enumerate(names, start=1):
            np.testing.assert_array_equal(client.get(name)["x"].numpy(), array(1 << 18, seed=n))
        os.unlink(filler)
        writes = l3()["writes"]
        numbers = iter(range(100, 1000))
        until(lambda: put(next(numbers)) and l3()["writes"] > writes)
