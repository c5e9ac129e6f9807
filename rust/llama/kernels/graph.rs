//! A graph of one operation, computed by ggml's CPU backend with our kernels or without.

use std::ptr::null_mut;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, Threads};
use crate::llama::{host::threads::ThreadPool, kernels::with_kernels};

const N_BYTES: usize = 1 << 18;

/// A tensor of a [`Graph`]; must not be used after the graph is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphTensor(*mut sys::ggml_tensor);

impl GraphTensor {
    pub(crate) fn as_ptr(self) -> *mut sys::ggml_tensor {
        self.0
    }

    fn n_elements(self) -> usize {
        // SAFETY: tensors live as long as their graph.
        usize::try_from(unsafe { sys::ggml_nelements(self.0) }).expect("sizes are not negative")
    }
}

/// Tensors and their memory, which is marked as weights.
pub(crate) struct Graph {
    context: *mut sys::ggml_context,
    buffer: sys::ggml_backend_buffer_t,
}

impl Graph {
    pub(crate) fn new() -> Self {
        let params = sys::ggml_init_params { mem_size: N_BYTES, mem_buffer: null_mut(), no_alloc: true };
        // SAFETY: plain data; ggml ends the process if it cannot allocate memory.
        let context = unsafe { sys::ggml_init(params) };
        assert!(!context.is_null(), "ggml cannot allocate a context of {N_BYTES} bytes");
        Self { context, buffer: null_mut() }
    }

    pub(crate) fn tensor(&self, kind: sys::ggml_type, sizes: [usize; 4]) -> GraphTensor {
        let [a, b, c, d] = sizes.map(|n| i64::try_from(n).expect("sizes are small"));
        // SAFETY: the context is alive and large enough for some dozens of tensors.
        GraphTensor(unsafe { sys::ggml_new_tensor_4d(self.context, kind, a, b, c, d) })
    }

    pub(crate) fn operation(&self, make: impl FnOnce(*mut sys::ggml_context) -> *mut sys::ggml_tensor) -> GraphTensor {
        GraphTensor(make(self.context))
    }

    pub(crate) fn allocate(&mut self) {
        assert!(self.buffer.is_null(), "a graph is allocated once");
        // SAFETY: the context is alive; the buffer is freed on drop.
        unsafe {
            self.buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(self.context, sys::ggml_backend_cpu_buffer_type());
            assert!(!self.buffer.is_null(), "ggml cannot allocate the tensors of a graph");
            sys::ggml_backend_buffer_set_usage(self.buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        }
    }

    fn check_fit(&self, tensor: GraphTensor, n_values: usize) {
        assert!(!self.buffer.is_null(), "the graph is not allocated");
        assert_eq!(n_values, tensor.n_elements(), "the tensor has another number of elements");
    }

    pub(crate) fn fill(&mut self, tensor: GraphTensor, values: &[f32]) {
        self.check_fit(tensor, values.len());
        // SAFETY: the tensor is alive, and `allocate` allocated its elements.
        unsafe {
            let sys::ggml_tensor { type_, ne, data, .. } = *tensor.0;
            let n_rows = ne[1] * ne[2] * ne[3];
            sys::ggml_quantize_chunk(type_, values.as_ptr(), data, 0, n_rows, ne[0], std::ptr::null());
        }
    }

    #[cfg(test)]
    pub(crate) fn fill_integers(&mut self, tensor: GraphTensor, values: &[i32]) {
        self.check_fit(tensor, values.len());
        // SAFETY: as for `fill`; the tensor has four bytes for each element.
        unsafe {
            assert_eq!((*tensor.0).type_, sys::GGML_TYPE_I32);
            (*tensor.0).data.cast::<i32>().copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }

    pub(crate) fn compute(&self, result: GraphTensor, n_threads: u32, enabled: EnabledKernels) -> Vec<f32> {
        assert!(!self.buffer.is_null(), "the graph is not allocated");
        let pool = ThreadPool::new(n_threads, &Threads::default(), 0, enabled);
        // SAFETY: context, tensors and pool are alive; the work buffer has the size that the plan requires.
        let status = with_kernels(enabled, None, || unsafe {
            let graph = sys::ggml_new_graph(self.context);
            sys::ggml_build_forward_expand(graph, result.0);
            let mut plan = sys::ggml_graph_plan(graph, n_threads.cast_signed(), pool.as_ptr());
            let mut work = vec![0_u8; plan.work_size];
            plan.work_data = work.as_mut_ptr();
            sys::ggml_graph_compute(graph, &raw mut plan)
        });
        assert_eq!(status, sys::GGML_STATUS_SUCCESS, "ggml could not compute the graph");
        // SAFETY: the result is contiguous and of f32.
        unsafe { std::slice::from_raw_parts((*result.0).data.cast::<f32>(), result.n_elements()) }.to_vec()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both were created by this graph and are freed only here.
        unsafe {
            if !self.buffer.is_null() {
                sys::ggml_backend_buffer_free(self.buffer);
            }
            sys::ggml_free(self.context);
        }
    }
}
