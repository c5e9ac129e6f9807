//! Converts `GGML_OP_FLASH_ATTN_EXT` to slices, and caches the plans of a decode's masks.

use std::cell::RefCell;

use llama_cpp_sys_2 as sys;

use crate::kernels::Team;
use crate::kernels::attention::{
    self, Attention, AttentionOutput, AttentionPlan, AttentionShape, CacheCells, CellFormat, Mask, MaskOrder, Queries,
};
use crate::llama::kernels::tensor::{self, HEADER, f32_param, scratch, size_of, stride};
use crate::llama::kernels::{DecodeHints, GgmlTeam, NEXT_DECODE, level};

/// A model with sliding windows has two masks per graph.
const MAX_PLANS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlanSource {
    /// Address of the mask, 0 without one.
    mask: usize,
    shape: AttentionShape,
    n_threads: usize,
}

struct CachedPlan {
    source: Option<PlanSource>,
    plan: Box<AttentionPlan>,
}

#[derive(Default)]
struct PlanCache {
    plans: Vec<CachedPlan>,
    sequences: Vec<u32>,
    positions: Vec<u32>,
}

thread_local! {
    static PLAN_CACHE: RefCell<PlanCache> = RefCell::default();
}

pub(super) fn invalidate_plans() {
    PLAN_CACHE.with_borrow_mut(|cache| cache.plans.iter_mut().for_each(|entry| entry.source = None));
}

pub(super) fn scratch_bytes(op: &sys::ggml_tensor, n_threads: usize) -> Option<usize> {
    Some(HEADER + attention::scratch_bytes(&shape(op)?, n_threads))
}

pub(super) fn covers(shape: &AttentionShape, keys: sys::ggml_type, values: sys::ggml_type) -> bool {
    format(keys).zip(format(values)).is_some_and(|(keys, values)| attention::covers(level(), keys, values, shape))
}

pub(super) fn compute(op: &sys::ggml_tensor, team: &GgmlTeam) -> bool {
    let Some(shape) = shape(op) else { return false };
    // SAFETY: `shape` has checked the tensors, and ggml keeps them alive.
    let attention = unsafe { read(op, shape) };
    let (header, scratch) = scratch(team.params);
    if team.index() == 0 {
        let plan = PLAN_CACHE.with_borrow_mut(|cache| std::ptr::from_ref(cache.plan(&attention, team.size())));
        // SAFETY: the header belongs to this operation, and the other threads read it only after the barrier.
        unsafe { header.cast::<*const AttentionPlan>().write_unaligned(plan) };
    }
    team.wait();
    // SAFETY: written before the barrier; plans are boxed, and are rebuilt only for the next graph.
    let plan = unsafe { &*header.cast::<*const AttentionPlan>().read_unaligned() };
    // SAFETY: ggml gives an operation's result its own memory, and it is contiguous.
    let values = unsafe { tensor::result(op) };
    let out = AttentionOutput { values: &values, row_stride: shape.n_heads * shape.value_size, head_stride: shape.value_size };
    attention::attend(&attention, plan, &out, &scratch, team);
    true
}

impl PlanCache {
    /// Returns the plan of the operation's mask. The first operation of a graph with that mask builds it.
    fn plan(&mut self, attention: &Attention<'_>, n_threads: usize) -> &AttentionPlan {
        let mask = attention.mask.map_or(0, |mask| mask.values.as_ptr().addr());
        let source = PlanSource { mask, shape: attention.shape, n_threads };
        if let Some(found) = self.plans.iter().position(|entry| entry.source == Some(source)) {
            return &self.plans[found].plan;
        }
        let free = self.plans.iter().position(|entry| entry.source.is_none());
        let index = free.unwrap_or_else(|| {
            if self.plans.len() < MAX_PLANS {
                self.plans.push(CachedPlan { source: None, plan: Box::default() });
            }
            self.plans.len() - 1
        });
        let hints = NEXT_DECODE.get().and_then(|(_, hints)| hints);
        let order = hints.and_then(|hints| self.order(hints, attention.shape));
        let order = order.map(|has_positions| MaskOrder {
            sequence_of_row: &self.sequences,
            position_of_cell: has_positions.then_some(&self.positions[..]),
        });
        let entry = &mut self.plans[index];
        entry.source = Some(source);
        entry.plan.make(level(), n_threads, &attention.shape, attention.mask.as_ref(), order.as_ref());
        &entry.plan
    }

    fn order(&mut self, hints: DecodeHints, shape: AttentionShape) -> Option<bool> {
        // SAFETY: both are alive during a decode, in which this is called.
        let (ids, positions) = unsafe { (hints.ids.as_ref(), hints.positions.map(|positions| positions.as_ref())) };
        if ids.len() != shape.n_rows {
            return None;
        }
        self.sequences.clear();
        self.sequences.extend(ids.iter().map(|id| id.cast_unsigned()));
        let positions = positions.filter(|positions| positions.len() >= shape.n_cells);
        self.positions.clear();
        self.positions.extend(positions.unwrap_or_default().iter().take(shape.n_cells).map(|position| position.cast_unsigned()));
        Some(positions.is_some())
    }
}

fn shape(op: &sys::ggml_tensor) -> Option<AttentionShape> {
    let [q, k, v, mask, sinks] = tensor::sources(op);
    let (q, k, v) = (q?, k?, v?);
    let shape = AttentionShape {
        n_rows: size_of(q, 1),
        n_heads: size_of(q, 2),
        n_kv_heads: size_of(k, 2),
        n_cells: size_of(k, 1),
        key_size: size_of(k, 0),
        value_size: size_of(v, 0),
    };
    // SAFETY: every tensor has a valid type.
    let is_packed = |tensor: &sys::ggml_tensor| stride(tensor, 0) == unsafe { sys::ggml_type_size(tensor.type_) };
    let is_mask = |mask: &sys::ggml_tensor| {
        let is_large = size_of(mask, 0) == shape.n_cells && size_of(mask, 1) >= shape.n_rows && size_of(mask, 2) == 1;
        mask.type_ == sys::GGML_TYPE_F16 && stride(mask, 1).is_multiple_of(2) && is_large
    };
    let are_sinks = |sinks: &sys::ggml_tensor| sinks.type_ == sys::GGML_TYPE_F32 && size_of(sinks, 0) == shape.n_heads;
    let is_ours = [q, k, v].into_iter().chain(mask).all(|tensor| size_of(tensor, 3) == 1)
        && [q, k, v, op].into_iter().chain(mask).chain(sinks).all(|tensor| is_packed(tensor) && !tensor.data.is_null())
        && [q, op].into_iter().all(|tensor| tensor.type_ == sys::GGML_TYPE_F32)
        && [1, 2].into_iter().all(|i| stride(q, i).is_multiple_of(4))
        && size_of(v, 1) == shape.n_cells
        && size_of(v, 2) == shape.n_kv_heads
        && shape.n_kv_heads > 0
        && shape.n_heads.is_multiple_of(shape.n_kv_heads)
        && size_of(q, 0) == shape.key_size
        && tensor::is_contiguous(op)
        && mask.is_none_or(is_mask)
        && sinks.is_none_or(are_sinks)
        && covers(&shape, k.type_, v.type_);
    is_ours.then_some(shape)
}

/// Callers guarantee that [`shape`] returned `shape` for `op`, whose tensors are alive, and that no thread writes the inputs.
unsafe fn read(op: &sys::ggml_tensor, shape: AttentionShape) -> Attention<'_> {
    let [q, k, v, mask, sinks] = tensor::sources(op);
    let [q, k, v] = [q, k, v].map(|tensor| tensor.expect("an attention has three sources"));
    // SAFETY: `shape` has checked types and strides, and a tensor's memory extends to its last element.
    unsafe {
        let n_queries = tensor::span(q, [shape.n_rows, shape.n_heads], 4 * shape.key_size) / 4;
        Attention {
            shape,
            queries: Queries {
                values: std::slice::from_raw_parts(q.data.cast(), n_queries),
                row_stride: stride(q, 1) / 4,
                head_stride: stride(q, 2) / 4,
            },
            keys: cells(k, shape),
            values: cells(v, shape),
            mask: mask.map(|mask| {
                let n_values = tensor::span(mask, [shape.n_rows, 1], 2 * shape.n_cells) / 2;
                Mask { values: std::slice::from_raw_parts(mask.data.cast(), n_values), row_stride: stride(mask, 1) / 2 }
            }),
            sinks: sinks.map(|sinks| std::slice::from_raw_parts(sinks.data.cast(), shape.n_heads)),
            scale: f32_param(op, 0),
            max_bias: f32_param(op, 1),
            softcap: f32_param(op, 2),
        }
    }
}

/// Callers guarantee the same as for [`read`].
unsafe fn cells(tensor: &sys::ggml_tensor, shape: AttentionShape) -> CacheCells<'_> {
    let (format, head_size) = (format(tensor.type_).expect("it is covered"), size_of(tensor, 0));
    let n_bytes = tensor::span(tensor, [shape.n_cells, shape.n_kv_heads], format.bytes(head_size));
    // SAFETY: the tensor's memory extends to its last element.
    let bytes = unsafe { std::slice::from_raw_parts(tensor.data.cast(), n_bytes) };
    CacheCells { bytes, format, head_size, cell_stride: stride(tensor, 1), head_stride: stride(tensor, 2) }
}

fn format(kind: sys::ggml_type) -> Option<CellFormat> {
    match kind {
        sys::GGML_TYPE_F32 => Some(CellFormat::F32),
        sys::GGML_TYPE_F16 => Some(CellFormat::F16),
        sys::GGML_TYPE_BF16 => Some(CellFormat::Bf16),
        sys::GGML_TYPE_Q8_0 => Some(CellFormat::Q8_0),
        _ => None,
    }
}
