"""The Python client and a daemon with L1 in device memory, on the fake driver."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Daemon, until
from fake_cuda import FakeCuda, Interface

import embcache
from embcache import CudaTensorView, TensorSpec
from embcache._fast_index import library

MIB = 1 << 20
FLAGS = ("--device=cuda:0", "--l1-capacity=16MiB", "--l2-capacity=16MiB", "--drain-timeout=1s")


@pytest.fixture
def daemon(fake: FakeCuda) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="emb") as directory:
        daemon = Daemon(directory, *FLAGS, launcher=fake.launcher())
        yield daemon
        daemon.kill()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[embcache.Client]:
    with embcache.Client(daemon.directory, strict=True, device_memory=True) as client:
        yield client


def on_device(fake: FakeCuda, data: bytes, shape: tuple[int, ...], typestr: str) -> Interface:
    """A tensor of the caller's own."""
    address = fake.alloc(4 * MIB)
    fake.poke(address, data)
    return Interface(address, shape, typestr, stream=None)


def test_a_device_tensor_is_stored_and_found_on_the_device(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert client.put(key, on_device(fake, values.tobytes(), (2, 3), "<f2"))
    with client.get(key) as hit:
        view = hit["data"]
        assert isinstance(view, CudaTensorView)
        assert (view.dtype, view.shape) == (embcache.DType.F16, (2, 3))
        assert view.tobytes() == values.tobytes()
        assert fake.peek(view.device_pointer, 12) == values.tobytes()


def test_what_was_encoded_on_the_device_comes_back_there(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    values = np.arange(600, dtype=np.float16).reshape(20, 30)
    tensor = on_device(fake, values.tobytes(), (20, 30), "<f2")
    view = client.get_or_encode(key, lambda: tensor)["data"]
    assert isinstance(view, CudaTensorView)
    assert view.tobytes() == values.tobytes()
    assert view.__cuda_array_interface__["data"] == tensor.__cuda_array_interface__["data"]
    with client.get(key) as hit:
        assert hit["data"].tobytes() == values.tobytes()


def test_a_get_after_the_first_makes_no_driver_call_in_client_or_daemon(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    client.get(key).release()
    in_client, in_daemon = fake.calls(), fake.calls(pid=daemon.pid)
    for _ in range(10):
        with client.get(key) as hit:
            assert hit["data"].device_pointer
    assert fake.calls() == in_client
    assert fake.calls(pid=daemon.pid) == in_daemon


def _leases(client: embcache.Client) -> int:
    return int(client.stats()["leases"])


@pytest.mark.skipif(library is None, reason="libembcache_fast was not built")
def test_a_hit_on_the_device_takes_no_call_and_its_view_holds_the_pin(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(
        key,
        {"x": on_device(fake, b"embedding!", (5, 2), "|u1"), "none": None},
        metadata={"grid": b"5 2"},
        encode_cost=0.5,
    )
    hit = client.get(key)
    assert client.stats()["fast_hits"] == 1
    assert (hit.tier, hit.metadata, hit.encode_cost) == (embcache.Tier.L1, {"grid": b"5 2"}, 0.5)
    assert hit.tensors["none"] is None
    view = hit["x"]
    assert isinstance(view, CudaTensorView)
    assert view.__dlpack_device__() == (2, 0)
    assert view.__cuda_array_interface__["data"][0] == view.device_pointer
    assert client.get(key, place="device")["x"].device_pointer == view.device_pointer
    capsule = view.__dlpack__()
    del hit, view
    gc.collect()
    until(lambda: _leases(client) == 1)
    client.delete(key)
    assert _leases(client) == 1, "what was made of the view still holds the entry"
    del capsule
    gc.collect()
    assert _leases(client) == 0


@pytest.mark.skipif(library is None, reason="libembcache_fast was not built")
def test_a_hit_on_the_device_is_shared(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    with embcache.Client(daemon.directory, strict=True, device_memory=True) as other:
        (adopted,) = other.adopt(client.share([client.get(key)]))
        assert client.stats()["fast_hits"] == 1
        assert adopted["data"].tobytes() == b"embedding"


def test_memory_that_cannot_be_opened_is_an_error_with_the_drivers_words(
    fake: FakeCuda, daemon: Daemon, key: embcache.Key
) -> None:
    with embcache.Client(daemon.directory, strict=True, device_memory=True) as writer:
        writer.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    gc.collect()
    until(lambda: fake.open_imports() == 0)
    with embcache.Client(daemon.directory, strict=True, device_memory=True) as client:
        fake.fail("cuIpcOpenMemHandle", 205, times=2)  # the hit without a call, and the call
        with pytest.raises(embcache.CacheError, match="CUDA_ERROR_MAP_FAILED"):
            client.get(key)
        gc.collect()
        until(lambda: _leases(client) == 0)
        assert client.get(key)["data"].tobytes() == b"embedding"


def test_two_clients_of_a_process_open_the_memory_once_and_close_it_at_the_end(
    fake: FakeCuda, daemon: Daemon, key: embcache.Key
) -> None:
    first = embcache.Client(daemon.directory, strict=True, device_memory=True)
    second = embcache.Client(daemon.directory, strict=True, device_memory=True)
    first.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    assert first.get(key)["data"].device_pointer == second.get(key)["data"].device_pointer
    assert fake.open_imports() == 1
    first.close()
    second.close()
    del first, second
    gc.collect()
    until(lambda: fake.open_imports() == 0)


def test_a_put_by_export_is_copied_by_the_daemon(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    tensor = on_device(fake, b"..embedding", (9,), "|u1")
    pointer = tensor.__cuda_array_interface__["data"][0] + 2
    assert client.put(key, Interface(pointer, (9,), "|u1"), export=True)
    assert fake.calls("cuMemcpyDtoD") == 0
    assert client.get(key)["data"].tobytes() == b"embedding"
    assert fake.open_imports(daemon.pid) == 0, "the daemon has closed what it opened"


def test_memory_that_cannot_be_exported_is_put_by_copy(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    fake.set_exportable(False)
    tensor = on_device(fake, b"embedding", (9,), "|u1")
    with pytest.raises(embcache.CacheError, match="expandable_segments"):
        client.put(key, tensor, export=True)
    assert client.put(key, tensor)
    assert client.get(key)["data"].tobytes() == b"embedding"


def test_a_put_is_complete_before_others_see_it(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    fake.set_delay_us(20000)
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    assert fake.peek(client.get(key)["data"].device_pointer, 9) == b"embedding"


def test_writing_in_place_on_the_device(
    fake: FakeCuda, client: embcache.Client, key: embcache.Key
) -> None:
    spec = TensorSpec(embcache.DType.BF16, (4, 2))
    with client.reserve(key, {"data": spec}, place="device") as entry:
        assert isinstance(entry["data"], CudaTensorView)
        fake.poke(entry["data"].device_pointer, bytes(range(16)))
    assert entry.stored
    assert client.get(key)["data"].tobytes() == bytes(range(16))


def test_host_arrays_go_in_and_come_out_where_they_are_asked_for(
    client: embcache.Client, key: embcache.Key
) -> None:
    values = np.arange(1000, dtype=np.float32)
    client.put(key, values)
    with client.get(key, place="device") as hit:
        assert hit["data"].tobytes() == values.tobytes()
    until(lambda: _host_array(client, key) is not None)
    array = _host_array(client, key)
    assert array is not None and np.array_equal(array, values)


def _host_array(client: embcache.Client, key: embcache.Key) -> np.ndarray | None:
    """None: the lease of the hit before has not been given back yet."""
    try:
        return client.get(key, place="host")["data"].numpy().copy()
    except embcache.CacheError as error:
        assert "pins" in error.message
        return None


def test_a_client_without_the_device_reads_what_is_on_it_from_the_host(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    with embcache.Client(daemon.directory, strict=True) as other:
        assert other.get(key)["data"].tobytes() == b"embedding"


def test_a_dead_daemons_memory_stays_readable_while_it_is_held_and_is_free_for_the_next(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    hit = client.get(key)
    fake.set_vram(fake.used_bytes() + 8 * MIB)  # no room for a second L1
    daemon.kill()
    until(lambda: not client.connected)
    assert hit["data"].tobytes() == b"embedding"
    assert not hit.valid
    assert fake.open_imports() == 1
    hit.release()
    until(lambda: fake.open_imports() == 0)
    daemon.start()
    until(lambda: client.connected)
    assert client.get(key) is None


def test_an_idle_client_does_not_keep_a_dead_daemons_memory(
    fake: FakeCuda, daemon: Daemon, client: embcache.Client, key: embcache.Key
) -> None:
    client.put(key, on_device(fake, b"embedding", (9,), "|u1"))
    assert fake.open_imports() == 1
    daemon.kill()
    until(lambda: fake.open_imports() == 0)
