"""What every call does."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import Daemon, array, until

import embcache
from embcache import DType, Expect, Key, TensorSpec, Tier


def test_a_put_is_a_hit_with_the_same_bytes_and_metadata(client, key):
    x = array(7, 5)
    assert client.get(key) is None
    assert client.put(key, {"x": x}, metadata={"grid": b"\x01\xff"}, encode_cost=0.25)
    hit = client.get(key)
    np.testing.assert_array_equal(hit["x"].numpy(), x)
    assert hit.metadata == {"grid": b"\x01\xff"}
    assert hit.encode_cost == 0.25
    assert (hit.key, hit.tier, hit.valid) == (key, Tier.L1, True)


def test_an_absent_tensor_is_none(client, key):
    client.put(key, {"main": array(3), "deepstack": None})
    hit = client.get(key)
    assert list(hit.tensors) == ["main", "deepstack"]
    assert hit.tensors["deepstack"] is None
    with pytest.raises(KeyError):
        hit["deepstack"]


@pytest.mark.parametrize("dtype", "bool u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8".split())
def test_every_numpy_type_comes_back(client, key, dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    client.put(key, x)
    got = client.get(key)["data"].numpy()
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x)


def test_strided_arrays_and_scalars_are_stored_as_their_elements(client, key):
    x = array(6, 8)
    client.put(key, {"t": x.T, "s": x[::2, ::3], "n": x[::-1], "scalar": x[0, 0]})
    hit = client.get(key)
    np.testing.assert_array_equal(hit["t"].numpy(), x.T)
    np.testing.assert_array_equal(hit["s"].numpy(), x[::2, ::3])
    np.testing.assert_array_equal(hit["n"].numpy(), x[::-1])
    assert hit["scalar"].numpy() == x[0, 0]


def test_packed_elements_are_given_and_shown_as_bytes(client, key):
    client.put(key, {"q": (TensorSpec(DType.F4, (4, 2)), b"\x12\x34\x56\x78")})
    view = client.get(key)["q"]
    assert (view.dtype, view.shape, view.nbytes) == (DType.F4, (4, 2), 4)
    assert view.raw().tobytes() == b"\x12\x34\x56\x78"
    with pytest.raises(TypeError, match="raw"):
        view.numpy()


def test_get_many_answers_in_order(client, key):
    keys = [Key(key.model, key.content_hash, bytes([i])) for i in range(5)]
    for i in (1, 3):
        client.put(keys[i], np.full(4, i))
    hits = client.get_many(keys)
    assert [hit is not None for hit in hits] == [False, True, False, True, False]
    assert hits[3]["data"].numpy()[0] == 3
    assert client.contains_many(keys) == [None, Tier.L1, None, Tier.L1, None]


def test_an_entry_that_is_not_as_expected_is_a_miss_and_gone(client, key):
    client.put(key, array(256, 8))
    assert client.get(key, Expect(rows=256, dtype=DType.F32)) is not None
    assert client.get(key, Expect(rows=275)) is None
    assert client.get(key) is None


def test_reserve_commits_at_the_end_of_the_block(client, key):
    with client.reserve(key, {"x": TensorSpec("f4", (2, 3))}, metadata={"a": "b"}) as entry:
        entry["x"].numpy()[:] = 5
        assert client.get(key) is None
    assert entry.stored
    assert client.get(key)["x"].numpy().tolist() == [[5.0] * 3] * 2


def test_reserve_aborts_on_an_exception(client, key):
    with pytest.raises(ZeroDivisionError):
        with client.reserve(key, {"x": TensorSpec("f4", (2, 3))}) as entry:
            1 / 0
    assert not entry.stored
    assert client.get(key) is None
    until(lambda: client.stats()["reservations"] == 0)  # those of tests before it end by themselves


def test_pop_takes_the_entry_out(client, key):
    client.put(key, array(4))
    hit = client.pop(key)
    assert client.contains(key) is None
    assert hit["data"].numpy().shape == (4,)
    assert client.pop(key) is None


def test_delete_says_whether_there_was_one(client, key):
    client.put(key, array(4))
    assert client.delete(key) is True
    assert client.delete(key) is False


def test_advancing_the_epoch_ends_the_entries_of_one_model(client, key):
    other = Key("another model", key.content_hash)
    mine = Key("epoch model", key.content_hash)
    client.put(other, array(4))
    client.put(mine, array(4))
    client.advance_epoch("epoch model")
    assert client.get(mine) is None
    assert client.get(other) is not None


def test_ttl_ends_an_entry(client, key):
    client.put(key, array(4), ttl=0.001)
    until(lambda: client.get(key) is None)
    with pytest.raises(ValueError, match="ttl"):
        client.put(key, array(4), ttl=0)


def test_list_and_stats(client, key):
    for i in range(3):
        client.put(Key("listed", key.content_hash, bytes([i])), array(4), encode_cost=0.5)
    listed = list(client.list("listed"))
    assert [entry.key.variant for entry in listed] == [b"\0", b"\1", b"\2"]
    assert listed[0].nbytes == 16 and listed[0].encode_cost == 0.5
    stats = client.stats(per_model=True)
    assert stats["gets"] == stats["hits"] + stats["misses"]
    assert {"listed"} <= {model["model"] for model in stats["models"]}
    assert stats["tiers"][0]["tier"] == "L1"


def test_shared_hits_are_leases_of_the_adopter(client, shared_daemon, key):
    client.put(key, array(4))
    hit = client.get(key)
    with embcache.Client(shared_daemon.directory, role="reader", strict=True) as other:
        token = client.share([hit])
        hit.release()
        (adopted,) = other.adopt(token)
        np.testing.assert_array_equal(adopted["data"].numpy(), array(4))


def test_a_reader_cannot_put_nor_write(shared_daemon, client, key):
    client.put(key, array(4))
    with embcache.Client(shared_daemon.directory, role="reader") as reader:
        with pytest.raises(embcache.CacheError, match="reader"):
            reader.put(key, array(4))
        assert not reader.get(key)["data"].numpy().flags.writeable


def test_wrong_arguments_are_raised_without_strict(shared_daemon, key):
    with embcache.Client(shared_daemon.directory) as client:
        with pytest.raises(ValueError, match="not one that entries have"):
            client.put(key, np.array(["text"]))
        with pytest.raises(ValueError, match="dimension"):
            client.put(key, np.zeros((0, 4), np.float32))
        with pytest.raises(ValueError, match="name"):
            client.put(key, {"x" * 200: array(4)})


def test_an_entry_too_large_is_not_stored(shared_daemon, key):
    with embcache.Client(shared_daemon.directory) as client:
        assert client.put(key, np.zeros(100 << 20, np.uint8)) is False
        assert client.counters.failed_puts == 1


def test_pins_given_back_make_room_for_the_next_get(client, key):
    # Twice as much as one session may pin, one after the other.
    x = np.zeros(3 << 20, np.uint8)
    client.put(key, x)
    for _ in range(30):
        assert client.get(key)["data"].numpy()[0] == 0


def test_pins_given_back_make_room_for_the_next_batch(client, key):
    keys = [Key(key.model, key.content_hash, bytes([i])) for i in range(4)]
    for k in keys:
        client.put(k, np.zeros(5 << 20, np.uint8))  # together more than half of what may be pinned
    for _ in range(10):
        assert all(hit is not None for hit in client.get_many(keys))
    # Held hits are not given back.
    held = [client.get_many(keys), client.get_many(keys[:2])]
    with pytest.raises(embcache.CacheError, match="RESOURCE_EXHAUSTED"):
        client.get(keys[0])
    del held


def test_many_threads_share_a_client(client, key):
    keys = [Key(key.model, key.content_hash, bytes([i])) for i in range(8)]
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            i = int(rng.integers(len(keys)))
            if rng.random() < 0.3:
                client.put(keys[i], np.full(1000, i, np.int32))
            hit = client.get(keys[i])
            if hit is not None and not (hit["data"].numpy() == i).all():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert client.counters.errors == 0


def test_a_process_that_just_ends_does_so_quietly(shared_daemon: Daemon, key):
    code = (
        "import embcache, numpy, sys; c = embcache.Client(sys.argv[1]);"
        "k = embcache.Key.of('m', 99); c.put(k, numpy.zeros(5)); a = c.get(k)['data'].numpy()"
    )
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, shared_daemon.directory],
        capture_output=True,
        timeout=30,
    )
    assert (run.returncode, run.stderr) == (0, b"")


def test_the_generated_modules_are_those_of_the_protocol(tmp_path):
    root = pathlib.Path(embcache.__file__).parent.parent
    try:
        version = subprocess.run(["protoc", "--version"], capture_output=True).stdout
    except FileNotFoundError:
        version = b""
    if version.strip() != b"libprotoc 3.21.12":
        pytest.skip("needs protoc 3.21.12")
    subprocess.run([root / "generate", tmp_path], check=True)
    made = {path.name: path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    assert made == {name: (root / "embcache/v1" / name).read_text() for name in made}
    assert len(made) == 6
