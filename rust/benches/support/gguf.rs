//! Writes a GGUF file, version 3: header, metadata and tensor list first, then the tensors' bytes.
//!
//! The format is ggml's: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Everything is little-endian; a string is its
//! length in 64 bits and its bytes; each tensor starts at a multiple of the alignment, counted from the end of the padded header.

/// Bytes that every tensor's offset is a multiple of; GGUF's default.
pub(crate) const ALIGNMENT: usize = 32;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;

/// Value types of the metadata, by their numbers in the specification.
#[derive(Clone, Copy)]
enum ValueType {
    #[allow(dead_code, reason = "the library's tests, which share this file, write parts of models with it")]
    U16 = 2,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
}

/// Storage format of a tensor's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorType {
    /// 32-bit floats.
    F32,
    /// Blocks of 32 weights: one 16-bit float that scales them, then their fifth bits, then four bits of each.
    Q5_0,
    /// Blocks of 32 weights: one 16-bit float that scales them, then 32 signed bytes.
    Q8_0,
    /// Blocks of 256 weights of four bits, in groups of 32 with a scale and a minimum of six bits each.
    Q4K,
    /// As `Q4K`, with five bits.
    #[allow(dead_code, reason = "the library's tests, which share this file, write models of it")]
    Q5K,
    /// Blocks of 256 weights of six bits, in groups of 16 with a scale of eight bits each.
    Q6K,
}

impl TensorType {
    /// The number of this type in `ggml_type`.
    const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q5_0 => 6,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
        }
    }

    /// Returns the numbers in a block, and its bytes.
    #[must_use]
    pub(crate) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Q5_0 => (32, 22),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Returns the bytes of `n` numbers, which must be whole blocks.
    #[must_use]
    pub(crate) const fn n_bytes(self, n: usize) -> usize {
        let (n_numbers, n_bytes) = self.block();
        n / n_numbers * n_bytes
    }
}

/// One tensor of the file.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    /// The architecture's name of the tensor.
    pub(crate) name: String,
    /// Its sizes, fastest-running dimension first.
    pub(crate) dims: Vec<usize>,
    /// Storage format of its numbers.
    pub(crate) kind: TensorType,
}

impl Tensor {
    /// Returns the bytes of the tensor without padding.
    #[must_use]
    pub(crate) fn n_bytes(&self) -> usize {
        self.kind.n_bytes(self.dims.iter().product())
    }
}

/// Builder of the part of the file before the tensors' bytes.
#[derive(Default)]
pub(crate) struct Header {
    metadata: Vec<u8>,
    n_metadata: u64,
    tensors: Vec<Tensor>,
}

impl Header {
    /// Adds a string to the metadata.
    pub(crate) fn string(&mut self, key: &str, value: &str) {
        self.key(key, ValueType::String);
        push_string(&mut self.metadata, value);
    }

    /// Adds an unsigned 16-bit number.
    #[allow(dead_code, reason = "the library's tests, which share this file, write parts of models with it")]
    pub(crate) fn u16(&mut self, key: &str, value: u16) {
        self.key(key, ValueType::U16);
        self.metadata.extend(value.to_le_bytes());
    }

    /// Adds an unsigned number.
    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.key(key, ValueType::U32);
        self.metadata.extend(value.to_le_bytes());
    }

    /// Adds a float.
    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.key(key, ValueType::F32);
        self.metadata.extend(value.to_le_bytes());
    }

    /// Adds a boolean.
    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.key(key, ValueType::Bool);
        self.metadata.push(value.into());
    }

    /// Adds an array of strings.
    pub(crate) fn strings<'a>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'a str>) {
        self.array(key, ValueType::String, values.len());
        for value in values {
            push_string(&mut self.metadata, value);
        }
    }

    /// Adds an array of floats.
    pub(crate) fn f32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = f32>) {
        self.array(key, ValueType::F32, values.len());
        self.metadata.extend(values.flat_map(f32::to_le_bytes));
    }

    /// Adds an array of unsigned numbers.
    #[allow(dead_code, reason = "the library's tests, which share this file, write adapters with it")]
    pub(crate) fn u32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = u32>) {
        self.array(key, ValueType::U32, values.len());
        self.metadata.extend(values.flat_map(u32::to_le_bytes));
    }

    /// Adds an array of signed numbers.
    pub(crate) fn i32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = i32>) {
        self.array(key, ValueType::I32, values.len());
        self.metadata.extend(values.flat_map(i32::to_le_bytes));
    }

    /// Adds a tensor; the tensors' bytes follow the header in the order of these calls, each padded with [`padding`].
    pub(crate) fn tensor(&mut self, tensor: Tensor) {
        self.tensors.push(tensor);
    }

    /// Returns the tensors in the order of their bytes.
    #[must_use]
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the bytes of the header, padded so that the first tensor can follow.
    #[must_use]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.n_metadata.to_le_bytes());
        bytes.extend(&self.metadata);
        let mut offset = 0;
        for tensor in &self.tensors {
            push_string(&mut bytes, &tensor.name);
            let n_dims = u32::try_from(tensor.dims.len()).expect("a tensor has at most four dimensions");
            bytes.extend(n_dims.to_le_bytes());
            bytes.extend(tensor.dims.iter().flat_map(|&size| (size as u64).to_le_bytes()));
            bytes.extend(tensor.kind.id().to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset += tensor.n_bytes().next_multiple_of(ALIGNMENT);
        }
        bytes.extend(padding(bytes.len()));
        bytes
    }

    fn key(&mut self, key: &str, kind: ValueType) {
        push_string(&mut self.metadata, key);
        self.metadata.extend((kind as u32).to_le_bytes());
        self.n_metadata += 1;
    }

    fn array(&mut self, key: &str, kind: ValueType, len: usize) {
        self.key(key, ValueType::Array);
        self.metadata.extend((kind as u32).to_le_bytes());
        self.metadata.extend((len as u64).to_le_bytes());
    }
}

/// Returns the zeros that pad `n_bytes` to the next multiple of [`ALIGNMENT`].
#[must_use]
pub(crate) fn padding(n_bytes: usize) -> &'static [u8] {
    &[0; ALIGNMENT][..n_bytes.next_multiple_of(ALIGNMENT) - n_bytes]
}

fn push_string(bytes: &mut Vec<u8>, value: &str) {
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(value.as_bytes());
}
