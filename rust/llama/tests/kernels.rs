//! Our kernels under llama.cpp, against its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::llama::kernels;

/// Where cargo keeps the sources of llama.cpp.
fn llama_cpp() -> PathBuf {
    let told = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let told = String::from_utf8(told.stdout).expect("cargo writes UTF-8");
    let paths = told.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let manifest = paths.map(Path::new).find(|path| path.to_string_lossy().contains("/llama-cpp-sys-2-"));
    manifest.and_then(Path::parent).expect("llama.cpp's crate is a dependency").join("llama.cpp")
}

#[test]
fn what_is_mirrored_of_private_headers_is_what_they_say() {
    let (sources, ours) = (llama_cpp(), Path::new(env!("CARGO_MANIFEST_DIR")).join("rust/llama/kernels"));
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folders = ["ggml/src", "ggml/include", "include", "src"].map(|folder| sources.join(folder));
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-fsyntax-only", "-fno-access-control", "-Wno-invalid-offsetof"]);
    for folder in folders.iter().chain([&ours]) {
        command.arg("-I").arg(folder);
    }
    let told = command.arg(ours.join("mirror_check.cpp")).output().expect("there is a compiler");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn kernels_pass_their_trial_where_the_processor_has_the_instructions() {
    let installed = kernels::install();
    let has_instructions = installed.level != crate::kernels::Level::Portable;
    assert_eq!(installed.usable == crate::config::Used::ALL, has_instructions, "{:?}", installed.why_not);
}
