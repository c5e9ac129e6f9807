//! Maps characters that a grammar does not distinguish to one symbol.

use super::rules::Class;

/// A partition of the code points into ranges, each of which is entirely inside or outside of every class of the grammar.
#[derive(Debug)]
pub(super) struct Alphabet {
    starts: Vec<u32>,
    ascii: [u32; 128],
    classes: Vec<Box<[(u32, u32)]>>,
}

impl Alphabet {
    pub(super) fn new(classes: &[Class]) -> Self {
        let ends = |&(low, high): &(u32, u32)| [Some(low), high.checked_add(1)];
        let mut starts: Vec<u32> = classes.iter().flat_map(|class| class.iter().flat_map(ends)).flatten().collect();
        starts.push(0);
        starts.sort_unstable();
        starts.dedup();
        let mut alphabet = Self { starts, ascii: [0; 128], classes: Vec::new() };
        for code in 0..128_u32 {
            alphabet.ascii[code as usize] = alphabet.find(code);
        }
        let symbols = |&(low, high): &(u32, u32)| (alphabet.find(low), alphabet.find(high));
        alphabet.classes = classes.iter().map(|class| class.iter().map(symbols).collect()).collect();
        alphabet
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn symbol(&self, code: u32) -> u32 {
        self.ascii.get(code as usize).copied().unwrap_or_else(|| self.find(code))
    }

    fn find(&self, code: u32) -> u32 {
        let index = self.starts.partition_point(|&start| start <= code) - 1;
        u32::try_from(index).expect("there are fewer ranges than code points")
    }

    /// Returns the ranges of code points in the class, inclusive.
    pub(super) fn ranges(&self, class: u32) -> impl Iterator<Item = (u32, u32)> {
        let end = |symbol: u32| self.starts.get(symbol as usize + 1).map_or(u32::MAX, |next| next - 1);
        self.classes[class as usize].iter().map(move |&(low, high)| (self.starts[low as usize], end(high)))
    }

    /// Returns true if the class contains one of the symbols from `low` to `high`, inclusive.
    pub(super) fn overlaps(&self, class: u32, low: u32, high: u32) -> bool {
        let ranges = &self.classes[class as usize];
        let next = ranges.partition_point(|&(_, end)| end < low);
        ranges.get(next).is_some_and(|&(start, _)| start <= high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_no_class_distinguishes_are_one_symbol() {
        let classes: [Class; 3] = [[(97, 122)].into(), [(120, 120), (228, 0xFFFF)].into(), [(0, u32::MAX)].into()];
        let alphabet = Alphabet::new(&classes);
        let symbol = |character: char| alphabet.symbol(character.into());
        assert_eq!(symbol('a'), symbol('w'));
        assert!(symbol('x') != symbol('w') && symbol('x') != symbol('y'));
        assert_eq!(symbol('ä'), symbol('漢'));
        assert_ne!(symbol('漢'), symbol('🦀'));
        // 0, a, x, y, {, ä, and above the basic multilingual plane.
        assert_eq!(alphabet.len(), 7);
        for (class, ranges) in (0..).zip(&classes) {
            for code in (0..300).chain([0xFFFF, 0x1_0000, u32::MAX]) {
                let symbol = alphabet.symbol(code);
                let is_in = ranges.iter().any(|&(low, high)| low <= code && code <= high);
                assert_eq!(alphabet.overlaps(class, symbol, symbol), is_in, "code {code} in class {class}");
            }
            assert!(alphabet.ranges(class).eq(ranges.iter().copied()));
        }
        assert!(alphabet.overlaps(1, symbol('y'), symbol('ä')) && !alphabet.overlaps(1, symbol('y'), symbol('y')));
    }
}
