//! How does a batch reach the device? In memory that was there before: a ring of buffers that are filled, handed out,
//! and come back when the batch is dropped.
//!
//! The memory can be anybody's: `torch` hands in pinned buffers through [`Memory::foreign`], by default it is plain
//! memory aligned to 64 bytes. Of the engine's few `unsafe` lines most are here: rows of one buffer are written by several
//! threads at once, past the caches where they are large ([`stream`]), and what stays in memory lies on a [`shelf`].

pub(crate) mod shelf;
pub(crate) mod stream;

use std::{
    alloc::{self, Layout},
    any::Any,
    fmt,
    ops::RangeInclusive,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use feedwater_profile::record::Input;
use half::{bf16, f16};
use memmap2::MmapMut;

use crate::batch::DType;

/// A stretch of bytes, aligned to at least 8 bytes, kept alive by its owner.
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Whatever must live as long as the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the bytes belong to `_owner`, which may be sent and shared, and are reached only through `Memory`.
unsafe impl Send for Memory {}
// SAFETY: as above; through a shared reference the bytes are only read, except by `part_mut`, whose callers answer for it.
unsafe impl Sync for Memory {}

/// Alignment of the memory that is made here: a cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// From here on memory is the system's own, in large pages.
const HUGE_BYTES: usize = 2 << 20;

/// Memory of the allocator's, given back when it is dropped.
struct Allocation(NonNull<u8>, Layout);

// SAFETY: it is an address and a size; nothing is reached through it but the allocator.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, in `Memory::new`, and nobody else frees it.
        unsafe { alloc::dealloc(self.0.as_ptr(), self.1) }
    }
}

impl Memory {
    /// New memory, zeroed: by the system, page by page as it is touched, not by us beforehand.
    ///
    /// # Panics
    /// Where `bytes` is more than an address can count.
    pub fn new(bytes: usize) -> Self {
        if bytes >= HUGE_BYTES
            && let Ok(mut pages) = MmapMut::map_anon(bytes)
            && let Some(start) = NonNull::new(pages.as_mut_ptr())
        {
            // Two thousandths as many faults when it is touched first. Where there are none to be had, it is as ever.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Self { start, bytes, _owner: Box::new(pages) };
        }
        let layout =
            Layout::from_size_align(bytes.max(1), ALIGNMENT).unwrap_or_else(|_| panic!("{bytes} bytes"));
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) });
        let start = start.unwrap_or_else(|| alloc::handle_alloc_error(layout));
        Self { start, bytes, _owner: Box::new(Allocation(start, layout)) }
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// `start` must point to `bytes` initialised bytes, aligned to 8, that stay valid, and that nobody else writes or
    /// reads, until `owner` is dropped.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, bytes, _owner: owner }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it starts.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` and `bytes` describe initialised memory that `_owner` keeps alive as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes this the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// One of several parts, to be read while other threads write others.
    ///
    /// # Safety
    /// Nobody may write to this part while the returned reference exists.
    pub(crate) unsafe fn part(&self, from: usize, bytes: usize) -> &[u8] {
        // SAFETY: the part lies within the memory, which `_owner` keeps alive; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.start_of(from, bytes), bytes) }
    }

    /// One of several parts, to be written while other threads write the others.
    ///
    /// # Safety
    /// No other reference to this part, and none to the whole, may exist while the returned one does.
    #[expect(
        clippy::mut_from_ref,
        reason = "parts do not overlap; the caller answers for each being taken once"
    )]
    pub(crate) unsafe fn part_mut(&self, from: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: as in `part`.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(from, bytes), bytes) }
    }

    /// Where a part begins. It lies within the memory.
    fn start_of(&self, from: usize, bytes: usize) -> *mut u8 {
        let inside = from.checked_add(bytes).is_some_and(|to| to <= self.bytes);
        assert!(inside, "{bytes} bytes from {from} on lie beyond the memory");
        // SAFETY: it is within (asserted).
        unsafe { self.start.as_ptr().add(from) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes)
    }
}

/// Makes memory for batches.
pub type Allocate = Arc<dyn Fn(usize) -> Memory + Send + Sync>;

/// Buffers that come back.
pub(crate) struct Ring {
    allocate: Allocate,
    idle: Mutex<Vec<Memory>>,
    most_idle: usize,
    /// The largest that was made, where batches may become larger.
    largest: AtomicUsize,
}

/// A buffer is for batches down to this part of it: labels do not lie in what features were in.
const KIN: usize = 4;

/// The largest buffer for a batch of so many bytes.
fn kin(bytes: usize) -> usize {
    bytes.max(4096).saturating_mul(KIN)
}

impl Ring {
    pub(crate) fn new(allocate: Allocate, most_idle: usize) -> Self {
        Self { allocate, idle: Mutex::default(), most_idle, largest: AtomicUsize::new(0) }
    }

    /// A buffer of at least so many bytes, for batches that may become larger. What it holds is what it held before.
    pub(crate) fn take(&self, bytes: usize) -> Memory {
        self.idle(bytes).unwrap_or_else(|| {
            // As large as the largest, or a good deal more than asked for: memory that was never touched is dear, and a batch that
            // waits for it comes late.
            let largest = self.largest.load(Ordering::Relaxed);
            let bytes = (bytes + bytes / 4).max(if largest <= kin(bytes) { largest } else { 0 });
            self.largest.fetch_max(bytes, Ordering::Relaxed);
            (self.allocate)(bytes)
        })
    }

    /// The same for batches that are all alike. It may be pinned, so it is no larger than they are.
    pub(crate) fn take_fixed(&self, bytes: usize) -> Memory {
        self.idle(bytes).unwrap_or_else(|| (self.allocate)(bytes))
    }

    /// The smallest that nobody uses and that will do. Where there is none, one that has become too small goes.
    fn idle(&self, bytes: usize) -> Option<Memory> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let smallest = |idle: &[Memory], sizes: RangeInclusive<usize>| {
            let those = idle.iter().enumerate().filter(|(_, memory)| sizes.contains(&memory.len()));
            those.min_by_key(|(_, memory)| memory.len()).map(|(at, _)| at)
        };
        if let Some(at) = smallest(&idle, bytes..=kin(bytes)) {
            return Some(idle.swap_remove(at));
        }
        let gone = smallest(&idle, bytes / KIN..=bytes).map(|at| idle.swap_remove(at));
        drop(idle);
        // Not while others wait for the lock: the system takes its time.
        drop(gone);
        None
    }

    fn give(&self, memory: Memory) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = (idle.len() >= self.most_idle).then(|| idle.remove(0));
        idle.push(memory);
        drop(idle);
        drop(gone);
    }
}

/// A batch that is ready: named, padded tensors and the keys that travelled in it. Its memory goes back to the ring when
/// it is dropped.
#[derive(Debug, Default)]
pub struct ReadyBatch {
    /// The epoch.
    pub epoch: u64,
    /// The step in the epoch, from 0.
    pub step: u64,
    /// The key of each row; empty for a row that was left out (see `valid`).
    pub keys: Vec<String>,
    /// Whether each row holds a sample. A bad sample leaves a masked row where shapes are fixed; elsewhere its row is
    /// not there at all.
    pub valid: Vec<bool>,
    /// The tensors.
    pub tensors: Vec<BatchTensor>,
    /// Text fields that were not tokenized, a string a row.
    pub texts: Vec<(String, Vec<String>)>,
    /// How long it was waited for.
    pub wait_nanos: u64,
    /// How it was made: the part of a [record](feedwater_profile::record) that only the engine knows.
    pub input: Input,
}

impl ReadyBatch {
    /// How many rows.
    pub fn rows(&self) -> usize {
        self.keys.len()
    }

    /// A tensor by its name.
    pub fn get(&self, name: &str) -> Option<&BatchTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Its bytes, those that are padding, and those that would be with rows as long as the longest.
    pub(crate) fn padding(&self) -> (u64, u64, u64) {
        let mut sum = (0, 0, 0);
        for tensor in &self.tensors {
            let bytes = tensor.as_bytes().len() as u64;
            let width = tensor.shape.get(tensor.padded_axis).copied().unwrap_or(0);
            sum.0 += bytes;
            let (rows, numbers) = (tensor.lengths.len() as u64, (tensor.lengths.len() * width) as u64);
            if numbers == 0 {
                continue;
            }
            let used = tensor.lengths.iter().map(|length| (*length).min(width) as u64).sum::<u64>();
            let longest = tensor.lengths.iter().max().map_or(0, |length| (*length).min(width)) as u64;
            sum.1 += bytes * (numbers - used) / numbers;
            sum.2 += bytes * (rows * longest - used) / numbers;
        }
        sum
    }

    /// What it holds in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.as_bytes().len()).sum()
    }
}

/// One tensor of a batch.
pub struct BatchTensor {
    /// Its name: what transformers' models call the argument.
    pub name: String,
    /// The type of its numbers.
    pub dtype: DType,
    /// Its shape; the first axis is the rows.
    pub shape: Vec<usize>,
    /// How long each row was before it was padded.
    pub lengths: Vec<usize>,
    /// The axis that was padded.
    pub padded_axis: usize,
    memory: Option<Memory>,
    ring: Arc<Ring>,
}

impl BatchTensor {
    pub(crate) fn new(
        name: String,
        dtype: DType,
        shape: Vec<usize>,
        lengths: Vec<usize>,
        memory: Memory,
        ring: Arc<Ring>,
    ) -> Self {
        debug_assert!(memory.len() >= shape.iter().product::<usize>() * dtype.bytes());
        Self { name, dtype, shape, lengths, padded_axis: 1, memory: Some(memory), ring }
    }

    /// The same, padded along another axis than the first after the rows.
    pub(crate) fn padded_along(mut self, axis: usize) -> Self {
        self.padded_axis = axis;
        self
    }

    /// The bytes of all numbers.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes = self.shape.iter().product::<usize>() * self.dtype.bytes();
        self.memory.as_ref().map_or(&[], |memory| &memory.as_slice()[..bytes])
    }

    /// The numbers, where they are single precision.
    pub fn as_f32(&self) -> Option<&[f32]> {
        (self.dtype == DType::F32).then(|| bytemuck::cast_slice(self.as_bytes()))
    }

    /// The numbers, where they are half precision.
    pub fn as_f16(&self) -> Option<&[f16]> {
        (self.dtype == DType::F16).then(|| bytemuck::cast_slice(self.as_bytes()))
    }

    /// The numbers, where they are bf16.
    pub fn as_bf16(&self) -> Option<&[bf16]> {
        (self.dtype == DType::BF16).then(|| bytemuck::cast_slice(self.as_bytes()))
    }

    /// The numbers, where they are integers.
    pub fn as_i64(&self) -> Option<&[i64]> {
        (self.dtype == DType::I64).then(|| bytemuck::cast_slice(self.as_bytes()))
    }
}

impl fmt::Debug for BatchTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}

impl Drop for BatchTensor {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.ring.give(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_comes_back() {
        let ring = Arc::new(Ring::new(Arc::new(Memory::new), 2));
        let memory = ring.take(1000);
        let start = memory.as_ptr();
        assert_eq!(start as usize % 64, 0);
        drop(BatchTensor::new("x".into(), DType::F32, vec![250], vec![], memory, ring.clone()));
        assert_eq!(ring.take(900).as_ptr(), start);
    }

    #[test]
    fn a_small_batch_does_not_hold_a_large_buffer() {
        let ring = Ring::new(Arc::new(Memory::new), 2);
        ring.give(Memory::new(1 << 20));
        assert!(ring.take(100).len() < 1 << 20);
    }

    /// It was made anew whenever a batch was a little longer than all before, and those that had become too small stayed.
    #[test]
    fn batches_of_changing_length_soon_find_memory_that_was_used_before() {
        let made = Arc::new(Mutex::new(Vec::new()));
        let noted = made.clone();
        let allocate = move |bytes| {
            noted.lock().unwrap().push(bytes);
            Memory::new(bytes)
        };
        let ring = Ring::new(Arc::new(allocate), 12);
        // One is trained on while the next is made; labels travel along.
        let mut before = Vec::new();
        for step in 0..200_usize {
            let features = 40_000 + step * 7_919 % 25_000;
            let now = [features, 512].map(|bytes| ring.take(bytes));
            for memory in std::mem::replace(&mut before, now.into()) {
                ring.give(memory);
            }
        }
        // One more at a time than ever before: it is made as large as the largest of them.
        let largest = *made.lock().unwrap().iter().max().unwrap();
        let held: Vec<_> = (0..8).map(|_| ring.take(30_000).len()).collect();
        assert_eq!(held.last(), Some(&largest), "{held:?}");
        assert_eq!(ring.take_fixed(20_000).len(), 20_000, "what never becomes larger gets what it needs");
        let made = made.lock().unwrap();
        let made = &made[..made.len() - 8];
        let large = made.iter().filter(|bytes| **bytes > 4096).count();
        assert!(large <= 4 && made.len() <= 6, "{made:?}");
        assert!(ring.idle.lock().unwrap().iter().filter(|memory| memory.len() > 4096).count() <= 2);
    }

    #[test]
    fn foreign_memory_is_used_as_it_is() {
        let owner: Arc<Vec<u64>> = Arc::new(vec![7; 16]);
        let start = NonNull::new(owner.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the vector lives in `owner`, and nobody writes to it.
        let memory = unsafe { Memory::foreign(start, 128, Box::new(owner.clone())) };
        assert_eq!(memory.as_slice()[0], 7);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
