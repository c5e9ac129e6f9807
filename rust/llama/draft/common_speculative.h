// Declarations of llama.cpp's common/speculative.h, and of what it needs of common/common.h and llama.h: llama.cpp's crate exposes no
// headers. Names, fields and default values are those of the originals: functions are linked by name, also those that the compiler
// generates. `mirror_check.cpp` compares each struct with its original.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct common_speculative;
struct llama_batch_ext;
struct llama_context;
struct llama_model;

using llama_token  = int32_t;
using llama_pos    = int32_t;
using llama_seq_id = int32_t;
using llama_tokens = std::vector<llama_token>;

struct llama_token_data;

extern "C" void llama_batch_ext_free(llama_batch_ext * batch);

struct llama_batch_ext_deleter {
    void operator()(llama_batch_ext * batch) { llama_batch_ext_free(batch); }
};

struct llama_embd {
    const float * data;
    size_t        n_rows;
    size_t        n_embd;
};

enum common_speculative_type {
    COMMON_SPECULATIVE_TYPE_NONE,
    COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3,
    COMMON_SPECULATIVE_TYPE_DRAFT_MTP,
    COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH,
    COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK,
};

struct common_cpu_params {
    int      n_threads    = -1;
    bool     cpumask[512] = {};
    bool     mask_valid   = false;
    int      priority     = 0;
    bool     strict_cpu   = false;
    uint32_t poll         = 50;
};

struct common_params_model {
    std::string path;
    std::string url;
    std::string hf_repo;
    std::string hf_file;
    std::string docker_repo;
};

struct common_params_speculative_draft {
    int32_t             n_max            = 3;
    int32_t             n_min            = 0;
    float               p_split          = 0.1f;
    float               p_min            = 0.0f;
    bool                backend_sampling = true;
    bool                probabilistic    = false;
    common_params_model mparams;
    llama_context *     ctx_tgt      = nullptr;
    llama_context *     ctx_dft      = nullptr;
    int32_t             n_gpu_layers = -1;
    int                 cache_type_k = 1;
    int                 cache_type_v = 1;
    common_cpu_params   cpuparams;
    common_cpu_params   cpuparams_batch;
    std::vector<void *> devices;
    std::vector<void *> tensor_buft_overrides;
};

struct common_params_speculative_ngram_mod {
    int32_t n_match = 24;
    int32_t n_max   = 64;
    int32_t n_min   = 48;
};

struct common_params_speculative_ngram_map {
    uint16_t size_n   = 12;
    uint16_t size_m   = 48;
    uint16_t min_hits = 1;
};

struct common_params_speculative_ngram_cache {
    std::string lookup_cache_static;
    std::string lookup_cache_dynamic;
};

struct common_params_speculative {
    std::vector<common_speculative_type>  types     = { COMMON_SPECULATIVE_TYPE_NONE };
    double                                synth_len = -1.0;
    std::vector<double>                   synth_rates;
    common_params_speculative_draft       draft;
    common_params_speculative_ngram_mod   ngram_mod;
    common_params_speculative_ngram_map   ngram_simple;
    common_params_speculative_ngram_map   ngram_map_k;
    common_params_speculative_ngram_map   ngram_map_k4v;
    common_params_speculative_ngram_cache ngram_cache;
};

struct common_speculative_draft_params {
    bool                                        drafting = false;
    int32_t                                     n_max    = -1;
    llama_pos                                   pos0;
    llama_token                                 id_last;
    const llama_tokens *                        prompt;
    llama_tokens *                              result;
    std::vector<std::vector<llama_token_data>> * result_q = nullptr;
    float                                       temp     = 1.0f;
    uint32_t                                    seed     = 0xFFFFFFFF;
};

struct common_batch {
    struct token {
        llama_token               id;
        std::array<llama_pos, 4>  pos;
        llama_seq_id              seq_id;
        bool                      output;
        llama_embd                embd;
        std::vector<llama_seq_id> seq_ids_extra;
        int32_t                   decision_order = 0;
    };

    std::vector<token>                                        tokens;
    std::unique_ptr<llama_batch_ext, llama_batch_ext_deleter> batch;
    int32_t                                                   n_pos = 1;
};

common_speculative * common_speculative_init(common_params_speculative & params, uint32_t n_seq);
void                 common_speculative_free(common_speculative * spec);
int32_t              common_speculative_n_max(const common_speculative * spec);
bool                 common_speculative_are_compatible(const llama_model * model_tgt, const llama_model * model_dft);
bool                 common_speculative_process(common_speculative * spec, const common_batch & batch);
void                 common_speculative_draft(common_speculative * spec);
void                 common_speculative_accept(common_speculative * spec, llama_seq_id seq_id, uint16_t n_accepted);

common_speculative_draft_params & common_speculative_get_draft_params(common_speculative * spec, llama_seq_id seq_id);

void common_log_set_verbosity_thold(int verbosity);

// Of llama-ext.h.
const int32_t * llama_model_target_layer_ids(const llama_model * model);
uint32_t        llama_model_target_layer_ids_n(const llama_model * model);
