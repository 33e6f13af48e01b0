"""Device memory in the Python client, on the fake driver: without a daemon, memory of another
process and memory of this one. The whole way through the daemon is in cuda_daemon_test.py."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda, Interface, Peer

import embcache
from embcache import _cuda, _dlpack, cuda
from embcache.tensors import TensorSpec

MIB = 1 << 20


@pytest.fixture
def exporter(fake: FakeCuda) -> Iterator[Peer]:
    with Peer(fake) as peer:
        yield peer


def announced(exporter: Peer, text: str) -> bytes:
    address = exporter.run("alloc", 4 * MIB)
    exporter.run("write", address, text)
    return bytes.fromhex(exporter.run("export", address))


def uuid() -> str:
    return _cuda.driver().uuids[0]


def view(segment: _cuda.Segment, spec: TensorSpec) -> cuda.CudaTensorView:
    return cuda.CudaTensorView(spec, segment, segment, segment.address)


def test_a_segment_is_opened_at_the_first_address_and_once(fake: FakeCuda, exporter: Peer) -> None:
    handle = announced(exporter, "embedding")
    first = _cuda.share(b"epoch", 1, 1, uuid(), handle)
    second = _cuda.share(b"epoch", 1, 1, uuid(), handle)
    assert fake.calls("cuIpcOpenMemHandle") == 0
    assert first is second
    assert fake.peek(first.address, 9) == b"embedding"
    opened = fake.calls()
    assert second.address == first.address
    assert fake.calls() == opened
    assert fake.open_imports() == 1
    del first, second
    assert fake.open_imports() == 0


def test_another_generation_is_another_segment(fake: FakeCuda, exporter: Peer) -> None:
    old = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "old"))
    new = _cuda.share(b"epoch", 1, 2, uuid(), announced(exporter, "new"))
    assert fake.peek(old.address, 3) == b"old"
    assert fake.peek(new.address, 3) == b"new"


def test_the_exporting_process_is_told_why_it_cannot_open(fake: FakeCuda) -> None:
    address = fake.alloc(4 * MIB)
    with _cuda.driver().current(0):
        handle, offset = _cuda.driver().export(address + MIB)
    assert offset == MIB
    with pytest.raises(embcache.CacheError, match="only in another process"):
        _cuda.share(b"epoch", 1, 1, uuid(), handle).address


def test_a_device_that_is_not_seen_is_named(exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, "GPU-unknown", announced(exporter, "x"))
    with pytest.raises(embcache.CacheError, match="GPU-unknown"):
        segment.address


def test_a_view_is_given_by_dlpack_as_a_cuda_tensor(exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "x"))
    tensor = view(segment, TensorSpec(embcache.DType.BF16, (3, 5)))
    assert tensor.__dlpack_device__() == (2, 0)
    for versions in (None, (1, 0)):
        capsule = tensor.__dlpack__(stream=1, max_version=versions)
        inside = _dlpack._look_into(capsule)
        assert (inside.device_type, inside.device_id) == (2, 0)
        assert (inside.dtype.code, inside.dtype.bits) == (4, 16)
        assert tuple(inside.shape[:2]) == (3, 5)
        assert inside.data + inside.byte_offset == segment.address
    with pytest.raises(BufferError, match="asked for"):
        tensor.__dlpack__(dl_device=(1, 0))


def test_a_capsule_keeps_what_it_shows_open(fake: FakeCuda, exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "x"))
    tensor = view(segment, TensorSpec("float32", (4,)))
    capsule = tensor.__dlpack__()
    del segment, tensor
    assert fake.open_imports() == 1
    del capsule
    assert fake.open_imports() == 0


def test_a_view_has_the_array_interface_where_that_can_say_its_dtype(exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "x"))
    interface = view(segment, TensorSpec("float16", (2, 3))).__cuda_array_interface__
    assert interface["data"] == (segment.address, False)
    assert interface["typestr"] == "<f2"
    assert interface["shape"] == (2, 3)
    assert not hasattr(view(segment, TensorSpec(embcache.DType.BF16, (2,))), "__cuda_array_interface__")


def test_numpy_is_told_where_the_bytes_are(exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "x"))
    tensor = view(segment, TensorSpec("float32", (4,)))
    for look in (np.asarray, lambda tensor: tensor.numpy()):
        with pytest.raises(TypeError, match="place='host'"):
            look(tensor)


def test_bytes_go_in_and_out_of_device_memory(exporter: Peer) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "x"))
    target = view(segment, TensorSpec("float32", (2, 3)))
    values = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    cuda.copy_into(target, values)
    assert target.tobytes() == np.ascontiguousarray(values).tobytes()


def test_a_copy_between_device_addresses_is_complete_when_it_returns(
    fake: FakeCuda, exporter: Peer
) -> None:
    segment = _cuda.share(b"epoch", 1, 1, uuid(), announced(exporter, "before"))
    address = fake.alloc(MIB)
    fake.poke(address, b"after!")
    spec, source = cuda.source_of(Interface(address, (6,), "|u1", stream=None))
    fake.set_delay_us(20000)
    cuda.copy_into(view(segment, spec), source)
    assert fake.peek(segment.address, 6) == b"after!"


def test_what_is_still_being_written_is_waited_for(fake: FakeCuda) -> None:
    address = fake.alloc(MIB)
    fake.set_delay_us(20000)
    fake.fill(address, ord("x"), 4)
    assert fake.peek(address, 4) == bytes(4)
    cuda.source_of(Interface(address, (4,), "|u1"))
    assert fake.peek(address, 4) == b"xxxx"


def test_dlpack_of_a_device_tensor_is_taken_on_the_default_stream(fake: FakeCuda) -> None:
    address = fake.alloc(MIB)
    asked: list[Any] = []

    class Producer:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, *, stream: Any = None) -> Any:
            asked.append(stream)
            span = _dlpack.Span(self, address, np.dtype("u2"), (4, 2), False)
            return _dlpack.give(np.asarray(span), embcache.DType.BF16, None, None, False, (2, 0))

    assert cuda.is_cuda(Producer())
    spec, source = cuda.source_of(Producer())
    assert (spec.dtype, spec.shape) == (embcache.DType.BF16, (4, 2))
    assert (source.address, source.nbytes, source.ordinal) == (address, 16, 0)
    assert asked == [1]


def test_tensors_with_gaps_are_refused(fake: FakeCuda) -> None:
    address = fake.alloc(MIB)
    with pytest.raises(TypeError, match="contiguous"):
        cuda.source_of(Interface(address, (4, 4), "<f4", strides=(32, 4)))
    cuda.source_of(Interface(address, (4, 4), "<f4", strides=(16, 4)))


def test_memory_that_cannot_be_exported_says_what_to_do_instead(fake: FakeCuda) -> None:
    fake.set_exportable(False)
    _, source = cuda.source_of(Interface(fake.alloc(MIB), (4,), "|u1"))
    with pytest.raises(embcache.CacheError, match="expandable_segments.*reserve") as raised:
        cuda.export(source)
    assert "CUDA_ERROR_INVALID_VALUE" in raised.value.message


def test_without_a_driver_the_client_says_so() -> None:
    program = "import embcache; embcache.Client('/nowhere', device_memory=True)"
    environment = {k: v for k, v in os.environ.items() if "FAKE_CUDA" not in k}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "FAILED_PRECONDITION" in done.stderr


def test_host_tensors_are_no_device_tensors() -> None:
    assert not cuda.is_cuda(np.zeros(3))
    assert not cuda.is_cuda((TensorSpec("uint8", (3,)), b"abc"))
    assert not cuda.is_cuda([1, 2])
    assert ctypes.sizeof(_cuda._Handle) == 64
