//! Tests the identity of a model's weights.

use std::fs;
use std::ops::Range;

use super::tiny::{Kind, write_hollow, write_tiny};
use crate::llama::model::gguf::Metadata;
use crate::llama::model::identity::ModelFiles;

#[test]
fn every_byte_of_a_small_file_affects_its_identity() {
    let path = write_hollow("identity", "llama");
    let header = fs::read(&path).expect("it was just written");
    let mut identities = Vec::new();
    let mut identity_of = |tensors: &[u8]| {
        fs::write(&path, [&header[..], tensors].concat()).expect("the folder is writable");
        let files = ModelFiles::open(&path, 1).expect("the file exists");
        identities.push(files.identity().expect("the file can be read"));
    };
    let large = vec![7; 1 << 20];
    identity_of(&[]);
    identity_of(&[1, 2, 3]);
    identity_of(&[1, 2, 4]);
    identity_of(&large);
    identity_of(&large[1..]);
    for offset in [0, large.len() - 1, large.len() / 63 + 100, large.len() / 2, 12_345, 67_890, 999_999] {
        let mut other = large.clone();
        other[offset] = 8;
        identity_of(&other);
    }
    let n = identities.len();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), n, "all identities differ");
    fs::remove_file(&path).expect("the file exists");
}

#[test]
fn a_replaced_file_has_no_identity() {
    let path = write_hollow("replaced", "llama");
    let [used, unused] = [0, 1].map(|_| ModelFiles::open(&path, 1).expect("the file exists"));
    let identity = used.identity().expect("the file can be read");
    let longer = [&fs::read(&path).expect("the file exists")[..], &[0]].concat();
    fs::write(&path, longer).expect("the folder is writable");
    assert!(unused.identity().expect_err("the file has changed").to_string().contains("has changed since it was loaded"));
    assert_eq!(used.identity().expect("the identity is cached"), identity);
    fs::remove_file(&path).expect("the file exists");
}

/// A toy model with 32 MiB after its tensors, so that the evenly spaced blocks, half a MiB apart, do not touch the tensors.
#[test]
fn every_tensor_of_a_large_file_affects_its_identity() {
    let path = write_tiny(Kind::Window);
    let mut content = fs::read(&path).expect("it was just written");
    let metadata = Metadata::open(&path).expect("it is a GGUF file");
    let (n_header, tensors) =
        (metadata.data_offset(), metadata.named_tensors().map(|(_, tensor)| tensor.range()).collect::<Vec<Range<u64>>>());
    assert_eq!(tensors.last().expect("the file has tensors").end.next_multiple_of(32), content.len() as u64);
    content.resize(content.len() + (32 << 20), 0);
    let identity_of = |content: &[u8]| {
        fs::write(&path, content).expect("the folder is writable");
        ModelFiles::open(&path, 1).expect("the file exists").hash(0).expect("the file can be read")
    };
    let identity = identity_of(&content);
    assert_eq!(identity_of(&content), identity);
    let mut differs_with = |offset: usize| {
        content[offset] ^= 1;
        let differs = identity_of(&content) != identity;
        content[offset] ^= 1;
        differs
    };
    assert!(tensors.iter().any(|tensor| tensor.end - tensor.start == 64 * 4), "a norm is among them");
    let in_file = |offset: u64| usize::try_from(offset).expect("in the file");
    for tensor in &tensors {
        for offset in [tensor.start, tensor.start.midpoint(tensor.end), tensor.end - 1] {
            assert!(differs_with(in_file(offset)), "byte {offset} of {tensor:?}");
        }
    }
    assert!(differs_with(in_file(n_header - 1)));
    // The documented limitation holds: otherwise more blocks would be hashed than intended.
    let large = tensors.iter().rfind(|tensor| tensor.end - tensor.start > 3 * 4096).expect("there are matrices");
    assert!(!differs_with(in_file(large.start + 4096)), "{large:?}");
    fs::remove_file(&path).expect("the file exists");
}
