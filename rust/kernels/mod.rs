//! CPU kernels for attention and matrix products over many rows, where decoding many sequences spends its time.
//!
//! llama.cpp's CPU code is optimised for one row or for hundreds. These kernels let 2 to some hundred rows share their memory
//! reads: a tile of cells is multiplied with all rows that see it, a panel of weights with all rows of the batch. They are
//! functions on slices, independent of llama.cpp.
//!
//! # Batch invariance
//!
//! A row's result depends on that row's own inputs alone, not on the other rows of the batch, the number of threads, or how
//! work is divided among them: attention sums in blocks of the row's own positions, products along a row of weights. A row
//! computed alone and the same row among hundreds are equal bit by bit.

#![allow(clippy::wildcard_imports, reason = "many intrinsics are used, and their names are unambiguous")]

/// Defines inlined functions of one expression, whose callers guarantee the instruction set and valid pointers.
macro_rules! primitives {
    ($($(#[$meta:meta])* $visibility:vis $name:ident
        $(<$($generic:ident $(: $bound:ident)? $($constant:ident: $of:ident)?),*>)?
        ($($arg:tt)*) $(-> $out:ty)? = $value:expr;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        #[allow(unused_unsafe, reason = "some expressions are plain Rust")]
        $visibility unsafe fn $name $(<$($generic $(: $bound)? $($constant: $of)?),*>)? ($($arg)*) $(-> $out)? {
            // SAFETY: the caller guarantees the instruction set, and pointers that are valid for the accesses.
            unsafe { $value }
        }
    )*};
}

/// The same, but not inlined: compiled for the instruction set that an attribute enables.
macro_rules! compiled {
    ($attribute:tt $($name:ident
        $(<$($generic:ident $(: $bound:ident)? $($constant:ident: $of:ident)?),*>)?
        ($($arg:tt)*) $(-> $out:ty)? = $value:expr;)*) => {$(
        #$attribute
        unsafe fn $name $(<$($generic $(: $bound)? $($constant: $of)?),*>)? ($($arg)*) $(-> $out)? {
            // SAFETY: as above.
            unsafe { $value }
        }
    )*};
}

pub mod attention;
mod half;
mod level;
pub mod products;
mod shared;
mod team;
#[cfg(test)]
mod test_random;
#[cfg(test)]
mod test_teams;
mod transpose;

pub use level::Level;
pub use shared::SharedSlice;
pub use team::Team;

#[cfg(test)]
use test_random::Random;
#[cfg(test)]
use test_teams::{SoloTeam, ThreadTeam};
