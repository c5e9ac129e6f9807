//! Primitives over lanes of 32 bits. Every instruction set computes the same numbers in the same order: results agree bit by bit.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// Hides a pointer's value from the compiler, so that it increments addresses instead of storing each row's.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[inline(always)]
pub(super) fn opaque(mut pointer: *const u8) -> *const u8 {
    // SAFETY: the assembly is empty.
    unsafe { std::arch::asm!("/* {} */", inout(reg) pointer, options(pure, readonly, nostack, preserves_flags)) };
    pointer
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(super) fn opaque(pointer: *const u8) -> *const u8 {
    pointer
}

/// Two registers that together form a vector.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct LanePair<T>(T, T);

#[cfg(target_arch = "x86_64")]
impl<T> LanePair<T> {
    #[inline(always)]
    fn map<U>(self, f: impl Fn(T) -> U) -> LanePair<U> {
        LanePair(f(self.0), f(self.1))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        Self(f(self.0, other.0), f(self.1, other.1))
    }
}

/// One lane per row of weights. Every function requires the instruction set, and valid pointers, aligned or not.
pub(super) trait Lanes {
    /// An integer of 32 bits, or four bytes, in each lane.
    type Ints: Copy;
    type Floats: Copy;

    /// 16 or 32.
    const ROWS: usize;
    const VECTOR: usize = 4 * Self::ROWS;

    /// True if weights of 8 bits stay signed because the byte products are signed; otherwise 128 is added to them.
    const SIGNED: bool;
    /// Maximum columns whose sums stay in registers.
    const COLUMNS: usize;

    unsafe fn splat(value: i32) -> Self::Ints;
    unsafe fn load(from: *const u8) -> Self::Ints;
    unsafe fn store(ints: Self::Ints, to: *mut u8);
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Shifts by less than 32. `shr` fills with zeros, `shr_signed` with the sign.
    unsafe fn shl(a: Self::Ints, n: u32) -> Self::Ints;
    unsafe fn shr(a: Self::Ints, n: u32) -> Self::Ints;
    unsafe fn shr_signed(a: Self::Ints, n: u32) -> Self::Ints;
    unsafe fn sub(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Replaces each byte, which must be below 16, by an entry of the table.
    unsafe fn look_up(table: &[i8; 16], indices: Self::Ints) -> Self::Ints;
    /// Returns bits `4 j .. 4 j + 4` of each lane as four bytes: 16 where the bit is set, else 0.
    unsafe fn spread(bits: Self::Ints, j: u32) -> Self::Ints;
    /// Transposes rows of 16 bytes: vector `j` has dword `j` of each row.
    unsafe fn transpose_16_bytes(from: *const u8, stride: usize) -> [Self::Ints; 4];
    primitives! {
        /// The same of rows of 32 bytes.
        transpose_32_bytes(from: *const u8, stride: usize) -> [Self::Ints; 8] = {
            let [a, b, c, d] = Self::transpose_16_bytes(from, stride);
            let [e, f, g, h] = Self::transpose_16_bytes(from.add(16), stride);
            [a, b, c, d, e, f, g, h]
        };
    }
    /// Adds 16 products to each lane of each column: the lane's bytes in the four vectors of `words` times 16 bytes of
    /// activations, 32 bytes apart from column to column. Weights have `bits` significant bits and are unsigned, except 8-bit
    /// weights if [`Self::SIGNED`].
    unsafe fn dot<const N: usize>(
        sums: &mut [Self::Ints; N],
        words: impl Fn(usize) -> Self::Ints,
        activations: *const u8,
        bits: u32,
    );
    /// Adds to each lane the products of its two 16-bit halves with the two of `pair`.
    unsafe fn dot_pairs(sums: Self::Ints, halves: Self::Ints, pair: i32) -> Self::Ints;

    unsafe fn splat_float(value: f32) -> Self::Floats;
    unsafe fn load_floats(from: *const f32) -> Self::Floats;
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32);
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    unsafe fn as_floats(ints: Self::Ints) -> Self::Floats;
    /// Converts the half in the lower 16 bits of each lane.
    unsafe fn low_halves(ints: Self::Ints) -> Self::Floats;
    /// Loads and converts one half per lane.
    unsafe fn load_halves(from: *const u16) -> Self::Floats;
}

/// Sixteen lanes along a row, with the same requirements.
pub(super) trait RowLanes {
    type Sixteen: Copy;

    /// Vectors of sums that fit in registers.
    const SUMS: usize;

    unsafe fn zero() -> Self::Sixteen;
    unsafe fn singles(from: *const f32) -> Self::Sixteen;
    unsafe fn halves(from: *const u16) -> Self::Sixteen;
    unsafe fn upper_halves(from: *const u16) -> Self::Sixteen;
    unsafe fn add_product(a: Self::Sixteen, b: Self::Sixteen, c: Self::Sixteen) -> Self::Sixteen;
    /// Adds halves until one lane is left.
    unsafe fn sum(floats: Self::Sixteen) -> f32;
}
