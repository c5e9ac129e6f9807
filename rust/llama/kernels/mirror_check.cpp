// Compiled by a test, with llama.cpp's private headers and without access control: it compiles as long as `mirror.h` matches them.
#include "ggml-backend-impl.h"
#include "ggml-cpu/ggml-cpu-impl.h"
#include "ggml-cpu/traits.h"
#include "llama-kv-cache.h"
#include "mirror.h"

#include <cstddef>
#include <type_traits>

namespace mirror = weft::mirror;

static_assert(sizeof(ggml_backend_buffer_type) == sizeof(mirror::buffer_type));
static_assert(sizeof(ggml_backend_buffer_type_i) == sizeof(mirror::buffer_type::functions));
static_assert(offsetof(ggml_backend_buffer_type, device) == offsetof(mirror::buffer_type, device));
static_assert(offsetof(ggml_backend_buffer_type, context) == offsetof(mirror::buffer_type, context));

static_assert(sizeof(ggml_compute_params) == sizeof(mirror::compute_params));
static_assert(offsetof(ggml_compute_params, ith) == offsetof(mirror::compute_params, ith));
static_assert(offsetof(ggml_compute_params, nth) == offsetof(mirror::compute_params, nth));
static_assert(offsetof(ggml_compute_params, wsize) == offsetof(mirror::compute_params, wsize));
static_assert(offsetof(ggml_compute_params, wdata) == offsetof(mirror::compute_params, wdata));
static_assert(offsetof(ggml_compute_params, threadpool) == offsetof(mirror::compute_params, threadpool));
static_assert(offsetof(ggml_compute_params, use_ref) == offsetof(mirror::compute_params, use_ref));

// The signatures are equal: these classes override virtual functions of the originals, and no pure virtual function remains.
struct traits : ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params *, ggml_tensor *) override { return false; }
};
struct buffer_type : ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor *) override { return nullptr; }
};
static_assert(!std::is_abstract_v<traits> && !std::is_abstract_v<buffer_type>);
static_assert(sizeof(traits) == sizeof(void *) && sizeof(buffer_type) == sizeof(void *));
static_assert(std::is_pointer_v<ggml_backend_dev_t> && std::is_pointer_v<ggml_backend_buffer_type_t>);
static_assert(std::is_same_v<decltype(ggml_backend_cpu_get_extra_buffer_types()), std::vector<ggml_backend_buffer_type_t> &>);
extern "C" {
static_assert(std::is_same_v<decltype(ggml_barrier), void(ggml_threadpool *)>);
}

#define SAME(real, mirrored, field) static_assert(offsetof(real, field) == offsetof(mirrored, field))
SAME(llama_kv_cells, mirror::kv_cells, used);
SAME(llama_kv_cells, mirror::kv_cells, pos);
static_assert(std::is_same_v<decltype(llama_kv_cells::pos), decltype(mirror::kv_cells::pos)>);
SAME(llama_kv_cache, mirror::kv_cache, n_stream);
SAME(llama_kv_cache, mirror::kv_cache, other);
SAME(llama_kv_cache, mirror::kv_cache, ctxs_bufs);
using tensors_and_buffer = decltype(llama_kv_cache::ctxs_bufs)::value_type;
static_assert(std::is_same_v<tensors_and_buffer, std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>>);
static_assert(sizeof(tensors_and_buffer) == sizeof(mirror::tensors_and_buffer));
static_assert(sizeof(ggml_backend_buffer_ptr) == sizeof(ggml_backend_buffer_t));
static_assert(offsetof(tensors_and_buffer, second) == offsetof(mirror::tensors_and_buffer, buffer));
SAME(llama_kv_cache, mirror::kv_cache, v_cells_impl);
// offsetof does not apply to a reference; the fields before and after it are checked.
SAME(llama_kv_cache, mirror::kv_cache, seq_to_stream);
static_assert(std::is_same_v<decltype(llama_kv_cache::v_cells), std::vector<llama_kv_cells> &>);
