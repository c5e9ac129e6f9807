//! What tells a model's weights from all others.

use std::fs;

use super::tiny::write_hollow;
use crate::llama::identity::ModelFiles;

#[test]
fn every_difference_that_is_sampled_is_another_identity() {
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
    for at in [0, large.len() - 1, large.len() / 63 + 100] {
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
