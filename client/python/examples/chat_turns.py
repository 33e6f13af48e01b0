"""A chat about photographs, as an encode server sees it: every turn sends all so far again.

    PYTHONPATH=client/python python client/python/examples/chat_turns.py --embcached PATH

Starts a daemon and encode_server.py, and sends the chat without the cache, then with it, then once
more after both were restarted. Prints for each turn where the features came from, the milliseconds
spent on them and saved, and fails unless they are bit-identical throughout. Leaves nothing running.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from types import FrameType
from typing import IO, Any

import embcache

# Those of scikit-image's wheel, by their file names.
PHOTOS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "retina.jpg",
    "rocket.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "ihc.png",
    "moon.png",
    "camera.png",
    "grass.png",
)
COLUMNS = "{:<22}{:>7}{:>5}{:>5}{:>5}{:>8}{:>10}{:>10}"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0


class Program:
    """A child process, until stop()."""

    def __init__(self, command: list[str], log: IO[bytes], stdout: int | None = None) -> None:
        out = log if stdout is None else stdout
        self._process = subprocess.Popen(command, stdout=out, stderr=log)

    def first_line(self) -> str:
        assert self._process.stdout is not None
        line: bytes = self._process.stdout.readline()
        return line.decode().strip()

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.returncode}")

    def stop(self) -> None:
        """Also of one that has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Stack:
    """A daemon and an encode server in a directory of their own. Without a program for the daemon,
    the server runs with the cache off."""

    def __init__(self, directory: Path, embcached: str | None) -> None:
        self._programs: list[Program] = []
        self._log = open(directory / "log", "ab")
        sockets = str(directory / "run")
        try:
            flags = ["--no-cache"]
            if embcached is not None:
                self._start_daemon(embcached, sockets, str(directory / "l3"))
                flags = ["--socket-dir", sockets]
            server = str(Path(__file__).with_name("encode_server.py"))
            worker = Program(
                [sys.executable, server, "--port=0", *flags], self._log, subprocess.PIPE
            )
            self._programs.append(worker)
            address = worker.first_line().rpartition("/")[2]
            if not address:
                raise RuntimeError("the encode server did not start")
            self._http = http.client.HTTPConnection(address, timeout=60)
        except BaseException:
            self.stop()
            raise

    def _start_daemon(self, embcached: str, sockets: str, l3: str) -> None:
        tiers = ["--device=host", "--l1-capacity=256MiB", f"--l3-dir={l3}", "--l3-capacity=1GiB"]
        daemon = Program([embcached, f"--socket-dir={sockets}", *tiers], self._log)
        self._programs.append(daemon)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                embcache.Client(sockets, name="probe", strict=True).close()
                return
            except embcache.CacheError:
                daemon.check()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def encode(self, picture: bytes) -> dict[str, Any]:
        self._http.request("POST", "/encode", picture)
        response = self._http.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {body.decode(errors='replace')}")
        reply: dict[str, Any] = json.loads(body)
        return reply

    def stop(self) -> None:
        """The worker before its daemon, which then waits for no leases."""
        while self._programs:
            self._programs.pop().stop()
        self._log.close()


@dataclass
class Chat:
    photos: dict[str, bytes]
    turns: int
    digests: dict[str, str] = field(default_factory=dict)  # of features, as first seen
    replies: int = 0
    different: list[str] = field(default_factory=list)

    def all_turns(self, stack: Stack, label: str) -> float:
        """Every turn has its share of new photographs. The milliseconds spent."""
        spent = 0.0
        for turn in range(1, self.turns + 1):
            so_far = list(self.photos)[: -(-len(self.photos) * turn // self.turns)]
            spent += self.turn(stack, f"{label}, turn {turn}", so_far)
        return spent

    def turn(self, stack: Stack, label: str, names: list[str]) -> float:
        found = dict.fromkeys(("L1", "L2", "L3", "encoded"), 0)
        spent = saved = 0.0
        for name in names:
            reply = stack.encode(self.photos[name])
            found[reply["tier"] or "encoded"] += 1
            spent += reply["ms"]
            saved += reply["saved_ms"]
            self.replies += 1
            if self.digests.setdefault(name, reply["sha256"]) != reply["sha256"]:
                self.different.append(f"{label}: {name}")
        row = COLUMNS.format(label, len(names), *found.values(), f"{spent:.1f}", f"{saved:.1f}")
        print(row, flush=True)
        return spent


def run(chat: Chat, directory: Path, embcached: str) -> None:
    print(COLUMNS.format("", "images", "L1", "L2", "L3", "encoded", "ms spent", "ms saved"))
    stack = Stack(directory, None)
    try:
        without = chat.all_turns(stack, "cache off")
    finally:
        stack.stop()
    stack = Stack(directory, embcached)
    try:
        with_cache = chat.all_turns(stack, "cache on")
    finally:
        stack.stop()
    stack = Stack(directory, embcached)  # the daemon and the worker both begin anew
    try:
        for turn in (chat.turns + 1, chat.turns + 2):
            chat.turn(stack, f"restarted, turn {turn}", list(chat.photos))
    finally:
        stack.stop()
    print(
        f"\n{chat.turns} turns took {without:.0f} ms without the cache, "
        f"{with_cache:.0f} ms with it."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Photographs over the turns of a chat.")
    parser.add_argument("--embcached", required=True, help="the daemon's program")
    parser.add_argument("--images", type=int, default=8, help=f"1 to {len(PHOTOS)}")
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    if not 1 <= args.turns <= args.images <= len(PHOTOS):
        parser.error(f"1 <= turns <= images <= {len(PHOTOS)} must hold")
    skimage = distribution("scikit-image")
    photos = {
        name: Path(str(skimage.locate_file(f"skimage/data/{name}"))).read_bytes()
        for name in PHOTOS[: args.images]
    }

    def end(number: int, frame: FrameType | None) -> None:
        for again in (signal.SIGTERM, signal.SIGINT):  # these must not keep us from cleaning up
            signal.signal(again, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    chat = Chat(photos, args.turns)
    with tempfile.TemporaryDirectory(prefix="embcache.") as directory:
        try:
            run(chat, Path(directory), os.path.abspath(args.embcached))
        except (RuntimeError, OSError, embcache.CacheError) as error:
            print(f"chat_turns: {error}", file=sys.stderr)
            sys.stderr.write((Path(directory) / "log").read_text(errors="replace"))
            return 1
    if chat.different:
        print("features DIFFER:", *chat.different, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{chat.replies} replies: bit-identical features, cache off, cold, warm and restarted.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
