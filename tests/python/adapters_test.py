"""The engines' interfaces, by their documented contracts. tests/peers runs them against the engines
themselves."""

from __future__ import annotations

import abc
import enum
import importlib
import pickle
import sys
import types

import numpy as np
import pytest
from conftest import array, until

import embcache
from embcache.adapters import dynamo, omlx, sglang, tokenspeed


@pytest.fixture
def client(shared_daemon):
    """As engines have it: not strict."""
    with embcache.Client(shared_daemon.directory) as client:
        yield client


# --- TokenSpeed -----------------------------------------------------------------------------------


@pytest.fixture
def tokens(client, key):
    return tokenspeed.EmbeddingCache(
        client, model="tokenspeed" + key.content_hash.hex(), framework="numpy"
    )


def test_tokenspeed_pairs_and_bare_tensors(tokens):
    main, deep = array(6, 4), array(6, 12, seed=1)
    tokens.put(1, (main, deep), main.nbytes + deep.nbytes)
    tokens.put(2, (main, None), main.nbytes)
    tokens.put("img", main, main.nbytes)
    pair = tokens.get(1)
    assert isinstance(pair, tuple)
    np.testing.assert_array_equal(pair[0], main)
    np.testing.assert_array_equal(pair[1], deep)
    np.testing.assert_array_equal(tokens.get(2)[0], main)
    assert tokens.get(2)[1] is None
    np.testing.assert_array_equal(tokens.get("img"), main)
    assert tokens.get(3) is None
    assert (tokens.hits, tokens.misses, tokens.l1_hits, tokens.l2_hits) == (4, 1, 4, 0)
    assert len(tokens) == 3
    assert tokens.current_bytes >= 3 * main.nbytes + deep.nbytes
    assert 1 in tokens and 3 not in tokens
    assert (tokens.promotions, tokens.demotions) == (0, 0)


def test_tokenspeed_pop(tokens):
    tokens.put(1, array(3), 12)
    np.testing.assert_array_equal(tokens.pop(1), array(3))
    assert tokens.pop(1) is None
    assert tokens.pop(1, "default") == "default"


def test_tokenspeed_a_value_that_cannot_be_stored_ends_the_one_before(tokens):
    tokens.put(1, array(3), 12)
    tokens.put(1, np.zeros(100 << 20, np.uint8), 100 << 20)
    assert tokens.get(1) is None


def test_tokenspeed_hashes_equal_in_hex_and_as_numbers_are_one(tokens):
    tokens.put(0x0123456789ABCDEF, array(3), 12)
    assert tokens.get("0123456789abcdef") is not None


def test_tokenspeed_without_a_daemon(own_daemon):
    with embcache.Client(own_daemon.directory) as client:
        tokens = tokenspeed.EmbeddingCache(client, model="m", framework="numpy")
        own_daemon.kill()
        until(lambda: not client.connected)
        tokens.put(1, array(3), 12)
        assert tokens.get(1) is None
        assert 1 not in tokens
        assert (len(tokens), tokens.current_bytes, tokens.promotions) == (0, 0, 0)
        vision = omlx.VisionFeatureCache(client, framework="numpy")
        assert not vision.put("ab" * 32, "m", [array(3)])
        assert vision.stats == {"hits": 0, "misses": 0, "daemon": {}}
        dynamos = dynamo.MultimodalEmbeddingCache(client=client, model="m", framework="numpy")
        assert not dynamos.set("a", dynamo.CachedEmbedding(array(3)))
        assert dynamos.stats["hit_rate"] == 0.0
        store = sglang.EmbcacheStore(client)
        memory = array(4)
        assert store.batch_put(["h"], [memory.ctypes.data], [16]) == [False]
        assert store.batch_get(["h"], [memory.ctypes.data], [16]) == [False]
        assert store.batch_is_exist(["h"]) == [False]


# --- oMLX -----------------------------------------------------------------------------------------


def test_omlx_features_and_grids(client, key):
    cache = omlx.VisionFeatureCache(client, framework="numpy", variant=key.content_hash)
    many = [array(i + 1, 4, seed=i) for i in range(12)]
    assert cache.put("a" * 64, "model", many, grid=[[1, 2, 3]])
    assert cache.put("b" * 64, "model", many[3], grid=np.array([[1, 4, 6]]))
    got = cache.get("a" * 64, "model")
    assert isinstance(got, list) and len(got) == 12
    for one, other in zip(got, many):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(cache.get("b" * 64, "model"), many[3])
    assert cache.get_grid("a" * 64, "model") == [[1, 2, 3]]
    assert cache.get_grid("b" * 64, "model").tolist() == [[1, 4, 6]]
    assert cache.get("a" * 64, "another model") is None
    assert cache.get_grid("c" * 64, "model") is None
    assert (cache.stats["hits"], cache.stats["misses"]) == (2, 1)


# --- SGLang ---------------------------------------------------------------------------------------


class Pool:
    """Host memory in pages, each entry scattered over some."""

    def __init__(self, pages: int, size: int) -> None:
        self.memory = np.zeros((pages, size), np.uint8)

    def pointer(self, page: int) -> int:
        return self.memory[page].ctypes.data


@pytest.fixture
def store(client, key, monkeypatch):
    monkeypatch.setenv("SGLANG_EMBCACHE_VARIANT", key.content_hash.hex())
    return sglang.EmbcacheStore(client)


def test_sglang_scatter_lists(store):
    pool = Pool(8, 1000)
    pool.memory[1], pool.memory[3], pool.memory[4] = 1, 3, 4
    ptrs = [[pool.pointer(3), pool.pointer(1)], [pool.pointer(4)]]
    sizes = [[1000, 500], [7]]
    assert store.batch_put_from_multi_buffers(["h1", "h2"], ptrs, sizes) == [True, True]
    assert store.batch_is_exist(["h1", "nothing", "h2"]) == [True, False, True]
    to = Pool(8, 1000)
    got = store.batch_get_into_multi_buffers(
        ["h1", "nothing", "h2"],
        [[to.pointer(0), to.pointer(5)], [to.pointer(6)], [to.pointer(7)]],
        [[750, 750], [10], [7]],
    )
    assert got == [True, False, True]
    assert (to.memory[0, :750] == 3).all()
    assert (to.memory[5, :250] == 3).all() and (to.memory[5, 250:750] == 1).all()
    assert (to.memory[5, 750:] == 0).all()  # not a byte beyond
    assert (to.memory[7, :7] == 4).all() and (to.memory[7, 7:] == 0).all()
    assert (to.memory[6] == 0).all()


def test_sglang_any_other_size_is_false_and_touches_nothing(store):
    pool = Pool(2, 100)
    pool.memory[0] = 9
    for size in (99, 101):
        assert store.batch_put(["h"], [pool.pointer(0)], [100]) == [True]
        assert store.batch_get(["h"], [pool.pointer(1)], [size]) == [False]
        assert (pool.memory[1] == 0).all()
    assert store.batch_put(["h"], [pool.pointer(0)], [100]) == [True]
    assert store.batch_get(["h"], [pool.pointer(1)], [100]) == [True]
    assert (pool.memory[1] == 9).all()
    assert store.batch_put(["empty"], [pool.pointer(0)], [0]) == [False]


def test_sglang_base_class_and_variant(client, monkeypatch):
    module = types.ModuleType("sglang.srt.mem_cache.embedding_store")
    calls = "batch_get batch_put batch_get_into_multi_buffers batch_put_from_multi_buffers"
    methods = {
        name: abc.abstractmethod(lambda self, hashes, ptrs, sizes: None) for name in calls.split()
    }
    methods["batch_is_exist"] = abc.abstractmethod(lambda self, hashes: None)
    module.EmbeddingStore = abc.ABCMeta("EmbeddingStore", (), methods)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for parent in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    try:
        loaded = importlib.reload(sglang)
        assert issubclass(loaded.EmbcacheStore, module.EmbeddingStore)
        monkeypatch.setenv("EMBCACHE_SOCKET_DIR", client._connection.options.directory)
        loaded.EmbcacheStore()._client.close()  # SGLang gives no arguments
        one = loaded.EmbcacheStore(client)
        monkeypatch.setenv("SGLANG_EMBCACHE_VARIANT", "another model")
        assert one._key("h") != loaded.EmbcacheStore(client)._key("h")
    finally:
        monkeypatch.undo()
        importlib.reload(sglang)


# --- Dynamo ---------------------------------------------------------------------------------------


def test_dynamo_get_set_and_delta(client, key):
    cache = dynamo.MultimodalEmbeddingCache(
        1 << 30, client=client, model="dynamo" + key.content_hash.hex(), framework="numpy"
    )
    entry = dynamo.CachedEmbedding(
        array(8, 4), image_grid_thw=[[1, 4, 8]], video_timestamps=[0.5, 1.0]
    )
    assert cache.get("a") is None
    assert cache.set("a", entry) is True
    got = cache.get("a")
    np.testing.assert_array_equal(got.tensor, entry.tensor)
    assert (got.image_grid_thw, got.video_timestamps) == ([[1, 4, 8]], [0.5, 1.0])
    assert got.video_grid_thw is None
    hexed = "ab" * 32
    assert cache.set_with_delta(hexed, entry) == dynamo.CacheMutation(True, [hexed], [])
    assert cache.set_with_delta(hexed, entry) == dynamo.CacheMutation(True, [], [])
    too_large = dynamo.CachedEmbedding(np.zeros(100 << 20, np.uint8))
    assert cache.set_with_delta("large", too_large).stored is False
    assert sorted(cache.keys()) == sorted(["a", hexed])
    stats = cache.stats
    assert (stats["hits"], stats["misses"], stats["hit_rate"]) == (1, 1, 0.5)
    assert stats["entries"] >= 2 and 0 < stats["utilization"] < 1


# --- vLLM -----------------------------------------------------------------------------------------


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base(abc.ABC):
    """ECConnectorBase as far as its contract goes."""

    def __init__(self, vllm_config, role):
        self._vllm_config = vllm_config
        self._role = role
        self._is_producer = vllm_config.ec_transfer_config.is_ec_producer

    @property
    def is_producer(self):
        return self._is_producer

    def _get_connector_metadata(self):
        return self.metadata

    @abc.abstractmethod
    def start_load_caches(self, encoder_cache, **kwargs): ...

    @abc.abstractmethod
    def save_caches(self, encoder_cache, mm_hash, **kwargs): ...

    @abc.abstractmethod
    def has_cache_item(self, identifier): ...

    def ensure_cache_available(self, request, num_computed_tokens):
        return True

    @abc.abstractmethod
    def update_state_after_alloc(self, request, index): ...

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output): ...

    def request_finished(self, request):
        return False, None

    def shutdown(self):
        return None


def fake_vllm(monkeypatch, base):
    name = "vllm.distributed.ec_transfer.ec_connector.base"
    for part in range(1, 5):
        parent = ".".join(name.split(".")[:part])
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    module = types.ModuleType(name)
    module.ECConnectorBase, module.ECConnectorRole = base, Role
    module.ECConnectorMetadata = type("ECConnectorMetadata", (), {})
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "embcache.adapters.vllm", raising=False)
    return importlib.import_module("embcache.adapters.vllm")


@pytest.fixture
def vllm(monkeypatch, request):
    module = fake_vllm(monkeypatch, Base)
    # Here without torch.
    from embcache.adapters import _frameworks

    numpy = _frameworks.converter("numpy")
    monkeypatch.setattr(module._frameworks, "converter", lambda framework, device: numpy)
    yield module
    sys.modules.pop("embcache.adapters.vllm", None)


def vllm_config(directory, variant, producer=True):
    transfer = types.SimpleNamespace(
        is_ec_producer=producer,
        is_ec_consumer=True,
        ec_connector_extra_config={"socket_dir": directory, "variant": variant},
    )
    model = types.SimpleNamespace(model="vllm model", revision=None, dtype="bfloat16")
    return types.SimpleNamespace(ec_transfer_config=transfer, model_config=model)


def request_of(name, *identifiers):
    features = [types.SimpleNamespace(identifier=identifier) for identifier in identifiers]
    return types.SimpleNamespace(request_id=name, mm_features=features)


@pytest.fixture
def connectors(vllm, own_daemon):
    config = vllm_config(own_daemon.directory, "1")
    made = [vllm.EmbcacheECConnector(config, role) for role in (Role.SCHEDULER, Role.WORKER)]
    yield made
    for connector in made:
        connector.shutdown()


def test_vllm_what_a_worker_saves_the_next_step_loads(connectors, own_daemon):
    scheduler, worker = connectors
    request = request_of("r1", "hash-1", "hash-2")
    assert not scheduler.has_cache_item("hash-1")
    worker.save_caches({"hash-1": array(5, 3)}, "hash-1")
    until(lambda: scheduler.ensure_cache_available(request, 0))
    assert scheduler.has_cache_item("hash-1")
    assert not scheduler.has_cache_item("hash-2")
    scheduler.update_state_after_alloc(request, 0)
    scheduler.update_state_after_alloc(request, 1)
    metadata = pickle.loads(pickle.dumps(scheduler.build_connector_meta(None)))
    assert metadata.loads == ["hash-1"]
    assert scheduler.build_connector_meta(None).loads == []
    with embcache.Client(own_daemon.directory, strict=True) as other:
        # Gone or not by now, it was promised.
        other.delete(worker._key("hash-1"))
        worker.metadata = metadata
        cache = {}
        worker.start_load_caches(cache)
        np.testing.assert_array_equal(cache["hash-1"], array(5, 3))
        cache.clear()
        until(lambda: other.stats()["leases"] <= 1)  # the token's, until its time ends


def test_vllm_a_load_leaves_what_the_engine_has(connectors):
    scheduler, worker = connectors
    worker.save_caches({"h": array(2)}, "h")
    assert scheduler.has_cache_item("h")
    scheduler.update_state_after_alloc(request_of("r", "h"), 0)
    worker.metadata = scheduler.build_connector_meta(None)
    cache = {"h": "the engine's"}
    worker.start_load_caches(cache)
    assert cache == {"h": "the engine's"}


def test_vllm_without_a_daemon_everything_is_encoded(connectors, own_daemon):
    scheduler, worker = connectors
    own_daemon.kill()
    until(lambda: not scheduler._client.connected and not worker._client.connected)
    request = request_of("r", "h")
    assert scheduler.ensure_cache_available(request, 0)
    assert not scheduler.has_cache_item("h")
    scheduler.update_state_after_alloc(request, 0)
    assert scheduler.build_connector_meta(None).loads == []
    worker.save_caches({"h": array(2)}, "h")
    assert scheduler.request_finished(request) == (False, None)


def test_vllm_only_producers_save_and_variants_differ(vllm, own_daemon):
    consumer = vllm.EmbcacheECConnector(
        vllm_config(own_daemon.directory, "1", producer=False), Role.WORKER
    )
    consumer.save_caches({"h": array(2)}, "h")
    assert not consumer.has_cache_item("h")
    other = vllm.EmbcacheECConnector(vllm_config(own_daemon.directory, "2"), Role.WORKER)
    other.save_caches({"h": array(2)}, "h")
    assert other.has_cache_item("h")
    assert not consumer.has_cache_item("h")
    consumer.shutdown()
    other.shutdown()
    config = vllm_config(own_daemon.directory, "1")
    config.ec_transfer_config.ec_connector_extra_config["socket_dri"] = "typo"
    with pytest.raises(ValueError, match="socket_dri"):
        vllm.EmbcacheECConnector(config, Role.WORKER)


def test_vllm_another_signature_is_said_at_once(monkeypatch):
    class Later(Base):
        @abc.abstractmethod
        def has_cache_item(self, identifier, request): ...

    with pytest.raises(TypeError, match=r"has_cache_item takes .*request"):
        fake_vllm(monkeypatch, Later)

    class More(Base):
        @abc.abstractmethod
        def one_more(self): ...

    with pytest.raises(TypeError, match="one_more"):
        fake_vllm(monkeypatch, More)
    sys.modules.pop("embcache.adapters.vllm", None)


def test_importing_the_package_imports_no_engine():
    assert not {"torch", "mlx", "vllm", "sglang", "jax"} & set(sys.modules)
