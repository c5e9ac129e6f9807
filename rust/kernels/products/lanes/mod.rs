//! Sixteen lanes of 32 bits: what the algorithms are written in, and each instruction set provides.
//!
//! Every instruction set computes the same numbers in the same order, so that all of them agree bit by bit.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

/// Sixteen lanes. NEON, once written, has four registers of four lanes, and keeps bytes signed.
///
/// # Safety
/// Every function: the processor has the instruction set, and the pointers are good for what is read or written there. Nothing
/// needs to be aligned.
pub(super) trait Lanes {
    /// Sixteen integers of 32 bits, or 64 bytes.
    type Ints: Copy;
    /// Sixteen floats.
    type Floats: Copy;

    /// Whether bytes of 8 bits stay signed, because products of them are. Otherwise they are kept greater by 128.
    const SIGNED: bool;
    /// The most columns whose sums stay in registers.
    const COLUMNS: usize;

    unsafe fn splat(value: i32) -> Self::Ints;
    unsafe fn load(from: *const u8) -> Self::Ints;
    unsafe fn store(ints: Self::Ints, to: *mut u8);
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Each lane shifted left by less than 32, as in the two below.
    unsafe fn shl(a: Self::Ints, n: u32) -> Self::Ints;
    /// Each lane shifted right, zeros coming in.
    unsafe fn shr(a: Self::Ints, n: u32) -> Self::Ints;
    /// Each lane shifted right, its sign coming in.
    unsafe fn shr_signed(a: Self::Ints, n: u32) -> Self::Ints;
    unsafe fn sub(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Each byte, which is below 16, replaced by an entry of the table.
    unsafe fn look_up(table: &[i8; 16], indices: Self::Ints) -> Self::Ints;
    /// Bits `4 j .. 4 j + 4` of each lane as its four bytes: 16 where the bit is set, else 0.
    unsafe fn spread(bits: Self::Ints, j: u32) -> Self::Ints;
    /// Dword `j` of sixteen rows of 16 bytes, as vector `j`.
    unsafe fn transpose_16_bytes(from: *const u8, stride: usize) -> [Self::Ints; 4];
    /// Dword `j` of sixteen rows of 32 bytes, as vector `j`.
    unsafe fn transpose_32_bytes(from: *const u8, stride: usize) -> [Self::Ints; 8];
    /// Adds to each lane its four bytes, times four bytes of `activations`, for each of four vectors: sixteen products per lane.
    /// `bits` is how many bits the bytes have: they are unsigned, but for 8 bits where [`Self::SIGNED`] says so.
    unsafe fn dot(sums: Self::Ints, weights: &[Self::Ints; 4], activations: *const u8, bits: u32) -> Self::Ints;
    /// Adds to each lane the products of its two halves of 16 bits and those of `pair`.
    unsafe fn dot_pairs(sums: Self::Ints, halves: Self::Ints, pair: i32) -> Self::Ints;

    unsafe fn splat_float(value: f32) -> Self::Floats;
    unsafe fn load_floats(from: *const f32) -> Self::Floats;
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32);
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    /// The bits of integers taken for floats.
    unsafe fn as_floats(ints: Self::Ints) -> Self::Floats;
    /// The lower 16 bits of each lane, floats of half precision, made single.
    unsafe fn low_halves(ints: Self::Ints) -> Self::Floats;
    /// Sixteen floats of half precision made single.
    unsafe fn load_halves(from: *const u16) -> Self::Floats;
    /// Sixteen upper halves of floats made whole.
    unsafe fn load_upper_halves(from: *const u16) -> Self::Floats;
    /// The sum of the lanes: halves are added until one is left.
    unsafe fn sum(floats: Self::Floats) -> f32;

    /// Asks for the cache line at `at`, which may lie anywhere.
    fn prefetch(at: *const u8);
}
