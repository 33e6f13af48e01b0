"""The adapters inside the engines they are for, as far as these run without a GPU; see tests/peers.

What the engines call is called by their own code or checked against their own base classes; a model
is not run.
"""

from __future__ import annotations

import os
import pickle
import types

import numpy as np
import pytest
from conftest import until

import embcache

PEERS = os.environ.get("TEST_PEERS", "").split()
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours

needs = {
    name: pytest.mark.skipif(name not in PEERS, reason=f"tests/peers {name} runs it")
    for name in ("vllm", "sglang", "dynamo")
}


# --- vLLM -----------------------------------------------------------------------------------------


def vllm_config(directory, role="ec_both", **extra):
    from vllm.config import ECTransferConfig

    return types.SimpleNamespace(
        ec_transfer_config=ECTransferConfig(
            ec_connector="EmbcacheECConnector",
            ec_connector_module_path="embcache.adapters.vllm",
            ec_role=role,
            ec_connector_extra_config={"socket_dir": directory, **extra},
        ),
        model_config=types.SimpleNamespace(model="m", revision="r", dtype="bfloat16"),
        device_config=types.SimpleNamespace(device="cpu"),
    )


@pytest.fixture
def connectors(own_daemon):
    """A scheduler's and a worker's, made by vLLM's own factory from its own configuration."""
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    config = vllm_config(own_daemon.directory)
    made = [
        ECConnectorFactory.create_connector(config, role)
        for role in (ECConnectorRole.SCHEDULER, ECConnectorRole.WORKER)
    ]
    yield made
    for connector in made:
        connector.shutdown()


def request_of(name, *identifiers):
    features = [types.SimpleNamespace(identifier=identifier) for identifier in identifiers]
    return types.SimpleNamespace(request_id=name, mm_features=features)


def step(scheduler, worker, request, cache):
    """One engine step as vLLM drives it; returns what the encoder has to encode."""
    until(lambda: scheduler.ensure_cache_available(request, 0))
    to_encode = []
    for index, feature in enumerate(request.mm_features):
        if not scheduler.has_cache_item(feature.identifier):
            to_encode.append(feature.identifier)
        scheduler.update_state_after_alloc(request, index)
    metadata = pickle.loads(pickle.dumps(scheduler.build_connector_meta(None)))
    worker.bind_connector_metadata(metadata)
    worker.start_load_caches(cache)
    worker.get_finished(set())
    worker.clear_connector_metadata()
    return to_encode


@needs["vllm"]
def test_vllm_an_image_is_encoded_in_the_first_step_only(connectors, own_daemon):
    import torch

    scheduler, worker = connectors
    outputs = {
        "image-1": torch.randn(256, 64).to(torch.bfloat16),
        "image-2": torch.randn(275, 64).to(torch.bfloat16),
    }
    cache = {}
    assert step(scheduler, worker, request_of("r1", *outputs), cache) == list(outputs)
    for name, output in outputs.items():
        cache[name] = output
        worker.save_caches(cache, name)
    cache.clear()  # as the engine does when a request has ended
    assert step(scheduler, worker, request_of("r2", *outputs), cache) == []
    assert set(cache) == set(outputs)
    for name, output in outputs.items():
        assert cache[name].dtype is torch.bfloat16 and torch.equal(cache[name], output)
    scheduler.request_finished(request_of("r2"))
    cache.clear()
    with embcache.Client(own_daemon.directory, strict=True) as observer:
        # What the step held is given back, but for the hand-over's token, which ends by itself.
        until(lambda: observer.stats()["leases"] == 0)


@needs["vllm"]
def test_vllm_another_processor_or_revision_shares_nothing(own_daemon):
    import torch
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    def make(role="ec_both", **extra):
        config = vllm_config(own_daemon.directory, role, **extra)
        return ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)

    one, other, consumer = make(variant="1"), make(variant="2"), make("ec_consumer", variant="1")
    one.save_caches({"h": torch.ones(2, 2)}, "h")
    assert one.has_cache_item("h") and consumer.has_cache_item("h")
    assert not other.has_cache_item("h")
    consumer.save_caches({"g": torch.ones(2, 2)}, "g")
    assert not one.has_cache_item("g")
    for connector in (one, other, consumer):
        connector.shutdown()


@needs["vllm"]
def test_vllm_the_engine_goes_on_without_a_daemon(connectors, own_daemon):
    import torch

    scheduler, worker = connectors
    own_daemon.kill()
    until(lambda: not scheduler._client.connected and not worker._client.connected)
    cache = {}
    assert step(scheduler, worker, request_of("r", "h"), cache) == ["h"]
    worker.save_caches({"h": torch.ones(2)}, "h")
    assert cache == {}


# --- SGLang ---------------------------------------------------------------------------------------


@needs["sglang"]
def test_sglang_its_factory_makes_the_store_and_its_pool_is_filled(own_daemon, monkeypatch):
    import torch
    from sglang.srt.mem_cache.embedding_store import EmbeddingStore, EmbeddingStoreFactory

    from embcache.adapters import _signatures, sglang

    monkeypatch.setenv("EMBCACHE_SOCKET_DIR", own_daemon.directory)
    EmbeddingStoreFactory.register_backend("embcache", "embcache.adapters.sglang", "EmbcacheStore")
    store = EmbeddingStoreFactory.create_backend("embcache")
    assert isinstance(store, EmbeddingStore)
    _signatures.check(sglang.EmbcacheStore, EmbeddingStore)

    pool = torch.zeros(8, 1 << 18, dtype=torch.uint8)  # pages, as SGLang's pinned pool has them
    store.register_buffer(pool)
    pool[2], pool[5] = 2, 5
    page = [pool[index].data_ptr() for index in range(8)]
    sizes = [[1 << 18, 1000]]
    assert store.batch_put_from_multi_buffers(["h"], [[page[2], page[5]]], sizes) == [True]
    got = store.batch_get_into_multi_buffers(["h", "x"], [[page[0], page[1]], [page[3]]],
                                             [*sizes, [10]])
    assert got == [True, False]
    assert (pool[0] == 2).all() and (pool[1, :1000] == 5).all() and (pool[1, 1000:] == 0).all()
    assert store.batch_is_exist(["h", "x"]) == [True, False]
    store._client.close()


# --- Dynamo ---------------------------------------------------------------------------------------


@needs["dynamo"]
def test_dynamo_has_no_method_that_ours_lacks(own_daemon):
    from dynamo.common.memory import multimodal_embedding_cache_manager as theirs

    from embcache.adapters import dynamo

    manager, ours = theirs.MultimodalEmbeddingCacheManager, dynamo.MultimodalEmbeddingCache
    public = [name for name in vars(manager) if not name.startswith("_")]
    assert [name for name in public if not hasattr(ours, name)] == []


@needs["dynamo"]
def test_dynamo_its_own_types_go_in_and_come_out(own_daemon):
    import torch
    from dynamo.common.memory import multimodal_embedding_cache_manager as theirs

    from embcache.adapters import dynamo

    with embcache.Client(own_daemon.directory, strict=True) as client:
        cache = dynamo.MultimodalEmbeddingCache(client=client, model="m")
        reference = theirs.MultimodalEmbeddingCacheManager(1 << 20)
        entry = theirs.CachedEmbedding(
            torch.randn(1, 16, 8).to(torch.bfloat16), image_grid_thw=[[1, 4, 4]]
        )
        key = "ab" * 32
        for one in (cache, reference):
            assert one.get(key) is None
            assert one.make_room_for(key, entry.tensor.nbytes) == theirs.CacheReservation(True, [])
            assert one.set_with_delta(key, entry) == theirs.CacheMutation(True, [key], [])
            assert one.keys() == [key]
            got = one.get(key)
            assert isinstance(got, theirs.CachedEmbedding)
            assert torch.equal(got.tensor, entry.tensor)
            assert np.array_equal(got.image_grid_thw, entry.image_grid_thw)
            assert not one.make_room_for("cd" * 32, 1 << 40).admitted
        assert set(cache.stats) == set(reference.stats)
        assert cache.stats["hits"] == reference.stats["hits"] == 1
