// ggml-cpu keeps a list of extra buffer types and asks each of them, inside of its own threads, whether it computes an operation
// itself. An entry of ours passes the question to functions in Rust.
#include "mirror.h"

#include <cstring>
#include <typeinfo>

namespace {

// For asking which memory a pointer points to.
struct polymorphic {
    virtual ~polymorphic() = default;
};

// The functions in Rust. None of them unwinds.
struct answers {
    bool (*work_size)(int n_threads, const ggml_tensor * op, size_t * size);
    bool (*compute)(weft::mirror::compute_params * params, ggml_tensor * op);
    bool (*takes)(const ggml_tensor * op);
};

answers rust;

struct traits final : weft::mirror::tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override { return rust.work_size(n_threads, op, &size); }
    bool compute_forward(weft::mirror::compute_params * params, ggml_tensor * op) override { return rust.compute(params, op); }
};

struct extra final : weft::mirror::extra_buffer_type {
    traits of_every_operation;

    // No weight is ever put into a buffer of this type.
    bool supports_op(void *, const ggml_tensor *) override { return false; }
    weft::mirror::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return rust.takes(op) ? &of_every_operation : nullptr;
    }
};

// The memory as one plain pool of cells; null where it is not that.
const weft::mirror::kv_cache * plain_pool(const void * memory) {
    const char * name = memory ? typeid(*static_cast<const polymorphic *>(memory)).name() : "";
    if (std::strcmp(name, "14llama_kv_cache") != 0) {
        return nullptr;
    }
    const auto * cache = static_cast<const weft::mirror::kv_cache *>(memory);
    return cache->n_stream != 1 || cache->other ? nullptr : cache;
}

}  // namespace

// Weak: a build whose ggml-cpu is a library that is loaded later links without it.
std::vector<weft::mirror::buffer_type *> & ggml_backend_cpu_get_extra_buffer_types() __attribute__((weak));
extern "C" weft::mirror::buffer_type * ggml_backend_cpu_buffer_type() __attribute__((weak));
extern "C" void ggml_barrier(ggml_threadpool * pool) __attribute__((weak));

// Appends our entry, for the life of the process. To be called once, before any model is loaded: ggml's threads read the list
// without a lock. False where this build of llama.cpp has no such list.
extern "C" bool weft_kernels_install(const answers * functions) {
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

// Waits until every thread of the pool has come here. Only where `weft_kernels_install` was true.
extern "C" void weft_kernels_barrier(ggml_threadpool * pool) {
    ggml_barrier(pool);
}

// The position in its text of each of the `*n` cells of a context's memory, -1 for an empty one; null where the memory is not one
// plain pool of cells. Valid until the context is freed; changed by whatever changes its memory.
extern "C" const int32_t * weft_kernels_positions(const void * memory, size_t * n) {
    const auto * pool = plain_pool(memory);
    if (!pool) {
        return nullptr;
    }
    const auto & positions = pool->v_cells->data()->pos;
    *n = positions.size();
    return positions.data();
}

// The buffer with number `i` that a context's memory keeps its cells in; null where there are fewer, and where the memory is not
// one plain pool of cells. Valid until the context is freed.
extern "C" void * weft_kernels_buffer(const void * memory, size_t i) {
    const auto * pool = plain_pool(memory);
    return pool && i < pool->ctxs_bufs.size() ? pool->ctxs_bufs[i].buffer : nullptr;
}
