// ggml-cpu has a list of extra buffer types and queries each of them, on its own threads, whether it computes an operation. Our
// entry forwards the queries to functions in Rust.
#include "mirror.h"

#include <cstring>
#include <typeinfo>

namespace {

// Provides the dynamic type of a memory pointer.
struct polymorphic {
    virtual ~polymorphic() = default;
};

// The functions in Rust. None of them unwinds.
struct callbacks {
    bool (*work_size)(int n_threads, const ggml_tensor * op, size_t * size);
    bool (*compute)(weft::mirror::compute_params * params, ggml_tensor * op);
    bool (*takes)(const ggml_tensor * op);
};

callbacks rust;

struct traits final : weft::mirror::tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override { return rust.work_size(n_threads, op, &size); }
    bool compute_forward(weft::mirror::compute_params * params, ggml_tensor * op) override { return rust.compute(params, op); }
};

struct extra final : weft::mirror::extra_buffer_type {
    traits of_every_operation;

    // No weight is ever stored in a buffer of this type.
    bool supports_op(void *, const ggml_tensor *) override { return false; }
    weft::mirror::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return rust.takes(op) ? &of_every_operation : nullptr;
    }
};

// Returns the memory as a single plain cell cache; null if it is of another kind.
const weft::mirror::kv_cache * plain_cache(const void * memory) {
    const char * name = memory ? typeid(*static_cast<const polymorphic *>(memory)).name() : "";
    if (std::strcmp(name, "14llama_kv_cache") != 0) {
        return nullptr;
    }
    const auto * cache = static_cast<const weft::mirror::kv_cache *>(memory);
    return cache->n_stream != 1 || cache->other ? nullptr : cache;
}

}  // namespace

// Weak: builds that load ggml-cpu as a library at run time link without them.
std::vector<weft::mirror::buffer_type *> & ggml_backend_cpu_get_extra_buffer_types() __attribute__((weak));
extern "C" weft::mirror::buffer_type * ggml_backend_cpu_buffer_type() __attribute__((weak));
extern "C" void ggml_barrier(ggml_threadpool * pool) __attribute__((weak));

// Appends our entry, for the lifetime of the process. Must be called once, before any model is loaded: ggml's threads read the
// list without a lock. Returns false if this build of llama.cpp has no such list.
extern "C" bool weft_kernels_install(const callbacks * functions) {
    if (!ggml_backend_cpu_get_extra_buffer_types || !ggml_backend_cpu_buffer_type || !ggml_barrier) {
        return false;
    }
    static extra               entry;
    static weft::mirror::buffer_type type;
    rust = *functions;
    type = *ggml_backend_cpu_buffer_type();
    type.context = &entry;
    ggml_backend_cpu_get_extra_buffer_types().push_back(&type);
    return true;
}

// Waits until every thread of the pool has called it. Requires that `weft_kernels_install` returned true.
extern "C" void weft_kernels_barrier(ggml_threadpool * pool) {
    ggml_barrier(pool);
}

// Returns the positions of the `*n` cells of a context's memory, -1 for an empty cell; null if the memory is not a single plain cell
// cache. Valid until the context is freed; updated when its memory changes.
extern "C" const int32_t * weft_kernels_positions(const void * memory, size_t * n) {
    const auto * cache = plain_cache(memory);
    if (!cache) {
        return nullptr;
    }
    const auto & positions = cache->v_cells->data()->pos;
    *n = positions.size();
    return positions.data();
}

// Returns buffer `i` of the cells of a context's memory; null if there are fewer, or if the memory is not a single plain cell cache.
// Valid until the context is freed.
extern "C" void * weft_kernels_buffer(const void * memory, size_t i) {
    const auto * cache = plain_cache(memory);
    return cache && i < cache->ctxs_bufs.size() ? cache->ctxs_bufs[i].buffer : nullptr;
}
