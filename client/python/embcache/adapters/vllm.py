"""An encoder-cache connector for vLLM, loaded by its path:

    --ec-transfer-config '{"ec_connector": "EmbcacheECConnector",
                           "ec_connector_module_path": "embcache.adapters.vllm",
                           "ec_role": "ec_both",
                           "ec_connector_extra_config": {"socket_dir": "/run/embcache/0",
                                                         "variant": "processor 3"}}'

The scheduler's side looks up all pictures of a request in one call, in the background, and defers
the request for as long as that takes; it keeps what it has found leased, so that nothing can be
evicted between its answer and the worker's load, and hands the leases to the workers with the
metadata of the step. On a CPU a worker's tensor is the cache's own memory; on a GPU it is copied
there.

vLLM's names of models and adapters are not digests of their weights: put into "variant" what
changes when these do.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import time
from typing import Any

from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
)

from embcache.adapters import _frameworks, _signatures, _values
from embcache.client import Client
from embcache.errors import CacheError
from embcache.hit import Hit
from embcache.keys import Key, name_hash, variant

_TIMEOUT = 1.0  # of a call, seconds; a daemon that hangs must not hold the engine for longer
_MAX_AGE = 30.0  # seconds that a hit waits for its request to be scheduled

_log = logging.getLogger("embcache")


@dataclasses.dataclass
class EmbcacheECMetadata(ECConnectorMetadata):  # type: ignore[misc]
    loads: list[str] = dataclasses.field(default_factory=list)
    token: bytes = b""  # for adopting the leases of `loads`, in their order


@dataclasses.dataclass
class _Found:
    hit: Hit | None
    at: float


@dataclasses.dataclass
class _Lookup:
    result: concurrent.futures.Future[dict[str, Hit | None]]
    at: float


class EmbcacheECConnector(ECConnectorBase):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        extra = vllm_config.ec_transfer_config.ec_connector_extra_config or {}
        unknown = set(extra) - {"socket_dir", "variant"}
        if unknown:
            raise ValueError(f"ec_connector_extra_config: unknown: {sorted(unknown)}")
        model = vllm_config.model_config
        self._model = str(model.model)
        self._variant = variant(
            vllm=str(extra.get("variant", "")),
            revision=str(getattr(model, "revision", None)),
            dtype=str(getattr(model, "dtype", None)),
        )
        self._client = Client(
            extra.get("socket_dir"), name=f"vllm-{role.name.lower()}", timeout=_TIMEOUT
        )
        # The scheduler's side.
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._lookups: dict[str, _Lookup] = {}
        self._found: dict[str, _Found] = {}
        self._loads: dict[str, Hit] = {}

    def _key(self, identifier: str) -> Key:
        return Key(self._model, name_hash(identifier), self._variant)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._lookups.clear()
        self._found.clear()
        self._loads.clear()
        self._client.close()

    # --- The scheduler's side -------------------------------------------------------------------

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """False while the look-up of the request's pictures is under way."""
        lookup = self._lookups.get(request.request_id)
        if lookup is None:
            wanted = [
                feature.identifier
                for feature in request.mm_features
                if feature.identifier not in self._found and feature.identifier not in self._loads
            ]
            if not wanted or not self._client.connected:
                return True
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(1, "emb-lookup")
            lookup = _Lookup(self._executor.submit(self._look_up, wanted), time.monotonic())
            self._lookups[request.request_id] = lookup
        if not lookup.result.done():
            return False
        del self._lookups[request.request_id]
        now = time.monotonic()
        for identifier, hit in lookup.result.result().items():
            self._found[identifier] = _Found(hit, now)
        return True

    def _look_up(self, identifiers: list[str]) -> dict[str, Hit | None]:
        hits = self._client.get_many([self._key(identifier) for identifier in identifiers])
        return dict(zip(identifiers, hits, strict=True))

    def has_cache_item(self, identifier: str) -> bool:
        if identifier in self._loads:
            return True
        found = self._found.get(identifier)
        if found is None:  # a vLLM without ensure_cache_available
            found = _Found(self._client.get(self._key(identifier)), time.monotonic())
        if found.hit is None or not found.hit.valid:
            # Asked once: it may be there the next time.
            self._found.pop(identifier, None)
            return False
        self._found[identifier] = found
        return True

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        identifier = request.mm_features[index].identifier
        found = self._found.pop(identifier, None)
        if found is not None and found.hit is not None:
            self._loads[identifier] = found.hit

    def build_connector_meta(self, scheduler_output: Any) -> EmbcacheECMetadata:
        loads, self._loads = self._loads, {}
        oldest = time.monotonic() - _MAX_AGE
        self._found = {name: found for name, found in self._found.items() if found.at > oldest}
        self._lookups = {name: one for name, one in self._lookups.items() if one.at > oldest}
        if not loads:
            return EmbcacheECMetadata()
        token = b""
        try:
            # From here on the token holds the entries.
            token = self._client.share(list(loads.values()))
        except CacheError as error:
            _log.warning("embcache: the workers must find %d entries: %s", len(loads), error)
        return EmbcacheECMetadata(list(loads), token)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        lookup = self._lookups.pop(request.request_id, None)
        if lookup is not None:
            lookup.result.cancel()
        return False, None

    # --- The worker's side ----------------------------------------------------------------------

    def start_load_caches(self, encoder_cache: dict[str, Any], **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        wanted = [name for name in metadata.loads if name not in encoder_cache]
        if not wanted:
            return
        convert = _frameworks.converter("torch", self._device())
        hits = self._adopt(metadata)
        for name in wanted:
            hit = hits.get(name) or self._client.get(self._key(name))
            if hit is None:
                _log.error("embcache: %s was found by the scheduler and is gone", name)
            else:
                encoder_cache[name] = _values.load(hit, convert)

    def _adopt(self, metadata: EmbcacheECMetadata) -> dict[str, Hit]:
        if not metadata.token:
            return {}
        try:
            return dict(zip(metadata.loads, self._client.adopt(metadata.token), strict=True))
        except CacheError as error:
            _log.warning("embcache: leases could not be taken over: %s", error)
            return {}

    def save_caches(self, encoder_cache: dict[str, Any], mm_hash: str, **kwargs: Any) -> None:
        """Copied before it returns: vLLM may free its tensor at once."""
        if self.is_producer and _rank() == 0:
            _values.store(self._client, self._key(mm_hash), encoder_cache[mm_hash])

    def _device(self) -> Any:
        config = getattr(self._vllm_config, "device_config", None)
        device = getattr(config, "device", None)
        return None if device is None or str(device) == "cpu" else device


def _rank() -> int:
    """Of this worker among those that have the same outputs."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return int(get_tensor_model_parallel_rank())
    except (ImportError, AssertionError):
        return 0


_signatures.check(EmbcacheECConnector, ECConnectorBase)
