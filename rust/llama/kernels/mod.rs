//! Our kernels under llama.cpp, without a patch of it.
//!
//! ggml-cpu keeps a list of *extra buffer types* and asks each of them before it computes an operation, inside of its own threads:
//! there AMX and repacked weights plug in, and so do we. Nothing moves to another device and no graph is split. The entry is C++
//! (`shim.cpp`, with the private headers that it needs repeated in `mirror.h`) and asks the functions of this folder; those read
//! what a tensor says into the slices that [`crate::kernels`] computes on.
//!
//! # Who computes with what
//!
//! The list belongs to the process, engines do not: each context's thread pools are [registered](Pool) with what is [`EnabledKernels`] in
//! its decodes, and a decode is made [inside](deciding) of the same. Every other graph of the process has the
//! [default](set_default), which uses nothing until it is set. Both questions that ggml asks of an operation (how much scratch
//! memory it needs, before the graph; to compute it, in every thread) so get one answer.
//!
//! # Memory
//!
//! Scratch is part of the context's work buffer and is freed with it: what [`crate::kernels`] says it needs for an operation, and
//! 64 bytes. What is known of a decode's masks is kept by the thread that decodes, and reused.

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

/// What of ours runs in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Which kernels passed their trial.
    pub usable: EnabledKernels,
    /// The instruction set that they were chosen for.
    pub level: Level,
    /// Why not all of them are usable, in a few words.
    pub why_not: Option<String>,
}

/// Operations computed by our kernels since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// Attentions: one for each layer that has one, of each decode.
    pub attention: u64,
    /// Products of weights.
    pub products: u64,
}

static N_ATTENTIONS: AtomicU64 = AtomicU64::new(0);
static N_PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// Puts our kernels under llama.cpp and tries them out, once for the process and before any model is loaded.
///
/// A kernel that is not reached or that computes something else than llama.cpp's own is not [usable](Installed::usable).
pub fn install() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let level = level();
        let nothing = |why: &str| Installed { usable: EnabledKernels::NONE, level, why_not: Some(why.to_owned()) };
        if level == Level::Portable {
            return nothing("the processor has none of the instruction sets that they are written for");
        }
        // SAFETY: the answers live for ever, and no thread of ours computes yet: the backend is started before any model is loaded.
        if !unsafe { weft_kernels_install(&raw const ANSWERS) } {
            return nothing("this build of llama.cpp has no place for them");
        }
        trial::run(level)
    })
}

/// The instruction set of our kernels: the best that the processor has, or that of the environment variable `WEFT_INSTRUCTIONS` where
/// the processor has that one.
fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let Ok(name) = std::env::var("WEFT_INSTRUCTIONS") else { return Level::detect() };
        match name.parse::<Level>() {
            Ok(level) if level.is_available() => return level,
            Ok(level) => tracing::warn!("WEFT_INSTRUCTIONS is {level}, which the processor lacks"),
            Err(why) => tracing::warn!("WEFT_INSTRUCTIONS: {why}"),
        }
        Level::detect()
    })
}

/// How often our kernels computed.
#[must_use]
pub fn calls() -> Calls {
    Calls { attention: N_ATTENTIONS.load(Ordering::Relaxed), products: N_PRODUCTS.load(Ordering::Relaxed) }
}

/// What graphs use that belong to no engine of ours, as those of a benchmark's bare loop. Never to be changed while one is computed.
pub fn set_default(used: EnabledKernels) {
    DEFAULT_ATTENTION.store(used.attention, Ordering::Release);
    DEFAULT_PRODUCTS.store(used.products, Ordering::Release);
}

static DEFAULT_ATTENTION: AtomicBool = AtomicBool::new(false);
static DEFAULT_PRODUCTS: AtomicBool = AtomicBool::new(false);

/// The thread pools of our contexts, by address, with what their graphs use.
static POOLS: RwLock<Vec<(usize, EnabledKernels)>> = RwLock::new(Vec::new());

/// Changes with `POOLS`, so that a thread may remember what it has read there.
static POOLS_VERSION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the decode uses that this thread is about to make, and what is known of its rows.
    static DECIDED: Cell<Option<(EnabledKernels, Option<DecodeHints>)>> = const { Cell::new(None) };
    /// What came of the operations that this thread led since it began to count.
    static COUNTED: Cell<KernelCounts> = const { Cell::new(KernelCounts::NOTHING) };
    /// The pool that this thread computed in last, the version of `POOLS` that it was looked up in, and what was found.
    static LAST_POOL: Cell<(usize, u64, Option<EnabledKernels>)> = const { Cell::new((0, u64::MAX, None)) };
}

/// A thread pool whose graphs are computed with what it was registered for; the registration ends with this.
#[derive(Debug)]
pub(super) struct Pool(usize);

impl Pool {
    /// To be dropped before the pool is freed.
    pub(super) fn register(pool: *const sys::ggml_threadpool, used: EnabledKernels) -> Self {
        let address = pool.addr();
        change_pools(|pools| {
            assert!(pools.iter().all(|(known, _)| *known != address), "a pool is registered once");
            pools.push((address, used));
        });
        Self(address)
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

/// What is known of a decode's rows and cells beside the mask, all of it alive during the decode.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeHints {
    ids: NonNull<[sys::llama_seq_id]>,
    positions: Option<NonNull<[sys::llama_pos]>>,
}

impl DecodeHints {
    /// Row `i` belongs to the sequence `ids[i]`, and the cells are those of `memory`.
    ///
    /// # Safety
    /// `memory` is alive, and so are both during [`deciding`].
    pub(super) unsafe fn new(ids: &[sys::llama_seq_id], memory: sys::llama_memory_t) -> Self {
        let mut n = 0;
        // SAFETY: the caller vouches for the memory; `n` is a place for a number.
        let positions = NonNull::new(unsafe { weft_kernels_positions(memory.cast(), &raw mut n) }.cast_mut());
        Self { ids: NonNull::from(ids), positions: positions.map(|first| NonNull::slice_from_raw_parts(first, n)) }
    }

    pub(super) fn has_positions(&self) -> bool {
        self.positions.is_some()
    }
}

/// The buffers that `memory` keeps its cells in; none where it is not one plain pool of cells.
///
/// # Safety
/// `memory` is alive as long as the iterator is used.
pub(super) unsafe fn buffers(memory: sys::llama_memory_t) -> impl Iterator<Item = sys::ggml_backend_buffer_t> {
    // SAFETY: the caller vouches for the memory.
    (0..).map(move |i| unsafe { weft_kernels_buffer(memory.cast(), i) }).take_while(|buffer| !buffer.is_null())
}

/// Makes a decode in registered pools: `decode` runs on this thread and uses `used`.
pub(super) fn deciding<T>(used: EnabledKernels, known: Option<DecodeHints>, decode: impl FnOnce() -> T) -> T {
    let before = DECIDED.replace(Some((used, known)));
    let done = decode();
    DECIDED.set(before);
    done
}

/// How many operations our kernels computed, and how many they were asked for and left to llama.cpp's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelCounts {
    pub(super) n_attentions: u64,
    pub(super) n_attentions_left: u64,
    pub(super) n_products: u64,
    pub(super) n_products_left: u64,
}

impl KernelCounts {
    const NOTHING: Self = Self { n_attentions: 0, n_attentions_left: 0, n_products: 0, n_products_left: 0 };

    /// Whether ours computed all that they were asked for, and something.
    pub(super) fn are_all_ours(self) -> bool {
        self.n_attentions + self.n_products > 0 && self.n_attentions_left + self.n_products_left == 0
    }

    fn add(&mut self, op: &sys::ggml_tensor, is_done: bool) {
        let count = match (op.op == sys::GGML_OP_FLASH_ATTN_EXT, is_done) {
            (true, true) => &mut self.n_attentions,
            (true, false) => &mut self.n_attentions_left,
            (false, true) => &mut self.n_products,
            // Rotations are each row's own.
            (false, false) if products::is_rotation(op) => return,
            (false, false) => &mut self.n_products_left,
        };
        *count += 1;
    }
}

/// Runs `compute`, and says beside its result what came of the operations in the graphs that this thread led.
pub(super) fn counting<T>(compute: impl FnOnce() -> T) -> (T, KernelCounts) {
    COUNTED.set(KernelCounts::NOTHING);
    let done = compute();
    (done, COUNTED.get())
}

/// What the graph uses that this thread is about to compute.
fn used_by_next_graph() -> EnabledKernels {
    DECIDED.get().map_or_else(default_used, |(used, _)| used)
}

/// What the graph uses that is computed in `pool`.
fn used_in(pool: *const c_void) -> EnabledKernels {
    let version = POOLS_VERSION.load(Ordering::Acquire);
    let (last, last_version, found) = LAST_POOL.get();
    if (last, last_version) == (pool.addr(), version) {
        return found.unwrap_or_else(default_used);
    }
    let pools = POOLS.read().unwrap_or_else(PoisonError::into_inner);
    let found = pools.iter().find(|(address, _)| *address == pool.addr()).map(|(_, used)| *used);
    LAST_POOL.set((pool.addr(), version, found));
    found.unwrap_or_else(default_used)
}

fn default_used() -> EnabledKernels {
    EnabledKernels { attention: DEFAULT_ATTENTION.load(Ordering::Acquire), products: DEFAULT_PRODUCTS.load(Ordering::Acquire) }
}

/// `ggml_compute_params`, as `mirror.h` has it.
#[repr(C)]
struct ComputeParams {
    ith: c_int,
    nth: c_int,
    wsize: usize,
    wdata: *mut c_void,
    threadpool: *mut c_void,
    use_ref: bool,
}

/// The threads of a ggml graph.
struct GgmlTeam {
    index: usize,
    size: usize,
    pool: *mut c_void,
}

// SAFETY: ggml numbers the threads of a graph so, and its barrier is for all of them.
unsafe impl Team for GgmlTeam {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn wait(&self) {
        // SAFETY: the pool computes this operation, and all of its threads come here equally often.
        unsafe { weft_kernels_barrier(self.pool) }
    }
}

/// The answers of `shim.cpp`.
#[repr(C)]
struct ShimCallbacks {
    work_size: unsafe extern "C" fn(c_int, *const sys::ggml_tensor, *mut usize) -> bool,
    compute: unsafe extern "C" fn(*mut ComputeParams, *mut sys::ggml_tensor) -> bool,
    takes: unsafe extern "C" fn(*const sys::ggml_tensor) -> bool,
}

static ANSWERS: ShimCallbacks = ShimCallbacks { work_size, compute, takes };

unsafe extern "C" {
    fn weft_kernels_install(answers: *const ShimCallbacks) -> bool;
    fn weft_kernels_positions(memory: *const c_void, n: *mut usize) -> *const sys::llama_pos;
    fn weft_kernels_barrier(pool: *mut c_void);
    fn weft_kernels_buffer(memory: *const c_void, i: usize) -> sys::ggml_backend_buffer_t;
}

/// Whether an operation may be ours, at the price of one comparison: it is asked for every operation in every thread.
unsafe extern "C" fn takes(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes the operation that it is about to compute.
    let op = unsafe { &*op };
    matches!(op.op, sys::GGML_OP_FLASH_ATTN_EXT | sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID)
}

/// How many bytes of scratch an operation needs, where it is ours. Asked by the thread that is about to compute the graph.
unsafe extern "C" fn work_size(n_threads: c_int, op: *const sys::ggml_tensor, size: *mut usize) -> bool {
    let used = used_by_next_graph();
    // SAFETY: as for `takes`; sources of an operation are alive with it.
    let op = unsafe { &*op };
    let n_threads = usize::try_from(n_threads).unwrap_or(1).max(1);
    let needed = if op.op == sys::GGML_OP_FLASH_ATTN_EXT {
        attention::forget_plans();
        used.attention.then(|| attention::scratch_bytes(op, n_threads)).flatten()
    } else {
        used.products.then(|| products::scratch_bytes(op, n_threads)).flatten()
    };
    let Some(needed) = needed else { return false };
    // SAFETY: ggml passes a place for the answer.
    unsafe { size.write(needed) };
    true
}

/// Computes an operation, where it is ours. Called by every thread of the graph.
unsafe extern "C" fn compute(params: *mut ComputeParams, op: *mut sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes parameters of its own, alive during the call.
    let params = unsafe { &*params };
    // SAFETY: as for `work_size`.
    let op = unsafe { &*op };
    let used = used_in(params.threadpool);
    let (Ok(index), Ok(size)) = (usize::try_from(params.ith), usize::try_from(params.nth)) else { return false };
    let team = GgmlTeam { index, size, pool: params.threadpool };
    let (is_done, counter) = if op.op == sys::GGML_OP_FLASH_ATTN_EXT {
        (used.attention && attention::compute(op, params, &team), &N_ATTENTIONS)
    } else {
        (used.products && products::compute(op, params, &team), &N_PRODUCTS)
    };
    if index == 0 {
        counter.fetch_add(u64::from(is_done), Ordering::Relaxed);
        let mut counted = COUNTED.get();
        counted.add(op, is_done);
        COUNTED.set(counted);
    }
    is_done
}
