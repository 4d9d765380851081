"""Make images with known content, and read pictures of a page back."""

import base64
import io

import numpy as np
from PIL import Image

from bids_gevnet.report.scan_files import Volume


def decode(uri: str) -> np.ndarray:
    raw = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))


def blob(centre_mm, affine, shape=(20, 24, 22), radius_mm=12.0) -> Volume:
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    distance = np.linalg.norm(world - np.asarray(centre_mm), axis=-1)
    return Volume((distance < radius_mm).astype(np.float32), affine)
