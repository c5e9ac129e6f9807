//! Runs our kernels inside llama.cpp, without patching it.
//!
//! ggml-cpu queries a list of *extra buffer types* before computing an operation, as for AMX and repacked weights. Our entry is C++
//! (`shim.cpp`, with the private headers that it needs repeated in `mirror.h`).
//!
//! The list belongs to the process, so each context's thread pools are [registered](Pool) with the [`EnabledKernels`] of its
//! decodes, and each decode runs [inside](with_kernels) the same selection; other graphs use the [default](set_default). ggml
//! queries each operation twice: for scratch memory, and to compute it.

mod attention;
pub(super) mod coverage;
pub(super) mod graph;
mod products;
mod tensor;
mod trial;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use llama_cpp_sys_2 as sys;

pub use crate::config::EnabledKernels;
use crate::kernels::{Level, Team};

/// Result of installing the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The kernels that passed their trial.
    pub usable: EnabledKernels,
    /// The instruction set that they were chosen for.
    pub level: Level,
    /// Short reason why some kernels are not usable.
    pub unusable_reason: Option<String>,
}

static N_ATTENTIONS: AtomicU64 = AtomicU64::new(0);
static N_PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// Installs our kernels, once per process and before any model is loaded. A kernel that fails its trial is not usable.
pub fn install() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let level = level();
        let nothing = |reason: &str| Installed { usable: EnabledKernels::NONE, level, unusable_reason: Some(reason.to_owned()) };
        if level == Level::Portable {
            return nothing("the processor has none of the required instruction sets");
        }
        // SAFETY: the callbacks live forever, and no thread computes yet: the backend is started before any model is loaded.
        if !unsafe { weft_kernels_install(&raw const CALLBACKS) } {
            return nothing("this build of llama.cpp has no hook for them");
        }
        trial::run(level)
    })
}

/// The instruction set in the environment variable `WEFT_INSTRUCTIONS`, or the best that the processor supports.
fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let Ok(name) = std::env::var("WEFT_INSTRUCTIONS") else { return Level::detect() };
        match name.parse::<Level>() {
            Ok(level) if level.is_available() => return level,
            Ok(level) => tracing::warn!("WEFT_INSTRUCTIONS is {level}, which this processor does not support; it is ignored"),
            Err(error) => tracing::warn!("WEFT_INSTRUCTIONS is ignored: {error}"),
        }
        Level::detect()
    })
}

/// Returns how many attentions and products our kernels have computed.
pub(crate) fn n_computed() -> (u64, u64) {
    (N_ATTENTIONS.load(Ordering::Relaxed), N_PRODUCTS.load(Ordering::Relaxed))
}

/// Sets the kernels of graphs outside of our engines, such as a benchmark's bare loop, while none is computed.
pub fn set_default(enabled: EnabledKernels) {
    DEFAULT_ATTENTION.store(enabled.attention, Ordering::Release);
    DEFAULT_PRODUCTS.store(enabled.products, Ordering::Release);
}

static DEFAULT_ATTENTION: AtomicBool = AtomicBool::new(false);
static DEFAULT_PRODUCTS: AtomicBool = AtomicBool::new(false);

static POOLS: RwLock<Vec<(usize, EnabledKernels)>> = RwLock::new(Vec::new());

static POOLS_VERSION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static NEXT_DECODE: Cell<Option<(EnabledKernels, Option<DecodeHints>)>> = const { Cell::new(None) };
    static COUNTS: Cell<KernelCounts> = Cell::default();
    static LAST_POOL: Cell<(usize, u64, Option<EnabledKernels>)> = const { Cell::new((0, u64::MAX, None)) };
}

#[derive(Debug)]
pub(super) struct Pool(usize);

impl Pool {
    /// Registers `pool`. The registration must be dropped before the pool is freed.
    pub(super) fn register(pool: *const sys::ggml_threadpool, enabled: EnabledKernels) -> Self {
        let address = pool.addr();
        change_pools(|pools| {
            assert!(pools.iter().all(|(existing, _)| *existing != address), "the thread pool is registered already");
            pools.push((address, enabled));
        });
        Self(address)
    }

    /// Calls `work` with other kernels.
    pub(super) fn with_kernels<T>(&self, enabled: EnabledKernels, work: impl FnOnce() -> T) -> T {
        let usual = kernels_of(self.0).expect("it is registered until it is dropped");
        if usual == enabled {
            return work();
        }
        self.set_kernels(enabled);
        let _guard = OnDrop(|| self.set_kernels(usual));
        work()
    }

    fn set_kernels(&self, enabled: EnabledKernels) {
        change_pools(|pools| {
            let own = pools.iter_mut().filter(|(address, _)| *address == self.0);
            own.for_each(|(_, of_pool)| *of_pool = enabled);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        change_pools(|pools| pools.retain(|(address, _)| *address != self.0));
    }
}

fn change_pools(change: impl FnOnce(&mut Vec<(usize, EnabledKernels)>)) {
    let mut pools = POOLS.write().unwrap_or_else(PoisonError::into_inner);
    change(&mut pools);
    POOLS_VERSION.fetch_add(1, Ordering::Release);
}

/// Properties that the mask does not contain; the pointers are valid during the decode.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeHints {
    ids: NonNull<[sys::llama_seq_id]>,
    positions: Option<NonNull<[sys::llama_pos]>>,
}

impl DecodeHints {
    /// Row `i` belongs to the sequence `ids[i]`, and the cells to `memory`. Callers guarantee that `memory` is alive, and that both
    /// outlive the [`with_kernels`] call that uses the hints.
    pub(super) unsafe fn new(ids: &[sys::llama_seq_id], memory: sys::llama_memory_t) -> Self {
        let mut n = 0;
        // SAFETY: the caller guarantees the memory; `n` is writable.
        let positions = NonNull::new(unsafe { weft_kernels_positions(memory.cast(), &raw mut n) }.cast_mut());
        Self { ids: NonNull::from(ids), positions: positions.map(|first| NonNull::slice_from_raw_parts(first, n)) }
    }

    pub(super) fn has_positions(&self) -> bool {
        self.positions.is_some()
    }
}

/// Returns the buffers of a single plain cache, else none. Callers guarantee that it is alive as long as the iterator is used.
pub(super) unsafe fn buffers(memory: sys::llama_memory_t) -> impl Iterator<Item = sys::ggml_backend_buffer_t> {
    // SAFETY: the caller guarantees the memory.
    (0..).map(move |i| unsafe { weft_kernels_buffer(memory.cast(), i) }).take_while(|buffer| !buffer.is_null())
}

pub(super) fn with_kernels<T>(enabled: EnabledKernels, hints: Option<DecodeHints>, decode: impl FnOnce() -> T) -> T {
    let previous = NEXT_DECODE.replace(Some((enabled, hints)));
    let _guard = OnDrop(|| NEXT_DECODE.set(previous));
    decode()
}

/// Calls a function when it is dropped, also if a panic unwinds.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// `…_left` are operations that our kernels declined and left to llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct KernelCounts {
    pub(super) n_attentions: u64,
    pub(super) n_attentions_left: u64,
    pub(super) n_products: u64,
    pub(super) n_products_left: u64,
}

impl KernelCounts {
    pub(super) fn are_all_ours(self) -> bool {
        self.n_attentions + self.n_products > 0 && self.n_attentions_left + self.n_products_left == 0
    }

    fn add(&mut self, op: &sys::ggml_tensor, is_done: bool) {
        let count = match (op.op == sys::GGML_OP_FLASH_ATTN_EXT, is_done) {
            (true, true) => &mut self.n_attentions,
            (true, false) => &mut self.n_attentions_left,
            (false, true) => &mut self.n_products,
            // Rotations process each row independently.
            (false, false) if products::is_rotation(op) => return,
            (false, false) => &mut self.n_products_left,
        };
        *count += 1;
    }
}

/// Counts the operations in the graphs that this thread leads.
pub(super) fn count_operations<T>(compute: impl FnOnce() -> T) -> (T, KernelCounts) {
    COUNTS.take();
    let result = compute();
    (result, COUNTS.get())
}

fn enabled_in_pool(pool: *const c_void) -> EnabledKernels {
    let version = POOLS_VERSION.load(Ordering::Acquire);
    let (last, last_version, mut found) = LAST_POOL.get();
    if (last, last_version) != (pool.addr(), version) {
        found = kernels_of(pool.addr());
        LAST_POOL.set((pool.addr(), version, found));
    }
    found.unwrap_or_else(default_kernels)
}

/// Returns the kernels of the pool at `address`, if it is registered.
fn kernels_of(address: usize) -> Option<EnabledKernels> {
    let pools = POOLS.read().unwrap_or_else(PoisonError::into_inner);
    pools.iter().find(|(registered, _)| *registered == address).map(|(_, enabled)| *enabled)
}

fn default_kernels() -> EnabledKernels {
    EnabledKernels { attention: DEFAULT_ATTENTION.load(Ordering::Acquire), products: DEFAULT_PRODUCTS.load(Ordering::Acquire) }
}

/// `ggml_compute_params`, as in `mirror.h`.
#[repr(C)]
struct ComputeParams {
    ith: c_int,
    nth: c_int,
    wsize: usize,
    wdata: *mut c_void,
    threadpool: *mut c_void,
    use_ref: bool,
}

struct GgmlTeam<'a> {
    index: usize,
    size: usize,
    params: &'a ComputeParams,
}

// SAFETY: ggml numbers the threads of a graph accordingly, and its barrier includes all of them.
unsafe impl Team for GgmlTeam<'_> {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn wait(&self) {
        // SAFETY: the pool computes this operation, and all of its threads reach this barrier equally often.
        unsafe { weft_kernels_barrier(self.params.threadpool) }
    }
}

#[repr(C)]
struct ShimCallbacks {
    work_size: unsafe extern "C" fn(c_int, *const sys::ggml_tensor, *mut usize) -> bool,
    compute: unsafe extern "C" fn(*mut ComputeParams, *mut sys::ggml_tensor) -> bool,
    takes: unsafe extern "C" fn(*const sys::ggml_tensor) -> bool,
}

static CALLBACKS: ShimCallbacks = ShimCallbacks { work_size, compute, takes };

unsafe extern "C" {
    fn weft_kernels_install(callbacks: *const ShimCallbacks) -> bool;
    fn weft_kernels_positions(memory: *const c_void, n: *mut usize) -> *const sys::llama_pos;
    fn weft_kernels_barrier(pool: *mut c_void);
    fn weft_kernels_buffer(memory: *const c_void, i: usize) -> sys::ggml_backend_buffer_t;
}

/// Returns true if we may compute an operation. One comparison only: it is called for every operation on every thread.
unsafe extern "C" fn takes(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes the operation that it is about to compute.
    let op = unsafe { &*op };
    matches!(op.op, sys::GGML_OP_FLASH_ATTN_EXT | sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID)
}

/// Reports the scratch memory of an operation. Called by the thread that is about to compute the graph.
unsafe extern "C" fn work_size(n_threads: c_int, op: *const sys::ggml_tensor, size: *mut usize) -> bool {
    let enabled = NEXT_DECODE.get().map_or_else(default_kernels, |(enabled, _)| enabled);
    // SAFETY: as for `takes`; sources of an operation live as long as it.
    let op = unsafe { &*op };
    let n_threads = usize::try_from(n_threads).unwrap_or(1).max(1);
    let needed = if op.op == sys::GGML_OP_FLASH_ATTN_EXT {
        attention::invalidate_plans();
        enabled.attention.then(|| attention::scratch_bytes(op, n_threads)).flatten()
    } else {
        enabled.products.then(|| products::scratch_bytes(op, n_threads)).flatten()
    };
    let Some(needed) = needed else { return false };
    // SAFETY: ggml passes a writable pointer for the result.
    unsafe { size.write(needed) };
    true
}

unsafe extern "C" fn compute(params: *mut ComputeParams, op: *mut sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes parameters that are alive during the call.
    let params = unsafe { &*params };
    // SAFETY: as for `work_size`.
    let op = unsafe { &*op };
    let enabled = enabled_in_pool(params.threadpool);
    let (Ok(index), Ok(size)) = (usize::try_from(params.ith), usize::try_from(params.nth)) else { return false };
    let team = GgmlTeam { index, size, params };
    let (is_done, counter) = if op.op == sys::GGML_OP_FLASH_ATTN_EXT {
        (enabled.attention && attention::compute(op, &team), &N_ATTENTIONS)
    } else {
        (enabled.products && products::compute(op, &team), &N_PRODUCTS)
    };
    if index == 0 {
        counter.fetch_add(u64::from(is_done), Ordering::Relaxed);
        let mut counts = COUNTS.get();
        counts.add(op, is_done);
        COUNTS.set(counts);
    }
    is_done
}
