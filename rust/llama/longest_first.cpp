// llama.cpp sorts its special tokens by length with std::sort, whose order of equal elements is unspecified. So the same function,
// from the same library, is used here.
#include <algorithm>
#include <cstddef>
#include <cstdint>

// Sorts `order`, the `n` indices into `lengths`, by length, the longest first.
extern "C" void weft_longest_first(uint32_t * order, size_t n, const size_t * lengths) {
    std::sort(order, order + n, [&](const uint32_t a, const uint32_t b) { return lengths[a] > lengths[b]; });
}
