//! How much memory did that take? Counted, for the whole process, so tests that measure take turns.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// What any of these small files may take, whatever they claim.
pub(crate) const MOST_BYTES: usize = 64 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn taken(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(held, Ordering::Relaxed);
}

fn given_back(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: everything is handed to the system's allocator as it came; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract, which is the same one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract, which is the same one.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller keeps the contract, which is the same one.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        given_back(layout.size());
        // SAFETY: the caller keeps the contract, which is the same one.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, and fails if it ever held more than `most_bytes` beyond what was held before.
#[track_caller]
pub(crate) fn within<T>(most_bytes: usize, work: impl FnOnce() -> T) -> T {
    let turn = alone();
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    drop(turn);
    assert!(peak <= most_bytes, "{peak} bytes were held at once, more than {most_bytes}");
    result
}

/// The same with the usual bound.
#[track_caller]
pub(crate) fn bounded<T>(work: impl FnOnce() -> T) -> T {
    within(MOST_BYTES, work)
}
