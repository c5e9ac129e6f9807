//! The generic algorithms, compiled once per instruction set.

use super::accumulate::{self, TileProduct};
use super::form::{Form, MAX_COLUMNS, MAX_PACKED_COLUMNS};
use super::format::WeightFormat;
use super::lanes::{self, Lanes};
use super::plain::{self, FloatFormat, FloatTileProduct};
use super::quantise::{self, ActivationSpan};
use super::unpack::{self, PackedPanel, Unpack};
use crate::kernels::Level;

/// The functions of one format. Callable only where the level is available.
#[derive(Clone, Copy)]
pub(super) struct ProductTable {
    /// Rows of weights of a panel.
    pub(super) rows: usize,
    /// Maximum columns of a tile.
    pub(super) columns: usize,
    pub(super) kernels: ProductKernels,
}

#[derive(Clone, Copy)]
pub(super) enum ProductKernels {
    Quantised(QuantisedTable),
    Plain(PlainTable),
}

/// Functions by number of columns, starting with 1.
pub(super) type PlainTable = [unsafe fn(&FloatTileProduct); MAX_COLUMNS];

pub(super) type PackedKernel = unsafe fn(&PackedPanel, *mut u8, &TileProduct);

#[derive(Clone, Copy)]
pub(super) struct QuantisedTable {
    pub(super) block_bytes: usize,
    pub(super) unit_len: usize,
    /// Bytes of a unit of a panel.
    pub(super) panel_bytes: usize,
    /// Bytes of one column's unit in a tile.
    pub(super) column_bytes: usize,
    pub(super) offset: i32,
    pub(super) quantise: unsafe fn(&ActivationSpan),
    pub(super) unpack: unsafe fn(&PackedPanel, *mut u8),
    /// By number of columns, starting with 1.
    pub(super) tiles: [unsafe fn(&TileProduct); MAX_COLUMNS],
    /// The same, for products with no other columns: unpack while multiplying.
    pub(super) packed: Option<[PackedKernel; MAX_PACKED_COLUMNS]>,
}

impl ProductTable {
    pub(super) fn of(level: Level, format: WeightFormat) -> Option<Self> {
        match level {
            Level::Portable => Some(portable::of(format)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Some(avx2::of(format)),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Some(avx_vnni::of(format)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Some(avx512::of(format)),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => Some(neon::of(format)),
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => Some(neon_dot::of(format)),
            _ => None,
        }
    }
}

macro_rules! level {
    ($name:ident, $lanes:ty, $quantise:ty, $attribute:tt) => {
        mod $name {
            use super::*;

            compiled! {
                $attribute
                quantise<F: Form>(span: &ActivationSpan) = quantise::quantise_span::<$quantise, F>(span);
                unpack<U: Unpack>(packed: &PackedPanel, to: *mut u8) = unpack::unpack_span::<$lanes, U>(packed, to);
                tile<F: Form, const N: usize>(product: &TileProduct) = accumulate::multiply_tile::<$lanes, F, N>(product);
                packed<U: Unpack, const N: usize>(packed: &PackedPanel, scratch: *mut u8, product: &TileProduct) =
                    accumulate::multiply_packed::<$lanes, U, N>(packed, scratch, product);
                plain<P: FloatFormat, const N: usize>(product: &FloatTileProduct) = plain::multiply::<$lanes, P, N>(product);
            }

            /// Maps widths above the maximum to 1, so that nothing is compiled for them; they never occur.
            const fn compiled(n: usize) -> usize {
                if n <= <$lanes>::COLUMNS { n } else { 1 }
            }

            macro_rules! by_columns {
                ($function:ident, $type:ty) => {
                    [
                        $function::<$type, 1>,
                        $function::<$type, { compiled(2) }>,
                        $function::<$type, { compiled(3) }>,
                        $function::<$type, { compiled(4) }>,
                        $function::<$type, { compiled(5) }>,
                        $function::<$type, { compiled(6) }>,
                        $function::<$type, { compiled(7) }>,
                        $function::<$type, { compiled(8) }>,
                    ]
                };
            }

            fn quantised<U: Unpack>() -> ProductKernels {
                ProductKernels::Quantised(QuantisedTable {
                    block_bytes: U::BLOCK,
                    unit_len: U::Form::LEN,
                    panel_bytes: U::Form::VECTORS * <$lanes>::VECTOR,
                    column_bytes: U::Form::COLUMN_BYTES,
                    offset: U::offset::<$lanes>(),
                    quantise: quantise::<U::Form>,
                    unpack: unpack::<U>,
                    tiles: by_columns!(tile, U::Form),
                    packed: U::IN_REGISTERS.then_some([packed::<U, 1>, packed::<U, 2>]),
                })
            }

            fn floats<P: FloatFormat>() -> ProductKernels {
                ProductKernels::Plain(by_columns!(plain, P))
            }

            pub(super) fn of(format: WeightFormat) -> ProductTable {
                let kernels = match format {
                    WeightFormat::Q8_0 => quantised::<unpack::Q8_0>(),
                    WeightFormat::Q4_0 => quantised::<unpack::Q4_0>(),
                    WeightFormat::Q4_1 => quantised::<unpack::Q4_1>(),
                    WeightFormat::Q5_0 => quantised::<unpack::Q5_0>(),
                    WeightFormat::Q5_1 => quantised::<unpack::Q5_1>(),
                    WeightFormat::Iq4Nl => quantised::<unpack::Iq4Nl>(),
                    WeightFormat::Mxfp4 => quantised::<unpack::Mxfp4>(),
                    WeightFormat::Q2K => quantised::<unpack::Q2K>(),
                    WeightFormat::Q3K => quantised::<unpack::Q3K>(),
                    WeightFormat::Q4K => quantised::<unpack::Q4K>(),
                    WeightFormat::Q5K => quantised::<unpack::Q5K>(),
                    WeightFormat::Q6K => quantised::<unpack::Q6K>(),
                    WeightFormat::Iq4Xs => quantised::<unpack::Iq4Xs>(),
                    WeightFormat::F16 => floats::<plain::F16>(),
                    WeightFormat::Bf16 => floats::<plain::Bf16>(),
                    WeightFormat::F32 => floats::<plain::F32>(),
                };
                ProductTable { rows: <$lanes>::ROWS, columns: <$lanes>::COLUMNS, kernels }
            }
        }
    };
}

level!(portable, lanes::portable::Portable, quantise::portable::Portable, [inline]);
#[cfg(target_arch = "x86_64")]
level!(avx2, lanes::avx2::Avx2<false>, quantise::x86::X86, [target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
level!(avx_vnni, lanes::avx2::Avx2<true>, quantise::x86::X86, [target_feature(enable = "avx2,fma,f16c,avxvnni")]);
#[cfg(target_arch = "x86_64")]
level!(
    avx512,
    lanes::avx512::Avx512,
    quantise::x86::X86,
    [target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
);
#[cfg(target_arch = "aarch64")]
level!(neon, lanes::neon::Neon<false>, quantise::neon::Neon, [target_feature(enable = "neon")]);
#[cfg(target_arch = "aarch64")]
level!(neon_dot, lanes::neon::Neon<true>, quantise::neon::Neon, [target_feature(enable = "dotprod")]);
