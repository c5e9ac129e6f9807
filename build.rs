//! Compiles the few lines of C++ that stand between llama.cpp and us.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "llama")]
    shim();
}

/// One file passes a `std::vector` on, one calls C++ functions, one asks for the order that `std::sort` leaves, one reads a `std::map`, one asks `std::regex`,
/// one catches exceptions, so they are compiled by the compiler that compiles llama.cpp, from `CXX`.
#[cfg(feature = "llama")]
fn shim() {
    const FILES: [&str; 6] = [
        "rust/llama/context_bytes.cpp",
        "rust/llama/draft/speculative.cpp",
        "rust/llama/kernels/shim.cpp",
        "rust/llama/longest_first.cpp",
        "rust/llama/mtmd_exceptions.cpp",
        "rust/llama/pattern.cpp",
    ];
    for file in FILES.iter().chain(&["rust/llama/kernels/mirror.h", "rust/llama/draft/common_speculative.h"]) {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new().cpp(true).std("c++17").warnings(true).files(FILES).compile("weft_shim");
}
