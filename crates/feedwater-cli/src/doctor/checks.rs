//! What each figure of the machine means. Pure: figures in, a check out.

use feedwater_profile::machine::{Memory, NoGpus, Room};
use feedwater_profile::record::{Device, Host};

use super::python::Python;
use super::{Check, bytes};

const GIGA: u64 = 1_000_000_000;
/// CUDA 12 begins with this driver, and so do the builds of `PyTorch` that are made now.
const OLDEST_DRIVER: u32 = 525;

/// How a device that is there and does not answer is named by `Gpus::devices`.
const LOST: &str = "unavailable: ";

/// `by_bus`: whether CUDA was told to count as the driver does.
pub(super) fn gpu(devices: Result<&[Device], &NoGpus>, by_bus: bool) -> Check {
    const ID: &str = "gpu";
    let devices = match devices {
        Ok(devices) => devices,
        Err(NoGpus::Absent) => return Check::pass(ID, "no NVIDIA driver: fine for the CPU"),
        Err(broken @ NoGpus::Broken(_)) => {
            return Check::fail(
                ID,
                broken.to_string(),
                "`nvidia-smi` says more; a reboot loads a new driver",
            );
        }
    };
    if devices.is_empty() {
        return Check::warn(ID, "there is a driver, and no GPU", "in a container: docker run --gpus all …");
    }
    let lost: Vec<&Device> = devices.iter().filter(|device| device.name.starts_with(LOST)).collect();
    if let Some(first) = lost.first() {
        let each: Vec<String> = lost
            .iter()
            .map(|device| format!("GPU {} does not answer ({})", device.index, &device.name[LOST.len()..]))
            .collect();
        let hint =
            format!("nvidia-smi --gpu-reset -i {}, or a reboot; then check power and seating", first.index);
        return Check::fail(ID, each.join(", "), hint);
    }
    let each: Vec<String> = devices
        .iter()
        .map(|device| match device.memory_bytes {
            Some(memory) => {
                format!("{} {} ({:.0} GB)", device.index, device.name, memory as f64 / f64::from(1 << 30))
            }
            None => format!("{} {}", device.index, device.name),
        })
        .collect();
    let check = Check::pass(ID, each.join(", "));
    // CUDA counts the fastest first, the driver by the bus. Where all are alike, nobody sees the difference.
    let alike = devices.windows(2).all(|pair| pair[0].name == pair[1].name);
    if alike || by_bus {
        return check;
    }
    check.with_hint("CUDA counts these otherwise; CUDA_DEVICE_ORDER=PCI_BUS_ID makes its numbers the same")
}

pub(super) fn driver(version: Option<String>, cuda: Option<String>) -> Check {
    const ID: &str = "driver";
    let Some(version) = version else { return Check::pass(ID, "none") };
    let cuda = cuda.map(|cuda| format!(", CUDA up to {cuda}")).unwrap_or_default();
    let what = format!("NVIDIA {version}{cuda}");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST_DRIVER) {
        return Check::warn(
            ID,
            format!("{what}: older than {OLDEST_DRIVER}, which CUDA 12 needs"),
            "install a newer driver, or a PyTorch that was built for CUDA 11",
        );
    }
    Check::pass(ID, what)
}

/// The farthest link decides: it is the one that a careless choice of two devices may get.
pub(super) fn topology(devices: &[Device]) -> Check {
    const ID: &str = "topology";
    if devices.len() < 2 {
        return Check::pass(ID, "fewer than two GPUs: nothing between them");
    }
    let links = devices.iter().flat_map(|device| {
        let later = device.links.iter().filter(|(other, _)| **other > device.index);
        later.map(|(other, link)| (device.index, *other, link.as_str()))
    });
    let links: Vec<(u32, u32, &str)> = links.collect();
    let Some((from, to, link)) = links.iter().copied().max_by_key(|(.., link)| distance(link)) else {
        return Check::pass(ID, "the driver does not say how the GPUs are connected");
    };
    let nearest = links.iter().copied().min_by_key(|(.., link)| distance(link)).filter(|_| links.len() > 1);
    let what = format!("GPU {from} and GPU {to}: {link}, {}", meaning(link));
    if distance(link) < distance("NODE") {
        return Check::pass(ID, what);
    }
    let hint = match nearest {
        Some((a, b, near)) if distance(near) < distance(link) => {
            format!("use GPU {a} and GPU {b} ({near}) as the pair: --data-gpu {a} --model-gpu {b}")
        }
        _ => {
            "two slots under one switch (PIX) would be near; as it is, one GPU for data and model: --model-gpu 0"
                .to_owned()
        }
    };
    Check::warn(ID, what, hint)
}

fn distance(link: &str) -> u8 {
    match link {
        "PSB" => 1,
        "PIX" => 2,
        "PXB" => 3,
        "PHB" => 4,
        "NODE" => 5,
        "SYS" => 6,
        // NVLink, and whatever is new.
        _ => 0,
    }
}

fn meaning(link: &str) -> &'static str {
    match link {
        "PSB" => "on one board",
        "PIX" => "under one PCIe switch: near enough for data on one and the model on the other",
        "PXB" => "through several PCIe switches: near enough for data on one and the model on the other",
        "PHB" => "through the processor's PCIe bridge: batches cross it, which two GPUs can live with",
        "NODE" => "through two PCIe bridges of one processor: batches between them are slow",
        "SYS" => "through the link between processors: batches between them are slow",
        _ => "directly, by NVLink",
    }
}

pub(super) fn quota(host: &Host, affinity: Option<usize>) -> Check {
    const ID: &str = "cpu-quota";
    let Some(quota) = host.quota_cores else { return Check::pass(ID, "no quota on cores") };
    let seen = affinity.map(|cores| cores as f64).or(host.cores).unwrap_or(quota);
    let quota_text = cores(quota);
    if quota >= seen {
        return Check::pass(ID, format!("a quota of {quota_text}, as many as there are"));
    }
    Check::warn(
        ID,
        format!("the container may use {quota_text} of the {} that programs see", cores(seen)),
        format!(
            "set OMP_NUM_THREADS={} for what does not know quotas (PyTorch, NumPy); docker run --cpus gives more",
            quota.ceil()
        ),
    )
}

pub(super) fn affinity(host: &Host, affinity: Option<usize>) -> Check {
    const ID: &str = "affinity";
    let (Some(all), Some(may)) = (host.cores, affinity) else {
        return Check::pass(ID, "not known on this system");
    };
    if (may as f64) < all {
        return Check::warn(
            ID,
            format!("this process may run on {} of {}", may, cores(all)),
            "taskset -p shows it; Slurm: --cpus-per-task, Docker: --cpuset-cpus",
        );
    }
    if may < 2 {
        return Check::warn(
            ID,
            "one core: preparing data and training take turns",
            "a machine with more cores",
        );
    }
    Check::pass(ID, format!("all {} may be used", cores(all)))
}

fn cores(count: f64) -> String {
    let count = (count * 100.0).round() / 100.0;
    format!("{count} core{}", if (count - 1.0).abs() < 1e-9 { "" } else { "s" })
}

pub(super) fn memory(memory: &Memory) -> Check {
    const ID: &str = "memory";
    let all = memory.limit_bytes.or(memory.total_bytes);
    let whose = if memory.limit_bytes.is_some() { " that the container may use" } else { "" };
    let (Some(all), Some(free)) = (all, memory.available_bytes) else {
        let known = all.map_or_else(|| "not known on this system".to_owned(), bytes);
        return Check::pass(ID, known);
    };
    let what = format!("{} of {}{whose} are free", bytes(free), bytes(all));
    let hint = "end what is not needed; a smaller --prefetch-buffer-size keeps fewer batches";
    if free < GIGA / 2 {
        return Check::fail(ID, what, hint);
    }
    if free < 2 * GIGA {
        return Check::warn(ID, what, hint);
    }
    Check::pass(ID, what)
}

/// What worker processes of `PyTorch` hand their batches over in. Docker gives 64 MB, and workers die of a bus error.
pub(super) fn shared_memory(room: Option<Room>) -> Check {
    const ID: &str = "shared-memory";
    let Some(room) = room else { return Check::pass(ID, "not known on this system") };
    let what = format!("/dev/shm has {}", bytes(room.total_bytes));
    if room.total_bytes < GIGA {
        return Check::warn(
            ID,
            format!("{what}: workers of a PyTorch DataLoader may die of a bus error"),
            "docker run --shm-size 8g, or --ipc host; Feedwater's threads do not need it",
        );
    }
    Check::pass(ID, what)
}

pub(super) fn free(room: Option<Room>) -> Check {
    const ID: &str = "disk-free";
    let Some(room) = room else { return Check::pass(ID, "not known on this system") };
    let what = format!("{} of {} are free", bytes(room.free_bytes), bytes(room.total_bytes));
    let hint = "checkpoints and caches go where the data lies; make room";
    if room.free_bytes < GIGA / 2 {
        return Check::fail(ID, what, hint);
    }
    if room.free_bytes < 5 * GIGA {
        return Check::warn(ID, what, hint);
    }
    Check::pass(ID, what)
}

pub(super) fn versions(host: &Host, python: &Python) -> Check {
    let mut all = vec![format!("feedwater {}", env!("CARGO_PKG_VERSION")), host.os.clone(), host.cpu.clone()];
    all.extend(python.packages.iter().map(|(name, version)| format!("{name} {version}")));
    Check::pass("versions", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn device(index: u32, links: &[(u32, &str)]) -> Device {
        Device {
            index,
            name: "GPU".to_owned(),
            links: links.iter().map(|(other, link)| (*other, (*link).to_owned())).collect(),
            ..Device::default()
        }
    }

    #[test]
    fn no_driver_is_fine_and_a_broken_one_is_not() {
        assert_eq!(gpu(Err(&NoGpus::Absent), false).outcome, Outcome::Pass);
        assert_eq!(gpu(Err(&NoGpus::Broken("x".to_owned())), false).outcome, Outcome::Fail);
        assert_eq!(gpu(Ok(&[]), false).outcome, Outcome::Warn);
        let lost = Device { index: 1, name: "unavailable: lost".to_owned(), ..Device::default() };
        let check = gpu(Ok(&[device(0, &[]), lost]), false);
        assert_eq!((check.outcome, check.what.as_str()), (Outcome::Fail, "GPU 1 does not answer (lost)"));
        let other = Device { index: 1, name: "another GPU".to_owned(), ..Device::default() };
        let mixed = [device(0, &[]), other];
        assert!(gpu(Ok(&mixed), false).hint.unwrap().contains("CUDA_DEVICE_ORDER"));
        assert_eq!(gpu(Ok(&mixed), true).hint, None);
        assert_eq!(gpu(Ok(&[device(0, &[]), device(1, &[])]), false).hint, None);
        assert_eq!(driver(Some("470.1".to_owned()), None).outcome, Outcome::Warn);
        assert_eq!(driver(Some("580.65.06".to_owned()), Some("13.0".to_owned())).outcome, Outcome::Pass);
    }

    #[test]
    fn the_farthest_link_counts_and_a_nearer_pair_is_named() {
        let pair = |link| topology(&[device(0, &[(1, link)]), device(1, &[(0, link)])]);
        for (link, outcome) in [
            ("NV4", Outcome::Pass),
            ("PIX", Outcome::Pass),
            ("PXB", Outcome::Pass),
            ("PHB", Outcome::Pass),
            ("NODE", Outcome::Warn),
            ("SYS", Outcome::Warn),
        ] {
            assert_eq!(pair(link).outcome, outcome, "{link}");
        }
        let three = [device(0, &[(1, "SYS"), (2, "SYS")]), device(1, &[(2, "PIX")]), device(2, &[])];
        let check = topology(&three);
        assert!(check.hint.unwrap().contains("--data-gpu 1 --model-gpu 2"));
        assert_eq!(topology(&[device(0, &[])]).outcome, Outcome::Pass);
        assert_eq!(topology(&[device(0, &[]), device(1, &[])]).outcome, Outcome::Pass);
    }

    #[test]
    fn cores_that_are_seen_and_not_had() {
        let host = |cores, quota_cores| Host { cores: Some(cores), quota_cores, ..Host::default() };
        let check = quota(&host(64.0, Some(1.5)), Some(64));
        assert_eq!(check.outcome, Outcome::Warn);
        assert_eq!(check.what, "the container may use 1.5 cores of the 64 cores that programs see");
        assert!(check.hint.unwrap().starts_with("set OMP_NUM_THREADS=2 "));
        assert_eq!(quota(&host(64.0, None), Some(64)).outcome, Outcome::Pass);
        assert_eq!(quota(&host(4.0, Some(4.0)), Some(4)).outcome, Outcome::Pass);
        assert_eq!(affinity(&host(64.0, None), Some(2)).outcome, Outcome::Warn);
        assert_eq!(affinity(&host(1.0, None), Some(1)).outcome, Outcome::Warn);
        assert_eq!(affinity(&host(2.0, None), Some(2)).outcome, Outcome::Pass);
        assert_eq!(affinity(&host(2.0, None), None).outcome, Outcome::Pass);
    }

    #[test]
    fn room_in_memory_and_on_disk() {
        let memory_of = |free| {
            memory(&Memory { total_bytes: Some(16 * GIGA), limit_bytes: None, available_bytes: Some(free) })
                .outcome
        };
        assert_eq!(memory_of(GIGA / 10), Outcome::Fail);
        assert_eq!(memory_of(GIGA), Outcome::Warn);
        assert_eq!(memory_of(8 * GIGA), Outcome::Pass);
        assert_eq!(memory(&Memory::default()).outcome, Outcome::Pass);
        let room = |free| Some(Room { total_bytes: 100 * GIGA, free_bytes: free });
        assert_eq!(free(room(GIGA / 10)).outcome, Outcome::Fail);
        assert_eq!(free(room(GIGA)).outcome, Outcome::Warn);
        assert_eq!(free(room(50 * GIGA)).outcome, Outcome::Pass);
        assert_eq!(shared_memory(Some(Room { total_bytes: 64 << 20, free_bytes: 0 })).outcome, Outcome::Warn);
        assert_eq!(shared_memory(None).outcome, Outcome::Pass);
    }
}
