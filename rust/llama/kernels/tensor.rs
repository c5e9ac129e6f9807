//! Reads the description of a ggml tensor.

use llama_cpp_sys_2 as sys;

use crate::kernels::Shared;
use crate::llama::kernels::ComputeParams;

/// Bytes before an operation's scratch, through which threads exchange data. A multiple of every required alignment.
pub(super) const HEADER: usize = 64;

pub(super) fn sources<const N: usize>(op: &sys::ggml_tensor) -> [Option<&sys::ggml_tensor>; N] {
    // SAFETY: a source is null or alive as long as the operation.
    std::array::from_fn(|i| unsafe { op.src[i].as_ref() })
}

pub(super) fn size_of(tensor: &sys::ggml_tensor, i: usize) -> usize {
    usize::try_from(tensor.ne[i]).expect("sizes are not negative")
}

pub(super) fn stride(tensor: &sys::ggml_tensor, i: usize) -> usize {
    tensor.nb[i]
}

/// Returns the number of bytes from the start of the first row to the end of the last one, with `n` rows along the two `dimensions`
/// and `innermost` bytes per row.
pub(super) fn span(tensor: &sys::ggml_tensor, dimensions: [usize; 2], n: [usize; 2], innermost: usize) -> usize {
    let to_last = |i: usize| n[i].saturating_sub(1) * stride(tensor, dimensions[i]);
    to_last(0) + to_last(1) + innermost
}

/// The tensor must not have blocks.
pub(super) fn is_contiguous(tensor: &sys::ggml_tensor) -> bool {
    // SAFETY: the tensor is alive.
    unsafe { sys::ggml_is_contiguous(tensor) }
}

pub(super) fn f32_param(op: &sys::ggml_tensor, i: usize) -> f32 {
    f32::from_bits(op.op_params[i].cast_unsigned())
}

/// # Safety
/// `op` is such a tensor with its own memory, which only the threads that compute it read or write.
pub(super) unsafe fn result(op: &sys::ggml_tensor) -> Shared<'_, f32> {
    let n = op.ne.iter().map(|&n| usize::try_from(n).expect("sizes are not negative")).product();
    // SAFETY: guaranteed by the caller.
    unsafe { Shared::from_raw_parts(op.data.cast(), n) }
}

pub(super) fn scratch(params: &ComputeParams) -> (*mut u8, Shared<'_, u8>) {
    assert!(params.wsize >= HEADER, "ggml provided {} bytes of scratch memory, fewer than requested", params.wsize);
    let header = params.wdata.cast::<u8>();
    // SAFETY: the work buffer has `wsize` bytes and belongs to the operation that is computed.
    (header, unsafe { Shared::from_raw_parts(header.add(HEADER), params.wsize - HEADER) })
}
