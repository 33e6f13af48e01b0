"""Hits without a call, by Python."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import embcache
from conftest import array, until
from embcache._fast_index import library

pytestmark = pytest.mark.skipif(library is None, reason="libembcache_fast was not built")


def fast_hits(client: embcache.Client) -> int:
    return int(client.stats()["fast_hits"])


def test_a_hit_takes_no_call_and_says_all_that_one_by_call_says(client, key, shared_daemon):
    features, deep = array(5, 7), array(3, seed=1)
    client.put(
        key,
        {"features": features, "deep": deep, "none": None},
        metadata={"grid": b"1 2 3"},
        encode_cost=0.25,
    )
    before = fast_hits(client)
    hit = client.get(key)
    assert fast_hits(client) == before + 1
    np.testing.assert_array_equal(hit["features"].numpy(), features)
    np.testing.assert_array_equal(hit["deep"].numpy(), deep)
    assert hit.tensors["none"] is None
    assert hit.metadata == {"grid": b"1 2 3"}
    assert hit.encode_cost == 0.25
    assert hit.tier is embcache.Tier.L1
    assert hit.valid
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        other._connection.session().fast = None
        by_call = other.get(key)
        assert fast_hits(client) == before + 1
        assert (by_call.generation, by_call.nbytes) == (hit.generation, hit.nbytes)
        assert by_call.metadata == hit.metadata


def test_what_is_put_anew_is_served_anew_and_the_old_bytes_stay(client, key):
    client.put(key, {"x": array(100, seed=1)})
    old = client.get(key)["x"].numpy()
    client.put(key, {"x": array(100, seed=2)})
    np.testing.assert_array_equal(client.get(key)["x"].numpy(), array(100, seed=2))
    np.testing.assert_array_equal(old, array(100, seed=1))
    client.delete(key)
    assert client.get(key) is None
    np.testing.assert_array_equal(old, array(100, seed=1))


def test_a_view_holds_the_pin_until_it_is_gone(client, key):
    client.put(key, {"x": array(100)})
    held = int(client.stats()["leases"])
    view = client.get(key)["x"].numpy()[10:]
    assert client.stats()["leases"] == held + 1
    del view
    gc.collect()
    assert client.stats()["leases"] == held


def test_hits_are_counted_exactly(client, key):
    client.put(key, {"x": array(100)})
    before = client.stats()
    for _ in range(100):
        assert client.get(key) is not None
    after = client.stats()
    assert after["gets"] - before["gets"] == 100
    assert after["hits"] - before["hits"] == 100
    assert client.counters.hits == 100


def test_what_does_not_meet_the_expectation_is_a_miss_once(client, key):
    client.put(key, {"x": array(4, 5)})
    before = client.stats()
    expect = embcache.Expect("x", embcache.DType.F32, (4, 5), rows=4, nbytes=80)
    assert client.get(key, expect) is not None
    assert client.get(key, embcache.Expect(rows=5)) is None
    after = client.stats()
    assert after["gets"] - before["gets"] == 2
    assert after["hits"] - before["hits"] == 1
    assert after["mismatches"] - before["mismatches"] == 1
    assert client.contains(key) is None


def test_a_batch_takes_calls_only_for_what_is_not_there(client, key):
    client.put(key, {"x": array(4)})
    before = fast_hits(client)
    absent = embcache.Key("m", b"not there")
    hits = client.get_many([absent, key, absent, key])
    assert [hit is not None for hit in hits] == [False, True, False, True]
    assert fast_hits(client) == before + 2


def test_a_hit_is_shared(client, key, shared_daemon):
    client.put(key, {"x": array(4)})
    with embcache.Client(shared_daemon.directory, strict=True) as other:
        hit = client.get(key)
        token = client.share([hit])
        del hit
        (adopted,) = other.adopt(token)
        client.delete(key)
        np.testing.assert_array_equal(adopted["x"].numpy(), array(4))


def test_a_hit_of_an_entry_replaced_since_is_not_shared(client, key):
    client.put(key, {"x": array(4)})
    hit = client.get(key)
    client.put(key, {"x": array(5)})
    with pytest.raises(embcache.CacheError, match="replaced"):
        client.share([hit])


def test_a_key_that_was_used_is_copied_and_pickled_like_any_other(client, key):
    client.put(key, {"x": array(4)})
    assert client.get(key) is not None
    assert pickle.loads(pickle.dumps(key)) == key
    assert copy.deepcopy(key) == key


def test_threads_hit_at_once(client, key):
    client.put(key, {"x": array(1000)})
    wanted = array(1000)
    wrong = []

    def work() -> None:
        for _ in range(300):
            if not np.array_equal(client.get(key)["x"].numpy(), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_hits_than_there_are_pins_are_served(client, key):
    client.put(key, {"x": array(4)})
    hits = [client.get(key) for _ in range(1500)]
    assert all(hit is not None for hit in hits)


def test_a_fork_leaves_its_parents_pins_alone(client, key):
    client.put(key, {"x": array(4)})
    hit = client.get(key)
    held = client.stats()["leases"]
    child = os.fork()
    if child == 0:
        del hit
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.stats()["leases"] == held
    np.testing.assert_array_equal(hit["x"].numpy(), array(4))


def test_the_pins_of_a_lost_daemon_do_not_keep_the_client_from_the_next(own_daemon):
    key = embcache.Key("m", b"12345678")
    with embcache.Client(own_daemon.directory) as client:
        client.put(key, {"x": array(4)})
        hit = client.get(key)
        own_daemon.kill()
        own_daemon.start()
        until(lambda: client.connected)
        assert not hit.valid
        np.testing.assert_array_equal(hit["x"].numpy(), array(4))
        assert client.put(key, {"x": array(4)})
        assert client.get(key).valid


def test_without_the_library_every_hit_is_a_call(shared_daemon):
    program = (
        "import sys, numpy, embcache\n"
        "client = embcache.Client(sys.argv[1], strict=True)\n"
        "key = embcache.Key('m', b'no library')\n"
        "client.put(key, {'x': numpy.ones(3)})\n"
        "before = client.stats()['fast_hits']\n"
        "assert client.get(key)['x'].numpy().sum() == 3\n"
        "assert client.stats()['fast_hits'] == before\n"
    )
    environment = {**os.environ, "LIBEMBCACHE_FAST": "off"}
    subprocess.run(
        [sys.executable, "-c", program, shared_daemon.directory], check=True, env=environment
    )
