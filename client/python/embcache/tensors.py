"""What entries are made of: TensorSpec says what a tensor is, TensorView shows its bytes in
place."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from embcache import _dlpack, dtypes
from embcache.dtypes import DType


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Type and shape of one tensor; `dtype` also as NumPy has it. Every dimension is at least 1."""

    dtype: DType
    shape: tuple[int, ...]

    def __init__(self, dtype: DType | np.dtype[Any] | type | str, shape: Any) -> None:
        if not isinstance(dtype, DType):
            dtype = dtypes.from_numpy(np.dtype(dtype))
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", tuple(int(size) for size in shape))
        if any(size < 1 for size in self.shape):
            raise ValueError(f"shape: {self.shape}; every dimension must be at least 1")

    @property
    def nbytes(self) -> int:
        return dtypes.nbytes(self.dtype, self.shape)


class TensorView:
    """One tensor of an entry, in the cache's own memory.

    Whatever is made of it without a copy (arrays, views of them, memoryviews, DLPack tensors) keeps
    the entry pinned until it is gone. Those of a hit are read-only where the framework allows it;
    writing to them by other ways is an error, in a reader's process a fatal one (SIGSEGV).
    """

    __slots__ = ("spec", "_owner", "_address", "_readonly")

    def __init__(self, spec: TensorSpec, owner: Any, address: int, readonly: bool) -> None:
        self.spec = spec
        self._owner = owner
        self._address = address
        self._readonly = readonly

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    def numpy(self) -> np.ndarray[Any, Any]:
        """As a NumPy array; bf16 and fp8 need the package ml_dtypes (TypeError without)."""
        wanted = dtypes.to_numpy(self.dtype)
        return self.raw().view(wanted)

    def raw(self) -> np.ndarray[Any, Any]:
        """As unsigned integers of the element's width and in the same shape; of elements smaller
        than a byte, as their packed bytes."""
        dtype = dtypes.raw_numpy(self.dtype)
        if dtype is None:
            return self.flat()
        return self._array(dtype, self.shape)

    def flat(self) -> np.ndarray[Any, Any]:
        """As a flat array of bytes."""
        return self._array(np.dtype("u1"), (self.nbytes,))

    def buffer(self) -> memoryview:
        """As a memoryview of bytes; from Python 3.12 on memoryview(view) is the same."""
        return self.flat().data

    def tobytes(self) -> bytes:
        return self.flat().tobytes()

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.asarray(_dlpack.Span(self._owner, self._address, dtype, shape, self._readonly))

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> memoryview:
            return self.buffer()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"{self.dtype.name} as {dtype} would need a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return _dlpack.give(self.raw(), self.dtype, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device()

    def __repr__(self) -> str:
        return f"TensorView({self.dtype.name}, {self.shape})"


def source_of(value: Any) -> tuple[TensorSpec, np.ndarray[Any, Any]]:
    """What is to be stored: a NumPy array, a TensorView, anything with __dlpack__ in host memory
    (a torch tensor, say), or whatever np.asarray takes; or (TensorSpec, bytes-like)."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], TensorSpec):
        spec, data = value[0], np.frombuffer(value[1], np.uint8)
        if data.nbytes != spec.nbytes:
            raise ValueError(f"{data.nbytes} bytes given for {spec}, which takes {spec.nbytes}")
        return spec, data
    if isinstance(value, TensorView):
        return value.spec, value.flat()
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        dtype, array = _dlpack.take(value)
        return TensorSpec(dtype, array.shape), array
    array = np.asarray(value)
    return TensorSpec(array.dtype, array.shape), array


def copy_into(target: TensorView, source: np.ndarray[Any, Any]) -> None:
    """Copies elements, of any strides, bit for bit."""
    to = target.raw()
    if source.shape != to.shape:
        to = target.flat()  # given as bytes
    np.copyto(to, source.view(to.dtype))
