//! `GGML_OP_FLASH_ATTN_EXT` as slices, and the plans of a decode's masks.

use std::cell::RefCell;

use llama_cpp_sys_2 as sys;

use crate::kernels::Team;
use crate::kernels::attention::{self, Attention, AttentionOutput, Cells, Format, Mask, MaskOrder, Plan, Queries, Shape};
use crate::llama::kernels::tensor::{self, HEADER, f32_param, scratch, size_of, stride};
use crate::llama::kernels::{ComputeParams, DECIDED, DecodeHints, GgmlTeam, level};

/// Masks of one graph whose plans are kept: a model with sliding windows has two.
const MAX_PLANS: usize = 4;

/// What a plan was made from, until the next graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlanSource {
    /// Address of the mask, 0 without one.
    mask: usize,
    shape: Shape,
    n_threads: usize,
}

/// A plan, and what it was made from in this graph.
struct CachedPlan {
    source: Option<PlanSource>,
    plan: Box<Plan>,
}

/// What the thread that computes graphs keeps from one operation to the next.
#[derive(Default)]
struct PlanCache {
    plans: Vec<CachedPlan>,
    /// Sequences of the rows, as the plan wants them.
    sequences: Vec<u32>,
    /// Positions of the cells, as the plan wants them.
    positions: Vec<u32>,
}

thread_local! {
    static DESK: RefCell<PlanCache> = RefCell::default();
}

/// A graph is about to be computed: its masks say something new.
pub(super) fn forget_plans() {
    DESK.with_borrow_mut(|desk| desk.plans.iter_mut().for_each(|kept| kept.source = None));
}

/// Bytes of scratch for `op`, where it is one that our attention computes.
pub(super) fn scratch_bytes(op: &sys::ggml_tensor, n_threads: usize) -> Option<usize> {
    let shape = shape(op)?;
    Some(HEADER + attention::scratch_bytes(&shape, n_threads))
}

/// Whether our attention computes heads of these sizes over cells of these formats.
pub(super) fn covers(shape: &Shape, keys: sys::ggml_type, values: sys::ggml_type) -> bool {
    let formats = format(keys).zip(format(values));
    formats.is_some_and(|(keys, values)| attention::covers(level(), keys, values, shape))
}

/// Computes `op`, where it is one of ours, with the other threads of `team`.
pub(super) fn compute(op: &sys::ggml_tensor, params: &ComputeParams, team: &GgmlTeam) -> bool {
    let Some(shape) = shape(op) else { return false };
    // SAFETY: `shape` has checked that the tensors are what an attention is made of, and ggml keeps them alive.
    let attention = unsafe { read(op, shape) };
    let (header, scratch) = scratch(params);
    if team.index() == 0 {
        let plan = DESK.with_borrow_mut(|desk| std::ptr::from_ref(desk.plan(&attention, team.size())));
        // SAFETY: the header belongs to this operation, and the others read it only after they have met.
        unsafe { header.cast::<*const Plan>().write_unaligned(plan) };
    }
    team.wait();
    // SAFETY: written before the threads met; plans are boxed, and made again only for the next graph.
    let plan = unsafe { &*header.cast::<*const Plan>().read_unaligned() };
    // SAFETY: ggml gives an operation's result memory of its own, and it is contiguous.
    let values = unsafe { tensor::result(op) };
    let out = AttentionOutput { values: &values, row_stride: shape.n_heads * shape.value_size, head_stride: shape.value_size };
    attention::attend(&attention, plan, &out, &scratch, team);
    true
}

impl PlanCache {
    /// The plan of the operation's mask: made by the first operation of a graph that has it, and shared by the others.
    fn plan(&mut self, attention: &Attention<'_>, n_threads: usize) -> &Plan {
        let mask = attention.mask.map_or(0, |mask| mask.values.as_ptr().addr());
        let source = PlanSource { mask, shape: attention.shape, n_threads };
        if let Some(found) = self.plans.iter().position(|kept| kept.source == Some(source)) {
            return &self.plans[found].plan;
        }
        let free = self.plans.iter().position(|kept| kept.source.is_none());
        let place = free.unwrap_or_else(|| {
            if self.plans.len() < MAX_PLANS {
                self.plans.push(CachedPlan { source: None, plan: Box::new(Plan::new()) });
            }
            self.plans.len() - 1
        });
        let known = DECIDED.get().and_then(|(_, known)| known);
        let order = known.and_then(|known| self.order(known, attention.shape));
        let order = order.map(|has_positions| MaskOrder {
            sequence_of_row: &self.sequences,
            position_of_cell: has_positions.then_some(&self.positions[..]),
        });
        let kept = &mut self.plans[place];
        kept.source = Some(source);
        kept.plan.make(level(), n_threads, &attention.shape, attention.mask.as_ref(), order.as_ref());
        &kept.plan
    }

    /// Takes over what is known, where it is about these rows, and says whether that includes positions.
    fn order(&mut self, known: DecodeHints, shape: Shape) -> Option<bool> {
        // SAFETY: both are alive during a decode, in which this is called.
        let (ids, positions) = unsafe { (known.ids.as_ref(), known.positions.map(|positions| positions.as_ref())) };
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

/// The sizes of an attention that ours computes.
fn shape(op: &sys::ggml_tensor) -> Option<Shape> {
    let [q, k, v, mask, sinks] = tensor::sources(op);
    let (q, k, v) = (q?, k?, v?);
    let shape = Shape {
        n_rows: size_of(q, 1),
        n_heads: size_of(q, 2),
        n_kv_heads: size_of(k, 2),
        n_cells: size_of(k, 1),
        key_size: size_of(k, 0),
        value_size: size_of(v, 0),
    };
    let is_packed = |tensor: &sys::ggml_tensor, n_bytes: usize| stride(tensor, 0) == n_bytes && !tensor.data.is_null();
    let has_blocks = |tensor: &sys::ggml_tensor| {
        // SAFETY: the type is that of a tensor.
        is_packed(tensor, unsafe { sys::ggml_type_size(tensor.type_) })
    };
    let is_one_stream = [q, k, v].into_iter().chain(mask).all(|tensor| size_of(tensor, 3) == 1);
    let is_mask = |mask: &sys::ggml_tensor| {
        let is_large = size_of(mask, 0) == shape.n_cells && size_of(mask, 1) >= shape.n_rows && size_of(mask, 2) == 1;
        mask.type_ == sys::GGML_TYPE_F16 && is_packed(mask, 2) && stride(mask, 1).is_multiple_of(2) && is_large
    };
    let are_sinks =
        |sinks: &sys::ggml_tensor| sinks.type_ == sys::GGML_TYPE_F32 && is_packed(sinks, 4) && size_of(sinks, 0) == shape.n_heads;
    let is_ours = is_one_stream
        && [q, op].into_iter().all(|tensor| tensor.type_ == sys::GGML_TYPE_F32 && is_packed(tensor, 4))
        && [1, 2].into_iter().all(|i| stride(q, i).is_multiple_of(4))
        && [k, v].into_iter().all(has_blocks)
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

/// What `op` says, in slices.
///
/// # Safety
/// [`shape`] is that of `op`, whose tensors are alive, and nobody writes what it reads.
unsafe fn read(op: &sys::ggml_tensor, shape: Shape) -> Attention<'_> {
    let [q, k, v, mask, sinks] = tensor::sources(op);
    let [q, k, v] = [q, k, v].map(|tensor| tensor.expect("an attention has three sources"));
    // SAFETY: `shape` has checked types and strides, and a tensor's memory reaches to its last element.
    unsafe {
        let n_queries = tensor::span(q, [1, 2], [shape.n_rows, shape.n_heads], 4 * shape.key_size) / 4;
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
                let n_values = tensor::span(mask, [1, 2], [shape.n_rows, 1], 2 * shape.n_cells) / 2;
                Mask { values: std::slice::from_raw_parts(mask.data.cast(), n_values), row_stride: stride(mask, 1) / 2 }
            }),
            sinks: sinks.map(|sinks| std::slice::from_raw_parts(sinks.data.cast(), shape.n_heads)),
            scale: f32_param(op, 0),
            max_bias: f32_param(op, 1),
            softcap: f32_param(op, 2),
        }
    }
}

/// Keys or values.
///
/// # Safety
/// As for [`read`].
unsafe fn cells(tensor: &sys::ggml_tensor, shape: Shape) -> Cells<'_> {
    let (format, head_size) = (format(tensor.type_).expect("it is covered"), size_of(tensor, 0));
    let n_bytes = tensor::span(tensor, [1, 2], [shape.n_cells, shape.n_kv_heads], format.bytes(head_size));
    // SAFETY: the tensor's memory reaches to its last element.
    let bytes = unsafe { std::slice::from_raw_parts(tensor.data.cast(), n_bytes) };
    Cells { bytes, format, head_size, cell_stride: stride(tensor, 1), head_stride: stride(tensor, 2) }
}

fn format(kind: sys::ggml_type) -> Option<Format> {
    match kind {
        sys::GGML_TYPE_F32 => Some(Format::F32),
        sys::GGML_TYPE_F16 => Some(Format::F16),
        sys::GGML_TYPE_BF16 => Some(Format::Bf16),
        sys::GGML_TYPE_Q8_0 => Some(Format::Q8_0),
        _ => None,
    }
}
