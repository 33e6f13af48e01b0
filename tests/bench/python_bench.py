"""Benchmarks of the Python client, in the form of tests/bench/run: one JSON object a line, and the
exit status 1 when a target is missed.

    .build/venv/bin/python tests/bench/python_bench.py [NAME...]

$EMBCACHED names the daemon (default: that of the bench preset); the venv is that of
tests/python/run. Each benchmark measures a baseline and the client in turn, on this machine, so
that both see the same; a ratio is the median of the rounds' own ratios. The tensors are 16 MB of
bf16, 4096 x 2048.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

EMBCACHED = os.environ.get("EMBCACHED", str(ROOT / ".build/bench/bin/embcached"))
os.environ.setdefault(
    "LIBEMBCACHE_FAST", str(pathlib.Path(EMBCACHED).with_name("libembcache_fast.so"))
)

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import safetensors.numpy  # noqa: E402

import embcache  # noqa: E402

ROUNDS = 9
SHAPE = (4096, 2048)
KEY = embcache.Key.of("bench", 1)

Operation = Callable[[], object]


def median_micros(operation: Operation, calls: int) -> float:
    taken = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        operation()
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken) / 1000


def compare(
    name: str, value: Operation, baseline: Operation, calls: int, at_most: float, note: str
) -> bool:
    pairs = []
    for turn in range(ROUNDS + 1):
        if turn % 2:
            ours, theirs = median_micros(value, calls), median_micros(baseline, calls)
        else:
            theirs, ours = median_micros(baseline, calls), median_micros(value, calls)
        if turn:  # the first warms up
            pairs.append((ours, theirs))
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    line = {
        "name": name,
        "value": round(statistics.median(ours for ours, _ in pairs), 1),
        "unit": "us",
        "baseline": round(statistics.median(theirs for _, theirs in pairs), 1),
        "ratio": round(ratio, 4),
        "target": f"ratio <= {at_most}",
        "pass": ratio <= at_most,
        "note": note,
    }
    print(json.dumps(line), flush=True)
    return ratio <= at_most


def tensor() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(ml_dtypes.bfloat16)


def without_fast_path(directory: str) -> embcache.Client:
    client = embcache.Client(directory, strict=True)
    client._connection.session().fast = None
    return client


def get_16mb(client: embcache.Client, directory: str) -> bool:
    with without_fast_path(directory) as caller:
        return compare(
            "python_get_16mb",
            lambda: caller.get(KEY)["features"].numpy(),
            caller.ping,
            200,
            2.0,
            "get by call, a NumPy view of all 16 MB, and the end of both, against an empty call",
        )


def fast_16mb(client: embcache.Client, directory: str) -> bool:
    with without_fast_path(directory) as caller:
        return compare(
            "python_fast_16mb",
            lambda: client.get(KEY)["features"].numpy(),
            lambda: caller.get(KEY)["features"].numpy(),
            300,
            1 / 10,
            "get without a call, a NumPy view, and the end of both, against the same by call",
        )


def safetensors_16mb(client: embcache.Client, directory: str) -> bool:
    path = os.path.join(directory, "features.safetensors")
    safetensors.numpy.save_file({"features": tensor()}, path)
    return compare(
        "python_safetensors_16mb",
        lambda: client.get(KEY)["features"].numpy(),
        lambda: safetensors.numpy.load_file(path)["features"],
        20,
        1 / 20,
        "get and a NumPy view against safetensors.numpy.load_file of a file in page cache",
    )


def batch_safetensors(client: embcache.Client, directory: str) -> bool:
    path = os.path.join(directory, "features.safetensors")
    safetensors.numpy.save_file({"features": tensor()}, path)
    keys = [embcache.Key.of("bench batch", i) for i in range(16)]
    for key in keys:
        client.put(key, {"features": tensor()})
    return compare(
        "python_batch_safetensors_16x16mb",
        lambda: [hit["features"].numpy() for hit in client.get_many(keys)],
        lambda: [safetensors.numpy.load_file(path)["features"] for _ in keys],
        3,
        1 / 20,
        "16 entries by one get_many, all held, against 16 loads of a file in page cache, all held",
    )


def put_16mb(client: embcache.Client, directory: str) -> bool:
    features = tensor()
    # As long in use as the cache's memory is, so that page faults are nobody's.
    targets = [np.empty_like(features) for _ in range(8)]
    keys = [embcache.Key.of("bench put", i) for i in range(8)]
    turn = iter(range(1 << 30))

    def baseline() -> None:
        client.ping()
        np.copyto(targets[next(turn) % len(targets)], features)
        client.ping()

    return compare(
        "python_put_16mb",
        lambda: client.put(keys[next(turn) % len(keys)], {"features": features}),
        baseline,
        24,
        1.5,
        "put against numpy.copyto and two empty calls",
    )


def redis_16mb(client: embcache.Client, directory: str) -> bool:
    import redis

    path = os.path.join(directory, "redis.sock")
    flags = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", directory]
    server = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
    try:
        other = redis.Redis(unix_socket_path=path)
        wait(other.ping, redis.ConnectionError)
        other.set("features", tensor().tobytes())
        return compare(
            "python_redis_16mb",
            lambda: client.get(KEY)["features"].numpy(),
            lambda: np.frombuffer(other.get("features"), ml_dtypes.bfloat16).reshape(SHAPE),
            20,
            1 / 20,
            "get and a NumPy view against redis-py's get over a Unix socket",
        )
    finally:
        server.terminate()
        server.wait()


BENCHMARKS = {
    "fast_16mb": fast_16mb,
    "batch_safetensors": batch_safetensors,
    "get_16mb": get_16mb,
    "put_16mb": put_16mb,
    "redis_16mb": redis_16mb,
    "safetensors_16mb": safetensors_16mb,
}


def wait(ready: Operation, error: type[Exception]) -> None:
    for attempt in range(500):
        try:
            ready()
            return
        except error:
            time.sleep(0.02)  # between looks for a server that says nothing when it is ready
    raise SystemExit("python_bench: a server did not start")


@contextlib.contextmanager
def daemon(directory: str) -> Iterator[None]:
    flags = ["--device=host", "--l1-capacity=1GiB", "--l3-write=off", "--log-level=warn"]
    process = subprocess.Popen([EMBCACHED, "--socket-dir", directory, *flags])
    try:
        connect = lambda: embcache.Client(directory, strict=True).close()  # noqa: E731
        wait(connect, embcache.CacheError)
        yield
    finally:
        process.terminate()
        process.wait()


def main(names: list[str]) -> int:
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"python_bench: there is no {sorted(unknown)}; {sorted(BENCHMARKS)}", file=sys.stderr)
        return 64
    print("load average:", *os.getloadavg(), file=sys.stderr)
    passed = True
    with tempfile.TemporaryDirectory(prefix="emb") as directory, daemon(directory):
        with embcache.Client(directory, strict=True) as client:
            client.put(KEY, {"features": tensor()})
            for name in names or BENCHMARKS:
                passed = BENCHMARKS[name](client, directory) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
