"""Make the vision embeddings in tests/data/embeddings from real photographs.

The encoder is the backbone of the PP-OCRv6 text-detection network, an ONNX file in
the rapidocr wheel; the photographs come with scikit-image. With requirements.txt
installed nothing else is downloaded:

    python make_embeddings.py --out DIR [--reference tests/data/embeddings]

Per photograph, the backbone's last feature map (stride 32, C x h x w) becomes a
row-major [h*w, C] tensor "main". Where asked for, the third stage's map (stride
16), with each 2x2 block of cells folded into one row, becomes "deepstack".

With --reference, encode_ms is taken from that directory's files instead of measured,
and the exit status is 1 unless every file equals its namesake there byte for byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
import time
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import safetensors
from numpy.typing import NDArray
from onnx.utils import Extractor
from PIL import Image

MODEL_PACKAGE = "rapidocr"
MODEL_FILE = "PP-OCRv6_det_small.onnx"
MODEL_SHA256 = "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"
INPUT = "x"
LAST_STAGE = "p2o.pd_op.add.63.0"  # [1, 384, H/32, W/32]
THIRD_STAGE = "p2o.pd_op.add.50.0"  # [1, 192, H/16, W/16]
TAPS = [LAST_STAGE, THIRD_STAGE]
STRIDE = 32
TIMED_RUNS = 7
DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype(np.float32)}

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    name: str
    photo: str
    long_side: int  # a photograph with a longer side is scaled down to it
    dtype: str  # BF16 or F32
    deepstack: bool = False


JOBS = (
    Job("astronaut", "astronaut.png", 640, "BF16"),
    Job("astronaut-small", "astronaut.png", 224, "F32"),
    Job("chelsea-deepstack", "chelsea.png", 640, "BF16", deepstack=True),
    Job("coffee", "coffee.png", 640, "F32"),
    Job("hubble", "hubble_deep_field.jpg", 640, "BF16"),
    Job("retina", "retina.jpg", 320, "F32"),
    Job("rocket", "rocket.jpg", 640, "BF16"),
)


def shipped(package: str, path: str) -> Path:
    return Path(str(distribution(package).locate_file(path)))


def load_encoder() -> ort.InferenceSession:
    """The detection network cut off after its backbone, on one CPU thread."""
    blob = shipped(MODEL_PACKAGE, f"{MODEL_PACKAGE}/models/{MODEL_FILE}").read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    if digest != MODEL_SHA256:
        raise SystemExit(f"{MODEL_FILE}: SHA-256 is {digest}, expected {MODEL_SHA256}")
    model = onnx.load_model_from_string(blob)
    for tap in TAPS:
        info = onnx.helper.make_tensor_value_info(tap, onnx.TensorProto.FLOAT, None)
        model.graph.output.append(info)
    backbone = Extractor(model).extract_model([INPUT], TAPS)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(
        backbone.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def image_sha256(image: Image.Image) -> str:
    """Hash of the decoded photograph: "RGB <height> <width>\\n", then its pixels."""
    header = f"{image.mode} {image.height} {image.width}\n".encode()
    return hashlib.sha256(header + image.tobytes()).hexdigest()


def preprocess(image: Image.Image, long_side: int) -> tuple[F32, str]:
    """Scale to multiples of the stride and normalise; also say how, as text."""
    scale = min(1.0, long_side / max(image.size))
    width, height = (max(1, round(side * scale / STRIDE)) * STRIDE for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    bgr = np.asarray(resized)[:, :, ::-1].astype(np.float32)
    pixels = ((bgr / 255.0 - 0.5) / 0.5).transpose(2, 0, 1)[None]
    settings = f"height={height};width={width};filter=bicubic;channels=BGR;mean=0.5;std=0.5"
    return np.ascontiguousarray(pixels, dtype=np.float32), settings


def encode(session: ort.InferenceSession, pixels: F32) -> tuple[F32, F32, float]:
    """Both feature maps, and the fastest of several runs in milliseconds."""
    last, third = session.run(TAPS, {INPUT: pixels})  # also the warm-up
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        session.run(TAPS, {INPUT: pixels})
        times.append((time.perf_counter() - start) * 1e3)
    return last[0], third[0], min(times)


def fold_rows(feature_map: F32, block: int) -> F32:
    """[C, h*block, w*block] to [h*w, block*block*C], one row per block of cells."""
    c, height, width = feature_map.shape
    h, w = height // block, width // block
    cells = feature_map.reshape(c, h, block, w, block).transpose(1, 3, 2, 4, 0)
    return np.ascontiguousarray(cells).reshape(h * w, block * block * c)


def safetensors_bytes(tensors: dict[str, F32], dtype: str, metadata: dict[str, str]) -> bytes:
    """One safetensors file, its header in a fixed order and padded to 8 bytes."""
    header: dict[str, object] = {"__metadata__": metadata}
    body = b""
    for name, values in tensors.items():
        data = values.astype(DTYPES[dtype]).tobytes()  # bfloat16: nearest, ties to even
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def check(blob: bytes, tensors: dict[str, F32], dtype: str) -> None:
    """Read the file back with the safetensors library and compare with the model."""
    found = dict(safetensors.deserialize(blob))  # type: ignore[no-untyped-call]
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert np.isfinite(values).all() and found[name]["dtype"] == dtype
        back = np.frombuffer(found[name]["data"], DTYPES[dtype]).astype(np.float32)
        tolerance = 2.0**-8 if dtype == "BF16" else 0.0
        np.testing.assert_allclose(back.reshape(values.shape), values, rtol=tolerance)


def make(job: Job, session: ort.InferenceSession, reference: Path | None) -> tuple[bytes, str]:
    """The file for one job, checked, and a line saying what is in it."""
    image = Image.open(shipped("scikit-image", f"skimage/data/{job.photo}")).convert("RGB")
    pixels, settings = preprocess(image, job.long_side)
    last, third, milliseconds = encode(session, pixels)
    tensors = {"main": fold_rows(last, 1)}
    if job.deepstack:
        tensors["deepstack"] = fold_rows(third, 2)
    metadata = {
        "model": f"{MODEL_PACKAGE}/{MODEL_FILE}@{distribution(MODEL_PACKAGE).version}",
        "image": job.photo,
        "image_sha256": image_sha256(image),
        "grid_thw": f"1,{last.shape[1]},{last.shape[2]}",
        "encode_ms": f"{milliseconds:.3f}",
        "preprocess": settings,
    }
    if reference:
        with safetensors.safe_open(reference, framework="numpy") as file:
            metadata["encode_ms"] = file.metadata()["encode_ms"]
    blob = safetensors_bytes(tensors, job.dtype, metadata)
    check(blob, tensors, job.dtype)
    shapes = " ".join(f"{name}{list(value.shape)}" for name, value in tensors.items())
    return blob, f"{hashlib.sha256(blob).hexdigest()}  {job.dtype:4}  {shapes}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make embeddings of real photographs.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("--reference", type=Path, help="directory to reproduce and compare with")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    session, all_equal = load_encoder(), True
    for job in JOBS:
        file_name = f"{job.name}.safetensors"
        reference = args.reference / file_name if args.reference else None
        blob, line = make(job, session, reference)
        equal = reference is None or reference.read_bytes() == blob
        all_equal &= equal
        (args.out / file_name).write_bytes(blob)
        print(f"{line}  {file_name}{'' if equal else '  DIFFERS'}")
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
