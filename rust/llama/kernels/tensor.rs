//! Reads the description of a ggml tensor.

use llama_cpp_sys_2 as sys;

use crate::kernels::SharedSlice;
use crate::llama::kernels::ComputeParams;

/// Bytes before an operation's scratch, through which threads exchange data: a multiple of every required alignment.
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

/// Returns the bytes from the first row's start to the last one's end: `n` rows of `n_bytes` along dimensions 1 and 2.
pub(super) fn span(tensor: &sys::ggml_tensor, n: [usize; 2], n_bytes: usize) -> usize {
    n[0].saturating_sub(1) * stride(tensor, 1) + n[1].saturating_sub(1) * stride(tensor, 2) + n_bytes
}

/// The tensor must not have blocks.
pub(super) fn is_contiguous(tensor: &sys::ggml_tensor) -> bool {
    // SAFETY: the tensor is alive.
    unsafe { sys::ggml_is_contiguous(tensor) }
}

pub(super) fn f32_param(op: &sys::ggml_tensor, i: usize) -> f32 {
    f32::from_bits(op.op_params[i].cast_unsigned())
}

/// Callers guarantee that `op` is a contiguous tensor of `f32` that only the threads that compute it read or write.
pub(super) unsafe fn result(op: &sys::ggml_tensor) -> SharedSlice<'_, f32> {
    // SAFETY: guaranteed by the caller.
    unsafe { SharedSlice::from_raw_parts(op.data.cast(), (0..4).map(|i| size_of(op, i)).product()) }
}

pub(super) fn scratch(params: &ComputeParams) -> (*mut u8, SharedSlice<'_, u8>) {
    assert!(params.wsize >= HEADER, "ggml provided {} bytes of scratch memory, fewer than requested", params.wsize);
    let header = params.wdata.cast::<u8>();
    // SAFETY: the work buffer has `wsize` bytes and belongs to the operation that is computed.
    (header, unsafe { SharedSlice::from_raw_parts(header.add(HEADER), params.wsize - HEADER) })
}
