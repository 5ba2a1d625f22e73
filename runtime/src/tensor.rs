//! Tensors on the device.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::platform;
use crate::upload;
use std::sync::Arc;
use wgfc_program::program::Buffer;
use wgfc_program::{DType, Tensor};

/// Device memory that a [`DeviceTensor`] refers to.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) buffer: wgpu::Buffer,
    /// The first byte in the buffer.
    pub(crate) offset: u64,
    /// The number of bytes from there.
    pub(crate) capacity: u64,
}

impl Memory {
    /// The first `capacity` bytes of a buffer.
    pub(crate) fn of(buffer: wgpu::Buffer, capacity: u64) -> Arc<Memory> {
        Arc::new(Memory { buffer, offset: 0, capacity })
    }
}

/// A dense tensor on the device in the format of [`Tensor`]. Clones share the memory, which is not reused while one of them
/// exists.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// use wgfc_program::{DType, Tensor};
/// let x = gpu.upload_blocking(&Tensor::from_f32(vec![2, 3], &[1.0; 6]))?;
/// assert_eq!((x.dtype(), x.shape(), x.bytes()), (DType::F32, &[2, 3][..], 24));
/// // The same memory with another shape.
/// let flat = x.reshaped(vec![6]).expect("six elements");
/// assert_eq!(flat.read_blocking()?.shape, [6]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    /// Element type.
    pub(crate) dtype: DType,
    /// Extents, outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) gpu: Gpu,
}

impl DeviceTensor {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The size in bytes, a multiple of 4 and at least 16.
    pub fn bytes(&self) -> u64 {
        Buffer::byte_size(self.dtype, self.shape.iter().product())
    }
    /// The buffer that holds the tensor, starting at [`DeviceTensor::offset`].
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.memory.buffer
    }
    /// The first byte of the tensor in its buffer: 0, except in a slice that was [adopted](Gpu::adopt).
    pub fn offset(&self) -> u64 {
        self.memory.offset
    }
    /// A tensor in the same memory with another shape; `None` if the number of elements differs.
    pub fn reshaped(&self, shape: Vec<usize>) -> Option<DeviceTensor> {
        let n = wgfc_program::tensor::checked_numel(&shape)?;
        (n == self.shape.iter().product::<usize>()).then(|| DeviceTensor { shape, ..self.clone() })
    }
    /// A tensor in the same memory whose elements are those bytes as another type, as all types lie in memory as on a
    /// little-endian host; `None` if the number of bytes differs.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::{DType, Tensor};
    /// let x = gpu.upload_blocking(&Tensor::from_f32(vec![2], &[1.0, 2.0]))?;
    /// let halves = x.viewed(DType::F16, vec![2, 2]).expect("8 bytes");
    /// assert_eq!(halves.read_blocking()?.to_f32s(), Some(vec![0.0, 1.875, 0.0, 2.0]));
    /// # Ok(()) }
    /// ```
    pub fn viewed(&self, dtype: DType, shape: Vec<usize>) -> Option<DeviceTensor> {
        let n = wgfc_program::tensor::checked_numel(&shape)?;
        let have = self.dtype.bytes_for(self.shape.iter().product());
        (dtype.bytes_for(n) == have).then(|| DeviceTensor { dtype, shape, ..self.clone() })
    }
    /// Copies rows, which are the elements with one index along the first axis, of other tensors into this one: each from a row of a tensor
    /// to a row of this one.
    ///
    /// # Errors
    /// [`RunError::Gpu`] for tensors of other types, of rows of other sizes, or on another device; for rows that do not exist or are not
    /// whole words; and for errors of the device. Nothing is copied then.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::Tensor;
    /// let a = gpu.upload(&Tensor::from_f32(vec![3, 1], &[1.0, 2.0, 3.0])).await?;
    /// let b = gpu.upload(&Tensor::from_f32(vec![2, 1], &[4.0, 5.0])).await?;
    /// b.copy_rows(&[(&a, 2, 0)]).await?;
    /// assert_eq!(b.read().await?.to_f32s(), Some(vec![3.0, 5.0]));
    /// assert!(b.copy_rows(&[(&a, 3, 0)]).await.is_err());
    /// # Ok(()) }) }
    /// ```
    pub async fn copy_rows(&self, rows: &[(&DeviceTensor, usize, usize)]) -> Result<(), RunError> {
        let refused = |why: &str| {
            let message = format!("rows cannot be copied into {}{:?}: {why}", self.dtype, self.shape);
            RunError::Gpu { what: "copying rows".to_owned(), message }
        };
        let size = |t: &DeviceTensor| {
            let elements = wgfc_program::tensor::checked_numel(t.shape.get(1..)?)?;
            let bytes = t.dtype.bytes_of(elements as u64);
            bytes.is_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT).then_some(bytes)
        };
        let bytes = size(self).ok_or_else(|| refused("they are not whole words"))?;
        let has = |t: &DeviceTensor, row: usize| t.shape.first().is_some_and(|n| row < *n);
        for (from, row, to) in rows {
            if !from.gpu.is(&self.gpu) {
                return Err(refused("a tensor is on another device"));
            }
            if from.dtype != self.dtype || size(from) != Some(bytes) {
                return Err(refused(&format!("those of {}{:?} are others", from.dtype, from.shape)));
            }
            if !has(from, *row) || !has(self, *to) {
                return Err(refused(&format!("there is no row {row} to copy to {to}")));
            }
            if from.memory.buffer == self.memory.buffer {
                return Err(refused("they are its own"));
            }
        }
        let gpu = &self.gpu;
        gpu.scoped("copying rows", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for (from, row, to) in rows {
                let at = |t: &DeviceTensor, row: usize| t.memory.offset + row as u64 * bytes;
                let (source, target) = (at(from, *row), at(self, *to));
                encoder.copy_buffer_to_buffer(
                    &from.memory.buffer,
                    source,
                    &self.memory.buffer,
                    target,
                    bytes,
                );
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await
    }

    /// Copies it to the host.
    pub async fn read(&self) -> Result<Tensor, RunError> {
        Ok(read_apart(&self.gpu, std::slice::from_ref(self)).await?.swap_remove(0))
    }
}

impl Gpu {
    /// A tensor in a buffer of the caller, for inputs and for outputs of [`Session::encode`](crate::Session::encode); of a whole
    /// buffer, the slice is `buffer.slice(..)`. Nothing is copied. The buffer must belong to [`Gpu::device`] and have the usage
    /// `STORAGE` (and `COPY_SRC` if [`DeviceTensor::read`] is to read it). The slice must begin at a multiple of the device's
    /// `min_storage_buffer_offset_alignment` (256, unless a lower limit was asked for) and have room for
    /// [`DeviceTensor::bytes`], which is a multiple of 4 and at least 16.
    ///
    /// The caller may write to it between runs that read it. Inputs may lie in one buffer; an output may not lie in a buffer that
    /// another input or output lies in, as WebGPU does not let a dispatch read one part of a buffer and write another.
    ///
    /// # Errors
    /// [`RunError::Buffer`] for a buffer that lacks the usage, and for a slice that lacks the alignment or the room.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::DType;
    /// use wgfc_runtime::wgpu;
    /// // A buffer of yours, with the usage STORAGE.
    /// let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    /// let descriptor = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
    /// let buffer = gpu.device().create_buffer(&descriptor);
    /// let x = gpu.adopt(buffer.slice(..), DType::F32, vec![4])?;
    /// gpu.queue().write_buffer(&buffer, 0, &1.5_f32.to_le_bytes());
    /// assert_eq!(x.read_blocking()?.to_f32s(), Some(vec![1.5, 0.0, 0.0, 0.0]));
    /// # Ok(()) }
    /// ```
    pub fn adopt(
        &self,
        slice: wgpu::BufferSlice<'_>,
        dtype: DType,
        shape: Vec<usize>,
    ) -> Result<DeviceTensor, RunError> {
        let refused = |why: String| RunError::Buffer { why };
        let (buffer, offset, capacity) = (slice.buffer(), slice.offset(), slice.size());
        if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return Err(refused(format!("its usages are {:?}; make it with STORAGE too", buffer.usage())));
        }
        let alignment = u64::from(self.device().limits().min_storage_buffer_offset_alignment);
        if !offset.is_multiple_of(alignment) {
            return Err(refused(format!("it begins at byte {offset}, which is no multiple of {alignment}")));
        }
        let numel = wgfc_program::tensor::checked_numel(&shape);
        let need = numel.map_or(u64::MAX, |n| Buffer::byte_size(dtype, n));
        if capacity < need {
            return Err(refused(format!("it has {capacity} bytes, and {dtype}{shape:?} needs {need}")));
        }
        // Nothing behind the tensor is the runtime's, not even the rest of the slice.
        let memory = Arc::new(Memory { buffer: buffer.clone(), offset, capacity: need });
        Ok(DeviceTensor { dtype, shape, memory, gpu: self.clone() })
    }

    /// Copies a tensor to the device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::Tensor;
    /// let (a, b) = (Tensor::from_f32(vec![1], &[1.0]), Tensor::from_f32(vec![1], &[2.0]));
    /// let on_device = [gpu.upload(&a).await?, gpu.upload(&b).await?];
    /// // One wait for both.
    /// assert_eq!(gpu.read(&on_device).await?, [a, b]);
    /// # Ok(()) }) }
    /// ```
    pub async fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        let bytes = tensor.bytes().ok_or_else(|| RunError::WeightAbsent { name: "uploaded".to_owned() })?;
        let capacity = Buffer::byte_size(tensor.dtype, tensor.numel());
        let buffer = self.storage("uploaded tensor", capacity).await?;
        upload::bytes(self, "tensor", bytes, &buffer).await?;
        Ok(DeviceTensor {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            memory: Memory::of(buffer, capacity),
            gpu: self.clone(),
        })
    }
    /// A new tensor whose elements are zero bytes.
    ///
    /// # Errors
    /// [`RunError::Limits`] for a shape that exceeds the device's largest buffer or binding, [`RunError::OutOfMemory`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::DType;
    /// let x = gpu.zeros(DType::F32, vec![3]).await?;
    /// assert_eq!(x.read().await?.to_f32s(), Some(vec![0.0; 3]));
    /// # Ok(()) }) }
    /// ```
    pub async fn zeros(&self, dtype: DType, shape: Vec<usize>) -> Result<DeviceTensor, RunError> {
        self.health()?;
        let n = wgfc_program::tensor::checked_numel(&shape);
        let capacity = n.map_or(u64::MAX, |n| Buffer::byte_size(dtype, n));
        // WebGPU initializes new buffers with zeros.
        let buffer = self.storage(&format!("tensor {dtype}{shape:?}"), capacity).await?;
        Ok(DeviceTensor { dtype, shape, memory: Memory::of(buffer, capacity), gpu: self.clone() })
    }
    /// Copies tensors to the host with a single wait.
    ///
    /// # Errors
    /// [`RunError::Gpu`] for a tensor on another device; other errors of the device.
    pub async fn read(&self, tensors: &[DeviceTensor]) -> Result<Vec<Tensor>, RunError> {
        if tensors.iter().any(|t| !t.gpu.is(self)) {
            let message = "a tensor is on another device".to_owned();
            return Err(RunError::Gpu { what: "reading tensors".to_owned(), message });
        }
        read_apart(self, tensors).await
    }
}

/// [`read_all`] through the transfer buffer of `gpu`.
async fn read_apart(gpu: &Gpu, tensors: &[DeviceTensor]) -> Result<Vec<Tensor>, RunError> {
    let mut transfer = gpu.take_transfer();
    let read = read_all(gpu, tensors, &mut transfer).await;
    gpu.keep_transfer(transfer);
    read
}

/// Reads several tensors with one submission and one wait. `staging` holds the transfer buffer between calls.
pub(crate) async fn read_all(
    gpu: &Gpu,
    tensors: &[DeviceTensor],
    staging: &mut Option<wgpu::Buffer>,
) -> Result<Vec<Tensor>, RunError> {
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    let (packed, buffer) = copy_out(gpu, tensors, staging.take(), &mut encoder).await?;
    let sent = gpu.scoped("reading results", || gpu.queue().submit([encoder.finish()])).await?;
    let out = collect(gpu, &packed, &buffer, sent).await?;
    *staging = Some(buffer);
    Ok(out)
}

/// A tensor in a transfer buffer.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The byte range in the transfer buffer, including the padding of the last word.
    range: std::ops::Range<u64>,
}

/// Records copies of tensors to a transfer buffer, which is `staging` if its size is suitable. Returns the place of each tensor
/// in it.
pub(crate) async fn copy_out(
    gpu: &Gpu,
    tensors: &[DeviceTensor],
    staging: Option<wgpu::Buffer>,
    encoder: &mut wgpu::CommandEncoder,
) -> Result<(Vec<Packed>, wgpu::Buffer), RunError> {
    let mut end = 0u64;
    let packed: Vec<Packed> = tensors
        .iter()
        .map(|t| {
            let start = end;
            end += t.bytes().next_multiple_of(16);
            Packed { dtype: t.dtype, shape: t.shape.clone(), range: start..start + t.bytes() }
        })
        .collect();
    let end = end.max(16);
    let buffer = match staging {
        Some(b) if b.size() >= end && b.size() / 4 <= end.max(1 << 20) => b,
        _ => {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            gpu.buffer("transfer of the results", end, usage).await?
        }
    };
    for (t, p) in tensors.iter().zip(&packed) {
        encoder.copy_buffer_to_buffer(
            t.buffer(),
            t.offset(),
            &buffer,
            p.range.start,
            p.range.end - p.range.start,
        );
    }
    Ok((packed, buffer))
}

/// The first elements of a tensor, as a tensor of a shape with at most as many elements.
pub(crate) fn cut(tensor: &Tensor, shape: &[usize]) -> Result<Tensor, RunError> {
    let bad = |message: String| RunError::Gpu { what: "reading results".to_owned(), message };
    let n = wgfc_program::tensor::checked_numel(shape).map_or(usize::MAX, |n| tensor.dtype.bytes_for(n));
    let bytes = tensor.bytes().and_then(|b| b.get(..n));
    let bytes = bytes.ok_or_else(|| bad(format!("there is no room for the computed shape {shape:?}")))?;
    Tensor::new(tensor.dtype, shape.to_vec(), bytes.to_vec()).map_err(bad)
}

/// Waits for submission `sent`, which fills the transfer buffer, and copies the tensors out of it.
pub(crate) async fn collect(
    gpu: &Gpu,
    packed: &[Packed],
    buffer: &wgpu::Buffer,
    sent: wgpu::SubmissionIndex,
) -> Result<Vec<Tensor>, RunError> {
    let end = packed.last().map_or(16, |p| p.range.end.next_multiple_of(16));
    let bad = |message: String| RunError::Gpu { what: "reading results".to_owned(), message };
    gpu.map_read(buffer, end, Some(sent), |all| {
        packed
            .iter()
            .map(|t| {
                let n = t.dtype.bytes_for(t.shape.iter().product());
                let start = t.range.start as usize;
                let bytes = all.get(start..start + n).ok_or_else(|| bad("too few bytes".to_owned()))?;
                Tensor::shared(t.dtype, t.shape.clone(), platform::copied(bytes), 0, n).map_err(bad)
            })
            .collect()
    })
    .await?
}
