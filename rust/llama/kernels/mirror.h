// What ggml-cpu keeps in private headers and its extra buffer types are made of, repeated here, since llama.cpp's crate exposes no
// header. `mirror_check.cpp` compares each of them with the real ones.
#pragma once

#include <cstddef>
#include <vector>

struct ggml_tensor;
struct ggml_threadpool;

namespace weft::mirror {

// `ggml_backend_buffer_type_i` and `ggml_backend_buffer_type` of ggml-backend-impl.h. Only the context is used by name.
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

// `ggml::cpu::tensor_traits` and `ggml::cpu::extra_buffer_type` of traits.h. Their destructors are inline here, so that nothing of
// ggml's has to be linked for them.
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

}  // namespace weft::mirror
