"""examples/encode_server.py: with a stand-in for the network everywhere, with the real one where
its packages are; see tests/peers."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import EMBCACHED, ROOT, Daemon, until

import embcache

EXAMPLES = ROOT / "client/python/examples"
sys.path.insert(0, str(EXAMPLES))
import encode_server  # noqa: E402

L3 = ("--l3-write=through", "--l3-capacity=64MiB", "--drain-timeout=1s")


class StubEncoder:
    """Stands for a network: fast, and every setting shows in its features."""

    model = "stub@1"

    def __init__(self, **settings):
        self._settings = {
            "processor": {"size": 448, "mean": 0.5},
            "resolution": [4, 6],
            "revision": "3f2a",
            "lora": b"",
            "dtype": "float32",
            **settings,
        }
        self.calls = 0
        self.gate = threading.Event()  # encodes wait for it
        self.gate.set()

    def decode(self, data):
        """A file format with a comment, so that two files can be one picture."""
        comment, found, pixels = data.partition(b":")
        if not found or len(pixels) != 72:
            raise ValueError("not a picture")
        return np.frombuffer(pixels, np.uint8).reshape(4, 6, 3)

    def settings(self, pixels):
        return self._settings

    def encode(self, pixels):
        self.calls += 1
        assert self.gate.wait(30)
        seed = np.frombuffer(repr(self._settings).encode() + pixels.tobytes(), np.uint8)
        values = np.random.default_rng(seed).standard_normal((24, 8))
        rows = values.astype(self._settings["dtype"])
        return {"main": rows, "deepstack": rows[:6] * 2}


def picture(seed=0, comment=b""):
    return comment + b":" + np.random.default_rng(seed).bytes(72)


@pytest.fixture
def l3_daemon(tmp_path):
    with tempfile.TemporaryDirectory(prefix="emb") as directory:
        daemon = Daemon(directory, f"--l3-dir={tmp_path}/l3", *L3)
        yield daemon
        daemon.kill()


@pytest.fixture
def make_service():
    """Services with a client each."""
    clients = []

    def make(daemon, encoder=None, timeout=20.0):  # on a busy machine a miss must mean a miss
        clients.append(embcache.Client(daemon.directory, timeout=timeout))
        return encode_server.EncodeService(encoder or StubEncoder(), clients[-1])

    yield make
    for client in clients:
        client.close()


def test_features_are_the_same_with_the_cache_off_cold_warm_and_restarted(l3_daemon, make_service):
    off = encode_server.EncodeService(StubEncoder(), None).handle(picture())
    encoder = StubEncoder()
    service = make_service(l3_daemon, encoder)
    cold, warm = service.handle(picture()), service.handle(picture())
    l3_daemon.stop()
    l3_daemon.start()
    restarted = make_service(l3_daemon, encoder)  # the worker's client is a new one too
    loaded, again = restarted.handle(picture()), restarted.handle(picture())
    replies = [off, cold, warm, loaded, again]
    assert [(reply.outcome, reply.tier) for reply in replies] == [
        ("off", None),
        ("miss", None),
        ("hit", "L1"),
        ("hit", "L3"),
        ("hit", "L1"),
    ]
    assert len({reply.sha256 for reply in replies}) == 1
    assert all(reply.shape == {"main": [24, 8], "deepstack": [6, 8]} for reply in replies)
    assert encoder.calls == 1


def test_one_picture_in_two_files_is_one_entry(shared_daemon, make_service):
    encoder = StubEncoder(case="two files")
    service = make_service(shared_daemon, encoder)
    first = service.handle(picture(comment=b"holiday"))
    second = service.handle(picture(comment=b"copy of holiday"))
    assert (first.outcome, second.outcome, encoder.calls) == ("miss", "hit", 1)
    assert service.handle(picture(seed=1)).outcome == "miss"


@pytest.mark.parametrize(
    "other",
    [
        {"processor": {"size": 1008, "mean": 0.5}},
        {"processor": {"size": 448, "mean": 0.4}},
        {"resolution": [6, 4]},
        {"revision": "3f2b"},
        {"lora": b"\1" * 32},
        {"dtype": "float16"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_changes_the_features_never_shares_an_entry(shared_daemon, make_service, other):
    plain, changed = StubEncoder(case=repr(other)), StubEncoder(case=repr(other), **other)
    first = make_service(shared_daemon, plain).handle(picture())
    second = make_service(shared_daemon, changed).handle(picture())
    assert (first.outcome, second.outcome) == ("miss", "miss")
    assert first.sha256 != second.sha256
    assert make_service(shared_daemon, plain).handle(picture()).sha256 == first.sha256
    assert make_service(shared_daemon, changed).handle(picture()).sha256 == second.sha256
    assert plain.calls == changed.calls == 1


def test_a_new_model_under_the_same_settings_is_another_entry(shared_daemon, make_service):
    encoder = StubEncoder(case="model")
    make_service(shared_daemon, encoder).handle(picture())
    encoder.model = "stub@2"
    assert make_service(shared_daemon, encoder).handle(picture()).outcome == "miss"


def test_no_request_fails_for_want_of_a_daemon(own_daemon, make_service):
    service = make_service(own_daemon)
    first = service.handle(picture())
    own_daemon.kill()
    away = service.handle(picture())
    own_daemon.start()
    until(lambda: service.stats()["cache"]["connected"])
    back, warm = service.handle(picture()), service.handle(picture())
    outcomes = [reply.outcome for reply in (first, away, back, warm)]
    assert outcomes == ["miss", "miss", "miss", "hit"]
    assert len({reply.sha256 for reply in (first, away, back, warm)}) == 1


def test_a_daemon_that_hangs_costs_a_bounded_wait(own_daemon, make_service):
    service = make_service(own_daemon, timeout=1.0)
    first = service.handle(picture())
    own_daemon.pause()
    try:
        hung = service.handle(picture())
    finally:
        own_daemon.resume()
    assert (hung.outcome, hung.sha256) == ("miss", first.sha256)
    assert 1000 <= hung.ms < 10_000  # a get and a put that were not answered


class BrokenCache:
    connected = False
    counters = embcache.Counters()

    def __init__(self, claim=None):
        self._claim = claim

    def claim(self, key, **_):
        if self._claim is None:
            raise embcache.InvalidArgument("get")
        return self._claim


class BrokenClaim(embcache.Claim):
    def __init__(self):
        pass

    def put(self, tensors, **_):
        raise embcache.InvalidArgument("put")

    def abandon(self):
        pass


@pytest.mark.parametrize("claim, warned", [(None, "get"), (BrokenClaim(), "put")])
def test_no_request_fails_for_what_the_client_raises(claim, warned, caplog):
    service = encode_server.EncodeService(StubEncoder(), BrokenCache(claim))
    assert service.handle(picture()).outcome == "miss"
    assert [record.message.split(":")[0] for record in caplog.records] == [warned]


def test_requests_for_one_picture_at_a_time_encode_it_once(shared_daemon, make_service):
    encoder = StubEncoder(case="at a time")
    service = make_service(shared_daemon, encoder)
    encoder.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(service.handle, picture()) for _ in range(8)]
        until(lambda: encoder.calls == 1)
        encoder.gate.set()
        replies = [future.result(30) for future in futures]
    assert encoder.calls == 1
    assert sorted(reply.outcome for reply in replies) == ["hit"] * 7 + ["miss"]
    assert len({reply.sha256 for reply in replies}) == 1


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.fixture
def http_connection(shared_daemon, make_service):
    service = make_service(shared_daemon, StubEncoder(case="http"))
    server = encode_server.EncodeServer(("127.0.0.1", 0), service)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    yield connection
    connection.close()
    server.shutdown()
    thread.join()
    server.server_close()


def ask(connection, method, path, body=None, headers=None):
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_a_picture_over_http(http_connection):
    status, miss = ask(http_connection, "POST", "/encode", picture(7))
    assert (status, miss["outcome"], miss["tier"], miss["saved_ms"]) == (200, "miss", None, 0)
    assert miss["ms"] >= miss["encode_ms"] > 0
    status, hit = ask(http_connection, "POST", "/encode", picture(7))
    assert (status, hit["outcome"], hit["tier"], hit["encode_ms"]) == (200, "hit", "L1", None)
    assert hit["sha256"] == miss["sha256"] and hit["shape"] == {
        "main": [24, 8],
        "deepstack": [6, 8],
    }
    status, stats = ask(http_connection, "GET", "/stats")
    assert stats["requests"] == {"miss": 1, "L1": 1} and stats["cache"]["connected"]


def test_bad_requests_are_answered_and_the_server_goes_on(http_connection):
    assert ask(http_connection, "POST", "/encode", b"no picture")[0] == 400
    assert ask(http_connection, "POST", "/elsewhere", b"x")[0] == 404
    assert ask(http_connection, "GET", "/elsewhere")[0] == 404
    huge = {"Content-Length": str(encode_server.MAX_BODY + 1)}
    assert ask(http_connection, "POST", "/encode", b"", huge)[0] == 413
    assert ask(http_connection, "POST", "/encode", b"", {"Content-Length": "x"})[0] == 411
    assert ask(http_connection, "POST", "/encode", picture(8))[0] == 200


# --- The real network -----------------------------------------------------------------------------

onnx = pytest.mark.skipif(
    "onnx" not in os.environ.get("TEST_PEERS", "").split(), reason="tests/peers onnx runs it"
)


@onnx
def test_onnx_a_chat_about_photographs_ends_with_the_same_bits():
    """What deploy/quickstart --encoder runs."""
    command = [sys.executable, EXAMPLES / "chat_turns.py", "--images=4", "--turns=2"]
    done = subprocess.run(
        [*command, "--embcached", EMBCACHED], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w[\w ]*), turn (\d)((?: +[\d.]+){5})", done.stdout, re.MULTILINE)
    # Images, L1, L2, L3, encoded.
    assert [(label, [int(count) for count in counts.split()]) for label, _, counts in rows] == [
        ("cache off", [2, 0, 0, 0, 2]),
        ("cache off", [4, 0, 0, 0, 4]),
        ("cache on", [2, 0, 0, 0, 2]),
        ("cache on", [4, 2, 0, 0, 2]),
        ("restarted", [4, 0, 0, 4, 0]),
        ("restarted", [4, 4, 0, 0, 0]),
    ]
    assert "20 replies: bit-identical features" in done.stdout


@onnx
def test_onnx_real_photographs_at_two_sizes_and_types_are_four_entries(own_daemon, make_service):
    from vision_network import VisionNetwork, shipped

    photo = shipped("scikit-image", "skimage/data/astronaut.png").read_bytes()
    replies = []
    for long_side in (224, 448):
        for dtype in ("float32", "float16"):
            service = make_service(own_daemon, VisionNetwork(long_side, dtype))
            miss, hit = service.handle(photo), service.handle(photo)
            assert (miss.outcome, hit.outcome, hit.dtype) == ("miss", "hit", dtype)
            assert miss.sha256 == hit.sha256
            replies.append(miss)
    assert [reply.shape["main"] for reply in replies] == [[49, 384]] * 2 + [[196, 384]] * 2
    assert len({reply.sha256 for reply in replies}) == 4


@onnx
def test_onnx_the_picture_is_its_pixels_and_not_its_file():
    import io

    from PIL import Image
    from vision_network import VisionNetwork, shipped

    network = VisionNetwork(224)
    photo = shipped("scikit-image", "skimage/data/astronaut.png").read_bytes()
    saved = io.BytesIO()
    Image.open(io.BytesIO(photo)).save(saved, "PNG", compress_level=0)
    assert saved.getvalue() != photo
    service = encode_server.EncodeService(network, None)
    assert service.key(network.decode(photo)) == service.key(network.decode(saved.getvalue()))
    for no_picture in (b"", b"not one", photo[:1000]):
        with pytest.raises(ValueError, match="picture"):
            network.decode(no_picture)
