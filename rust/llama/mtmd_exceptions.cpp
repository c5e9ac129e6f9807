// mtmd reports some failures by exceptions, which must not leave C++.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

extern "C" {
int32_t mtmd_tokenize_from_parts(const void * ctx, void * output, const void * const * parts, size_t n_parts, bool add_special);
int32_t mtmd_encode_chunk(void * ctx, const void * chunk);
}

template <typename F> static int32_t catch_exceptions(char * message, size_t n_message_bytes, F && call) {
    try {
        return call();
    } catch (const std::exception & error) {
        std::snprintf(message, n_message_bytes, "%s", error.what());
    } catch (...) {
        std::snprintf(message, n_message_bytes, "an exception without words");
    }
    return -1;
}

// Wrappers of the functions of mtmd: return -1 if these throw, with the exception's text in `message`.
extern "C" int32_t weft_media_tokenize(const void * ctx, void * output, const void * const * parts, size_t n, char * message, size_t n_message_bytes) {
    return catch_exceptions(message, n_message_bytes, [&] { return mtmd_tokenize_from_parts(ctx, output, parts, n, false); });
}

extern "C" int32_t weft_media_encode(void * ctx, const void * chunk, char * message, size_t n_message_bytes) {
    return catch_exceptions(message, n_message_bytes, [&] { return mtmd_encode_chunk(ctx, chunk); });
}
