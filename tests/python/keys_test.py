"""What is the same key, and what is not."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from embcache import Key, keys


def test_the_forms_of_a_hash_are_one_key():
    raw = bytes.fromhex("0123456789abcdef")
    assert Key.of("m", 0x0123456789ABCDEF) == Key.of("m", "0123456789abcdef") == Key("m", raw)
    assert Key.of("m", "0123456789ABCDEF") == Key("m", raw)
    assert Key.of("m", np.uint64(0x0123456789ABCDEF)) == Key("m", raw)
    assert Key.of("m", -1) == Key.of("m", 2**64 - 1)  # of Python's own signed hashes


@pytest.mark.parametrize("value", [2**64, "0123", "no hex at all", "0" * 17, b"short", True, 1.5])
def test_what_is_no_hash_is_refused(value):
    with pytest.raises(ValueError, match="content_hash"):
        keys.content_hash(value)


def test_any_string_has_a_name_hash_and_a_hash_is_itself():
    assert keys.name_hash("img-1") != keys.name_hash("img-2")
    assert keys.name_hash("00" * 8) == bytes(8)
    assert len(keys.name_hash("0123")) == 32


@pytest.mark.parametrize(
    "arguments",
    [("", bytes(8)), ("m" * 256, bytes(8)), ("m", bytes(7)), ("m", bytes(65)), ("m", "0" * 16)],
)
def test_keys_outside_the_limits_are_refused(arguments):
    with pytest.raises(ValueError):
        Key(*arguments)


def test_equal_bytes_in_another_shape_or_type_are_another_picture():
    pixels = np.arange(4500, dtype=np.uint32).astype(np.uint8)
    pictures = [
        pixels.reshape(30, 50, 3),
        pixels.reshape(50, 30, 3),
        pixels.reshape(30, 150),
        pixels.reshape(150, 30),
        pixels.reshape(30, 150).view(np.int8),
    ]
    assert len({keys.hash_pixels(picture) for picture in pictures}) == len(pictures)
    np.testing.assert_equal(
        keys.hash_pixels(pictures[0]), keys.hash_pixels(np.asfortranarray(pictures[0]))
    )


class Picture:
    """What PIL's images have."""

    def __init__(self, mode, size, data, palette=None):
        self.mode, self.size, self._data, self._palette = mode, size, data, palette

    def tobytes(self):
        return self._data

    def getpalette(self):
        return self._palette


def test_mode_and_palette_are_part_of_a_picture():
    data = bytes(range(240)) * 10
    pictures = [
        Picture("RGB", (40, 20), data),
        Picture("HSV", (40, 20), data),
        Picture("RGB", (20, 40), data),
        Picture("L", (60, 40), data),
        Picture("P", (60, 40), data, [0, 1, 2]),
        Picture("P", (60, 40), data, [0, 1, 3]),
    ]
    assert len({keys.hash_pixels(picture) for picture in pictures}) == len(pictures)


def test_files_are_known_by_their_bytes_and_not_by_their_names(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"the same")
    two.write_bytes(b"the same")
    assert keys.hash_file(one) == keys.hash_file(two) == keys.hash_file(b"the same")
    before = keys.hash_weights([one])
    one.write_bytes(b"another")  # under the same name
    assert keys.hash_file(one) != keys.hash_file(two)
    assert keys.hash_weights([one]) != before
    assert keys.hash_weights([one, two]) != keys.hash_weights([two, one])


def test_whatever_changes_the_output_changes_the_variant():
    settings = {
        "processor": {"size": 448, "mean": (0.5, 0.5)},
        "revision": "3f2a",
        "lora": b"\1" * 32,
        "dtype": "bf16",
        "resolution": (1024, 768),
        "tenant": None,
    }
    others = [
        {"processor": {"size": 1008, "mean": (0.5, 0.5)}},
        {"processor": {"size": 448, "mean": (0.5, 0.4)}},
        {"processor": {"size": "448", "mean": (0.5, 0.5)}},
        {"processor": {"size": 448.0, "mean": (0.5, 0.5)}},
        {"revision": "3f2b"},
        {"lora": b"\2" * 32},
        {"lora": "01" * 32},
        {"lora": {"bytes": "01" * 32}},
        {"dtype": "fp8"},
        {"resolution": (768, 1024)},
        {"tenant": "a"},
        {"tenant": False},
        {"tenant": 0},
    ]
    made = [keys.variant(**settings)]
    made += [keys.variant(**{**settings, **other}) for other in others]
    assert len(set(made)) == len(made)
    assert keys.variant(**dict(reversed(settings.items()))) == made[0]
    with pytest.raises(TypeError):
        keys.variant(processor=object())


def test_entries_of_different_settings_are_never_shared(client):
    picture = keys.hash_pixels(np.zeros((4, 4, 3), np.uint8))
    names = ["lora A", "lora B", "fp8", "tall"]
    for name in names:
        client.put(Key("m", picture, keys.variant(setting=name)), np.array([names.index(name)]))
    for name in names:
        hit = client.get(Key("m", picture, keys.variant(setting=name)))
        assert hit["data"].numpy()[0] == names.index(name)
    assert client.get(Key("m", picture)) is None
    assert client.get(Key("another", picture, keys.variant(setting="fp8"))) is None


def test_another_process_finds_the_same_key():
    code = (
        "from embcache import keys; import numpy as np;"
        "print(keys.variant(a={'x': 1, 'y': b'2'}).hex(), keys.name_hash('img').hex(),"
        "keys.hash_pixels(np.zeros((2, 3), np.uint8)).hex())"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(out) == 1
