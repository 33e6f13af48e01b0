"""A real daemon for the tests: $EMBCACHED, or the one built by the dev preset."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))
# Child processes of tests find the package too.
os.environ["PYTHONPATH"] = str(ROOT / "client" / "python")

EMBCACHED = os.environ.get("EMBCACHED", str(ROOT / ".build/dev/bin/embcached"))
# Built beside the daemon. Without it, hits are calls, and the tests of what is not are skipped.
_FAST = pathlib.Path(EMBCACHED).with_name("libembcache_fast.so")
if _FAST.exists():
    os.environ.setdefault("LIBEMBCACHE_FAST", str(_FAST))

import embcache  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_cuda import FakeCuda  # noqa: E402


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for what happens in the background."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.005)


class Daemon:
    def __init__(self, directory: str, *flags: str, launcher: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self._flags = flags
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        flags = ["--l3-write=off", *self._flags]
        if not any(flag.startswith("--device") for flag in flags):
            flags += ["--device=host", "--l1-capacity=64MiB"]
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher, EMBCACHED, "--socket-dir", self.directory, *flags],
                stdout=log,
                stderr=log,
            )
        control = os.path.join(self.directory, "control.sock")

        def ready() -> bool:
            assert self._process is not None and self._process.poll() is None, self.log()
            try:
                embcache.Client(self.directory, name="probe", strict=True).close()
            except embcache.CacheError:
                return False
            return os.path.exists(control)

        until(ready)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        with open(os.path.join(self.directory, "log")) as file:
            return file.read()

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait(15)
            self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until all its threads have stopped

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="emb") as directory:
        daemon = Daemon(directory)
        yield daemon
        daemon.kill()


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """For tests that stop it."""
    with tempfile.TemporaryDirectory(prefix="emb") as directory:
        daemon = Daemon(directory, "--drain-timeout=1s")
        yield daemon
        daemon.kill()


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[embcache.Client]:
    with embcache.Client(shared_daemon.directory, strict=True) as client:
        yield client


@pytest.fixture(scope="session")
def fake_cuda() -> Iterator[FakeCuda]:
    """The fake CUDA driver, in this process from now on; built beside the daemon."""
    library = pathlib.Path(EMBCACHED).resolve().parents[1] / "fake_cuda" / "libcuda.so.1"
    if not library.exists():
        pytest.skip("built without CUDA headers; see deploy/cuda_headers")
    if b"__asan_init" in library.read_bytes() or b"__tsan_init" in library.read_bytes():
        pytest.skip("a sanitizer's library cannot be loaded into this interpreter")
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="embcache-fake-cuda.", dir=base) as directory:
        yield FakeCuda(library, directory)


@pytest.fixture
def fake(fake_cuda: FakeCuda) -> FakeCuda:
    fake_cuda.reset()
    return fake_cuda


@pytest.fixture
def key(request: pytest.FixtureRequest) -> embcache.Key:
    """One that no other test has."""
    return embcache.Key("m", embcache.keys.name_hash(request.node.nodeid))


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
