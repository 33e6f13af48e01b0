"""Client of embcached, the embedding cache.

    import embcache

    client = embcache.Client()
    key = embcache.Key.of("qwen2.5-vl-7b", embcache.keys.hash_pixels(image))
    hit = client.get(key)
    if hit is None:
        client.put(key, {"embeddings": encode(image)})
    else:
        embeddings = hit["embeddings"].numpy()  # no copy; pinned as long as the array lives

The asyncio twin is embcache.aio.Client; embcache.adapters has the interfaces of engines.
"""

from embcache import keys
from embcache._base import default_socket_dir
from embcache.client import Claim, Client, Reservation
from embcache.cuda import CudaTensorView
from embcache.dtypes import DType
from embcache.errors import CacheError, InvalidArgument, Unavailable
from embcache.events import Event, TierOccupancy
from embcache.hit import Counters, Expect, Found, Hit, ListedEntry, Pending, Tier
from embcache.keys import Key
from embcache.tensors import TensorSpec, TensorView

__all__ = [
    "CacheError",
    "Claim",
    "Client",
    "Counters",
    "CudaTensorView",
    "DType",
    "Event",
    "Expect",
    "Found",
    "Hit",
    "InvalidArgument",
    "Key",
    "ListedEntry",
    "Pending",
    "Reservation",
    "TensorSpec",
    "TensorView",
    "Tier",
    "TierOccupancy",
    "Unavailable",
    "default_socket_dir",
    "keys",
]
