// Compiled by a test, with llama.cpp's own headers: it compiles as long as `common_speculative.h` matches them.
#include "common.h"
#include "speculative.h"
#include <cstddef>
#include <type_traits>

// The mirrored declaration has a type of its own.
#define llama_batch_ext_free mirrored_batch_ext_free
namespace mirror {
#include "common_speculative.h"
}
#define SAME_SIZE(name) static_assert(sizeof(name) == sizeof(mirror::name))
#define SAME_FIELD(name, field) static_assert(offsetof(name, field) == offsetof(mirror::name, field))
SAME_SIZE(llama_embd);
SAME_SIZE(common_cpu_params);
SAME_SIZE(common_params_model);
SAME_SIZE(common_params_speculative_draft);
SAME_FIELD(common_params_speculative_draft, n_max);
SAME_FIELD(common_params_speculative_draft, p_min);
SAME_FIELD(common_params_speculative_draft, backend_sampling);
SAME_FIELD(common_params_speculative_draft, probabilistic);
SAME_FIELD(common_params_speculative_draft, mparams);
SAME_FIELD(common_params_speculative_draft, ctx_tgt);
SAME_FIELD(common_params_speculative_draft, ctx_dft);
SAME_FIELD(common_params_speculative_draft, cpuparams_batch);
SAME_FIELD(common_params_speculative_draft, devices);
SAME_FIELD(common_params_speculative_draft, tensor_buft_overrides);
SAME_SIZE(common_params_speculative_ngram_mod);
SAME_SIZE(common_params_speculative_ngram_map);
SAME_SIZE(common_params_speculative_ngram_cache);
SAME_SIZE(common_params_speculative);
SAME_FIELD(common_params_speculative, types);
SAME_FIELD(common_params_speculative, synth_len);
SAME_FIELD(common_params_speculative, draft);
SAME_FIELD(common_params_speculative, ngram_cache);
SAME_SIZE(common_speculative_draft_params);
SAME_FIELD(common_speculative_draft_params, n_max);
SAME_FIELD(common_speculative_draft_params, pos0);
SAME_FIELD(common_speculative_draft_params, id_last);
SAME_FIELD(common_speculative_draft_params, prompt);
SAME_FIELD(common_speculative_draft_params, result);
SAME_FIELD(common_speculative_draft_params, result_q);
SAME_SIZE(common_batch);
SAME_FIELD(common_batch, tokens);
SAME_FIELD(common_batch, batch);
SAME_FIELD(common_batch, n_pos);
SAME_SIZE(common_batch::token);
SAME_FIELD(common_batch::token, pos);
SAME_FIELD(common_batch::token, seq_id);
SAME_FIELD(common_batch::token, output);
SAME_FIELD(common_batch::token, embd);
SAME_FIELD(common_batch::token, seq_ids_extra);
SAME_FIELD(common_batch::token, decision_order);
static_assert(COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE == int(mirror::COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE));
static_assert(COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK == int(mirror::COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK));
static_assert(GGML_MAX_N_THREADS == 512);
