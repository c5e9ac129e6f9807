//! Tests saved states of memories that no toy model has, assembled by hand.

use crate::llama::context::saved_state::StateLayout;

/// Format 1 is F16.
const F16: i32 = 1;

/// An attention cache of two layers, with 4 numbers of K and 3 of V each.
#[derive(Clone, Copy)]
struct Cache {
    n_ext: usize,
    has_values: bool,
    in_columns: bool,
}

impl Cache {
    fn write(self, positions: &[u32], out: &mut Vec<u8>) {
        let words = |out: &mut Vec<u8>, words: &[u32]| out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let n = u32::try_from(positions.len()).expect("few");
        words(out, &[1, n]);
        if n == 0 {
            return;
        }
        for &position in positions {
            words(out, &[position, 1]);
            out.extend(vec![0xEE; self.n_ext]);
            words(out, &[9]);
        }
        words(out, &[u32::from(self.in_columns), 2, 0, 0]);
        // Each 16-bit number encodes its layer, element and position.
        let number = |layer: u32, position: u32, element: u32| {
            [u8::try_from(layer << 4 | element).expect("small"), u8::try_from(position).expect("small")]
        };
        let rows =
            |layer: u32, n: u32| positions.iter().flat_map(move |&position| (0..n).flat_map(move |i| number(layer, position, i)));
        for layer in 0..2 {
            out.extend(F16.to_le_bytes());
            out.extend(8_u64.to_le_bytes());
            out.extend(rows(layer, 4));
        }
        for layer in 2..if self.has_values { 4 } else { 2 } {
            out.extend(F16.to_le_bytes());
            if self.in_columns {
                words(out, &[2, 3]);
                out.extend((0..3).flat_map(|i| positions.iter().flat_map(move |&position| number(layer, position, i))));
            } else {
                out.extend(6_u64.to_le_bytes());
                out.extend(rows(layer, 3));
            }
        }
    }
}

fn piece(caches: &[(Cache, &[u32])]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0xAF14_3CD8_u32.to_le_bytes());
    out.extend(0_u32.to_le_bytes());
    for (cache, positions) in caches {
        cache.write(positions, &mut out);
    }
    out
}

const PLAIN: Cache = Cache { n_ext: 0, has_values: true, in_columns: false };

fn layout_of(caches: &[Cache]) -> StateLayout {
    let caches: Vec<_> = caches.iter().map(|&cache| (cache, &[0, 1][..])).collect();
    StateLayout::read(&piece(&caches), 2, false).expect("these are the forms that llama.cpp writes")
}

#[test]
fn every_form_of_a_cache_is_recognized() {
    for n_ext in [0, 12] {
        for has_values in [true, false] {
            for in_columns in [true, false] {
                let cache = Cache { n_ext, has_values, in_columns };
                let layout = layout_of(&[cache]);
                let n_values = if has_values { 2 * 6 } else { 0 };
                assert_eq!(layout.bytes_per_token(), 12 + n_ext as u64 + 2 * 8 + n_values);
                let later = piece(&[(cache, &[5, 6, 7, 8, 9])]);
                let checked = layout.check(&later).expect("the form matches");
                assert_eq!((checked.range, checked.whole_from), (5..10, 5));
                // Together with a cache of another form, as in models with an indexer.
                let combined = layout_of(&[cache, PLAIN]);
                assert!(combined.check(&piece(&[(cache, &[5, 6]), (PLAIN, &[5, 6])])).is_ok());
                assert!(combined.check(&later).is_err(), "a part is missing");
            }
        }
    }
}

#[test]
fn malformed_states_have_no_layout() {
    let whole = piece(&[(PLAIN, &[0, 1])]);
    // Without V these are the bytes of a cache with K only.
    let n_key_bytes = piece(&[(Cache { has_values: false, ..PLAIN }, &[0, 1])]).len();
    for n_kept in (0..whole.len()).filter(|&n_kept| n_kept != n_key_bytes) {
        assert_eq!(StateLayout::read(&whole[..n_kept], 2, false), None, "{n_kept} bytes");
    }
    assert_eq!(StateLayout::read(&whole, 3, false), None);
    assert_eq!(StateLayout::read(&whole, 2, true), None, "there is no recurrent state");
}

#[test]
fn cells_are_sorted_and_v_is_transposed() {
    // Without V there is nothing to transpose, but llama.cpp requires its flag.
    for (n_ext, has_values) in [(0, true), (12, true), (0, false)] {
        let [rows, columns] = [false, true].map(|in_columns| Cache { n_ext, has_values, in_columns });
        for (own, other) in [(rows, columns), (columns, rows)] {
            let layout = layout_of(&[own]);
            let ordered = piece(&[(own, &[4, 5, 6])]);
            assert_eq!(*layout.sort(piece(&[(own, &[6, 4, 5])]).into()).expect("the state is valid"), ordered);
            let other_layout = piece(&[(other, &[4, 5, 6])]);
            assert_eq!(*layout.check(&other_layout).expect("it can be other_layout").bytes, ordered);
        }
    }
}

#[test]
fn positions_must_be_consecutive() {
    let layout = layout_of(&[PLAIN]);
    for positions in [&[4, 6, 7][..], &[4, 4, 5], &[5, 4], &[0, u32::MAX >> 1]] {
        let mut out = Vec::new();
        // Numbers encode positions below 256 only, so only the entries are changed.
        Cache { has_values: true, ..PLAIN }.write(&vec![0; positions.len()], &mut out);
        for (i, position) in positions.iter().enumerate() {
            out[8 + 12 * i..][..4].copy_from_slice(&position.to_le_bytes());
        }
        let bytes = [&piece(&[])[..], &out].concat();
        assert!(layout.check(&bytes).is_err(), "{positions:?}");
    }
    assert!(layout.check(&piece(&[(PLAIN, &[])])).is_err(), "no cells");
}

#[test]
fn a_windows_cache_may_have_fewer_positions() {
    let layout = layout_of(&[PLAIN, PLAIN]);
    let check = |all: &[u32], window: &[u32]| {
        let bytes = piece(&[(PLAIN, all), (PLAIN, window)]);
        layout.check(&bytes).map(|checked| (checked.range, checked.whole_from))
    };
    assert_eq!(check(&[3, 4, 5, 6], &[3, 4, 5, 6]), Ok((3..7, 3)));
    assert_eq!(check(&[3, 4, 5, 6], &[5, 6]), Ok((3..7, 5)));
    assert_eq!(check(&[3, 4, 5, 6], &[]), Ok((3..7, 7)));
    // With a gap at the end or before it.
    assert_eq!(check(&[3, 4, 5, 6], &[4, 5]), Ok((3..7, 7)));
    assert_eq!(check(&[3, 4, 5, 6], &[3, 4, 6]), Ok((3..7, 6)));
    assert!(check(&[3, 4, 5, 6], &[5, 5, 6]).is_err());
    assert!(check(&[3, 4, 5, 6], &[2, 3, 4, 5, 6]).is_err());
    assert!(check(&[3, 4, 5, 6], &[6, 7]).is_err());
}
