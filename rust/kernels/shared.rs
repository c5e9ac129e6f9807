//! Memory that the threads of a team write together.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice of which every thread of a team writes parts of its own.
#[derive(Debug)]
pub struct Shared<'a, T> {
    first: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts only through `part_mut` and `part`, whose callers vouch that no two threads have overlapping ones.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> From<&'a mut [T]> for Shared<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }
}

impl<T> Shared<'_, T> {
    /// The `len` elements from `first` on.
    ///
    /// # Safety
    /// As long as this lives they are there, and used only through it and its like.
    #[must_use]
    pub unsafe fn from_raw_parts(first: *mut T, len: usize) -> Self {
        Self { first, len, borrow: PhantomData }
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element, for code that keeps to its part by itself.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut T {
        self.first
    }

    /// The elements of `range`, to be written.
    ///
    /// # Safety
    /// As long as the part lives, no other part that overlaps it is used, by this thread or another.
    #[must_use]
    #[expect(clippy::mut_from_ref, reason = "parts that do not overlap are as good as several slices")]
    pub unsafe fn part_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the range is inside of the slice, and the caller vouches that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// The elements of `range`, to be read.
    ///
    /// # Safety
    /// As long as the part lives, nobody writes into it.
    #[must_use]
    pub unsafe fn part(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the range is inside of the slice, and the caller vouches that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.first.add(range.start), range.len()) }
    }
}
