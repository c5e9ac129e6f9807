//! Memory that the threads of a team write concurrently.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice of which each thread of a team writes disjoint parts.
#[derive(Debug)]
pub struct SharedSlice<'a, T> {
    first: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the callers of `part_mut` and `part` guarantee that no two threads hold overlapping parts.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> From<&'a mut [T]> for SharedSlice<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }
}

impl<T> SharedSlice<'_, T> {
    /// Wraps the `len` elements that start at `first`.
    ///
    /// # Safety
    /// The elements must outlive this value and be accessed only through it and other `SharedSlice` values.
    pub unsafe fn from_raw_parts(first: *mut T, len: usize) -> Self {
        Self { first, len, borrow: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_mut_ptr(&self) -> *mut T {
        self.first
    }

    fn part_start(&self, range: &Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} is outside of the {} elements", self.len);
        self.first.wrapping_add(range.start)
    }

    /// Callers guarantee that no thread uses an overlapping part while this one lives.
    #[expect(clippy::mut_from_ref, reason = "callers guarantee that parts do not overlap")]
    pub(super) unsafe fn part_mut(&self, range: Range<usize>) -> &mut [T] {
        // SAFETY: the range is within the slice, and the caller guarantees exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.part_start(&range), range.len()) }
    }

    /// Callers guarantee that no thread writes into the part while it lives.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &[T] {
        // SAFETY: the range is within the slice, and the caller guarantees that no thread writes into it.
        unsafe { std::slice::from_raw_parts(self.part_start(&range), range.len()) }
    }
}
