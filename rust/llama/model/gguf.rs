//! Reads the metadata of a GGUF file: before the model is loaded, and where llama.cpp's calls on a loaded model omit it.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::llama::logging;

pub(crate) fn c_path(path: &Path) -> Result<CString, String> {
    let path = path.to_str().ok_or("its path is not UTF-8")?;
    CString::new(path).map_err(|_| "its path contains a NUL byte".to_owned())
}

/// llama.cpp's own messages for these cases name neither the cause nor the remedy.
fn check_header(path: &Path) -> Result<(), String> {
    let describe = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "this process has no permission to read it".to_owned(),
        _ => error.to_string(),
    };
    let metadata = std::fs::metadata(path).map_err(describe)?;
    if metadata.is_dir() {
        return Err("it is a directory; name a GGUF file".to_owned());
    }
    let mut magic = Vec::new();
    File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic)).map_err(describe)?;
    match magic.as_slice() {
        b"GGUF" => Ok(()),
        [] => Err("the file is empty".to_owned()),
        _ => Err(format!("it is not a GGUF file: it begins with \"{}\" instead of \"GGUF\"", magic.escape_ascii())),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) format: sys::ggml_type,
    /// Dimensions, innermost first; 1 for unused ones.
    pub(crate) sizes: [i64; 4],
    start: u64,
    pub(crate) n_bytes: u64,
}

impl TensorInfo {
    pub(crate) fn range(self) -> Range<u64> {
        self.start..self.start + self.n_bytes
    }
}

owned_pointer!(pub(crate) struct Metadata(sys::gguf_context), freed by sys::gguf_free);

impl Metadata {
    /// As [`Metadata::open`], but rejects a pipe, whose opening would block.
    pub(crate) fn open_regular(path: &Path) -> Result<Self, String> {
        // Missing files and directories are reported by `open`.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
            return Err("it is not a regular file".to_owned());
        }
        Self::open(path)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        check_header(path)?;
        let path = c_path(path)?;
        let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
        // SAFETY: the path is NUL-terminated; with `no_alloc` and no target for tensors only the metadata is read.
        let (file, errors) = logging::errors_during(|| unsafe { sys::gguf_init_from_file(path.as_ptr(), params) });
        NonNull::new(file).map(Self).ok_or_else(|| logging::explain("its metadata is damaged or truncated", &errors))
    }

    pub(crate) fn string(&self, key: &str) -> Option<String> {
        let index = self.find(key, sys::GGUF_TYPE_STRING)?;
        // SAFETY: `index` is a string of this file, NUL-terminated and alive as long as `self`.
        let text = unsafe { CStr::from_ptr(sys::gguf_get_val_str(self.0.as_ptr(), index)) };
        Some(text.to_string_lossy().into_owned())
    }

    /// llama.cpp omits arrays from the metadata of a loaded model. `None` if there is no array of non-negative 32-bit integers.
    pub(crate) fn u32_array(&self, key: &str) -> Option<Vec<u32>> {
        let index = self.find(key, sys::GGUF_TYPE_ARRAY)?;
        // SAFETY: `index` is an array of this file.
        let element = unsafe { sys::gguf_get_arr_type(self.0.as_ptr(), index) };
        if ![sys::GGUF_TYPE_INT32, sys::GGUF_TYPE_UINT32].contains(&element) {
            return None;
        }
        // SAFETY: the array holds `n` integers of 32 bits, aligned by its allocator and alive as long as `self`.
        let values = unsafe {
            let n = sys::gguf_get_arr_n(self.0.as_ptr(), index);
            std::slice::from_raw_parts(sys::gguf_get_arr_data(self.0.as_ptr(), index).cast::<i32>(), n)
        };
        values.iter().map(|&value| u32::try_from(value).ok()).collect()
    }

    pub(crate) fn named_tensors(&self) -> impl Iterator<Item = (String, TensorInfo)> {
        // SAFETY: the context is alive.
        let n = unsafe { sys::gguf_get_n_tensors(self.0.as_ptr()) };
        (0..n).map(|i| {
            // SAFETY: the context is alive, and `i` below the number of its tensors; a name is NUL-terminated, and there are four sizes.
            unsafe {
                let name = CStr::from_ptr(sys::gguf_get_tensor_name(self.0.as_ptr(), i)).to_string_lossy().into_owned();
                let sizes: [i64; 4] = *sys::gguf_get_tensor_ne(self.0.as_ptr(), i).cast();
                let format = sys::gguf_get_tensor_type(self.0.as_ptr(), i);
                let start = self.data_offset() + sys::gguf_get_tensor_offset(self.0.as_ptr(), i) as u64;
                (name, TensorInfo { format, sizes, start, n_bytes: sys::gguf_get_tensor_size(self.0.as_ptr(), i) as u64 })
            }
        })
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.index(key).is_some()
    }

    pub(crate) fn kind(&self, key: &str) -> Option<&'static str> {
        let index = self.index(key)?;
        // SAFETY: `index` is one of the file's keys.
        Some(match unsafe { sys::gguf_get_kv_type(self.0.as_ptr(), index) } {
            sys::GGUF_TYPE_BOOL => "bool",
            sys::GGUF_TYPE_STRING => "str",
            sys::GGUF_TYPE_FLOAT32 | sys::GGUF_TYPE_FLOAT64 => "float",
            sys::GGUF_TYPE_ARRAY => "an array, which cannot be overridden",
            _ => "int",
        })
    }

    pub(crate) fn u32(&self, key: &str) -> Option<u32> {
        self.number(key, sys::GGUF_TYPE_UINT32, sys::gguf_get_val_u32)
    }

    pub(crate) fn u16(&self, key: &str) -> Option<u16> {
        self.number(key, sys::GGUF_TYPE_UINT16, sys::gguf_get_val_u16)
    }

    pub(crate) fn f32(&self, key: &str) -> Option<f32> {
        self.number(key, sys::GGUF_TYPE_FLOAT32, sys::gguf_get_val_f32)
    }

    fn number<T>(
        &self,
        key: &str,
        kind: sys::gguf_type,
        read: unsafe extern "C" fn(*const sys::gguf_context, i64) -> T,
    ) -> Option<T> {
        let index = self.find(key, kind)?;
        // SAFETY: `index` is a number of this type in this file.
        Some(unsafe { read(self.0.as_ptr(), index) })
    }

    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        let name = CString::new(name).expect("a tensor's name contains no NUL byte");
        // SAFETY: the context is alive and the name NUL-terminated.
        unsafe { sys::gguf_find_tensor(self.0.as_ptr(), name.as_ptr()) >= 0 }
    }

    pub(crate) fn data_offset(&self) -> u64 {
        // SAFETY: the context is alive.
        unsafe { sys::gguf_get_data_offset(self.0.as_ptr()) as u64 }
    }

    fn index(&self, key: &str) -> Option<i64> {
        let key = CString::new(key).ok()?;
        // SAFETY: the context is alive and the key NUL-terminated.
        let index = unsafe { sys::gguf_find_key(self.0.as_ptr(), key.as_ptr()) };
        (index >= 0).then_some(index)
    }

    fn find(&self, key: &str, kind: sys::gguf_type) -> Option<i64> {
        // SAFETY: `index` is one of the file's keys.
        self.index(key).filter(|&index| unsafe { sys::gguf_get_kv_type(self.0.as_ptr(), index) } == kind)
    }
}
