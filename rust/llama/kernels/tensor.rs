//! What a tensor of ggml says of itself.

use llama_cpp_sys_2 as sys;

use crate::kernels::Shared;
use crate::llama::kernels::ComputeParams;

/// Bytes before an operation's scratch, for what one thread tells the others. A multiple of every alignment that is needed.
pub(super) const HEADER: usize = 64;

/// The first sources of an operation.
pub(super) fn sources<const N: usize>(op: &sys::ggml_tensor) -> [Option<&sys::ggml_tensor>; N] {
    // SAFETY: a source is null or alive as long as the operation.
    std::array::from_fn(|i| unsafe { op.src[i].as_ref() })
}

/// How many elements there are along dimension `i`; never negative.
pub(super) fn size_of(tensor: &sys::ggml_tensor, i: usize) -> usize {
    usize::try_from(tensor.ne[i]).expect("sizes are not negative")
}

/// Bytes from an element to the next along dimension `i`.
pub(super) fn stride(tensor: &sys::ggml_tensor, i: usize) -> usize {
    tensor.nb[i]
}

/// Bytes from the first to the end of the last row, with `n` of them along the two `dimensions` and `innermost` bytes in each.
pub(super) fn span(tensor: &sys::ggml_tensor, dimensions: [usize; 2], n: [usize; 2], innermost: usize) -> usize {
    let to_last = |i: usize| n[i].saturating_sub(1) * stride(tensor, dimensions[i]);
    to_last(0) + to_last(1) + innermost
}

/// Whether the elements of a tensor without blocks lie one after the other.
pub(super) fn is_contiguous(tensor: &sys::ggml_tensor) -> bool {
    // SAFETY: the tensor is alive.
    unsafe { sys::ggml_is_contiguous(tensor) }
}

/// Parameter `i` of an operation, one of those that are numbers.
pub(super) fn f32_param(op: &sys::ggml_tensor, i: usize) -> f32 {
    f32::from_bits(op.op_params[i].cast_unsigned())
}

/// The elements of a contiguous result of f32.
///
/// # Safety
/// `op` is such a tensor with memory of its own, which no one else reads or writes but the threads that compute it.
pub(super) unsafe fn result(op: &sys::ggml_tensor) -> Shared<'_, f32> {
    let n = op.ne.iter().map(|&n| usize::try_from(n).expect("sizes are not negative")).product();
    // SAFETY: the caller vouches for it.
    unsafe { Shared::from_raw_parts(op.data.cast(), n) }
}

/// An operation's header, [`HEADER`] bytes, and its scratch behind it.
pub(super) fn scratch(params: &ComputeParams) -> (*mut u8, Shared<'_, u8>) {
    assert!(params.wsize >= HEADER, "ggml gave {} bytes, fewer than it was asked for", params.wsize);
    let header = params.wdata.cast::<u8>();
    // SAFETY: the work buffer has `wsize` bytes and belongs to the operation that is computed.
    (header, unsafe { Shared::from_raw_parts(header.add(HEADER), params.wsize - HEADER) })
}
