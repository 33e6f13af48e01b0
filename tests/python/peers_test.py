"""The client with frameworks that tests/python/run does not install; see tests/peers."""

from __future__ import annotations

import gc
import importlib
import os

import numpy as np
import pytest
from conftest import until

import embcache
from embcache import DType
from embcache.adapters import omlx, tokenspeed

PEERS = os.environ.get("TEST_PEERS", "").split()
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours

needs = {
    name: pytest.mark.skipif(name not in PEERS, reason=f"tests/peers {name} runs it")
    for name in ("jax", "mlx", "torch")
}


@pytest.fixture
def own_client(own_daemon):
    with embcache.Client(own_daemon.directory, strict=True) as client:
        yield client


def leases(daemon):
    with embcache.Client(daemon.directory, role="reader", strict=True) as observer:
        return observer.stats()["leases"]


# --- torch ----------------------------------------------------------------------------------------

TORCH = {
    "bool": DType.BOOL,
    "uint8": DType.U8,
    "int64": DType.I64,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "complex64": DType.C64,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
}


@needs["torch"]
@pytest.mark.parametrize("name", TORCH)
def test_torch_every_dtype_goes_in_and_comes_out_without_a_copy(own_client, key, name):
    from embcache.adapters import _frameworks

    torch = importlib.import_module("torch")
    x = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
    own_client.put(key, {"x": _frameworks.source(x)})
    view = own_client.get(key)["x"]
    assert view.dtype is TORCH[name]
    y = _frameworks.to_torch(view)
    assert y.dtype is x.dtype and y.shape == x.shape
    assert y.data_ptr() == view.raw().ctypes.data
    assert (y.reshape(-1).view(torch.uint8) == x.reshape(-1).view(torch.uint8)).all()


@needs["torch"]
def test_torch_from_dlpack_takes_bfloat16_in_place_and_holds_the_lease(own_client, own_daemon, key):
    torch = importlib.import_module("torch")
    x = torch.randn(8, 4).to(torch.bfloat16)
    own_client.put(key, {"x": x, "t": x.T})  # by __dlpack__, also strided
    hit = own_client.get(key)
    y = torch.from_dlpack(hit["x"])[2:]
    assert torch.equal(y, x[2:]) and torch.equal(torch.from_dlpack(hit["t"]), x.T)
    hit.release()
    gc.collect()
    assert leases(own_daemon) == 1
    del y
    until(lambda: leases(own_daemon) == 0)


@needs["torch"]
def test_torch_pairs_of_an_encode_worker(own_client):
    torch = importlib.import_module("torch")
    cache = tokenspeed.EmbeddingCache(own_client, model="m")
    main, deep = torch.randn(6, 4, requires_grad=True), torch.randn(6, 12).to(torch.bfloat16)
    cache.put(1, (main, deep), 0)
    got = cache.get(1)
    assert torch.equal(got[0], main) and torch.equal(got[1], deep)
    assert got[1].dtype is torch.bfloat16


# --- JAX ------------------------------------------------------------------------------------------


@needs["jax"]
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int32"])
def test_jax_arrays_go_in_and_come_out(own_client, own_daemon, key, name):
    jnp = importlib.import_module("jax.numpy")
    x = jnp.arange(24).reshape(4, 6).astype(name)
    own_client.put(key, {"x": x})
    hit = own_client.get(key)
    y = jnp.asarray(hit["x"].numpy())
    assert y.dtype == x.dtype and (np.asarray(y) == np.asarray(x)).all()


@needs["jax"]
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_jax_from_dlpack_holds_the_lease(own_client, own_daemon, key, name):
    jnp = importlib.import_module("jax.numpy")
    x = jnp.arange(24).reshape(4, 6).astype(name)
    own_client.put(key, {"x": x})
    hit = own_client.get(key)
    y = jnp.from_dlpack(hit["x"])
    assert y.dtype == x.dtype
    hit.release()
    gc.collect()
    assert leases(own_daemon) == 1
    assert (y == x).all()
    del y
    until(lambda: gc.collect() >= 0 and leases(own_daemon) == 0)


# --- MLX ------------------------------------------------------------------------------------------


@needs["mlx"]
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int32", "bool_", "uint8"])
def test_mlx_features_and_grids(own_client, name):
    mx = importlib.import_module("mlx.core")
    cache = omlx.VisionFeatureCache(own_client)
    features = [mx.arange(12).reshape(i + 1, -1).astype(getattr(mx, name)) for i in (0, 1, 2)]
    grid = mx.array([[1, 4, 6]])
    assert cache.put("ab" * 32, "m", features, grid=grid)
    got = cache.get("ab" * 32, "m")
    assert [one.shape for one in got] == [one.shape for one in features]
    assert all(one.dtype == other.dtype for one, other in zip(got, features))
    assert all(mx.array_equal(one, other) for one, other in zip(got, features))
    assert mx.array_equal(cache.get_grid("ab" * 32, "m"), grid)
    assert cache.put("cd" * 32, "m", features[1].T)  # not contiguous
    assert mx.array_equal(cache.get("cd" * 32, "m"), features[1].T)
