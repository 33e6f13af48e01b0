"""The interfaces that engines have for their encoder caches, on top of a client.

Each is a module of its own, and none imports an engine before it is used:

- tokenspeed: EmbeddingCache, for encode workers that keep a (main, deepstack) pair for a hash
- omlx: VisionFeatureCache, for vision-language engines on MLX
- sglang: EmbcacheStore, an EmbeddingStore backend
- dynamo: MultimodalEmbeddingCache, with get, set and set_with_delta
- vllm: EmbcacheECConnector, an encoder-cache connector
"""
