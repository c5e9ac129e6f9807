# Read by CMake in llama.cpp's projects (scripts/wheels.py), because its build script names ARMv8 for the CPU backend, whatever the
# environment says.
set(GGML_CPU_ARM_ARCH "$ENV{WEFT_ARM_ARCH}" CACHE STRING "the architecture of a level" FORCE)
