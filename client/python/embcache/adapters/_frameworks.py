"""Arrays of NumPy, torch and MLX to and from entries, all dtypes of theirs included. Internal."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from embcache import _dlpack
from embcache.dtypes import DType
from embcache.tensors import TensorSpec, TensorView

_TORCH = {
    DType.BOOL: "bool",
    DType.U8: "uint8",
    DType.I8: "int8",
    DType.U16: "uint16",
    DType.I16: "int16",
    DType.U32: "uint32",
    DType.I32: "int32",
    DType.U64: "uint64",
    DType.I64: "int64",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2",
    DType.F8_E8M0: "float8_e8m0fnu",
    DType.C64: "complex64",
    DType.F8_E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8_E5M2FNUZ: "float8_e5m2fnuz",
}
_FROM_TORCH = {name: dtype for dtype, name in _TORCH.items()}
_MLX = {dtype: name if name != "bool" else "bool_" for dtype, name in _TORCH.items()}

Converter = Callable[[TensorView], Any]


def framework_of(value: Any) -> str:
    return type(value).__module__.split(".")[0]


def is_array(value: Any) -> bool:
    return (
        isinstance(value, (np.ndarray, np.generic, TensorView))
        or framework_of(value) in ("torch", "mlx")
        or hasattr(value, "__dlpack__")
    )


def source(value: Any) -> Any:
    """What Client.put takes for an array of any framework, on any device."""
    framework = framework_of(value)
    if framework == "torch":
        spec = TensorSpec(_named(value.dtype), tuple(value.shape))
        torch = importlib.import_module("torch")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return spec, flat.numpy()
    if framework == "mlx":
        spec = TensorSpec(_named(value.dtype), tuple(value.shape))
        mx = importlib.import_module("mlx.core")
        return spec, np.array(mx.contiguous(value).reshape(-1).view(mx.uint8))
    return value


def _named(dtype: Any) -> DType:
    """By the last part of the type's name in its framework: torch.bfloat16, mlx.core.bool_."""
    return _FROM_TORCH[str(dtype).rpartition(".")[2].rstrip("_")]


def converter(framework: str, device: Any = None) -> Converter:
    """Makes arrays of views: "numpy" and "torch" without a copy, unless to another device."""
    if framework == "numpy":
        return TensorView.numpy
    if framework == "torch":
        return lambda view: to_torch(view, device)
    if framework == "mlx":
        return _to_mlx
    raise ValueError(f"framework: {framework!r}; must be 'numpy', 'torch' or 'mlx'")


def to_torch(view: TensorView, device: Any = None) -> Any:
    """A tensor in the cache's memory, which holds its pin; with a device other than the CPU, a copy
    there, made before this returns. torch knows no read-only memory: do not write to it."""
    torch = importlib.import_module("torch")
    name = _TORCH.get(view.dtype)
    dtype = getattr(torch, name, None) if name else None
    if dtype is None:
        raise TypeError(f"torch {torch.__version__} has no {view.dtype.name}")
    flat = torch.from_numpy(_dlpack.writable_alias(view.flat()))
    tensor = flat.view(dtype).reshape(view.shape)
    return tensor if device is None else tensor.to(device)


def _to_mlx(view: TensorView) -> Any:
    """A copy: MLX's arrays own their memory."""
    mx = importlib.import_module("mlx.core")
    return mx.array(view.flat()).view(getattr(mx, _MLX[view.dtype])).reshape(view.shape)
