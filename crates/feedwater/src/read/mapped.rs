//! How are bytes of a file read without a copy? In place, where the system has them in memory anyway.
//!
//! A file that is mapped is read like memory. What would be an error of `read` (a disk that fails, a file that was cut short)
//! is then a signal that ends the process, so it is caught here: the page becomes zeros, and whoever reads it is told
//! ([`View::is_whole`]). Bytes that are not in memory are left to `read`, which fetches them in one piece. On Linux alone;
//! elsewhere, and where somebody else has taken the signal, nothing is read in place.

use std::{
    fs::File,
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            compiler_fence,
        },
    },
};

use memmap2::{Mmap, MmapOptions};

/// Fewer bytes than this are copied faster than they are looked for.
const WORTH_BYTES: usize = 32 << 10;

/// What a thread reads in place at the moment.
struct Reading {
    from: AtomicUsize,
    to: AtomicUsize,
    lost: AtomicBool,
}

thread_local! {
    // Nothing to make or to drop, so that it may be looked at when a signal comes.
    static READING: Reading = const {
        Reading { from: AtomicUsize::new(0), to: AtomicUsize::new(0), lost: AtomicBool::new(false) }
    };
}

/// A file that can be read in place.
pub(crate) struct Mapped(Mmap);

impl Mapped {
    /// The first bytes of a file, also those that it will have only later. Nothing where that cannot be.
    ///
    /// # Safety
    /// Bytes that are read must stay what they are: the file may grow, and may be lost.
    pub(crate) unsafe fn new(file: &File, bytes: usize) -> Option<Self> {
        // SAFETY: the caller answers for the bytes; those that are lost are zeros, and bytes too.
        signal::is_ours().then(|| unsafe { MmapOptions::new().len(bytes).map(file) }.ok().map(Self))?
    }

    /// Some of it, if it is in memory. A thread has one view at a time.
    pub(crate) fn view(self: &Arc<Self>, range: Range<usize>) -> Option<View> {
        let inside = range.start <= range.end && range.end <= self.0.len();
        if !inside || range.len() < WORTH_BYTES || !signal::is_ours() {
            return None;
        }
        let from = self.0.as_ptr().wrapping_add(range.start);
        let free = READING.with(|reading| reading.to.load(Relaxed) == 0);
        if !free || !signal::is_in_memory(from, range.len()) {
            return None;
        }
        READING.with(|reading| {
            reading.lost.store(false, Relaxed);
            reading.from.store(from as usize, Relaxed);
            reading.to.store(from as usize + range.len(), Relaxed);
        });
        // Nothing is read before the signal knows of it.
        compiler_fence(SeqCst);
        Some(View { file: self.clone(), range, _here: PhantomData })
    }
}

/// Bytes of a file, in place. It stays in the thread that looks at them, which the signal comes to.
pub(crate) struct View {
    file: Arc<Mapped>,
    range: Range<usize>,
    _here: PhantomData<*const u8>,
}

impl View {
    /// The address behind it.
    fn end(&self) -> usize {
        self.file.0.as_ptr() as usize + self.range.end
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        let from = self.file.0.as_ptr().wrapping_add(self.range.start);
        // SAFETY: the range is within the mapping (see `view`), which `file` keeps; a page that cannot be had is replaced
        // by another while this thread reads it.
        unsafe { std::slice::from_raw_parts(from, self.range.len()) }
    }

    /// Whether all that was read so far was what the file has.
    pub(crate) fn is_whole(&self) -> bool {
        compiler_fence(SeqCst);
        // It is this thread's only view.
        READING.with(|reading| reading.to.load(Relaxed) == self.end() && !reading.lost.load(Relaxed))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        READING.with(|reading| reading.to.store(0, Relaxed));
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod signal {
    use std::{
        ffi::{c_int, c_void},
        mem::MaybeUninit,
        ptr,
        sync::{
            OnceLock,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    use libc::{SA_ONSTACK, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGBUS, siginfo_t};

    use super::READING;

    /// Who was asked before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    static PAGE: AtomicUsize = AtomicUsize::new(0);

    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    const OURS: Handler = on_signal;

    /// Whether a page that cannot be had is told to us. Asked for once: whoever takes it afterwards keeps it.
    pub(super) fn is_ours() -> bool {
        static ASKED: OnceLock<()> = OnceLock::new();
        ASKED.get_or_init(|| {
            // SAFETY: a question that needs nothing.
            PAGE.store(usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0), Relaxed);
            if let Some(before) = now()
                && PAGE.load(Relaxed) > 0
            {
                let _ = BEFORE.set(before);
                // Its signals are held back while it runs, and it has the stack that others have for this.
                let ours = libc::sigaction {
                    sa_sigaction: OURS as usize,
                    sa_flags: SA_SIGINFO | SA_ONSTACK,
                    ..before
                };
                // SAFETY: `on_signal` does only what a handler may.
                unsafe { libc::sigaction(SIGBUS, &raw const ours, ptr::null_mut()) };
            }
        });
        now().is_some_and(|now| now.sa_sigaction == OURS as usize)
    }

    fn now() -> Option<libc::sigaction> {
        let mut now = MaybeUninit::uninit();
        // SAFETY: with nothing to set it writes what is set, and says whether it did.
        unsafe { (libc::sigaction(SIGBUS, ptr::null(), now.as_mut_ptr()) == 0).then(|| now.assume_init()) }
    }

    /// Whether reading these bytes waits for no disk. They are mapped.
    pub(super) fn is_in_memory(from: *const u8, bytes: usize) -> bool {
        let mut pages = [0_u8; 512];
        let page = PAGE.load(Relaxed);
        let before = from as usize % page;
        let (first, count) = (from.wrapping_sub(before), (before + bytes).div_ceil(page));
        (0..count).step_by(pages.len()).all(|at| {
            let now = pages.len().min(count - at);
            let first = first.wrapping_add(at * page).cast_mut().cast();
            // SAFETY: there is a byte for each page.
            let known = unsafe { libc::mincore(first, now * page, pages.as_mut_ptr()) } == 0;
            known && pages[..now].iter().all(|page| page & 1 == 1)
        })
    }

    extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the system hands over what it is about.
        let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
        let page = PAGE.load(Relaxed);
        // A page that is partly ours is mapped by us as a whole.
        let lost = READING.try_with(|reading| {
            let (from, to) = (reading.from.load(Relaxed), reading.to.load(Relaxed));
            let inside = to > 0 && (from / page * page..to.next_multiple_of(page)).contains(&at);
            (code > 0 && inside && replace(at / page * page, page)).then(|| reading.lost.store(true, Relaxed))
        });
        if !matches!(lost, Ok(Some(()))) {
            pass_on(signal, info, context);
        }
    }

    /// Puts zeros in the place of a page of ours.
    fn replace(at: usize, page: usize) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let place = ptr::without_provenance_mut(at);
        // SAFETY: the page is of a mapping of ours, which is only read. What is interrupted finds its error number again.
        unsafe {
            let error = *libc::__errno_location();
            let put = libc::mmap(place, page, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = error;
            put != libc::MAP_FAILED
        }
    }

    /// Not ours: whoever was asked before, or the end, as without us.
    fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(before) = BEFORE.get() else { return };
        // SAFETY: it is what was set before, called as it was to be called; by default what failed is tried again, and ends.
        unsafe {
            match before.sa_sigaction {
                SIG_DFL | SIG_IGN => {
                    let ending = libc::sigaction { sa_sigaction: SIG_DFL, ..*before };
                    libc::sigaction(signal, &raw const ending, ptr::null_mut());
                }
                known if before.sa_flags & SA_SIGINFO != 0 => {
                    std::mem::transmute::<usize, Handler>(known)(signal, info, context);
                }
                known => std::mem::transmute::<usize, extern "C" fn(c_int)>(known)(signal),
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod signal {
    pub(super) fn is_ours() -> bool {
        false
    }

    pub(super) fn is_in_memory(_from: *const u8, _bytes: usize) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use std::io::Write;

    use super::*;

    fn file(bytes: usize) -> (File, Arc<Mapped>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        // SAFETY: nobody else has the file, which only becomes shorter.
        let mapped = unsafe { Mapped::new(&file, 1 << 20) }.unwrap();
        (file, Arc::new(mapped))
    }

    #[test]
    fn what_is_in_memory_is_read_in_place() {
        let (_file, mapped) = file(200_000);
        let view = mapped.view(1000..150_000).unwrap();
        assert!(view.as_slice().iter().all(|byte| *byte == 7) && view.is_whole());
        assert!(mapped.view(1000..150_000).is_none(), "one at a time");
        drop(view);
        assert!(mapped.view(1000..150_000).is_some());
        assert!(mapped.view(1000..2000).is_none(), "too few to be worth it");
        assert!(mapped.view(100_000..250_000).is_none(), "the file ends before");
        assert!(mapped.view(1_000_000..1_100_000).is_none(), "so does the mapping");
    }

    #[test]
    fn what_is_lost_while_it_is_read_is_zeros_and_told() {
        let (file, mapped) = file(200_000);
        let view = mapped.view(0..200_000).unwrap();
        assert_eq!(view.as_slice()[199_999], 7);
        file.set_len(100_000).unwrap();
        assert!(view.is_whole(), "nobody has looked");
        assert_eq!((view.as_slice()[50_000], view.as_slice()[150_000]), (7, 0));
        assert!(!view.is_whole());
        drop(view);
        assert!(mapped.view(0..80_000).unwrap().is_whole(), "the rest is as it was");
    }

    #[test]
    fn whoever_takes_the_signal_keeps_it() {
        // In a process of its own: there is one handler for all of it.
        if std::env::var_os("FEEDWATER_TAKES_SIGBUS").is_none() {
            let name = "read::mapped::tests::whoever_takes_the_signal_keeps_it";
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--test-threads=1"])
                .env("FEEDWATER_TAKES_SIGBUS", "1")
                .status();
            return assert!(status.unwrap().success());
        }
        let (_file, mapped) = file(200_000);
        assert!(mapped.view(0..150_000).is_some());
        // SAFETY: the default, for a signal that does not come.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        assert!(mapped.view(0..150_000).is_none());
        assert!(!signal::is_ours());
    }

    #[test]
    fn a_fault_of_others_ends_as_it_would_without_us() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os("FEEDWATER_FAULTS").is_none() {
            let name = "read::mapped::tests::a_fault_of_others_ends_as_it_would_without_us";
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--test-threads=1"])
                .env("FEEDWATER_FAULTS", "1")
                .status();
            return assert_eq!(status.unwrap().signal(), Some(libc::SIGBUS));
        }
        let (file, mapped) = file(200_000);
        let view = mapped.view(0..100_000).unwrap();
        file.set_len(0).unwrap();
        drop(view);
        // SAFETY: none is needed: it ends here.
        let byte = unsafe { mapped.0.as_ptr().add(5000).read_volatile() };
        panic!("read {byte} of a file that has nothing");
    }
}
