//! Compiles the few lines of C++ that stand between llama.cpp and our kernels.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "llama")]
    shim();
}

/// The shim passes a `std::vector` on, so it is compiled by the compiler that compiles llama.cpp, from `CXX`.
#[cfg(feature = "llama")]
fn shim() {
    const FOLDER: &str = "rust/llama/kernels";
    println!("cargo::rerun-if-changed={FOLDER}/shim.cpp");
    println!("cargo::rerun-if-changed={FOLDER}/mirror.h");
    cc::Build::new().cpp(true).std("c++17").warnings(true).file(format!("{FOLDER}/shim.cpp")).compile("weft_kernels_shim");
}
