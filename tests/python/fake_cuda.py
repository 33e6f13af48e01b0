"""The fake CUDA driver (tests/fake_cuda) in this process and in others."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
from typing import Any


class FakeCuda:
    """Loads the library, so that whoever asks for libcuda.so.1 in this process finds it."""

    def __init__(self, library: pathlib.Path, directory: str) -> None:
        self.library = library
        self.directory = directory
        os.environ["EMBCACHE_TEST_FAKE_CUDA_DIR"] = directory
        self._cuda = ctypes.CDLL(str(library))
        for name in ("calls", "open_imports", "used_bytes"):
            getattr(self._cuda, f"fakecuda_{name}").restype = ctypes.c_uint64
        self._context = ctypes.c_void_p()
        self._ok(self._cuda.cuInit(0))
        self._ok(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0))

    def environment(self) -> dict[str, str]:
        """For a process that shall use the same device."""
        path = os.pathsep.join([str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")])
        return {**os.environ, "LD_LIBRARY_PATH": path.rstrip(os.pathsep)}

    def launcher(self) -> tuple[str, ...]:
        """What to start another process with, so that it finds the fake driver."""
        return ("env", "LD_LIBRARY_PATH=" + self.environment()["LD_LIBRARY_PATH"])

    @staticmethod
    def _ok(code: int) -> None:
        assert code == 0, f"CUDA error {code}"

    def _current(self, function: Any, *arguments: Any) -> None:
        self._ok(self._cuda.cuCtxPushCurrent_v2(self._context))
        self._ok(function(*arguments))
        self._ok(self._cuda.cuCtxPopCurrent_v2(None))

    def reset(self) -> None:
        self._cuda.fakecuda_reset()

    def alloc(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self._current(self._cuda.cuMemAlloc_v2, ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, address: int) -> None:
        self._current(self._cuda.cuMemFree_v2, ctypes.c_uint64(address))

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Queued on the default stream."""
        self._current(
            self._cuda.cuMemsetD8_v2, ctypes.c_uint64(address), value, ctypes.c_size_t(nbytes)
        )

    def calls(self, function: str | None = None, pid: int | None = None) -> int:
        name = function.encode() if function else None
        return int(self._cuda.fakecuda_calls(os.getpid() if pid is None else pid, name))

    def open_imports(self, pid: int | None = None) -> int:
        return int(self._cuda.fakecuda_open_imports(os.getpid() if pid is None else pid))

    def used_bytes(self) -> int:
        return int(self._cuda.fakecuda_used_bytes(0))

    def peek(self, address: int, nbytes: int) -> bytes:
        out = ctypes.create_string_buffer(nbytes)
        self._ok(
            self._cuda.fakecuda_peek(ctypes.c_uint64(address), out, ctypes.c_size_t(nbytes))
        )
        return out.raw

    def poke(self, address: int, data: bytes) -> None:
        self._ok(
            self._cuda.fakecuda_poke(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        )

    def set_delay_us(self, delay: int) -> None:
        self._cuda.fakecuda_set_delay_us(ctypes.c_uint64(delay))

    def set_vram(self, nbytes: int) -> None:
        self._cuda.fakecuda_set_vram(0, ctypes.c_uint64(nbytes))

    def fail(self, function: str, code: int, times: int = 1) -> None:
        """The next calls of this process fail."""
        for _ in range(times):
            assert self._cuda.fakecuda_fail(os.getpid(), function.encode(), 1, code) == 0

    def set_exportable(self, exportable: bool) -> None:
        self._cuda.fakecuda_set_exportable(int(exportable))


class Peer:
    """Another process on the device; see tests/fake_cuda/peer.cc."""

    def __init__(self, fake: FakeCuda) -> None:
        program = fake.library.parent.parent / "bin" / "fake_cuda_peer"
        self._process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=fake.environment(),
        )

    def run(self, *words: Any) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        code, _, value = self._process.stdout.readline().strip().partition(" ")
        assert code == "0", f"{words}: CUDA error {code or '(ended)'}"
        return value

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Interface:
    """A tensor that has __cuda_array_interface__ alone."""

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "typestr": typestr, **more
        }
