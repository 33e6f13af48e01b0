"""An encode server that uses the cache: pictures in over HTTP, features of a real vision network.

    pip install client/python -r client/python/examples/requirements.txt
    python client/python/examples/encode_server.py --port 8000 &
    curl --data-binary @photo.jpg localhost:8000/encode

POST /encode takes the bytes of a PNG or JPEG and answers, as JSON, whether the features came from
the cache, from which tier, in how many milliseconds, their shapes and their SHA-256. A real engine
would hand the arrays on to its language model instead. GET /stats counts.

An entry is found by the SHA-256 of the decoded pixels and by all settings that change the
features. The cache is never a reason for a request to fail: without a daemon every picture is
encoded, and the server finds the daemon by itself when it comes (back).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import logging
import signal
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import embcache

MAX_BODY = 64 << 20
# An encode takes tens of milliseconds: waiting longer for the cache would be worse than a miss.
CACHE_TIMEOUT = 0.5
# For another request's, or another server's, encode of the same picture; they queue for the encoder.
ENCODE_WAIT = 5.0

Pixels = NDArray[np.uint8]
Features = dict[str, NDArray[Any]]

_log = logging.getLogger("encode_server")


class Encoder(Protocol):
    model: str  # its name and version

    def decode(self, data: bytes) -> Pixels:
        """The pixels of an encoded picture. ValueError: it is none."""

    def settings(self, pixels: Pixels) -> dict[str, Any]:
        """Everything besides the pixels that changes the features: processor settings, resolution,
        the model's revision, LoRA weights, dtype."""

    def encode(self, pixels: Pixels) -> Features: ...


class NotAPicture(ValueError):
    """What was sent cannot be decoded."""


@dataclass(frozen=True)
class Reply:
    outcome: str  # "hit"; "miss"; "off": there is no cache
    tier: str | None  # where a hit was found: L1, L2, L3
    ms: float  # from the decoded pixels to the features; of a miss also the put
    key_ms: float  # of that for the key: hashing the pixels
    encode_ms: float | None  # of that in the network; None: it did not run
    saved_ms: float  # of a hit: what the encode took when it ran, less `ms`
    decode_ms: float  # the picture's decoding, which comes before either
    dtype: str
    shape: dict[str, list[int]]
    sha256: str  # of the features, names, types and shapes included


@dataclass(frozen=True)
class _Found:
    features: Features
    encode_ms: float  # now, or of a hit: when it was put
    tier: str | None = None  # None: encoded now


class EncodeService:
    """Features of pictures, from the cache or else the encoder. Thread-safe."""

    def __init__(self, encoder: Encoder, cache: embcache.Client | None) -> None:
        self._encoder = encoder
        self._cache = cache
        self._encoding = threading.Lock()  # one encode at a time; hits pass by
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def handle(self, data: bytes) -> Reply:
        start = time.perf_counter()
        try:
            pixels = self._encoder.decode(data)
        except ValueError as error:
            raise NotAPicture(str(error)) from error
        decoded = time.perf_counter()
        key = self.key(pixels) if self._cache is not None else None
        keyed = time.perf_counter()
        found = self._features(pixels, key)
        ms = (time.perf_counter() - decoded) * 1e3
        outcome = "off" if self._cache is None else "hit" if found.tier else "miss"
        with self._lock:
            self._counts[found.tier or outcome] += 1
        # Arrays of a hit are views of the daemon's memory, which stays as it is while they are
        # held: here, to the end of this function.
        return Reply(
            outcome=outcome,
            tier=found.tier,
            ms=round(ms, 3),
            key_ms=round((keyed - decoded) * 1e3, 3),
            encode_ms=None if found.tier else round(found.encode_ms, 3),
            saved_ms=round(found.encode_ms - ms, 3) if found.tier else 0.0,
            decode_ms=round((decoded - start) * 1e3, 3),
            dtype=str(next(iter(found.features.values())).dtype),
            shape={name: list(array.shape) for name, array in found.features.items()},
            sha256=digest(found.features),
        )

    def stats(self) -> dict[str, Any]:
        with self._lock:
            stats: dict[str, Any] = {"requests": dict(self._counts)}
        if self._cache is not None:
            stats["cache"] = {"connected": self._cache.connected, **asdict(self._cache.counters)}
        return stats

    def key(self, pixels: Pixels) -> embcache.Key:
        return embcache.Key(
            self._encoder.model,
            embcache.keys.hash_pixels(pixels),
            embcache.keys.variant(**self._encoder.settings(pixels)),
        )

    def _features(self, pixels: Pixels, key: embcache.Key | None) -> _Found:
        if self._cache is None or key is None:
            with self._encoding:
                return self._encode(pixels)
        # However many ask for a new picture, here and in other servers: one of them encodes it.
        found = self._get_or_claim(self._cache, key)
        if isinstance(found, _Found):
            return found
        with contextlib.nullcontext() if found is None else found:
            with self._encoding:
                encoded = self._encode(pixels)
            if found is not None:
                self._put(found, encoded)
            return encoded

    def _encode(self, pixels: Pixels) -> _Found:
        start = time.perf_counter()
        features = self._encoder.encode(pixels)
        return _Found(features, (time.perf_counter() - start) * 1e3)

    # A client that is not strict answers most failures as misses by itself, with one warning. What
    # it raises nevertheless (no permission, say) must not fail a request either.

    @staticmethod
    def _get_or_claim(cache: embcache.Client, key: embcache.Key) -> _Found | embcache.Claim | None:
        try:
            hit = cache.claim(key, wait=ENCODE_WAIT)
        except embcache.CacheError as error:
            _log.warning("get: %s", error)
            return None
        if isinstance(hit, embcache.Claim):
            return hit
        features = {name: view.numpy() for name, view in hit.tensors.items() if view is not None}
        return _Found(features, hit.encode_cost * 1e3, hit.tier.name)

    @staticmethod
    def _put(claim: embcache.Claim, found: _Found) -> None:
        try:
            claim.put(found.features, encode_cost=found.encode_ms / 1e3)
        except embcache.CacheError as error:
            _log.warning("put: %s", error)


def digest(features: Features) -> str:
    """SHA-256 of features, to the last bit."""
    sha256 = hashlib.sha256()
    for name, array in features.items():
        sha256.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()


# --- HTTP -----------------------------------------------------------------------------------------


class EncodeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], service: EncodeService) -> None:
        super().__init__(address, Handler)
        self.service = service


class Handler(BaseHTTPRequestHandler):
    server: EncodeServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        if self.path == "/stats":
            self._answer(200, self.server.service.stats())
        else:
            self._answer(404, {"error": "there are POST /encode and GET /stats"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        # A body that is not read would be taken for the next request.
        asked_to_close, self.close_connection = self.close_connection, True
        if self.path != "/encode":
            self._answer(404, {"error": "there are POST /encode and GET /stats"})
        elif not (length.isascii() and length.isdigit()):
            self._answer(411, {"error": "Content-Length is missing"})
        elif int(length) > MAX_BODY:
            self._answer(413, {"error": f"more than {MAX_BODY} bytes"})
        else:
            data = self.rfile.read(int(length))
            self.close_connection = asked_to_close or len(data) < int(length)
            self._encode(data)

    def _encode(self, data: bytes) -> None:
        try:
            reply = self.server.service.handle(data)
        except NotAPicture as error:
            self._answer(400, {"error": str(error)})
        except Exception as error:
            _log.exception("a picture of %d bytes", len(data))
            self._answer(500, {"error": str(error)})
        else:
            _log.info("%s %s %.1f ms", reply.outcome, reply.tier or "", reply.ms)
            self._answer(200, asdict(reply))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def main() -> None:
    parser = argparse.ArgumentParser(description="Encode pictures over HTTP, with embcache.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any; it is printed")
    parser.add_argument("--socket-dir", help="of embcached (default: as every client)")
    parser.add_argument("--no-cache", action="store_true", help="encode every picture")
    parser.add_argument(
        "--long-side", type=int, default=640, help="longest side fed to the network"
    )
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

    from vision_network import VisionNetwork  # heavy; whoever has another encoder needs none of it

    encoder = VisionNetwork(args.long_side, args.dtype)
    cache = None
    if not args.no_cache:
        cache = embcache.Client(args.socket_dir, name="encode-server", timeout=CACHE_TIMEOUT)
    server = EncodeServer((args.host, args.port), EncodeService(encoder, cache))

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown, name="stop").start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"serving http://{args.host}:{server.server_port}", flush=True)
    server.serve_forever()
    server.server_close()
    if cache is not None:
        cache.close()


if __name__ == "__main__":
    main()
