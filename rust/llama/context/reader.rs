//! Reads little-endian numbers. Every method returns `None` if bytes are missing.

#[derive(Clone, Copy)]
pub(in crate::llama) struct Reader<'a>(pub(in crate::llama) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::llama) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub(in crate::llama) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(in crate::llama) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::llama) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    pub(in crate::llama) fn long_size(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).ok()
    }
}
