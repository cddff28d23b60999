//! How is a script observed that knows nothing of us?
//!
//! Python runs `sitecustomize` before a script. Ours lies in a folder that is put on its path, hooks into torch when the
//! script imports it, and writes a record; the script's own output, exit code and Ctrl-C stay as they are. The folder is
//! written by this program, so that nothing has to be installed where the script runs.

use std::{
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, ExitStatus},
};

use feedwater_profile::{Record, machine};
use miette::{IntoDiagnostic, WrapErr, miette};

/// The observer, file by file.
const OBSERVER: &[(&str, &str)] = &[
    ("sitecustomize.py", include_str!("../../../../python/feedwater/attach/sitecustomize.py")),
    ("observer.py", include_str!("../../../../python/feedwater/attach/observer.py")),
    ("hooks.py", include_str!("../../../../python/feedwater/attach/hooks.py")),
    ("run.py", include_str!("../../../../python/feedwater/attach/run.py")),
    ("steps.py", include_str!("../../../../python/feedwater/attach/steps.py")),
    ("batches.py", include_str!("../../../../python/feedwater/attach/batches.py")),
    ("stacks.py", include_str!("../../../../python/feedwater/attach/stacks.py")),
    ("record.py", include_str!("../../../../python/feedwater/attach/record.py")),
];

/// How it went.
pub(crate) struct Done {
    /// The command's.
    pub(crate) exit_code: u8,
    /// What was recorded, or why there is nothing.
    pub(crate) record: Result<Record, String>,
}

/// Runs a command with the observer in it.
pub(crate) fn run(
    command: &[OsString],
    record: &Path,
    max_steps: Option<u64>,
    scratch: &Path,
) -> miette::Result<Done> {
    let folder = scratch.join("observer");
    fs::create_dir_all(&folder).into_diagnostic()?;
    for (name, text) in OBSERVER {
        fs::write(folder.join(name), text).into_diagnostic()?;
    }
    // One that an earlier run left behind is not this run's.
    if record.exists() {
        fs::remove_file(record)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write `{}`", record.display()))?;
    }
    let log = scratch.join("observer.log");
    let others = env::var_os("PYTHONPATH").unwrap_or_default();
    let path = env::join_paths(
        [folder].into_iter().chain(env::split_paths(&others).filter(|path| !path.as_os_str().is_empty())),
    )
    .into_diagnostic()?;
    let [program, arguments @ ..] = command else { return Err(miette!("there is no command")) };
    let mut child = Command::new(program);
    child
        .args(arguments)
        .env("PYTHONPATH", path)
        .env("FEEDWATER_ATTACH_RECORD", record)
        .env("FEEDWATER_ATTACH_LOG", &log);
    if let Some(steps) = max_steps {
        child.env("FEEDWATER_ATTACH_MAX_STEPS", steps.to_string());
    }
    let status = patiently(&mut child, false)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot start `{}`", program.display()))?;
    Ok(Done { exit_code: code(status), record: read(record, &log) })
}

fn read(record: &Path, log: &Path) -> Result<Record, String> {
    if !record.exists() {
        let said = fs::read_to_string(log).unwrap_or_default();
        return Err(match said.lines().last() {
            Some(said) => format!("the observer failed: {said}"),
            None => {
                "no training loop of PyTorch was seen\nhint: is the command Python, and does it train for at \
                     least 20 steps?"
                    .to_owned()
            }
        });
    }
    let mut record = Record::open(record).map_err(|error| error.to_string())?;
    // What the observer could see of the machine without help is little.
    record.run.host = machine::host();
    Ok(record)
}

/// Waits for a command through Ctrl-C, which is the command's to answer, and there is something to be said after it. A
/// terminal sends that to both; what asks a process to end asks us alone, and is passed on. So is an interrupt where `ours`
/// says that the command takes two at once for one.
#[cfg(unix)]
pub(crate) fn patiently(command: &mut Command, ours: bool) -> std::io::Result<ExitStatus> {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use rustix::process::{Pid, Signal, kill_process};
    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        flag,
    };
    let (asked, interrupted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    flag::register(SIGINT, Arc::clone(&interrupted))?;
    for signal in [SIGHUP, SIGTERM] {
        flag::register(signal, Arc::clone(&asked))?;
    }
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if asked.swap(false, Ordering::Relaxed) {
            kill_process(pid, Signal::TERM)?;
        }
        if interrupted.swap(false, Ordering::Relaxed) && ours {
            kill_process(pid, Signal::INT)?;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(not(unix))]
pub(crate) fn patiently(command: &mut Command, _: bool) -> std::io::Result<ExitStatus> {
    command.status()
}

/// An exit code as a shell tells it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + signal as u8;
    }
    status.code().unwrap_or(1) as u8
}
