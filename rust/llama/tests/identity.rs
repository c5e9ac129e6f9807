//! What tells a model's weights from all others.

use std::fs;

use super::tiny::{Kind, write_hollow, write_tiny};
use crate::llama::gguf::Metadata;
use crate::llama::identity::{ModelFiles, tensors};

#[test]
fn every_byte_of_a_small_file_counts() {
    let path = write_hollow("identity", "llama");
    let header = fs::read(&path).expect("it was just written");
    let mut identities = Vec::new();
    let mut identity_of = |tensors: &[u8]| {
        fs::write(&path, [&header[..], tensors].concat()).expect("the folder is writable");
        let files = ModelFiles::of(&path, 1).expect("the file is there");
        identities.push(files.identity().expect("the file can be read"));
    };
    let large = vec![7; 1 << 20];
    identity_of(&[]);
    identity_of(&[1, 2, 3]);
    identity_of(&[1, 2, 4]);
    identity_of(&large);
    identity_of(&large[1..]);
    for at in [0, large.len() - 1, large.len() / 63 + 100, large.len() / 2, 12_345, 67_890, 999_999] {
        let mut other = large.clone();
        other[at] = 8;
        identity_of(&other);
    }
    let n = identities.len();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), n, "no two are the same");
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn a_file_that_was_replaced_has_no_identity() {
    let path = write_hollow("replaced", "llama");
    let [used, unused] = [0, 1].map(|_| ModelFiles::of(&path, 1).expect("the file is there"));
    let identity = used.identity().expect("the file can be read");
    let longer = [&fs::read(&path).expect("it is there")[..], &[0]].concat();
    fs::write(&path, longer).expect("the folder is writable");
    assert!(unused.identity().expect_err("it has changed").to_string().contains("has changed since it was loaded"));
    assert_eq!(used.identity().expect("it is known already"), identity);
    fs::remove_file(&path).expect("it is there");
}

/// A toy model with 32 MiB behind its tensors, so that the even blocks, half a MiB apart, leave the tensors alone.
#[test]
fn every_tensor_of_a_large_file_counts() {
    let path = write_tiny(Kind::Window);
    let mut content = fs::read(&path).expect("it was just written");
    let n_header = Metadata::open(&path).expect("it is a GGUF file").data_offset();
    let tensors = tensors(&path, n_header).expect("it is a GGUF file");
    assert_eq!(tensors.last().expect("it has tensors").end.next_multiple_of(32), content.len() as u64);
    content.resize(content.len() + (32 << 20), 0);
    let identity_of = |content: &[u8]| {
        fs::write(&path, content).expect("the folder is writable");
        ModelFiles::of(&path, 1).expect("the file is there").hash(0).expect("the file can be read")
    };
    let identity = identity_of(&content);
    assert_eq!(identity_of(&content), identity);
    let mut differs_with = |at: usize| {
        content[at] ^= 1;
        let differs = identity_of(&content) != identity;
        content[at] ^= 1;
        differs
    };
    assert!(tensors.iter().any(|tensor| tensor.end - tensor.start == 64 * 4), "a norm is among them");
    let in_file = |at: u64| usize::try_from(at).expect("in the file");
    for tensor in &tensors {
        for at in [tensor.start, tensor.start.midpoint(tensor.end), tensor.end - 1] {
            assert!(differs_with(in_file(at)), "byte {at} of {tensor:?}");
        }
    }
    assert!(differs_with(in_file(n_header - 1)));
    // What is said to go unseen does: else the blocks were more than they are meant to be.
    let large = tensors.iter().rfind(|tensor| tensor.end - tensor.start > 3 * 4096).expect("there are matrices");
    assert!(!differs_with(in_file(large.start + 4096)), "{large:?}");
    fs::remove_file(&path).expect("it is there");
}
