//! How are bytes of a file read without a copy? In place, where the system has them in memory anyway.
//!
//! A file that is mapped is read like memory. What would be an error of `read` (a disk that fails, a file that was cut short)
//! is then a signal that ends the process, so it is caught here: the page becomes zeros, and whoever reads it is told
//! ([`View::is_whole`]). Bytes that are not in memory are left to `read`, which fetches them in one piece. On Linux alone;
//! elsewhere, where somebody else has taken the signal, and where addresses are rationed, nothing is read in place.
//!
//! It is for files that are only appended to. What others write over while it is read is seen half old, half new: a check
//! tells that of what it looks at, not of what was copied a moment before.

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
    /// The first bytes of a file, also those that it will have only later, and some that it never has. Nothing where that
    /// cannot be.
    ///
    /// # Safety
    /// Bytes that are read must stay what they are: the file may grow, and may be lost.
    pub(crate) unsafe fn new(file: &File, bytes: usize) -> Option<Self> {
        if !signal::is_ours() {
            return None;
        }
        // SAFETY: the caller answers for the bytes; those that are lost are zeros, and bytes too.
        let mapped = unsafe { MmapOptions::new().len(bytes).map(file) }.ok()?;
        // Of a file that is somebody else's the system says that all of it is in memory, even what it has not.
        if signal::is_in_memory(mapped.as_ptr().wrapping_add(bytes.checked_sub(1)?), 1) {
            return None;
        }
        signal::tell(mapped.as_ptr(), bytes);
        Some(Self(mapped))
    }

    /// Some of it, if it is in memory. A thread has one view at a time.
    pub(crate) fn view(self: &Arc<Self>, range: Range<usize>) -> Option<View> {
        let inside = range.start <= range.end && range.end <= self.0.len();
        if !inside || range.len() < WORTH_BYTES || !signal::is_ours() {
            return None;
        }
        let from = self.0.as_ptr().wrapping_add(range.start);
        let free = READING.with(|reading| reading.to.load(Relaxed) == 0);
        if !free || !signal::reaches_us() || !signal::is_in_memory(from, range.len()) {
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
        cell::Cell,
        ffi::{c_int, c_void},
        mem::MaybeUninit,
        ptr,
        sync::{
            OnceLock,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    use libc::{SA_NODEFER, SA_ONSTACK, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGBUS, siginfo_t};

    use super::READING;

    /// Who was asked before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    /// All mappings lie between these.
    static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
    static HIGHEST: AtomicUsize = AtomicUsize::new(0);
    /// What `si_code` is for a page that cannot be had: no such place, the disk, the memory itself.
    const LOST: std::ops::RangeInclusive<c_int> = 2..=4;

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
                && !is_rationed()
            {
                let _ = BEFORE.set(before);
                // As those who were asked before want it, and on the stack that others have for this.
                let flags = SA_SIGINFO | SA_ONSTACK | before.sa_flags & (SA_NODEFER | SA_RESTART);
                let ours = libc::sigaction { sa_sigaction: OURS as usize, sa_flags: flags, ..before };
                // SAFETY: `on_signal` does only what a handler may.
                unsafe { libc::sigaction(SIGBUS, &raw const ours, ptr::null_mut()) };
            }
        });
        now().is_some_and(|now| now.sa_sigaction == OURS as usize)
    }

    /// Whether this process may have so many addresses and no more: what a mapping takes, others would miss.
    fn is_rationed() -> bool {
        let mut limit = MaybeUninit::<libc::rlimit>::uninit();
        // SAFETY: it writes the limit, and says whether it did.
        unsafe {
            libc::getrlimit(libc::RLIMIT_AS, limit.as_mut_ptr()) != 0
                || limit.assume_init().rlim_cur != libc::RLIM_INFINITY
        }
    }

    /// Whether the signal comes to this thread, which it is made to: a thread has what its maker held back.
    pub(super) fn reaches_us() -> bool {
        thread_local!(static REACHES: Cell<bool> = const { Cell::new(false) });
        if !REACHES.get() {
            let mut one = MaybeUninit::uninit();
            // SAFETY: a set of one signal, for this thread alone.
            REACHES.set(unsafe {
                libc::sigemptyset(one.as_mut_ptr()) == 0
                    && libc::sigaddset(one.as_mut_ptr(), SIGBUS) == 0
                    && libc::pthread_sigmask(libc::SIG_UNBLOCK, one.as_ptr(), ptr::null_mut()) == 0
            });
        }
        REACHES.get()
    }

    /// The handler is told of a mapping.
    pub(super) fn tell(from: *const u8, bytes: usize) {
        LOWEST.fetch_min(from as usize, Relaxed);
        HIGHEST.fetch_max(from as usize + bytes, Relaxed);
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
        // Asked first: what a thread reads is asked of threads that we do not know only where it may be ours.
        let near = LOST.contains(&code) && (LOWEST.load(Relaxed)..HIGHEST.load(Relaxed)).contains(&at);
        if !(near && is_replaced(at)) {
            pass_on(signal, code, info, context);
        }
    }

    /// Whether this thread reads there, and can go on.
    fn is_replaced(at: usize) -> bool {
        let page = PAGE.load(Relaxed);
        let lost = READING.try_with(|reading| {
            let (from, to) = (reading.from.load(Relaxed), reading.to.load(Relaxed));
            // A page that is partly ours is mapped by us as a whole.
            let inside = to > 0 && (from / page * page..to.next_multiple_of(page)).contains(&at);
            (inside && replace(at / page * page, page)).then(|| reading.lost.store(true, Relaxed))
        });
        matches!(lost, Ok(Some(())))
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
    fn pass_on(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(before) = BEFORE.get() else { return };
        let sent = code <= 0;
        // SAFETY: it is what was set before, called as it was to be called; by default what failed is tried again, and ends.
        unsafe {
            match before.sa_sigaction {
                SIG_IGN if sent => {}
                SIG_DFL | SIG_IGN => {
                    let ending = libc::sigaction { sa_sigaction: SIG_DFL, ..*before };
                    libc::sigaction(signal, &raw const ending, ptr::null_mut());
                    if sent {
                        libc::raise(signal);
                    }
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

    pub(super) fn reaches_us() -> bool {
        false
    }

    pub(super) fn tell(_from: *const u8, _bytes: usize) {}
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
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

    /// Runs a test again, in a process of its own: there is one handler for all of one. Nothing in that process.
    fn apart(name: &str) -> Option<std::process::ExitStatus> {
        let mark = "FEEDWATER_TEST_APART";
        if std::env::var_os(mark).is_some() {
            return None;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([&*format!("read::mapped::tests::{name}"), "--exact", "--test-threads=1"]).env(mark, "1");
        Some(again.status().unwrap())
    }

    #[test]
    fn whoever_takes_the_signal_keeps_it() {
        if let Some(status) = apart("whoever_takes_the_signal_keeps_it") {
            return assert!(status.success());
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
        if let Some(status) = apart("a_fault_of_others_ends_as_it_would_without_us") {
            return assert_eq!(status.signal(), Some(libc::SIGBUS));
        }
        let (file, mapped) = file(200_000);
        let view = mapped.view(0..100_000).unwrap();
        file.set_len(0).unwrap();
        drop(view);
        // SAFETY: none is needed: it ends here.
        let byte = unsafe { mapped.0.as_ptr().add(5000).read_volatile() };
        panic!("read {byte} of a file that has nothing");
    }

    #[test]
    fn a_signal_that_is_sent_ends_as_it_would_without_us() {
        use std::os::unix::process::ExitStatusExt;
        if let Some(status) = apart("a_signal_that_is_sent_ends_as_it_would_without_us") {
            return assert_eq!(status.signal(), Some(libc::SIGBUS));
        }
        // Not as the standard library has it, which lets the first go by.
        // SAFETY: the default, before anybody of ours asks for more.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let (_file, _mapped) = file(200_000);
        // SAFETY: it ends here.
        unsafe { libc::raise(libc::SIGBUS) };
        panic!("it was taken");
    }

    #[test]
    fn a_thread_that_held_the_signal_back_gets_it() {
        if let Some(status) = apart("a_thread_that_held_the_signal_back_gets_it") {
            return assert!(status.success());
        }
        // SAFETY: all signals, for this thread alone.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        let (file, mapped) = file(200_000);
        let view = mapped.view(0..100_000).unwrap();
        file.set_len(0).unwrap();
        assert_eq!((view.as_slice()[5000], view.is_whole()), (0, false));
    }

    #[test]
    fn where_addresses_are_rationed_nothing_is_mapped() {
        if let Some(status) = apart("where_addresses_are_rationed_nothing_is_mapped") {
            return assert!(status.success());
        }
        let limit = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 40 };
        // SAFETY: a limit that is not reached.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let file = tempfile::tempfile().unwrap();
        // SAFETY: nobody writes to it.
        assert!(unsafe { Mapped::new(&file, 1 << 20) }.is_none());
    }
}
