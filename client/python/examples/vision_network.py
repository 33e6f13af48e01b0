"""A real vision network on the CPU: the backbone of PP-OCRv6's text detection, by ONNX Runtime.

The network is in the wheel of rapidocr; nothing is downloaded. `VisionNetwork` is an `Encoder` of
encode_server.py.
"""

from __future__ import annotations

import hashlib
import io
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.utils import Extractor
from PIL import Image, UnidentifiedImageError

PACKAGE = "rapidocr"
FILE = "PP-OCRv6_det_small.onnx"
INPUT = "x"
LAST_STAGE = "p2o.pd_op.add.63.0"  # [1, 384, H/32, W/32]
THIRD_STAGE = "p2o.pd_op.add.50.0"  # [1, 192, H/16, W/16]
STRIDE = 32
FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 64 << 20  # of a picture; larger ones are refused before they are decoded
DTYPES = ("float32", "float16")

Pixels = NDArray[np.uint8]
Features = dict[str, NDArray[Any]]


def shipped(package: str, path: str) -> Path:
    return Path(str(distribution(package).locate_file(path)))


class VisionNetwork:
    """Thread-safe. Equal pixels and settings give equal bits: the network runs on one thread."""

    def __init__(self, long_side: int = 640, dtype: str = "float32") -> None:
        """`long_side`: a picture with a longer side is scaled down to it."""
        if long_side < STRIDE or dtype not in DTYPES:
            raise ValueError(
                f"long_side {long_side} (at least {STRIDE}), dtype {dtype} of {DTYPES}"
            )
        self._long_side = long_side
        self._dtype = dtype
        blob = shipped(PACKAGE, f"{PACKAGE}/models/{FILE}").read_bytes()
        self.model = f"{PACKAGE}/{FILE}@{version(PACKAGE)}"
        self._revision = hashlib.sha256(blob).hexdigest()
        self._software = {name: version(name) for name in ("numpy", "onnxruntime", "pillow")}
        self._session = _backbone(blob)
        self.encode(np.zeros((64, 64, 3), np.uint8))  # the first run is slower

    def decode(self, data: bytes) -> Pixels:
        """The RGB pixels of a file in one of FORMATS. ValueError: it is none."""
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels are too many")
                return np.asarray(image.convert("RGB"))
        except UnidentifiedImageError:
            raise ValueError(f"not a picture in {', '.join(FORMATS)}") from None
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"not a picture: {error}") from error

    def settings(self, pixels: Pixels) -> dict[str, Any]:
        """What besides the pixels changes the features."""
        height, width = self._input_size(pixels)
        return {
            "revision": self._revision,
            "taps": [LAST_STAGE, THIRD_STAGE],
            "height": height,
            "width": width,
            "filter": "bicubic",
            "channels": "BGR",
            "mean": 0.5,
            "std": 0.5,
            "dtype": self._dtype,
            # Another version may scale or add in another order: the last bits would differ.
            "software": self._software,
        }

    def encode(self, pixels: Pixels) -> Features:
        """ "main": a row for each 32 x 32 pixels; "deepstack": the stage before, as many rows."""
        height, width = self._input_size(pixels)
        image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
        bgr = np.asarray(image)[:, :, ::-1].astype(np.float32)
        scaled = np.ascontiguousarray(((bgr / 255.0 - 0.5) / 0.5).transpose(2, 0, 1)[None])
        last, third = self._session.run([LAST_STAGE, THIRD_STAGE], {INPUT: scaled})
        maps = {"main": _fold_rows(last[0], 1), "deepstack": _fold_rows(third[0], 2)}
        return {name: rows.astype(self._dtype) for name, rows in maps.items()}

    def _input_size(self, pixels: Pixels) -> tuple[int, int]:
        """Height and width of what the network is given: multiples of its stride."""
        height, width = pixels.shape[:2]
        scale = min(1.0, self._long_side / max(height, width))
        height, width = (max(1, round(side * scale / STRIDE)) * STRIDE for side in (height, width))
        return height, width


def _backbone(blob: bytes) -> Any:
    """The network cut off after its backbone."""
    model = onnx.load_model_from_string(blob)
    taps = [LAST_STAGE, THIRD_STAGE]
    for tap in taps:
        info = onnx.helper.make_tensor_value_info(tap, onnx.TensorProto.FLOAT, None)
        model.graph.output.append(info)
    backbone = Extractor(model).extract_model([INPUT], taps)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(
        backbone.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _fold_rows(feature_map: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """[C, h*block, w*block] to [h*w, block*block*C], one row per block of cells."""
    c, height, width = feature_map.shape
    h, w = height // block, width // block
    cells = feature_map.reshape(c, h, block, w, block).transpose(1, 3, 2, 4, 0)
    return np.ascontiguousarray(cells).reshape(h * w, block * block * c)
