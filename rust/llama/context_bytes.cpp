// llama.cpp tells what a context takes through a std::map, which Rust cannot read. From its src/llama-ext.h, which its crate does
// not give on.
#include <cstddef>
#include <map>

struct llama_context;
struct ggml_backend_buffer_type;

struct llama_memory_breakdown_data {
    size_t model   = 0;
    size_t context = 0;
    size_t compute = 0;
};

std::map<ggml_backend_buffer_type *, llama_memory_breakdown_data> llama_get_memory_breakdown(const llama_context * ctx);

// Bytes of a context's memory and of what it computes with, without the weights and without the rows that it puts out.
extern "C" size_t weft_context_bytes(const llama_context * ctx) {
    size_t n = 0;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
        n += bytes.context + bytes.compute;
    }
    return n;
}

// Those of them that it computes with.
extern "C" size_t weft_compute_bytes(const llama_context * ctx) {
    size_t n = 0;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
        n += bytes.compute;
    }
    return n;
}
