// llama.cpp reads patterns of tensors' names with std::regex, which has a grammar of its own and tells what is wrong with one by an
// exception: so the same class, from the same library, is asked here.
#include <cstddef>
#include <cstdio>
#include <regex>

// 1 where `pattern` is found in any of the `n` names, 0 where it is in none; -1 where it is none, and then `why` says what is wrong.
extern "C" int weft_pattern_find(const char * pattern, const char * const * names, size_t n, char * why, size_t n_why) {
    try {
        const std::regex regex(pattern);
        for (size_t i = 0; i < n; i++) {
            if (std::regex_search(names[i], regex)) {
                return 1;
            }
        }
        return 0;
    } catch (const std::exception & error) {
        std::snprintf(why, n_why, "%s", error.what());
        return -1;
    }
}
