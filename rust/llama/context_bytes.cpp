// llama.cpp returns the memory use of a context as a std::map, which Rust cannot read. The declarations repeat its
// src/llama-ext.h, which its crate does not expose.
#include <cstddef>
#include <map>

struct llama_context;
struct ggml_backend_buffer_type;

extern "C" const char * ggml_backend_buft_name(ggml_backend_buffer_type * type);
extern "C" bool ggml_backend_buft_is_host(ggml_backend_buffer_type * type);

struct llama_memory_breakdown_data {
    size_t model   = 0;
    size_t context = 0;
    size_t compute = 0;
};

std::map<ggml_backend_buffer_type *, llama_memory_breakdown_data> llama_get_memory_breakdown(const llama_context * ctx);

// Size of a context's memory and compute buffers, without weights and output buffers, in bytes.
extern "C" size_t weft_context_bytes(const llama_context * ctx) {
    size_t n = 0;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
        n += bytes.context + bytes.compute;
    }
    return n;
}

// Size of a context's compute buffers, in bytes.
extern "C" size_t weft_compute_bytes(const llama_context * ctx) {
    size_t n = 0;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
        n += bytes.compute;
    }
    return n;
}

// Calls `visit` for every buffer type of a context, with its bytes of weights, of memory (cells and states) and of compute buffers.
extern "C" void weft_memory_by_buffer(
        const llama_context * ctx,
        void (*visit)(void * target, const char * name, bool is_host, size_t weights, size_t memory, size_t compute),
        void * target) {
    for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
        visit(target, ggml_backend_buft_name(type), ggml_backend_buft_is_host(type), bytes.model, bytes.context, bytes.compute);
    }
}
