//! Test cases of cells and rows that see some of them, and attention in double precision to compare with.

use crate::kernels::attention::{
    Attention, AttentionOutput, AttentionPlan, AttentionShape, CacheCells, CellFormat, Mask, MaskOrder, Queries, attend,
    scratch_bytes,
};
use crate::kernels::{Level, Random, SharedSlice, ThreadTeam};

impl Random {
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Returns a number between -1 and 1.
    #[expect(clippy::cast_precision_loss)]
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Converts a number within its range to the nearest half.
pub fn to_half(x: f32) -> u16 {
    if x == f32::NEG_INFINITY {
        return Mask::HIDDEN;
    }
    let sign = u16::try_from(x.to_bits() >> 31).unwrap() << 15;
    let magnitude = x.abs().to_bits();
    assert!(x.abs() < 65_000.0);
    if x.abs() < 6.2e-5 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        return sign | (x.abs() * 16_777_216.0).round_ties_even() as u16;
    }
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23);
    sign | u16::try_from(rounded >> 13).unwrap()
}

pub fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2.0_f64.powi(-24),
        31 => f64::INFINITY,
        _ => (1.0 + fraction / 1024.0) * 2.0_f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// A row's sequence and position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub sequence: u32,
    pub position: u32,
}

/// A cell: its position, its sequences, and a number that determines its contents.
#[derive(Debug, Clone)]
pub struct Cell {
    pub position: u32,
    pub sequences: Vec<u32>,
    pub content: usize,
}

/// The cells of its own sequence that a row sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MaskPattern {
    /// Cells up to the row's position.
    Causal,
    /// Causal, but only the last N positions.
    Window(u32),
    /// All cells.
    Whole,
    /// Causal, with a bias of minus the distance.
    Distance,
    /// A pseudo-random subset.
    Some,
    /// No cell.
    Nothing,
}

/// Sizes and settings of a case.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub key_size: usize,
    pub value_size: usize,
    pub formats: (CellFormat, CellFormat),
    pub softcap: f32,
    pub max_bias: f32,
    pub has_sinks: bool,
    pub has_mask: bool,
}

impl Setting {
    pub const PLAIN: Self = Self {
        n_heads: 4,
        n_kv_heads: 2,
        key_size: 64,
        value_size: 64,
        formats: (CellFormat::F16, CellFormat::F16),
        softcap: 0.0,
        max_bias: 0.0,
        has_sinks: false,
        has_mask: true,
    };
}

/// An attention with all its operands.
#[derive(Debug)]
pub struct Case {
    pub setting: Setting,
    pub rows: Vec<Row>,
    pub cells: Vec<Cell>,
    pub shape: AttentionShape,
    queries: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
    mask: Vec<u16>,
    sinks: Vec<f32>,
    sequence_of_row: Vec<u32>,
    position_of_cell: Vec<u32>,
}

/// Instruction set, threads and mask order of a computation.
#[derive(Debug, Clone, Copy)]
pub struct ComputeOptions {
    pub level: Level,
    pub n_threads: usize,
    pub has_order: bool,
}

/// Contents follow from the identity of rows and cells, so that the same row or cell has the same contents in every case.
impl Case {
    pub fn new(setting: Setting, pattern: MaskPattern, rows: Vec<Row>, cells: Vec<Cell>) -> Self {
        let Setting { n_heads, n_kv_heads, key_size, value_size, .. } = setting;
        let shape = AttentionShape { n_rows: rows.len(), n_heads, n_kv_heads, n_cells: cells.len(), key_size, value_size };
        let mut queries = Vec::new();
        for row in &rows {
            let mut random = Random(u64::from(row.sequence) << 32 | u64::from(row.position));
            queries.extend((0..n_heads * key_size).map(|_| 2.0 * random.unit()));
        }
        let numbers = |format, size: usize, salt: u64| -> Vec<u8> {
            let mut bytes = Vec::new();
            for cell in &cells {
                let mut random = Random(salt + cell.content as u64);
                for _ in 0..n_kv_heads {
                    encode(format, size, &mut random, &mut bytes);
                }
            }
            bytes
        };
        let mut mask = Vec::new();
        for row in &rows {
            for cell in &cells {
                mask.push(to_half(bias(pattern, *row, cell)));
            }
        }
        Self {
            keys: numbers(setting.formats.0, key_size, 1 << 40),
            values: numbers(setting.formats.1, value_size, 1 << 41),
            sinks: (0..n_heads).map(|head| Random(head as u64).unit() * 3.0).collect(),
            sequence_of_row: rows.iter().map(|row| row.sequence).collect(),
            position_of_cell: cells.iter().map(|cell| cell.position).collect(),
            setting,
            rows,
            cells,
            shape,
            queries,
            mask,
        }
    }

    pub fn mask(&self) -> Option<Mask<'_>> {
        self.setting.has_mask.then_some(Mask { values: &self.mask, row_stride: self.cells.len() })
    }

    pub fn plan(&self, plan: &mut AttentionPlan, options: ComputeOptions) {
        let order = MaskOrder { sequence_of_row: &self.sequence_of_row, position_of_cell: Some(&self.position_of_cell) };
        plan.make(options.level, options.n_threads, &self.shape, self.mask().as_ref(), options.has_order.then_some(&order));
    }

    pub fn attention(&self) -> Attention<'_> {
        let Setting { n_heads, n_kv_heads, key_size, value_size, formats, softcap, max_bias, has_sinks, .. } = self.setting;
        let cells = |bytes, format: CellFormat, head_size| {
            let head_stride = format.bytes(head_size);
            CacheCells { bytes, format, head_size, cell_stride: n_kv_heads * head_stride, head_stride }
        };
        #[expect(clippy::cast_precision_loss)]
        Attention {
            shape: self.shape,
            queries: Queries { values: &self.queries, row_stride: n_heads * key_size, head_stride: key_size },
            keys: cells(&self.keys, formats.0, key_size),
            values: cells(&self.values, formats.1, value_size),
            mask: self.mask(),
            sinks: has_sinks.then_some(&self.sinks),
            scale: 1.0 / (key_size as f32).sqrt(),
            max_bias,
            softcap,
        }
    }

    /// Computes with the kernels, with scratch memory and output initialised to values that must not be used.
    pub fn compute(&self, options: ComputeOptions) -> Vec<f32> {
        let mut plan = AttentionPlan::default();
        self.plan(&mut plan, options);
        self.compute_with_plan(&plan, options.n_threads)
    }

    pub fn compute_with_plan(&self, plan: &AttentionPlan, n_threads: usize) -> Vec<f32> {
        let size = self.shape.n_heads * self.shape.value_size;
        let mut values = vec![f32::NAN; self.rows.len() * size];
        let mut scratch = vec![0xff; scratch_bytes(&self.shape, n_threads)];
        {
            let (values, scratch) = (SharedSlice::from(&mut values[..]), SharedSlice::from(&mut scratch[..]));
            let out = AttentionOutput { values: &values, row_stride: size, head_stride: self.shape.value_size };
            ThreadTeam::run(n_threads, |team| attend(&self.attention(), plan, &out, &scratch, team));
        }
        values
    }

    /// Fills the selected cells with NaN.
    pub fn fill_with_nan(&mut self, which: impl Fn(&Cell) -> bool) {
        for (bytes, n) in [(&mut self.keys, self.cells.len()), (&mut self.values, self.cells.len())] {
            let size = bytes.len() / n;
            let poisoned = self.cells.iter().zip(bytes.chunks_mut(size)).filter(|(cell, _)| which(cell));
            poisoned.for_each(|(_, bytes)| bytes.fill(0xff));
        }
    }

    /// Returns one row of a result.
    pub fn row<'a>(&self, result: &'a [f32], row: usize) -> &'a [f32] {
        let size = self.shape.n_heads * self.shape.value_size;
        &result[row * size..][..size]
    }

    /// Returns the greatest difference of a result from attention in double precision, relative to the greatest magnitude of
    /// the summed values. Compares every `step`-th row.
    pub fn error(&self, result: &[f32], step: usize) -> f64 {
        let AttentionShape { n_heads, n_kv_heads, key_size, value_size, .. } = self.shape;
        let (key_format, value_format) = self.setting.formats;
        let keys = decode(key_format, &self.keys);
        let values = decode(value_format, &self.values);
        let mut worst: f64 = 0.0;
        for row in (0..self.rows.len()).step_by(step) {
            for head in 0..n_heads {
                let kv = head / (n_heads / n_kv_heads);
                let query = &self.queries[(row * n_heads + head) * key_size..][..key_size];
                let mut scores = Vec::new();
                for cell in 0..self.cells.len() {
                    let bias = if self.setting.has_mask { from_half(self.mask[row * self.cells.len() + cell]) } else { 0.0 };
                    if bias == f64::NEG_INFINITY {
                        continue;
                    }
                    let key = &keys[(cell * n_kv_heads + kv) * key_size..][..key_size];
                    let mut score: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum();
                    score *= f64::from(self.attention().scale);
                    let cap = f64::from(self.setting.softcap);
                    if cap != 0.0 {
                        score = cap * (score / cap).tanh();
                    }
                    scores.push((cell, score + self.slope(head) * bias));
                }
                let sink = self.setting.has_sinks.then(|| f64::from(self.sinks[head]));
                let greatest = scores.iter().map(|score| score.1).chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let mut sum: f64 = sink.map_or(0.0, |sink| (sink - greatest).exp());
                let mut expected = vec![0.0; value_size];
                let mut magnitude: f64 = 0.0;
                for (cell, score) in scores {
                    let weight = (score - greatest).exp();
                    sum += weight;
                    let value = &values[(cell * n_kv_heads + kv) * value_size..][..value_size];
                    for (expected, v) in expected.iter_mut().zip(value) {
                        *expected += weight * v;
                        magnitude = magnitude.max(v.abs());
                    }
                }
                let computed = &result[(row * n_heads + head) * value_size..][..value_size];
                for (expected, &computed) in expected.iter().zip(computed) {
                    let expected = if sum > 0.0 { expected / sum } else { 0.0 };
                    let error = (expected - f64::from(computed)).abs() / magnitude.max(1e-30);
                    // NaN counts as the greatest error.
                    worst = if error <= worst { worst } else { error };
                }
            }
        }
        worst
    }

    #[expect(clippy::cast_precision_loss)]
    fn slope(&self, head: usize) -> f64 {
        let bias = f64::from(self.setting.max_bias);
        if bias == 0.0 {
            return 1.0;
        }
        let n_even = 1_usize << self.setting.n_heads.ilog2();
        let (first, second) = (2.0_f64.powf(-bias / n_even as f64), 2.0_f64.powf(-bias / 2.0 / n_even as f64));
        if head < n_even { first.powf((head + 1) as f64) } else { second.powf((2 * (head - n_even) + 1) as f64) }
    }
}

fn bias(pattern: MaskPattern, row: Row, cell: &Cell) -> f32 {
    let is_of_sequence = cell.sequences.contains(&row.sequence);
    let is_past = cell.position <= row.position;
    let is_visible = is_of_sequence
        && match pattern {
            MaskPattern::Causal | MaskPattern::Distance => is_past,
            MaskPattern::Window(size) => is_past && row.position - cell.position < size,
            MaskPattern::Whole => true,
            MaskPattern::Some => (u64::from(row.position) * 31 + cell.content as u64 * 17) % 5 < 2,
            MaskPattern::Nothing => false,
        };
    match (is_visible, pattern) {
        (false, _) => f32::NEG_INFINITY,
        #[expect(clippy::cast_precision_loss)]
        (true, MaskPattern::Distance) => -((row.position - cell.position).min(2000) as f32),
        (true, _) => 0.0,
    }
}

/// Encodes one random head of a cell.
fn encode(format: CellFormat, size: usize, random: &mut Random, to: &mut Vec<u8>) {
    match format {
        CellFormat::F32 => (0..size).for_each(|_| to.extend(random.unit().to_ne_bytes())),
        CellFormat::F16 => (0..size).for_each(|_| to.extend(to_half(random.unit()).to_ne_bytes())),
        CellFormat::Bf16 => {
            (0..size).for_each(|_| to.extend(u16::try_from(random.unit().to_bits() >> 16).unwrap().to_ne_bytes()));
        }
        CellFormat::Q8_0 => {
            for _ in 0..size / 32 {
                to.extend(to_half((1.5 + random.unit()) / 320.0).to_ne_bytes());
                to.extend((0..32).map(|_| u8::try_from(random.word() & 0xff).unwrap()));
            }
        }
    }
}

fn decode(format: CellFormat, bytes: &[u8]) -> Vec<f64> {
    let pairs = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_ne_bytes(*pair));
    match format {
        CellFormat::F32 => bytes.as_chunks::<4>().0.iter().map(|four| f64::from(f32::from_ne_bytes(*four))).collect(),
        CellFormat::F16 => pairs().map(from_half).collect(),
        CellFormat::Bf16 => pairs().map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect(),
        CellFormat::Q8_0 => {
            let blocks = bytes.as_chunks::<34>().0.iter();
            let numbers = blocks.flat_map(|block| {
                let factor = from_half(u16::from_ne_bytes([block[0], block[1]]));
                block[2..].iter().map(move |&byte| factor * f64::from(byte.cast_signed()))
            });
            numbers.collect()
        }
    }
}

/// Returns the available levels that have kernels.
pub fn levels() -> Vec<Level> {
    // AVX-VNNI adds nothing to AVX2 for attention.
    let is_covered =
        |level: &Level| *level != Level::AvxVnni && crate::kernels::attention::kernels::AttentionTable::of(*level, 64).is_some();
    Level::ALL.into_iter().filter(|level| level.is_available()).filter(is_covered).collect()
}

/// Returns cells of `n_sequences` sequences that share the first `n_shared` positions and then interleave `n_own` cells each,
/// and a row at the last position of each sequence.
pub fn branches(n_sequences: u32, n_shared: u32, n_own: u32) -> (Vec<Row>, Vec<Cell>) {
    let mut cells = Vec::new();
    for position in 0..n_shared {
        cells.push(Cell { position, sequences: (0..n_sequences).collect(), content: position as usize });
    }
    for position in n_shared..n_shared + n_own {
        for sequence in 0..n_sequences {
            cells.push(Cell { position, sequences: vec![sequence], content: own_content(sequence, position) });
        }
    }
    let rows = (0..n_sequences).map(|sequence| Row { sequence, position: n_shared + n_own - 1 }).collect();
    (rows, cells)
}

/// Returns the contents of a cell of one sequence.
pub fn own_content(sequence: u32, position: u32) -> usize {
    (sequence as usize + 1) << 20 | position as usize
}
