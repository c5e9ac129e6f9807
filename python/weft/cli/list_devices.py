"""`python -m weft --list-devices`: the devices beside the CPU, in llama.cpp's lines."""

from weft import _native

__all__ = ["list_devices"]

MIB = 2**20


def list_devices() -> None:
    """Prints them with their memory: names are those that `--device` takes."""
    print("Available devices:")
    devices = _native.devices()
    for name, description, n_bytes, n_free in devices:
        print(f"  {name}: {description} ({n_bytes // MIB} MiB, {n_free // MIB} MiB free)")
    if not devices:
        print("  (none)")
