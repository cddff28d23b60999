//! Where does a driver come from on a machine without a GPU? From `stub.c`, compiled here with the system's compiler.
//!
//! Shared with the tests of the command, by `#[path = "../../feedwater-profile/tests/nvml/mod.rs"] mod nvml;`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that was compiled for one test.
pub(crate) struct Stub {
    /// Holds the file.
    _folder: tempfile::TempDir,
    /// The file, as `FEEDWATER_NVML` takes it.
    pub(crate) path: PathBuf,
}

/// Compiles the stub. `defines` are as in `TOPOLOGY=50`. Without a compiler there is no stub: that is said, and the test is
/// to return.
pub(crate) fn stub(defines: &[&str]) -> Option<Stub> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("libnvidia-ml.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../feedwater-profile/tests/nvml/stub.c");
    let defines = defines.iter().map(|define| format!("-D{define}"));
    let compiler =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).args(defines).arg(&source).output();
    match compiler {
        Ok(done) if done.status.success() => Some(Stub { _folder: folder, path }),
        // A stub that does not compile is a mistake, and no reason to skip.
        Ok(done) => {
            panic!("{} does not compile:\n{}", source.display(), String::from_utf8_lossy(&done.stderr))
        }
        Err(error) => {
            eprintln!("skipped: the stub of NVML needs the compiler `cc`, which cannot be run ({error})");
            None
        }
    }
}
