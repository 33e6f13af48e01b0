"""DLPack, both ways, without memory management of our own. Internal.

Giving: NumPy makes the capsule, of an array of unsigned integers that holds the pin, and its
deleter ends it; here only the type code is put right, since NumPy knows neither bf16 nor fp8.
Taking: the capsule is looked into, never consumed, and its maker frees it when it is dropped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from embcache import dtypes
from embcache.dtypes import DType

_CPU = 1
_READABLE = (1, 3, 13)  # kDLCPU, kDLCUDAHost, kDLCUDAManaged


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.PyDLL(None)  # an instance of its own: ctypes.pythonapi's prototypes are everybody's
_is_valid = _api.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


def _look_into(capsule: Any) -> _Tensor:
    """The tensor of a capsule, which must be kept while it is used."""
    if _is_valid(capsule, b"dltensor_versioned"):
        pointer = _get_pointer(capsule, b"dltensor_versioned")
        tensor: _Tensor = _ManagedVersioned.from_address(pointer).tensor
        return tensor
    return _Tensor.from_address(_get_pointer(capsule, b"dltensor"))


def give(
    raw: np.ndarray[Any, Any],
    dtype: DType,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
    really_on: tuple[int, int] | None = None,
) -> Any:
    """A capsule of `raw`, whose elements are really `dtype`, and whose memory is really on a device
    of its own if one is given."""
    code, _ = dtypes.to_dlpack(dtype)
    if dl_device is not None and tuple(dl_device) != (_CPU, 0):
        raise BufferError(f"the tensor is in host memory; device {dl_device} was asked for")
    if copy:
        raw = raw.copy()
    capsule = None
    if max_version is not None and max_version[0] >= 1:
        try:
            maker: Any = raw.__dlpack__
            capsule = maker(max_version=max_version)
        except TypeError:
            pass  # a NumPy before 2.1 makes only unversioned ones, which every consumer takes
    if capsule is None:
        # An unversioned capsule cannot say that it is read-only, and NumPy refuses to make one of a
        # read-only array; the consumer must know.
        capsule = writable_alias(raw).__dlpack__()
    tensor = _look_into(capsule)
    tensor.dtype.code = code
    if really_on is not None:
        tensor.device_type, tensor.device_id = really_on
    return capsule


def device() -> tuple[int, int]:
    return (_CPU, 0)


def take(producer: Any) -> tuple[DType, np.ndarray[Any, Any]]:
    """The dtype of a CPU tensor of another framework, and its elements as unsigned integers (or
    bytes) in an array that keeps the tensor alive. No copy, whatever the strides."""
    capsule = producer.__dlpack__()
    tensor = _look_into(capsule)
    if tensor.device_type not in _READABLE:
        raise TypeError(
            f"the tensor is on DLPack's device type {tensor.device_type}; copy it to the CPU first"
        )
    dtype = dtypes.from_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    raw = dtypes.raw_numpy(dtype)
    if raw is None:
        raise TypeError(f"dtype: give {dtype.name} as a TensorSpec and packed bytes")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = None
    if tensor.strides and tensor.ndim:
        strides = tuple(step * raw.itemsize for step in tensor.strides[: tensor.ndim])
    span = Span((capsule, producer), tensor.data + tensor.byte_offset, raw, shape, True, strides)
    return dtype, np.asarray(span)


def look_at_device(capsule: Any) -> tuple[DType, tuple[int, ...], int, int]:
    """dtype, shape, address and device index of a contiguous tensor in device memory."""
    tensor = _look_into(capsule)
    dtype = dtypes.from_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if tensor.strides and tensor.ndim:
        if not is_contiguous(shape, tuple(tensor.strides[: tensor.ndim]), 1):
            raise TypeError("the tensor is not contiguous; make it so first")
    return dtype, shape, tensor.data + tensor.byte_offset, tensor.device_id


def is_contiguous(shape: Sequence[int], strides: Sequence[int], step: int) -> bool:
    """Row-major and without gaps; `step` is what the strides of neighbours are."""
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


class Span:
    """Memory with an owner, in NumPy's array interface: np.asarray(span) is a view whose base is
    the span, which keeps the owner."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self,
        owner: Any,
        address: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        readonly: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, readonly),
            "typestr": dtype.str,
            "shape": shape,
            "strides": strides,
        }


def writable_alias(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory, with the same base, whatever the flags of `array` say."""
    if array.flags.writeable:
        return array
    return np.asarray(
        Span(array, array.ctypes.data, array.dtype, array.shape, False, array.strides)
    )
