// llama.cpp sorts its special tokens by their length with std::sort, which leaves equal ones in an order of its own: so the same
// function, from the same library, is asked for it here.
#include <algorithm>
#include <cstddef>
#include <cstdint>

// Puts `order`, the `n` numbers from 0 on, into the order of what they stand for, the longest first.
extern "C" void weft_longest_first(uint32_t * order, size_t n, const size_t * lengths) {
    std::sort(order, order + n, [&](const uint32_t a, const uint32_t b) { return lengths[a] > lengths[b]; });
}
