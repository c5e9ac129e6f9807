"""Projectors of some ten thousand random weights, and the models that they read pictures and sounds for.

Their architectures are public ones at toy sizes: LLaVA's CLIP with two layers on top (MLP), SigLIP as Gemma 3 has it, whose
places see each other, Qwen2-VL's, whose rows and columns are positions, and Ultravox's Whisper.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from tests.engine.tiny_models import Kind, write_tiny_model

__all__ = ["PROJECTORS", "Projector", "png_of", "wav_of", "write_tiny_projector"]

Projector = Literal["llava", "gemma3", "qwen2vl", "ultravox"]

PROJECTORS: dict[Projector, Kind] = {"llava": "attention", "gemma3": "window", "qwen2vl": "grid", "ultravox": "attention"}
"""Each with the kind of text model that it is made for."""

_N_EMBD = 32
_N_FF = 64
_N_LAYERS = 2
_N_HEADS = 2
_N_TEXT = 64
_PATCH = 8
_SIDE = 32
_N_PATCHES = (_SIDE // _PATCH) ** 2
_N_MEL = 80
_STACK = 4


def write_tiny_projector(projector: Projector, folder: Path, *, seed: int = 0, stack: int = _STACK) -> tuple[Path, Path]:
    """Writes a model and a projector for it, which joins `stack` frames of a sound; returns their paths."""
    model, path = folder / f"{projector}-model.gguf", folder / f"{projector}-mmproj.gguf"
    write_tiny_model(PROJECTORS[projector], model)
    writer = gguf.GGUFWriter(str(path), "clip")
    _add_shape(writer, projector, stack)
    draw = np.random.default_rng(seed)
    for name, shape in _tensors(projector, stack):
        if name.endswith(("ln1.weight", "ln2.weight", "ln.weight", "norm.weight", "norm_pre.weight", "norm_mid.weight")):
            weights = np.ones(shape)
        else:
            weights = draw.normal(scale=0.3, size=shape)
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, path


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


def _add_shape(writer: gguf.GGUFWriter, projector: Projector, stack: int) -> None:
    kind = "audio" if projector == "ultravox" else "vision"
    names = {"llava": "mlp", "qwen2vl": "qwen2vl_merger"}
    writer.add_string("clip.projector_type", names.get(projector, projector))
    writer.add_bool(f"clip.has_{kind}_encoder", True)
    writer.add_uint32(f"clip.{kind}.embedding_length", _N_EMBD)
    writer.add_uint32(f"clip.{kind}.attention.head_count", _N_HEADS)
    writer.add_uint32(f"clip.{kind}.feed_forward_length", _N_FF)
    writer.add_uint32(f"clip.{kind}.block_count", _N_LAYERS)
    writer.add_uint32(f"clip.{kind}.projection_dim", _N_TEXT)
    writer.add_float32(f"clip.{kind}.attention.layer_norm_epsilon", 1e-5)
    writer.add_bool("clip.use_gelu", True)
    if kind == "audio":
        writer.add_uint32("clip.audio.num_mel_bins", _N_MEL)
        writer.add_uint32("clip.audio.projector.stack_factor", stack)
        return
    writer.add_uint32("clip.vision.image_size", _SIDE)
    writer.add_uint32("clip.vision.patch_size", _PATCH)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    if projector == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)


def _tensors(projector: Projector, stack: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, rows first."""
    prefix = "a" if projector == "ultravox" else "v"
    yield from {
        "llava": {
            "v.class_embd": (_N_EMBD,),
            "v.patch_embd.weight": (_N_EMBD, 3, _PATCH, _PATCH),
            "v.position_embd.weight": (_N_PATCHES + 1, _N_EMBD),
            "v.pre_ln.weight": (_N_EMBD,),
            "v.pre_ln.bias": (_N_EMBD,),
            "mm.0.weight": (_N_TEXT, _N_EMBD),
            "mm.0.bias": (_N_TEXT,),
            "mm.2.weight": (_N_TEXT, _N_TEXT),
            "mm.2.bias": (_N_TEXT,),
        },
        "gemma3": {
            "v.patch_embd.weight": (_N_EMBD, 3, _PATCH, _PATCH),
            "v.patch_embd.bias": (_N_EMBD,),
            "v.position_embd.weight": (_N_PATCHES, _N_EMBD),
            "v.post_ln.weight": (_N_EMBD,),
            "v.post_ln.bias": (_N_EMBD,),
            "mm.input_projection.weight": (_N_EMBD, _N_TEXT),
            "mm.soft_emb_norm.weight": (_N_EMBD,),
        },
        "qwen2vl": {
            "v.patch_embd.weight": (_N_EMBD, 3, _PATCH, _PATCH),
            "v.patch_embd.weight.1": (_N_EMBD, 3, _PATCH, _PATCH),
            "v.post_ln.weight": (_N_EMBD,),
            "v.post_ln.bias": (_N_EMBD,),
            "mm.0.weight": (4 * _N_EMBD, 4 * _N_EMBD),
            "mm.0.bias": (4 * _N_EMBD,),
            "mm.2.weight": (_N_TEXT, 4 * _N_EMBD),
            "mm.2.bias": (_N_TEXT,),
        },
        "ultravox": {
            "a.position_embd.weight": (1_500, _N_EMBD),
            "a.conv1d.1.weight": (_N_EMBD, _N_MEL, 3),
            "a.conv1d.1.bias": (_N_EMBD, 1),
            "a.conv1d.2.weight": (_N_EMBD, _N_EMBD, 3),
            "a.conv1d.2.bias": (_N_EMBD, 1),
            "a.post_ln.weight": (_N_EMBD,),
            "a.post_ln.bias": (_N_EMBD,),
            "mm.a.mlp.1.weight": (2 * _N_FF, stack * _N_EMBD),
            "mm.a.mlp.2.weight": (_N_TEXT, _N_FF),
            "mm.a.norm_pre.weight": (stack * _N_EMBD,),
            "mm.a.norm_mid.weight": (_N_FF,),
        },
    }[projector].items()
    for layer in range(_N_LAYERS):
        for name, shape in {
            "attn_q": (_N_EMBD, _N_EMBD),
            "attn_k": (_N_EMBD, _N_EMBD),
            "attn_v": (_N_EMBD, _N_EMBD),
            "attn_out": (_N_EMBD, _N_EMBD),
            "ffn_up": (_N_FF, _N_EMBD),
            "ffn_down": (_N_EMBD, _N_FF),
            "ln1": (_N_EMBD,),
            "ln2": (_N_EMBD,),
        }.items():
            yield f"{prefix}.blk.{layer}.{name}.weight", shape
            if (prefix, name) != ("a", "attn_k"):
                yield f"{prefix}.blk.{layer}.{name}.bias", shape[:1]
