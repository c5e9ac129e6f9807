//! How fast a step could be on this machine, so that the distance to the limit is a number.
//!
//! After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009
//! (<https://doi.org/10.1145/1498765.1498785>): a step takes at least as long as the longer of
//!
//! - its bytes, `weights + cells × bytes per cell`, at the measured bandwidth of the memory, and
//! - its operations, `2 × (weights of the layers × rows + weights of the output matrix × rows with logits) + 4 × width × layers ×
//!   Σ cells that each row sees`, at the measured rate of a large product of matrices.
//!
//! Every weight is read once per step, however many rows there are, and every cell once, however many rows see it: cells that
//! branches share are counted once. Of an embedding that is not the output matrix too, nothing is read but a few rows. A
//! multiplication with its addition is two operations. What is left out (activations, norms, the softmax, the mask, writing K and V)
//! makes the bound lower than what can be reached, never higher.
//!
//! The bandwidth is that of all threads reading a buffer several times as large as the processor's caches, so a model that fits
//! into a cache can be faster than its bytes' bound. The rate is that of ggml's own kernels for `Q8_0` weights, chosen as llama.cpp
//! chooses them, on 512 rows: attention's products are of f16, for which the kernels are slower.
#![allow(unsafe_code, reason = "the kernels are ggml's, called directly")]

use std::ffi::CStr;
use std::hint::black_box;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use super::bare_model::BareModel;
use super::machine;
use super::shape::Shape;

/// Bytes of the buffer that is read, where the processor's cache does not ask for more.
const MIN_READ: usize = 256 << 20;

/// Most bytes of it.
const MAX_READ: usize = 1 << 30;

/// The product that is measured: a square matrix of this width, and a full batch of rows.
const WIDTH: usize = 4_096;
const N_ROWS: usize = 512;

/// Bytes of 32 weights in `Q8_0`: a 16-bit scale, and a byte for each.
const BLOCK: usize = 34;

/// How long to measure the product.
const PRODUCTS: Duration = Duration::from_millis(1_500);

/// What the machine can do, with so many threads.
pub(crate) struct Machine {
    bytes_per_s: f64,
    ops_per_s: f64,
    /// Where ggml keeps weights that it multiplies so fast, such as `AMX`.
    kernels: String,
}

impl Machine {
    /// Measures it, in two or three seconds.
    ///
    /// # Errors
    /// A message, when ggml cannot multiply.
    pub(crate) fn measure(n_threads: u32) -> Result<Self, String> {
        let bytes_per_s = read_speed(n_threads as usize);
        let (ops_per_s, kernels) = product_speed(n_threads)?;
        Ok(Self { bytes_per_s, ops_per_s, kernels })
    }

    /// What was measured, in a line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let Self { bytes_per_s, ops_per_s, kernels } = self;
        let (read, products) = (bytes_per_s / 1e9, ops_per_s / 1e9);
        format!("memory read at {read:.1} GB/s, Q8_0 products at {products:.0} billion operations per second ({kernels})")
    }
}

/// What a model's steps are made of.
pub(crate) struct Work {
    weight_bytes: f64,
    layer_params: f64,
    output_params: f64,
    attention_ops: f64,
    bytes_per_cell: f64,
}

/// The shortest time that something can take, and why.
pub(crate) struct Bound {
    pub(crate) seconds: f64,
    /// Whether the bytes take longer than the operations.
    pub(crate) is_memory: bool,
}

impl Work {
    /// Of a model whose K and V take so many bytes per cell.
    pub(crate) fn of(model: &BareModel, bytes_per_cell: u64) -> Self {
        let (n_params, n_bytes) = (model.n_params() as f64, model.n_bytes() as f64);
        let (output_params, embedding_params) = (model.n_output_params() as f64, model.n_embedding_params() as f64);
        Self {
            weight_bytes: n_bytes * (1.0 - embedding_params / n_params),
            layer_params: n_params - output_params - embedding_params,
            output_params,
            attention_ops: model.attention_ops() as f64,
            bytes_per_cell: bytes_per_cell as f64,
        }
    }

    /// The bound of a decode with one row per sequence: the mean over `n_steps` steps, since each adds its own cells.
    pub(crate) fn step(&self, machine: &Machine, shape: Shape, n_steps: usize) -> Bound {
        let n_sequences = shape.n_sequences as f64;
        let n_written = (n_steps + 1) as f64 / 2.0;
        let n_cells = shape.n_cells() as f64 + n_sequences * n_written;
        let n_seen = n_sequences * (shape.n_tokens as f64 + n_written);
        self.bound(machine, (n_sequences, n_sequences), n_cells, n_seen)
    }

    /// The bound of a prompt's prefill in chunks of `n_ubatch` rows: the weights are read for each, and a row sees half of the
    /// prompt's cells on average. Only the last row makes logits.
    pub(crate) fn prefill(&self, machine: &Machine, n_tokens: usize, n_ubatch: usize) -> Bound {
        let n_chunks = n_tokens.div_ceil(n_ubatch) as f64;
        let n_rows = n_tokens as f64;
        let once = Self { weight_bytes: self.weight_bytes * n_chunks, ..*self };
        once.bound(machine, (n_rows, 1.0), n_rows, n_rows * n_rows / 2.0)
    }

    /// For so many rows and rows with logits, `n_cells` cells in all, and `n_seen` of them seen by all rows together.
    fn bound(&self, machine: &Machine, (n_rows, n_outputs): (f64, f64), n_cells: f64, n_seen: f64) -> Bound {
        let n_bytes = self.weight_bytes + n_cells * self.bytes_per_cell;
        let n_ops = 2.0 * (self.layer_params * n_rows + self.output_params * n_outputs) + self.attention_ops * n_seen;
        let (read, products) = (n_bytes / machine.bytes_per_s, n_ops / machine.ops_per_s);
        Bound { seconds: read.max(products), is_memory: read > products }
    }
}

/// Bytes per second that `n_threads` threads read together, the best of several passes.
fn read_speed(n_threads: usize) -> f64 {
    let n_bytes = machine::cache_bytes().map_or(MIN_READ, |cache| (4 * cache).clamp(MIN_READ, MAX_READ));
    let mut words = vec![0_u64; n_bytes / 8];
    // Untouched pages are all the same one.
    words.fill(1);
    let pass = || {
        let started = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(n_threads)) {
                scope.spawn(move || black_box(part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word))));
            }
        });
        started.elapsed().as_secs_f64()
    };
    n_bytes as f64 / (0..6).map(|_| pass()).fold(f64::INFINITY, f64::min)
}

/// Operations per second of a large product, and the name of the memory that ggml's fastest kernels want their weights in.
fn product_speed(n_threads: u32) -> Result<(f64, String), String> {
    // SAFETY: the device lives as long as the process.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    if device.is_null() {
        return Err("ggml has no CPU".to_owned());
    }
    let (product, kernels) = buffer_types(device)
        .into_iter()
        .find_map(|buffer_type| {
            // SAFETY: a buffer type lives as long as the process, and its name with it.
            let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(buffer_type)) };
            Some((Product::new(device, buffer_type, n_threads)?, name.to_string_lossy().into_owned()))
        })
        .ok_or("ggml cannot multiply Q8_0 by F32")?;
    product.compute()?;
    let (mut best, started) = (f64::INFINITY, Instant::now());
    while started.elapsed() < PRODUCTS {
        best = best.min(product.compute()?);
    }
    Ok(((2 * WIDTH * WIDTH * N_ROWS) as f64 / best, kernels))
}

/// Where weights may lie, the special ones first: the order in which llama.cpp tries them for a model's.
fn buffer_types(device: sys::ggml_backend_dev_t) -> Vec<sys::ggml_backend_buffer_type_t> {
    type List = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
    let mut types = Vec::new();
    // SAFETY: the registry's function of this name has this type (ggml-backend.h), and it returns a list that ends with null and
    // lives as long as the process.
    unsafe {
        let registry = sys::ggml_backend_dev_backend_reg(device);
        let list = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_dev_get_extra_bufts".as_ptr());
        if !list.is_null() {
            let list: List = std::mem::transmute(list);
            let mut next = list(device);
            while !next.is_null() && !(*next).is_null() {
                types.push(*next);
                next = next.add(1);
            }
        }
        types.push(sys::ggml_backend_dev_buffer_type(device));
    }
    types
}

/// A product of matrices, ready to be computed.
struct Product {
    backend: sys::ggml_backend_t,
    contexts: [*mut sys::ggml_context; 2],
    buffers: [sys::ggml_backend_buffer_t; 2],
    graph: *mut sys::ggml_cgraph,
}

impl Product {
    /// With its weights in memory of this type. `None` where ggml does not multiply from there.
    fn new(device: sys::ggml_backend_dev_t, buffer_type: sys::ggml_backend_buffer_type_t, n_threads: u32) -> Option<Self> {
        let (width, n_rows) = (WIDTH.cast_signed() as i64, N_ROWS.cast_signed() as i64);
        // SAFETY: both contexts are large enough for what is made in them; tensors and buffers are used while they live, which is
        // as long as `product`; the bytes that are copied in have exactly the tensors' sizes.
        unsafe {
            let context = || {
                let mem_size = 8 * sys::ggml_tensor_overhead() + sys::ggml_graph_overhead();
                sys::ggml_init(sys::ggml_init_params { mem_size, mem_buffer: ptr::null_mut(), no_alloc: true })
            };
            let contexts = [context(), context()];
            let weights = sys::ggml_new_tensor_2d(contexts[0], sys::GGML_TYPE_Q8_0, width, width);
            let rows = sys::ggml_new_tensor_2d(contexts[1], sys::GGML_TYPE_F32, width, n_rows);
            let result = sys::ggml_mul_mat(contexts[1], weights, rows);
            let graph = sys::ggml_new_graph(contexts[1]);
            sys::ggml_build_forward_expand(graph, result);
            let backend = sys::ggml_backend_dev_init(device, ptr::null());
            let mut product = Self { backend, contexts, buffers: [ptr::null_mut(); 2], graph };
            product.buffers[0] = sys::ggml_backend_alloc_ctx_tensors_from_buft(contexts[0], buffer_type);
            if product.buffers[0].is_null() || !sys::ggml_backend_dev_supports_op(device, result) {
                return None;
            }
            product.buffers[1] = sys::ggml_backend_alloc_ctx_tensors(contexts[1], backend);
            if product.buffers[1].is_null() {
                return None;
            }
            sys::ggml_backend_cpu_set_n_threads(backend, n_threads.cast_signed());
            let bytes = weight_bytes();
            sys::ggml_backend_tensor_set(weights, bytes.as_ptr().cast(), 0, bytes.len());
            let values = vec![0.5_f32; WIDTH * N_ROWS];
            sys::ggml_backend_tensor_set(rows, values.as_ptr().cast(), 0, size_of_val(&values[..]));
            Some(product)
        }
    }

    /// Computes it once; how long that took, in seconds.
    fn compute(&self) -> Result<f64, String> {
        let started = Instant::now();
        // SAFETY: the graph's tensors lie in buffers that live.
        let status = unsafe { sys::ggml_backend_graph_compute(self.backend, self.graph) };
        if status == sys::GGML_STATUS_SUCCESS {
            Ok(started.elapsed().as_secs_f64())
        } else {
            Err(format!("a product of matrices ended with {status}"))
        }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: all were made by `new` and are freed once; null is nothing to any of these functions but the backend's, which is
        // never null for the CPU.
        unsafe {
            self.buffers.iter().for_each(|buffer| sys::ggml_backend_buffer_free(*buffer));
            self.contexts.iter().for_each(|context| sys::ggml_free(*context));
            sys::ggml_backend_free(self.backend);
        }
    }
}

/// The weights: every block with a scale of 2⁻⁷, as small as a model's, and the bytes −127 to 127 by turns.
fn weight_bytes() -> Vec<u8> {
    let mut bytes = vec![0_u8; WIDTH * WIDTH / 32 * BLOCK];
    for (index, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        block[..2].copy_from_slice(&0x2000_u16.to_le_bytes());
        for (place, weight) in block[2..].iter_mut().enumerate() {
            let value = (index * 7 + place * 31) % 255;
            *weight = u8::try_from(value).expect("a remainder of 255").wrapping_sub(127);
        }
    }
    bytes
}
