//! Serializes a saved state: cells sorted by position, V in rows or in columns.

use crate::llama::context::saved_state::parts::{CellsView, StoredTensor};

impl CellsView<'_> {
    /// Fails if V cannot be stored in columns.
    pub(super) fn write(&self, in_columns: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let mut order: Vec<usize> = (0..self.positions.len()).collect();
        order.sort_by_key(|&cell| self.positions[cell]);
        let shape = &self.shape;
        put(out, &[1, order.len()]);
        put_rows(out, self.entries, shape.entry_bytes(), &order);
        put(out, &[usize::from(in_columns), shape.keys.len()]);
        out.extend(shape.rotations.iter().flat_map(|rotation| rotation.to_le_bytes()));
        for (tensor, bytes) in shape.keys.iter().zip(&self.keys) {
            out.extend(tensor.format.to_le_bytes());
            out.extend((tensor.n_bytes as u64).to_le_bytes());
            put_rows(out, bytes, tensor.n_bytes, &order);
        }
        for (tensor, bytes) in shape.values.iter().zip(&self.values) {
            out.extend(tensor.format.to_le_bytes());
            self.write_values(*tensor, bytes, &order, in_columns, out)?;
        }
        Ok(())
    }

    fn write_values(
        &self,
        tensor: StoredTensor,
        bytes: &[u8],
        order: &[usize],
        in_columns: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let row = tensor.n_bytes;
        if !in_columns {
            out.extend((row as u64).to_le_bytes());
        }
        if !in_columns && !self.shape.in_columns {
            put_rows(out, bytes, row, order);
            return Ok(());
        }
        let element = tensor.element().ok_or("a quantised V can only be stored in rows")?;
        let n_columns = row / element;
        let put_number = |out: &mut Vec<u8>, cell: usize, column: usize| {
            let start =
                if self.shape.in_columns { (column * order.len() + cell) * element } else { cell * row + column * element };
            out.extend(&bytes[start..start + element]);
        };
        if in_columns {
            put(out, &[element, n_columns]);
            for column in 0..n_columns {
                for &cell in order {
                    put_number(out, cell, column);
                }
            }
        } else {
            for &cell in order {
                for column in 0..n_columns {
                    put_number(out, cell, column);
                }
            }
        }
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, numbers: &[usize]) {
    for &number in numbers {
        out.extend(u32::try_from(number).expect("it was read as one").to_le_bytes());
    }
}

fn put_rows(out: &mut Vec<u8>, bytes: &[u8], n_bytes: usize, order: &[usize]) {
    for &cell in order {
        out.extend(&bytes[cell * n_bytes..][..n_bytes]);
    }
}
