// llama.cpp's speculative decoding has C++ interfaces, and reports some failures by exceptions, which must not leave C++.
#include "common_speculative.h"

#include <algorithm>
#include <cstdio>
#include <exception>

namespace {

struct drafter {
    common_speculative *      speculative;
    std::vector<llama_tokens> drafts;
    // True for a sequence that had a draft.
    std::vector<bool> has_drafted;
    // Read for its length only.
    llama_tokens no_prompt;

    ~drafter() { common_speculative_free(speculative); }
};

template <typename F> int32_t catch_exceptions(char * message, size_t n_message_bytes, F && call) {
    try {
        return call();
    } catch (const std::exception & error) {
        std::snprintf(message, n_message_bytes, "%s", error.what());
    } catch (...) {
        std::snprintf(message, n_message_bytes, "an exception without words");
    }
    return -1;
}

}  // namespace

extern "C" {

struct weft_drafter_params {
    int32_t         type;
    int32_t         n_max;
    float           p_min;
    uint32_t        n_seq;
    llama_context * target;
    llama_context * draft;
};

struct weft_draft_request {
    int32_t id;
    int32_t token;
    int32_t position;
    int32_t n_max;
};

// Returns null if llama.cpp refuses, with the reason in `message`. The contexts must outlive the result.
drafter * weft_drafter_new(const weft_drafter_params * given, char * message, size_t n_message_bytes) {
    drafter * made = nullptr;
    catch_exceptions(message, n_message_bytes, [&] {
        // Failures are returned, and reported by the caller.
        common_log_set_verbosity_thold(-1);
        common_params_speculative params;
        params.types                  = { static_cast<common_speculative_type>(given->type) };
        params.draft.n_max            = given->n_max;
        params.draft.p_min            = given->p_min;
        params.draft.backend_sampling = false;
        params.draft.ctx_tgt          = given->target;
        params.draft.ctx_dft          = given->draft;
        auto next         = std::make_unique<drafter>();
        next->speculative = common_speculative_init(params, given->n_seq);
        next->drafts.resize(given->n_seq);
        next->has_drafted.resize(given->n_seq);
        made = next->speculative ? next.release() : nullptr;
        return 0;
    });
    return made;
}

void weft_drafter_free(drafter * drafter) {
    delete drafter;
}

int32_t weft_drafter_n_max(const drafter * drafter) {
    return common_speculative_n_max(drafter->speculative);
}

// Updates the draft context by tokens that the target has computed. Returns 0, or 1 if llama.cpp failed, or -1 with a message.
int32_t weft_drafter_process(drafter * drafter, size_t n, const int32_t * tokens, const int32_t * positions, const int32_t * ids,
                             char * message, size_t n_message_bytes) {
    return catch_exceptions(message, n_message_bytes, [&] {
        common_batch batch;
        batch.tokens.reserve(n);
        for (size_t i = 0; i < n; i++) {
            batch.tokens.push_back({ tokens[i], { positions[i], 0, 0, 0 }, ids[i], false, { nullptr, 0, 0 }, {} });
        }
        return common_speculative_process(drafter->speculative, batch) ? 0 : 1;
    });
}

// Drafts for `n` sequences. `lengths` receives the number of tokens of each draft, `tokens` the drafts, `max_draft` apart.
int32_t weft_drafter_draft(drafter * drafter, size_t n, const weft_draft_request * requests, int32_t * tokens, size_t max_draft,
                           size_t * lengths, char * message, size_t n_message_bytes) {
    return catch_exceptions(message, n_message_bytes, [&] {
        for (size_t i = 0; i < n; i++) {
            const auto & request = requests[i];
            auto &       draft   = drafter->drafts[request.id];
            auto &       params  = common_speculative_get_draft_params(drafter->speculative, request.id);
            draft.clear();
            params.drafting = true;
            params.n_max    = request.n_max;
            params.pos0     = request.position;
            params.id_last  = request.token;
            params.prompt   = &drafter->no_prompt;
            params.result   = &draft;
        }
        common_speculative_draft(drafter->speculative);
        for (size_t i = 0; i < n; i++) {
            const auto & draft = drafter->drafts[requests[i].id];
            lengths[i]         = draft.size() < max_draft ? draft.size() : max_draft;
            std::copy(draft.begin(), draft.begin() + lengths[i], tokens + i * max_draft);
            drafter->has_drafted[requests[i].id] = drafter->has_drafted[requests[i].id] || !draft.empty();
        }
        return 0;
    });
}

// The target accepted `n` of the tokens that it last computed after the first one. Returns false if nothing was drafted for the
// sequence yet: llama.cpp asserts that it accepts nothing.
bool weft_drafter_accept(drafter * drafter, int32_t id, uint16_t n) {
    if (!drafter->has_drafted[id]) {
        return false;
    }
    common_speculative_accept(drafter->speculative, id, n);
    return true;
}

bool weft_are_compatible(const llama_model * target, const llama_model * draft) {
    common_log_set_verbosity_thold(-1);
    return common_speculative_are_compatible(target, draft);
}

// Returns the layers of the target whose inputs a draft model reads.
const int32_t * weft_target_layers(const llama_model * draft, size_t * n) {
    *n = llama_model_target_layer_ids_n(draft);
    return llama_model_target_layer_ids(draft);
}

}
