"""`python -m weft --list-devices`: lists all devices except the CPU, in llama.cpp's format."""

from weft import _native

__all__ = ["list_devices"]

MIB = 2**20


def list_devices() -> None:
    """Prints the devices with their memory. `--device` accepts these names."""
    print("Available devices:")
    devices = _native.devices()
    for name, description, n_bytes, n_free in devices:
        print(f"  {name}: {description} ({n_bytes // MIB} MiB, {n_free // MIB} MiB free)")
    if not devices:
        print("  (none)")
