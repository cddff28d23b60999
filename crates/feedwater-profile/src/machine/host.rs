//! What is the machine, and how much of it may be used?
//!
//! A container shows all of the machine's cores and memory and lets a process use a part of them. The part is what decides
//! how many threads help, so both are read. All that differs between systems is in the modules `system` at the end.

use std::path::Path;

use crate::record::Host;

/// The machine, without what the data lies on.
pub fn host() -> Host {
    let quota_cores = system::quota_cores();
    let affinity = affinity_cores();
    // Whole cores, at least one, as the standard library has it; a quota of one and a half is kept as such.
    let parallel = std::thread::available_parallelism().ok().map(|cores| cores.get() as f64);
    let usable_cores = match (affinity, quota_cores) {
        (Some(affinity), Some(quota)) => Some(quota.min(affinity as f64)),
        _ => parallel,
    };
    let memory = memory();
    Host {
        os: system::os(),
        cpu: system::cpu().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: system::cores().map(|cores| cores as f64).or(parallel),
        usable_cores,
        quota_cores,
        memory_bytes: memory.total_bytes.into_iter().chain(memory.limit_bytes).min(),
        crowding: None,
        fill: Vec::new(),
        cached: None,
        disk: None,
    }
}

/// The machine, and what this path lies on.
pub fn host_with_data(path: &Path) -> Host {
    Host { disk: disk(path).map(|disk| disk.to_string()), ..host() }
}

/// Cores that this process may be scheduled on, whatever its quota.
pub fn affinity_cores() -> Option<usize> {
    system::affinity_cores()
}

/// Memory, as the system and the container tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of the machine.
    pub total_bytes: Option<u64>,
    /// What the container may use at most.
    pub limit_bytes: Option<u64>,
    /// What can be had now without pushing others out.
    pub available_bytes: Option<u64>,
}

/// The memory.
pub fn memory() -> Memory {
    system::memory()
}

/// What something lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The file system's type: `ext4`, `nfs4`, …
    pub file_system: String,
    /// The device, without `/dev/`.
    pub device: Option<String>,
    /// Of which kind it is.
    pub kind: DiskKind,
}

/// What sort of thing holds the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// No moving parts.
    SolidState,
    /// Moving parts: seeks cost milliseconds.
    Rotating,
    /// Another machine.
    Network,
    /// Memory.
    Memory,
    /// The system does not say.
    Unknown,
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file_system)?;
        if let Some(device) = &self.device {
            write!(f, " on {device}")?;
        }
        match self.kind {
            DiskKind::SolidState => f.write_str(", solid state"),
            DiskKind::Rotating => f.write_str(", rotating"),
            DiskKind::Network => f.write_str(", over the network"),
            DiskKind::Memory => f.write_str(", in memory"),
            DiskKind::Unknown => Ok(()),
        }
    }
}

/// What a path lies on, where the system says so.
pub fn disk(path: &Path) -> Option<Disk> {
    system::disk(path)
}

/// How large a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub total_bytes: u64,
    /// What an ordinary user may still write.
    pub free_bytes: u64,
}

/// How much room there is where a path lies or will lie; nothing where the system does not say.
#[cfg(unix)]
pub fn room(path: &Path) -> Option<Room> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find(|folder| folder.exists())?;
    let disk = rustix::fs::statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(Room { total_bytes: bytes(disk.f_blocks), free_bytes: bytes(disk.f_bavail) })
}

/// How much room there is where a path lies or will lie; nothing where the system does not say.
#[cfg(not(unix))]
pub fn room(_: &Path) -> Option<Room> {
    None
}

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// Linux, which has it all in files. They are read below a root, so that tests can bring machines of their own.
#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Disk, DiskKind, Memory};

    const ROOT: Root<'static> = Root("/");

    pub(super) fn os() -> String {
        ROOT.os()
    }

    pub(super) fn cpu() -> Option<String> {
        ROOT.cpu()
    }

    pub(super) fn cores() -> Option<usize> {
        ROOT.cores()
    }

    pub(super) fn affinity_cores() -> Option<usize> {
        ROOT.affinity_cores()
    }

    pub(super) fn quota_cores() -> Option<f64> {
        ROOT.quota_cores()
    }

    pub(super) fn memory() -> Memory {
        ROOT.memory()
    }

    pub(super) fn disk(path: &Path) -> Option<Disk> {
        ROOT.disk(&fs::canonicalize(path).ok()?)
    }

    struct Root<'a>(&'a str);

    impl Root<'_> {
        fn read(&self, path: impl AsRef<Path>) -> Option<String> {
            fs::read_to_string(Path::new(self.0).join(path)).ok()
        }

        fn os(&self) -> String {
            let release = self.read("etc/os-release").unwrap_or_default();
            let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
            let name = name.map_or("Linux", |name| name.trim_matches('"'));
            match self.read("proc/sys/kernel/osrelease") {
                Some(kernel) => format!("{name}, Linux {}", kernel.trim()),
                None => name.to_owned(),
            }
        }

        fn cpu(&self) -> Option<String> {
            let info = self.read("proc/cpuinfo")?;
            // x86 has `model name`; some ARM boards have `Model`, others nothing at all.
            let named = |wanted: &str| {
                let mut fields = info.lines().filter_map(|line| line.split_once(':'));
                fields.find(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim().to_owned())
            };
            named("model name").or_else(|| named("Model")).filter(|name| !name.is_empty())
        }

        fn cores(&self) -> Option<usize> {
            let online = self.read("sys/devices/system/cpu/online");
            online.and_then(|list| ranges(list.trim())).or_else(|| {
                let info = self.read("proc/cpuinfo")?;
                Some(info.lines().filter(|line| line.starts_with("processor")).count())
                    .filter(|count| *count > 0)
            })
        }

        fn affinity_cores(&self) -> Option<usize> {
            let status = self.read("proc/self/status")?;
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            ranges(list.trim())
        }

        /// The tightest quota from this process's group up: a parent's holds for its children.
        fn quota_cores(&self) -> Option<f64> {
            let new = self.groups("", "sys/fs/cgroup").into_iter().filter_map(|group| {
                let text = self.read(group.join("cpu.max"))?;
                let mut parts = text.split_whitespace();
                quota(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)
            });
            let places = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];
            let old = places.into_iter().flat_map(|place| self.groups("cpu", place)).filter_map(|group| {
                let number = |name: &str| self.read(group.join(name))?.trim().parse().ok();
                quota(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            });
            new.chain(old).min_by(f64::total_cmp)
        }

        fn memory(&self) -> Memory {
            let info = self.read("proc/meminfo").unwrap_or_default();
            let of = |wanted: &str| {
                let mut fields = info.lines().filter_map(|line| line.split_once(':'));
                let (_, value) = fields.find(|(name, _)| *name == wanted)?;
                value.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
            };
            let total_bytes = of("MemTotal");
            let mut limit: Option<(u64, Option<u64>)> = None;
            let kinds = [
                ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
                (
                    "memory",
                    "sys/fs/cgroup/memory",
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                ),
            ];
            for (controller, place, most, used, cached) in kinds {
                for group in self.groups(controller, place) {
                    let number = |name: &str| self.read(group.join(name))?.trim().parse::<u64>().ok();
                    // Without a limit, one says `max` and the other a number that no machine has.
                    let Some(most) =
                        number(most).filter(|most| total_bytes.is_none_or(|total| *most < total))
                    else {
                        continue;
                    };
                    if limit.is_none_or(|(least, _)| most < least) {
                        // Cached files count as used, and give way.
                        let stat = self.read(group.join("memory.stat")).unwrap_or_default();
                        let field = |line: &str| line.strip_prefix(cached)?.trim().parse::<u64>().ok();
                        let cached = stat.lines().find_map(field).unwrap_or(0);
                        let free = number(used).map(|used| most.saturating_sub(used.saturating_sub(cached)));
                        limit = Some((most, free));
                    }
                }
            }
            let available = of("MemAvailable").into_iter().chain(limit.and_then(|(_, free)| free)).min();
            Memory { total_bytes, limit_bytes: limit.map(|(most, _)| most), available_bytes: available }
        }

        /// The folders of this process's control group and all above it. In a container, the path that the system tells may
        /// be the host's and not be there; the mount itself is then the container's group.
        fn groups(&self, controller: &str, mount: &str) -> Vec<PathBuf> {
            let text = self.read("proc/self/cgroup").unwrap_or_default();
            let path = text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next()?;
                let matches = controllers.split(',').any(|one| one == controller);
                matches.then(|| parts.next()).flatten()
            });
            let path = path.unwrap_or("/").trim_start_matches('/');
            let mount = Path::new(mount);
            // Not `..`: a group outside of what this container may see is told that way.
            let inside =
                Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
            let lowest = if inside { mount.join(path) } else { mount.to_owned() };
            lowest.ancestors().take_while(|group| group.starts_with(mount)).map(Path::to_owned).collect()
        }

        /// `path` is absolute and without links.
        fn disk(&self, path: &Path) -> Option<Disk> {
            let mounts = self.read("proc/self/mountinfo")?;
            let mount = mounts.lines().filter_map(Mount::of).filter(|mount| path.starts_with(&mount.at));
            // The longest is the nearest; of several at one place, the last covers the others.
            let mount = mount.max_by_key(|mount| mount.at.components().count())?;
            let kind = match mount.file_system {
                "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "glusterfs" | "lustre" | "9p"
                | "virtiofs" | "beegfs" | "gpfs" | "fuse.sshfs" | "fuse.gcsfuse" | "fuse.s3fs"
                | "fuse.juicefs" => DiskKind::Network,
                "tmpfs" | "ramfs" | "devtmpfs" => DiskKind::Memory,
                // What a virtual disk says of itself is a default of the host's.
                _ if ["/dev/vd", "/dev/xvd"].iter().any(|kind| mount.source.starts_with(kind)) => {
                    DiskKind::Unknown
                }
                _ => self.block_kind(mount.number),
            };
            let device = mount.source.strip_prefix("/dev/").map(str::to_owned);
            Some(Disk { file_system: mount.file_system.to_owned(), device, kind })
        }

        fn block_kind(&self, number: &str) -> DiskKind {
            let block = Path::new("sys/dev/block").join(number);
            // A partition has its disk's queue above it.
            let flag = ["queue/rotational", "../queue/rotational"].map(|name| self.read(block.join(name)));
            match flag.into_iter().flatten().next().as_deref().map(str::trim) {
                Some("0") => DiskKind::SolidState,
                Some("1") => DiskKind::Rotating,
                _ => DiskKind::Unknown,
            }
        }
    }

    struct Mount<'a> {
        number: &'a str,
        at: PathBuf,
        file_system: &'a str,
        source: &'a str,
    }

    impl<'a> Mount<'a> {
        /// `36 35 98:0 /root /mount options … - ext4 /dev/sda1 options`.
        fn of(line: &'a str) -> Option<Self> {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(2);
            let number = left.next()?;
            let at = unescaped(left.nth(1)?).into();
            let mut right = right.split(' ');
            Some(Self { number, at, file_system: right.next()?, source: right.next()? })
        }
    }

    /// Blanks in names are written `\040`.
    fn unescaped(text: &str) -> String {
        let mut parts = text.split('\\');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            if let Some(byte) = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            } else {
                out.push('\\');
                out.push_str(part);
            }
        }
        out
    }

    /// How many numbers `0-3,8` has.
    fn ranges(list: &str) -> Option<usize> {
        list.split(',')
            .map(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
                Some(to.checked_sub(from)? + 1)
            })
            .sum()
    }

    fn quota(micros: i64, period: i64) -> Option<f64> {
        (micros > 0 && period > 0).then(|| micros as f64 / period as f64)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = folder.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            folder
        }

        fn with<T>(files: &[(&str, &str)], ask: impl FnOnce(Root<'_>) -> T) -> T {
            let folder = machine(files);
            ask(Root(folder.path().to_str().unwrap()))
        }

        #[test]
        fn an_empty_machine_is_unknown() {
            with(&[], |root| {
                assert_eq!(root.os(), "Linux");
                assert_eq!((root.cpu(), root.cores(), root.affinity_cores()), (None, None, None));
                assert_eq!(root.quota_cores(), None);
                assert_eq!(root.memory(), Memory::default());
                assert_eq!(root.disk(Path::new("/data")), None);
            });
        }

        #[test]
        fn names_and_cores() {
            let files = [
                ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n"),
                ("proc/sys/kernel/osrelease", "6.12.0\n"),
                ("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7763\nprocessor\t: 1\n"),
                ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-2,8\n"),
            ];
            with(&files, |root| {
                assert_eq!(root.os(), "Debian GNU/Linux 13, Linux 6.12.0");
                assert_eq!(root.cpu().as_deref(), Some("AMD EPYC 7763"));
                assert_eq!((root.cores(), root.affinity_cores()), (Some(2), Some(4)));
            });
            with(&[("sys/devices/system/cpu/online", "0-127\n")], |root| assert_eq!(root.cores(), Some(128)));
        }

        #[test]
        fn quotas_of_both_kinds_and_of_parents() {
            let new = [
                ("proc/self/cgroup", "0::/jobs/one\n"),
                ("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n"),
            ];
            with(&new, |root| assert_eq!(root.quota_cores(), Some(1.5)));
            let old = [
                ("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ];
            with(&old, |root| assert_eq!(root.quota_cores(), Some(4.0)));
            let none = [("sys/fs/cgroup/cpu.max", "max 100000\n"), ("proc/self/cgroup", "0::/\n")];
            with(&none, |root| assert_eq!(root.quota_cores(), None));
            let outside = [("sys/fs/cgroup/cpu.max", "200000 100000\n"), ("proc/self/cgroup", "0::/../x\n")];
            with(&outside, |root| assert_eq!(root.quota_cores(), Some(2.0)));
        }

        #[test]
        fn memory_of_a_container_counts_cached_files_as_free() {
            let info = "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB\n";
            let files = [
                ("proc/meminfo", info),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", "8589934592\n"),
                ("sys/fs/cgroup/memory.current", "4294967296\n"),
                ("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 1073741824\n"),
            ];
            let memory = with(&files, |root| root.memory());
            assert_eq!(memory.total_bytes, Some(65_536_000 * 1024));
            assert_eq!((memory.limit_bytes, memory.available_bytes), (Some(8 << 30), Some(5 << 30)));
            let unlimited = [
                ("proc/meminfo", info),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ];
            assert_eq!(with(&unlimited, |root| root.memory()).limit_bytes, None);
        }

        #[test]
        fn disks_by_mount_and_device() {
            let files = [(
                "proc/self/mountinfo",
                "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     30 22 259:3 / /data rw - xfs /dev/nvme0n1p3 rw\n\
                     31 22 0:44 / /data/my\\040set rw - nfs4 nas:/export rw\n\
                     32 22 0:45 / /dev/shm rw - tmpfs tmpfs rw\n\
                     33 22 254:0 / /cloud rw - ext4 /dev/vda rw\n",
            )];
            let folder = machine(&files);
            // The way a partition finds its disk's queue.
            for (disk, partition, flag) in
                [("sda", "8:1", "1\n"), ("nvme0n1", "259:3", "0\n"), ("vda", "254:0", "1\n")]
            {
                let block = folder.path().join("sys/devices").join(disk);
                fs::create_dir_all(block.join("queue")).unwrap();
                fs::create_dir_all(block.join("part")).unwrap();
                fs::write(block.join("queue/rotational"), flag).unwrap();
                fs::create_dir_all(folder.path().join("sys/dev/block")).unwrap();
                let link = folder.path().join("sys/dev/block").join(partition);
                std::os::unix::fs::symlink(block.join("part"), link).unwrap();
            }
            let root = Root(folder.path().to_str().unwrap());
            let words = |path: &str| root.disk(Path::new(path)).unwrap().to_string();
            assert_eq!(words("/home/x"), "ext4 on sda1, rotating");
            assert_eq!(words("/data/set"), "xfs on nvme0n1p3, solid state");
            assert_eq!(words("/data/my set/a.wav"), "nfs4, over the network");
            assert_eq!(words("/dev/shm/x"), "tmpfs, in memory");
            assert_eq!(words("/cloud/x"), "ext4 on vda");
            assert_eq!(words("/datafile"), "ext4 on sda1, rotating");
        }

        #[test]
        fn lists_of_cores() {
            assert_eq!(ranges("0-3,8"), Some(5));
            assert_eq!(ranges("0"), Some(1));
            assert_eq!((ranges(""), ranges("3-1"), ranges("x")), (None, None, None));
        }
    }
}

/// Systems where there is no file to read. What takes a library of the system's is left unknown.
#[cfg(not(target_os = "linux"))]
mod other {
    use std::path::Path;
    use std::process::Command;

    use super::{Disk, Memory};

    /// The first line that a command of the system's prints.
    fn said(command: &str, arguments: &[&str]) -> Option<String> {
        let output = Command::new(command).args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        output.status.success().then(|| line.to_owned())
    }

    fn sysctl(name: &str) -> Option<String> {
        cfg!(target_os = "macos").then(|| said("sysctl", &["-n", name])).flatten()
    }

    pub(super) fn os() -> String {
        let version = match std::env::consts::OS {
            "macos" => said("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}")),
            "windows" => said("cmd", &["/c", "ver"]),
            _ => None,
        };
        version.unwrap_or_else(|| std::env::consts::OS.to_owned())
    }

    pub(super) fn cpu() -> Option<String> {
        sysctl("machdep.cpu.brand_string").or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok())
    }

    pub(super) fn cores() -> Option<usize> {
        let count = sysctl("hw.logicalcpu").or_else(|| std::env::var("NUMBER_OF_PROCESSORS").ok());
        count?.parse().ok()
    }

    pub(super) fn affinity_cores() -> Option<usize> {
        None
    }

    pub(super) fn quota_cores() -> Option<f64> {
        None
    }

    pub(super) fn memory() -> Memory {
        let total_bytes = sysctl("hw.memsize").and_then(|bytes| bytes.parse().ok());
        Memory { total_bytes, ..Memory::default() }
    }

    pub(super) fn disk(_: &Path) -> Option<Disk> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_that_may_be_used() {
        let host = host();
        assert!(!host.os.is_empty() && !host.cpu.is_empty());
        let (cores, usable) = (host.cores.unwrap(), host.usable_cores.unwrap());
        assert!(cores >= 1.0 && usable > 0.0 && usable <= cores, "{usable} of {cores}");
    }

    #[cfg(unix)]
    #[test]
    fn room_is_asked_for_where_the_folder_will_lie() {
        let dir = tempfile::tempdir().unwrap();
        assert!(room(&dir.path().join("not/yet/there")).is_some_and(|room| room.free_bytes > 0));
        assert!(room(Path::new("not-yet-there")).is_some());
    }
}
