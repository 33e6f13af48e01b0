"""The lease lives exactly as long as anything that shows the bytes."""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest
from conftest import Daemon, array, until

import embcache
from embcache import DType, TensorSpec

ml_dtypes = pytest.importorskip("ml_dtypes")


def leases(client: embcache.Client) -> int:
    return client.stats()["leases"]


@pytest.fixture
def hit(own_daemon: Daemon, client_of_own, key):
    client_of_own.put(key, {"x": array(64, 64), "b": array(8, 4).astype(ml_dtypes.bfloat16)})
    return client_of_own.get(key)


@pytest.fixture
def client_of_own(own_daemon: Daemon):
    with embcache.Client(own_daemon.directory, strict=True) as client:
        yield client


@pytest.fixture
def observer(own_daemon: Daemon):
    with embcache.Client(own_daemon.directory, role="reader", strict=True) as client:
        yield client


MAKERS = {
    "view": lambda hit: hit["x"],
    "numpy": lambda hit: hit["x"].numpy(),
    "a view of a view": lambda hit: hit["x"].numpy()[3:9][::2].T,
    "bfloat16": lambda hit: hit["b"].numpy()[1:],
    "raw": lambda hit: hit["b"].raw(),
    "memoryview": lambda hit: hit["x"].buffer()[5:10],
    "frombuffer": lambda hit: np.frombuffer(hit["x"].buffer(), np.float32),
    "asarray": lambda hit: np.asarray(hit["x"]),
    "dlpack": lambda hit: np.from_dlpack(hit["x"]),
    "a capsule never used": lambda hit: hit["x"].__dlpack__(),
    "a bfloat16 capsule": lambda hit: hit["b"].__dlpack__(max_version=(1, 0)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_whatever_shows_the_bytes_holds_the_lease(hit, observer, maker):
    thing = MAKERS[maker](hit)
    hit.release()
    gc.collect()
    observer.ping()
    assert leases(observer) == 1
    del thing
    until(lambda: leases(observer) == 0)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have no buffers before 3.12")
def test_a_view_has_the_buffer_protocol(hit, observer):
    shown = memoryview(hit["x"])
    hit.release()
    assert shown.nbytes == 64 * 64 * 4 and shown.readonly
    assert leases(observer) == 1
    shown.release()
    del shown
    until(lambda: leases(observer) == 0)


def test_views_outlive_the_client(own_daemon, observer, key):
    client = embcache.Client(own_daemon.directory, strict=True)
    client.put(key, array(64, 64))
    x = client.get(key)["data"].numpy()
    y = client.get(key)["data"].numpy()
    del client
    gc.collect()
    np.testing.assert_array_equal(x, array(64, 64))
    assert (leases(observer), observer.stats()["sessions"]) == (2, 2)
    del x  # each on its own, although the client is gone
    until(lambda: leases(observer) == 1)
    del y
    until(lambda: (leases(observer), observer.stats()["sessions"]) == (0, 1))


def test_views_outlive_a_close_and_calls_do_not(hit, client_of_own, observer, key):
    x = hit["x"].numpy()
    client_of_own.close()
    assert hit.valid
    with pytest.raises(embcache.Unavailable, match="closed"):
        client_of_own.get(key)
    hit.release()
    np.testing.assert_array_equal(x, array(64, 64))
    del x
    until(lambda: observer.stats()["sessions"] == 1)


def test_replacing_the_key_leaves_a_view_as_it_was(hit, client_of_own, observer, key):
    x = hit["x"].numpy()
    for seed in range(1, 6):
        client_of_own.put(key, {"x": array(64, 64, seed=seed)})
    client_of_own.delete(key)
    np.testing.assert_array_equal(x, array(64, 64))
    assert hit.valid


def test_views_die_in_whatever_thread(client_of_own, observer, key):
    client_of_own.put(key, array(16))

    def work():
        for _ in range(50):
            views = [client_of_own.get(key)["data"].numpy()[i:] for i in range(4)]
            cycle = [views]
            cycle.append(cycle)  # leaves it to the garbage collector, in any thread

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    until(lambda: leases(observer) == 0)


def test_a_fork_ends_nothing_of_its_parent(hit, client_of_own, observer, key):
    x = hit["x"].numpy()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            readable = x[0, 0] == array(64, 64)[0, 0]
            hit.release()
            del x
            gc.collect()
            with pytest.raises(embcache.CacheError, match="fork"):
                client_of_own.get(key)
            client_of_own.close()
            status = 0 if readable else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert leases(observer) == 1
    assert hit.valid
    client_of_own.ping()
    np.testing.assert_array_equal(x, array(64, 64))


def test_in_a_fork_gets_are_misses(own_daemon, key):
    with embcache.Client(own_daemon.directory) as client:
        client.put(key, array(4))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                away = (client.get(key), client.put(key, array(4)), client.connected)
                status = 0 if away == (None, False, False) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.get(key) is not None


def test_views_of_a_reservation_keep_its_memory_after_the_commit(client_of_own, observer, key):
    with client_of_own.reserve(key, {"x": TensorSpec("f4", (64, 64))}) as entry:
        x = entry["x"].numpy()
        x[:] = 3
    client_of_own.delete(key)
    for i in range(20):  # would reuse the place
        client_of_own.put(embcache.Key.of("m", i), np.zeros((64, 64), np.float32))
    assert (x == 3).all()
    assert leases(observer) == 1
    del x
    until(lambda: leases(observer) == 0)


def test_views_of_hits_are_read_only(hit):
    assert not hit["x"].numpy().flags.writeable
    assert not hit["b"].numpy().flags.writeable
    assert not np.asarray(hit["x"]).flags.writeable
    assert not np.from_dlpack(hit["x"]).flags.writeable
    assert hit["x"].buffer().readonly
    with pytest.raises(ValueError):
        hit["x"].numpy().setflags(write=True)


def test_dlpack_says_what_the_elements_are(hit):
    from embcache import _dlpack

    for name, dtype in (("x", DType.F32), ("b", DType.BF16)):
        for version in (None, (1, 0)):
            capsule = hit[name].__dlpack__(max_version=version)
            tensor = _dlpack._look_into(capsule)
            assert dtype == embcache.dtypes.from_dlpack(
                tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
            )
            assert tuple(tensor.shape[:2]) == hit[name].shape
    assert hit["x"].__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="device"):
        hit["x"].__dlpack__(dl_device=(2, 0))


def test_a_copy_by_dlpack_is_writable_and_holds_nothing(hit, observer):
    from embcache import _dlpack

    capsule = hit["b"].__dlpack__(copy=True)
    hit.release()
    until(lambda: leases(observer) == 0)
    assert _dlpack._look_into(capsule).dtype.code == 4


class Foreign:
    """A tensor of a framework that NumPy does not know, with only DLPack."""

    def __init__(self, view):
        self._view = view

    def __dlpack__(self):
        return self._view.__dlpack__()


def test_tensors_of_other_frameworks_are_stored_by_dlpack(hit, client_of_own, key):
    other = embcache.Key(key.model, key.content_hash, b"copy")
    client_of_own.put(other, {"x": Foreign(hit["x"]), "b": Foreign(hit["b"]), "view": hit["b"]})
    copy = client_of_own.get(other)
    np.testing.assert_array_equal(copy["x"].numpy(), hit["x"].numpy())
    for name in ("b", "view"):
        assert copy[name].dtype is DType.BF16
        np.testing.assert_array_equal(copy[name].numpy(), hit["b"].numpy())


FP8 = {
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
    "float8_e4m3fnuz": DType.F8_E4M3FNUZ,
    "float8_e5m2fnuz": DType.F8_E5M2FNUZ,
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_comes_back(client_of_own, key, name):
    x = array(4, 4).astype(getattr(ml_dtypes, name))
    client_of_own.put(key, x)
    view = client_of_own.get(key)["data"]
    assert view.dtype is FP8[name]
    assert view.numpy().dtype == x.dtype
    assert view.tobytes() == x.tobytes()
    view.__dlpack__()
