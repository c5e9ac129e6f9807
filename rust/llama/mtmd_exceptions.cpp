// mtmd tells of some failures by exceptions, which may not leave C++.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

extern "C" {
int32_t mtmd_tokenize_from_parts(const void * ctx, void * output, const void * const * parts, size_t n_parts, bool add_special);
int32_t mtmd_encode_chunk(void * ctx, const void * chunk);
}

template <typename F> static int32_t caught(char * why, size_t n_why, F && call) {
    try {
        return call();
    } catch (const std::exception & error) {
        std::snprintf(why, n_why, "%s", error.what());
    } catch (...) {
        std::snprintf(why, n_why, "an exception without words");
    }
    return -1;
}

// As the functions of mtmd; -1 where one throws, and then `why` says what.
extern "C" int32_t weft_media_tokenize(const void * ctx, void * output, const void * const * parts, size_t n, char * why, size_t n_why) {
    return caught(why, n_why, [&] { return mtmd_tokenize_from_parts(ctx, output, parts, n, false); });
}

extern "C" int32_t weft_media_encode(void * ctx, const void * chunk, char * why, size_t n_why) {
    return caught(why, n_why, [&] { return mtmd_encode_chunk(ctx, chunk); });
}
