//! What the operating system says this process has used.

/// User and system time of all threads.
#[cfg(unix)]
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Not measured here: ratios per CPU-second are for Unix.
#[cfg(not(unix))]
pub(crate) fn cpu_seconds() -> f64 {
    f64::NAN
}

/// The most memory that was resident.
pub(crate) fn peak_mb() -> f64 {
    status_kb("VmHWM") / 1024.0
}

/// Memory that is this process's own, not a file's in the page cache.
pub(crate) fn own_mb() -> f64 {
    status_kb("RssAnon") / 1024.0
}

fn status_kb(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0.0)
}
