"""Keys: what makes two embeddings the same.

An entry is found by (model, content_hash, variant). The content hash stands for the picture, the
variant for everything else that changes the output: processor settings, model revision, LoRA
weights, dtype, resolution, a tenant's salt. Leave one out, and two outputs share an entry.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){8,64}")


def content_hash(value: int | str | bytes) -> bytes:
    """The one canonical form of a hash: 0x0123456789abcdef, "0123456789abcdef" and the same 8 bytes
    are one key.

    An int is 64 bits, signed or not; a str is hexadecimal, 8 to 64 bytes of it; bytes are
    themselves. ValueError for all else: a hash is never shortened or guessed at.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        if not 8 <= len(raw) <= 64:
            raise ValueError(f"content_hash: {len(raw)} bytes; must be 8 to 64")
        return raw
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise ValueError("content_hash: an int of more than 64 bits; give it as bytes or hex")
        return (number % (1 << 64)).to_bytes(8, "big")
    if isinstance(value, str) and _HEX.fullmatch(value):
        return bytes.fromhex(value)
    raise ValueError(f"content_hash: {value!r} is neither 8 to 64 bytes, nor their hex, nor an int")


def name_hash(value: int | str | bytes) -> bytes:
    """`content_hash`, or for any other string or length (a request's own id, say) its SHA-256."""
    try:
        return content_hash(value)
    except ValueError:
        if isinstance(value, str):
            return hashlib.sha256(b"embcache name\0" + value.encode()).digest()
        if isinstance(value, bytes):
            return hashlib.sha256(b"embcache bytes\0" + value).digest()
        raise


@dataclasses.dataclass(frozen=True)
class Key:
    """What identifies an entry; two keys are equal when all three fields are, byte for byte."""

    model: str  # 1 to 255 bytes
    content_hash: bytes  # 8 to 64 bytes
    variant: bytes = b""  # at most 1024 bytes

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not 1 <= len(self.model.encode()) <= 255:
            raise ValueError(f"model: {self.model!r} is not a string of 1 to 255 bytes")
        if not isinstance(self.content_hash, bytes) or not 8 <= len(self.content_hash) <= 64:
            raise ValueError("content_hash: must be 8 to 64 bytes; see Key.of() for other forms")
        if not isinstance(self.variant, bytes) or len(self.variant) > 1024:
            raise ValueError("variant: must be at most 1024 bytes; see embcache.keys.variant()")

    def __reduce__(self) -> tuple[type[Key], tuple[str, bytes, bytes]]:
        # Without what this process keeps with it.
        return Key, (self.model, self.content_hash, self.variant)

    @classmethod
    def of(cls, model: str, value: int | str | bytes, variant: bytes = b"") -> Key:
        """A key of a hash in any of the forms of `content_hash()`."""
        return cls(model, content_hash(value), variant)


def hash_pixels(image: Any) -> bytes:
    """SHA-256 of decoded pixels: of a PIL image, or an array of shape (H, W) or (H, W, C).

    Two files with the same picture (another name, metadata, lossless format) get the same hash; the
    price is that the picture is decoded before the cache is asked. Mode, dtype, height and width
    are part of it: equal bytes in another shape are another picture.
    """
    if hasattr(image, "mode") and hasattr(image, "tobytes") and not isinstance(image, np.ndarray):
        width, height = image.size
        # A palette is what the pixels mean.
        palette = bytes(image.getpalette() or b"") if image.mode == "P" else b""
        return _hash_pixels(image.mode, "", (height, width), palette, image.tobytes())
    array = np.ascontiguousarray(image)
    if array.ndim not in (2, 3) or array.dtype.hasobject:
        raise ValueError(
            f"image: shape {array.shape} of {array.dtype}; must be (H, W) or (H, W, C)"
        )
    mode = f"array{array.shape[2]}" if array.ndim == 3 else "array"
    return _hash_pixels(mode, array.dtype.str, array.shape[:2], b"", array.data)


def _hash_pixels(mode: str, dtype: str, size: Iterable[int], palette: bytes, data: Any) -> bytes:
    height, width = size
    header = json.dumps(["embcache pixels", 1, mode, dtype, height, width, palette.hex()])
    digest = hashlib.sha256(_framed(header.encode()))
    digest.update(data)
    return digest.digest()


def hash_file(source: bytes | str | os.PathLike[str]) -> bytes:
    """SHA-256 of an encoded file's bytes, or of the file at a path (its content, never its name).

    Nothing is decoded, so a hit costs least; but the same picture saved anew is another one.
    Decoder settings (mode, background) that change the pixels belong into the variant.
    """
    digest = hashlib.sha256(_framed(b"embcache file 1"))
    if isinstance(source, bytes):
        digest.update(source)
    else:
        with open(source, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.digest()


def hash_weights(paths: Iterable[str | os.PathLike[str]]) -> bytes:
    """A digest of files' contents in the order given: what tells two LoRA adapters of one name
    apart."""
    digest = hashlib.sha256(_framed(b"embcache weights 1"))
    for path in paths:
        digest.update(hash_file(path))
    return digest.digest()


def variant(**settings: Any) -> bytes:
    """32 bytes that differ when any setting does. Values are what JSON has, bytes, and tuples (as
    lists); their order does not matter, their types do (1, 1.0, True and "1" are four values).

        variant(processor={"size": 448}, revision="3f2a", lora=hash_weights([path]), dtype="bf16")
    """
    text = json.dumps(_tagged(settings), sort_keys=True, allow_nan=False)
    return hashlib.sha256(_framed(b"embcache variant 1") + text.encode()).digest()


def _tagged(value: Any) -> Any:
    """JSON in which no two different values look the same."""
    if isinstance(value, dict):
        wrong = [name for name in value if not isinstance(name, str)]
        if wrong:
            raise TypeError(f"variant: the name {wrong[0]!r} is not a string")
        return {"dict": {name: _tagged(item) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_tagged(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    raise TypeError(
        f"variant: {type(value).__name__} is not a setting; give a str, number or bytes"
    )


def _framed(header: bytes) -> bytes:
    """The header with its length before it, so that it cannot run into what follows."""
    return struct.pack(">I", len(header)) + header
