//! Lanes of 32 bits: what the algorithms are written in, and each instruction set provides.
//!
//! Every instruction set computes the same numbers in the same order, so that all of them agree bit by bit.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// The same pointer, of which the compiler knows nothing.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn opaque(mut pointer: *const u8) -> *const u8 {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {} */", inout(reg) pointer, options(pure, readonly, nostack, preserves_flags)) };
    pointer
}

/// Two registers with the same place in an algorithm.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct LanePair<T>(pub(super) T, pub(super) T);

/// [`Self::ROWS`] lanes, each of them a row of weights.
///
/// # Safety
/// Every function: the processor has the instruction set, and the pointers are good for what is read or written there. Nothing
/// needs to be aligned.
pub(super) trait Lanes {
    /// An integer of 32 bits, or four bytes, in each lane.
    type Ints: Copy;
    /// A float in each lane.
    type Floats: Copy;

    /// How many lanes there are: 16 or 32.
    const ROWS: usize;
    /// Bytes of a vector.
    const VECTOR: usize = 4 * Self::ROWS;

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
    /// Dword `j` of each row of 16 bytes, as vector `j`.
    unsafe fn transpose_16_bytes(from: *const u8, stride: usize) -> [Self::Ints; 4];
    /// Dword `j` of each row of 32 bytes, as vector `j`.
    unsafe fn transpose_32_bytes(from: *const u8, stride: usize) -> [Self::Ints; 8];
    /// Adds to each lane of column `c` the lane's bytes in the four vectors of `words` times 16 bytes of activations: 16 products per
    /// lane. The activations of columns are 32 bytes apart. `bits` is how many bits the weights' bytes have: they are unsigned, but for 8 bits
    /// where [`Self::SIGNED`] says so.
    unsafe fn dot<const N: usize>(
        sums: &mut [Self::Ints; N],
        words: impl Fn(usize) -> Self::Ints,
        activations: *const u8,
        bits: u32,
    );
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
    /// A float of half precision for each lane, made single.
    unsafe fn load_halves(from: *const u16) -> Self::Floats;

    /// The same pointer, of which the compiler knows nothing, so that it does not keep the addresses of all rows in memory, but counts
    /// them up.
    #[inline(always)]
    fn opaque(pointer: *const u8) -> *const u8 {
        pointer
    }

    /// Asks for the cache line at `at`, which may lie anywhere.
    fn prefetch(at: *const u8);
}

/// Sixteen lanes along a row.
///
/// # Safety
/// As of [`Lanes`].
pub(super) trait RowLanes {
    /// Sixteen floats.
    type Sixteen: Copy;

    /// How many vectors of sums registers have room for.
    const SUMS: usize;

    unsafe fn zero() -> Self::Sixteen;
    unsafe fn singles(from: *const f32) -> Self::Sixteen;
    /// Floats of half precision made single.
    unsafe fn halves(from: *const u16) -> Self::Sixteen;
    /// Upper halves of floats made whole.
    unsafe fn upper_halves(from: *const u16) -> Self::Sixteen;
    /// `a * b + c`, rounded once.
    unsafe fn add_product(a: Self::Sixteen, b: Self::Sixteen, c: Self::Sixteen) -> Self::Sixteen;
    /// The sum of the lanes: halves are added until one is left.
    unsafe fn sum(floats: Self::Sixteen) -> f32;
}
