"""Projectors of some ten thousand random weights, and the models that they read pictures and sounds for.

Their architectures are public ones at toy sizes: LLaVA's CLIP with two layers on top (MLP), SigLIP as Gemma 3 has it, whose
places see each other, Qwen2-VL's, whose rows and columns are positions, and Ultravox's Whisper.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from tests.engine.tiny_models import Kind, write_tiny_model

__all__ = ["PROJECTORS", "Projector", "Size", "png_of", "wav_of", "write_projector", "write_tiny_projector"]

Projector = Literal["llava", "gemma3", "qwen2vl", "ultravox"]

PROJECTORS: dict[Projector, Kind] = {"llava": "attention", "gemma3": "window", "qwen2vl": "grid", "ultravox": "attention"}
"""Each with the kind of text model that it is made for."""


@dataclass(frozen=True)
class Size:
    """How large a projector is."""

    n_embd: int = 32
    n_ff: int = 64
    n_layers: int = 2
    n_heads: int = 2
    n_text: int = 64
    """Numbers of a vector of the text model."""
    patch: int = 8
    side: int = 32
    """Pixels of a picture's side."""

    @property
    def n_patches(self) -> int:
        """Places of a picture."""
        return (self.side // self.patch) ** 2


_TOY = Size()
_N_MEL = 80
_STACK = 4


def write_tiny_projector(
    projector: Projector, folder: Path, *, kind: Kind | None = None, seed: int = 0, stack: int = _STACK
) -> tuple[Path, Path]:
    """Writes a model, perhaps of another kind, and a projector, which joins `stack` frames of a sound; returns their paths."""
    kind = kind or PROJECTORS[projector]
    model, path = folder / f"{projector}-{kind}-model.gguf", folder / f"{projector}-mmproj.gguf"
    write_tiny_model(kind, model)
    write_projector(path, projector, seed=seed, stack=stack)
    return model, path


def write_projector(path: Path, projector: Projector, *, size: Size = _TOY, seed: int = 0, stack: int = _STACK) -> None:
    """Writes a projector of random weights."""
    writer = gguf.GGUFWriter(str(path), "clip")
    _add_shape(writer, projector, size, stack)
    draw = np.random.default_rng(seed)
    for name, shape in _tensors(projector, size, stack):
        if name.endswith(("ln1.weight", "ln2.weight", "ln.weight", "norm.weight", "norm_pre.weight", "norm_mid.weight")):
            weights = np.ones(shape)
        else:
            weights = draw.normal(scale=0.3 * (_TOY.n_embd / size.n_embd) ** 0.5, size=shape)
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def png_of(seed: int, *, width: int = 32, height: int = 32) -> bytes:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width * 3), dtype=np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav_of(seed: int, *, seconds: float = 1.0, rate: int = 16_000) -> bytes:
    """A sound of noise, in one channel of 16 bits."""
    samples = np.random.default_rng(seed).integers(-8_000, 8_000, int(seconds * rate), dtype=np.int16).tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + head + struct.pack("<4sI", b"data", len(samples)) + samples
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def _add_shape(writer: gguf.GGUFWriter, projector: Projector, size: Size, stack: int) -> None:
    kind = "audio" if projector == "ultravox" else "vision"
    names = {"llava": "mlp", "qwen2vl": "qwen2vl_merger"}
    writer.add_string("clip.projector_type", names.get(projector, projector))
    writer.add_bool(f"clip.has_{kind}_encoder", True)
    writer.add_uint32(f"clip.{kind}.embedding_length", size.n_embd)
    writer.add_uint32(f"clip.{kind}.attention.head_count", size.n_heads)
    writer.add_uint32(f"clip.{kind}.feed_forward_length", size.n_ff)
    writer.add_uint32(f"clip.{kind}.block_count", size.n_layers)
    writer.add_uint32(f"clip.{kind}.projection_dim", size.n_text)
    writer.add_float32(f"clip.{kind}.attention.layer_norm_epsilon", 1e-5)
    writer.add_bool("clip.use_gelu", True)
    if kind == "audio":
        writer.add_uint32("clip.audio.num_mel_bins", _N_MEL)
        writer.add_uint32("clip.audio.projector.stack_factor", stack)
        return
    writer.add_uint32("clip.vision.image_size", size.side)
    writer.add_uint32("clip.vision.patch_size", size.patch)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    if projector == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)


def _tensors(projector: Projector, size: Size, stack: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, rows first."""
    prefix = "a" if projector == "ultravox" else "v"
    yield from {
        "llava": {
            "v.class_embd": (size.n_embd,),
            "v.patch_embd.weight": (size.n_embd, 3, size.patch, size.patch),
            "v.position_embd.weight": (size.n_patches + 1, size.n_embd),
            "v.pre_ln.weight": (size.n_embd,),
            "v.pre_ln.bias": (size.n_embd,),
            "mm.0.weight": (size.n_text, size.n_embd),
            "mm.0.bias": (size.n_text,),
            "mm.2.weight": (size.n_text, size.n_text),
            "mm.2.bias": (size.n_text,),
        },
        "gemma3": {
            "v.patch_embd.weight": (size.n_embd, 3, size.patch, size.patch),
            "v.patch_embd.bias": (size.n_embd,),
            "v.position_embd.weight": (size.n_patches, size.n_embd),
            "v.post_ln.weight": (size.n_embd,),
            "v.post_ln.bias": (size.n_embd,),
            "mm.input_projection.weight": (size.n_embd, size.n_text),
            "mm.soft_emb_norm.weight": (size.n_embd,),
        },
        "qwen2vl": {
            "v.patch_embd.weight": (size.n_embd, 3, size.patch, size.patch),
            "v.patch_embd.weight.1": (size.n_embd, 3, size.patch, size.patch),
            "v.post_ln.weight": (size.n_embd,),
            "v.post_ln.bias": (size.n_embd,),
            "mm.0.weight": (4 * size.n_embd, 4 * size.n_embd),
            "mm.0.bias": (4 * size.n_embd,),
            "mm.2.weight": (size.n_text, 4 * size.n_embd),
            "mm.2.bias": (size.n_text,),
        },
        "ultravox": {
            "a.position_embd.weight": (1_500, size.n_embd),
            "a.conv1d.1.weight": (size.n_embd, _N_MEL, 3),
            "a.conv1d.1.bias": (size.n_embd, 1),
            "a.conv1d.2.weight": (size.n_embd, size.n_embd, 3),
            "a.conv1d.2.bias": (size.n_embd, 1),
            "a.post_ln.weight": (size.n_embd,),
            "a.post_ln.bias": (size.n_embd,),
            "mm.a.mlp.1.weight": (2 * size.n_ff, stack * size.n_embd),
            "mm.a.mlp.2.weight": (size.n_text, size.n_ff),
            "mm.a.norm_pre.weight": (stack * size.n_embd,),
            "mm.a.norm_mid.weight": (size.n_ff,),
        },
    }[projector].items()
    for layer in range(size.n_layers):
        for name, shape in {
            "attn_q": (size.n_embd, size.n_embd),
            "attn_k": (size.n_embd, size.n_embd),
            "attn_v": (size.n_embd, size.n_embd),
            "attn_out": (size.n_embd, size.n_embd),
            "ffn_up": (size.n_ff, size.n_embd),
            "ffn_down": (size.n_embd, size.n_ff),
            "ln1": (size.n_embd,),
            "ln2": (size.n_embd,),
        }.items():
            yield f"{prefix}.blk.{layer}.{name}.weight", shape
            if (prefix, name) != ("a", "attn_k"):
                yield f"{prefix}.blk.{layer}.{name}.bias", shape[:1]
