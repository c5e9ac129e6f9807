// Declarations from private headers of llama.cpp and ggml-cpu that our kernels need, since llama.cpp's crate exposes no headers.
// `mirror_check.cpp` compares each of them with the original.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

struct ggml_tensor;
struct ggml_threadpool;

namespace weft::mirror {

// `ggml_backend_buffer_type_i` and `ggml_backend_buffer_type` of ggml-backend-impl.h. Only `context` is accessed by name.
struct buffer_type {
    void * functions[8];
    void * device;
    void * context;
};

// `ggml_compute_params` of ggml-cpu-impl.h.
struct compute_params {
    int               ith;
    int               nth;
    size_t            wsize;
    void *            wdata;
    ggml_threadpool * threadpool;
    bool              use_ref;
};

// `ggml::cpu::tensor_traits` and `ggml::cpu::extra_buffer_type` of traits.h. Their destructors are inline here, so that they
// do not have to be linked from ggml.
class tensor_traits {
  public:
    virtual ~tensor_traits() = default;
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(compute_params * params, ggml_tensor * op)      = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type() = default;
    virtual bool            supports_op(void * device, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op)          = 0;
};

// The first fields of `llama_kv_cells` of llama-kv-cells.h.
struct kv_cells {
    bool                 has_shift;
    std::set<uint32_t>   used;
    std::vector<int32_t> pos;
};

// Element of `llama_kv_cache::ctxs_bufs`: two owning pointers, to a `ggml_context` and to a `ggml_backend_buffer`.
struct tensors_and_buffer {
    void * tensors;
    void * buffer;
};

// The first fields of `llama_kv_cache` of llama-kv-cache.h, up to the last one used.
struct kv_cache {
    const void *                                    virtual_functions;
    const void *                                    model;
    const void *                                    hparams;
    bool                                            v_trans;
    uint32_t                                        n_seq_max;
    uint32_t                                        n_stream;
    uint32_t                                        n_pad;
    uint32_t                                        n_swa;
    uint32_t                                        n_rot_k;
    uint32_t                                        n_rot_v;
    int32_t                                         n_embd_head_k_all;
    int32_t                                         n_embd_head_v_all;
    std::unordered_map<int64_t, std::vector<float>> attn_rot_hadamard;
    int                                             debug;
    int                                             swa_type;
    std::vector<tensors_and_buffer>                 ctxs_bufs;
    std::vector<uint32_t>                           v_heads;
    const kv_cache *                                other;
    std::shared_ptr<void>                           v_cells_impl;
    // A vector of `llama_kv_cells`, of which only the first is read.
    const std::vector<kv_cells> *                   v_cells;
    std::vector<uint32_t>                           seq_to_stream;
};

}  // namespace weft::mirror
