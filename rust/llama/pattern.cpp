// llama.cpp matches tensor names with std::regex, which has its own grammar and reports errors by exceptions. So the same class,
// from the same library, is used here.
#include <cstddef>
#include <cstdio>
#include <regex>

// Returns 1 if `pattern` matches any of the `n` names, 0 if none; -1 if it is invalid, with the error in `message`.
extern "C" int weft_pattern_find(const char * pattern, const char * const * names, size_t n, char * message, size_t n_message_bytes) {
    try {
        const std::regex regex(pattern);
        for (size_t i = 0; i < n; i++) {
            if (std::regex_search(names[i], regex)) {
                return 1;
            }
        }
        return 0;
    } catch (const std::exception & error) {
        std::snprintf(message, n_message_bytes, "%s", error.what());
        return -1;
    }
}
