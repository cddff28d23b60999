//! How are the GPUs?
//!
//! NVIDIA's management library (NVML) comes with the driver. It is loaded when it is asked for, so that one program runs on
//! machines with and without it, and nothing is linked. A value that a GPU does not offer is `None`; a GPU that fell off
//! the bus keeps its row and says so, because a row that vanishes is how a lost GPU goes unnoticed.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;

use crate::record;

/// Names the library's file, where it lies in an odd place.
const LIBRARY: &str = "FEEDWATER_NVML";
/// The most `NVLinks` that a GPU of any kind has.
const MOST_LINKS: u32 = 18;

/// The NVIDIA GPUs of this machine.
pub struct Gpus {
    nvml: Nvml,
}

/// Why there are no GPUs to ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpus {
    /// There is no driver: a machine without NVIDIA GPUs.
    #[error("no NVIDIA driver")]
    Absent,
    /// There is one, and it does not work.
    #[error("the NVIDIA driver does not answer: {0}")]
    Broken(String),
}

/// How a GPU does now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GpuSample {
    /// Its number, in the order of the bus.
    pub index: u32,
    /// What it is.
    pub name: String,
    /// How it is told apart from others.
    pub uuid: Option<String>,
    /// Share of the last moments (a sixth of a second to one) in which any kernel ran.
    pub busy_percent: Option<f64>,
    /// Share of these in which its memory was read or written.
    pub memory_busy_percent: Option<f64>,
    /// Memory in use.
    pub memory_used_bytes: Option<u64>,
    /// Memory that there is.
    pub memory_total_bytes: Option<u64>,
    /// What it draws.
    pub power_watts: Option<f64>,
    /// What it may draw.
    pub power_limit_watts: Option<f64>,
    /// How warm it is.
    pub temperature_celsius: Option<f64>,
    /// The clock of its multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// The clock of its memory.
    pub memory_clock_mhz: Option<u32>,
    /// What it receives over the bus.
    pub pcie_rx_bytes_per_second: Option<u64>,
    /// What it sends over the bus.
    pub pcie_tx_bytes_per_second: Option<u64>,
    /// Why the rest is not known.
    pub error: Option<String>,
}

impl Gpus {
    /// The GPUs, if there is a driver that works.
    pub fn open() -> Option<Self> {
        Self::try_open().ok()
    }

    /// The GPUs, or why there are none. `FEEDWATER_NVML` may name the library's file.
    pub fn try_open() -> Result<Self, NoGpus> {
        match std::env::var_os(LIBRARY).filter(|path| !path.is_empty()) {
            // Whoever names a file means it.
            Some(path) => Self::open_library(&path).map_err(|error| match error {
                NoGpus::Absent => {
                    NoGpus::Broken(format!("{LIBRARY} names {}, which cannot be loaded", path.display()))
                }
                broken @ NoGpus::Broken(_) => broken,
            }),
            None => Nvml::init().map(|nvml| Self { nvml }).map_err(|error| why(&error)),
        }
    }

    /// The GPUs as this library has them.
    pub fn open_library(path: impl AsRef<OsStr>) -> Result<Self, NoGpus> {
        let nvml = Nvml::builder().lib_path(path.as_ref()).init();
        nvml.map(|nvml| Self { nvml }).map_err(|error| why(&error))
    }

    /// The driver's version.
    pub fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// The version of CUDA that the driver can serve at most, as `13.0`.
    pub fn cuda(&self) -> Option<String> {
        let version = self.nvml.sys_cuda_driver_version().ok()?;
        Some(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// What there is, and how it is connected. A lost GPU is there, with the reason in place of its name.
    pub fn devices(&self) -> Vec<record::Device> {
        let all = self.all();
        let switched: Vec<BTreeMap<u32, u32>> =
            all.iter().map(|gpu| nv_links(gpu.as_ref().ok(), &all)).collect();
        let mut devices = Vec::with_capacity(all.len());
        for (index, gpu) in (0_u32..).zip(&all) {
            let mut device = record::Device { index, ..record::Device::default() };
            match gpu.as_ref().map_err(ToString::to_string).and_then(|gpu| name(gpu).map(|name| (gpu, name)))
            {
                Err(error) => device.name = format!("unavailable: {error}"),
                Ok((gpu, name)) => {
                    device.name = name;
                    device.uuid = gpu.uuid().ok();
                    device.memory_bytes = gpu.memory_info().ok().map(|memory| memory.total);
                    let others = (0_u32..).zip(&all).filter(|(other, _)| *other != index);
                    for (other, there) in others {
                        let bridges =
                            switched[index as usize].get(&other).copied().filter(|count| *count > 0);
                        let link = match bridges {
                            Some(count) => Some(format!("NV{count}")),
                            None => there.as_ref().ok().and_then(|there| path(gpu, there)).map(str::to_owned),
                        };
                        device.links.extend(link.map(|link| (other, link)));
                    }
                }
            }
            devices.push(device);
        }
        devices
    }

    /// How they do now. Takes about 40 ms a GPU, since the driver watches the bus for that long.
    pub fn sample(&self) -> Vec<GpuSample> {
        (0_u32..).zip(self.all()).map(|(index, gpu)| sample(index, gpu)).collect()
    }

    fn all(&self) -> Vec<Result<Device<'_>, NvmlError>> {
        let count = self.nvml.device_count().unwrap_or(0);
        (0..count).map(|index| self.nvml.device_by_index(index)).collect()
    }
}

fn why(error: &NvmlError) -> NoGpus {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => NoGpus::Absent,
        error => NoGpus::Broken(error.to_string()),
    }
}

fn name(gpu: &Device<'_>) -> Result<String, String> {
    gpu.name().map_err(|error| error.to_string())
}

fn sample(index: u32, gpu: Result<Device<'_>, NvmlError>) -> GpuSample {
    let lost = |error: String| GpuSample { index, error: Some(error), ..GpuSample::default() };
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => return lost(error.to_string()),
    };
    let name = match name(&gpu) {
        Ok(name) => name,
        Err(error) => return lost(error),
    };
    let busy = gpu.utilization_rates();
    // Everybody has this one, so that its failure is the GPU's.
    let error = match &busy {
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::Unknown)) => {
            Some(error.to_string())
        }
        _ => None,
    };
    let busy = busy.ok();
    let memory = gpu.memory_info().ok();
    // The library counts kilobytes, and milliwatts.
    let bus = |way| gpu.pcie_throughput(way).ok().map(|kilobytes| u64::from(kilobytes) * 1000);
    let watts = |milliwatts: Result<u32, NvmlError>| milliwatts.ok().map(|power| f64::from(power) / 1000.0);
    GpuSample {
        index,
        name,
        uuid: gpu.uuid().ok(),
        busy_percent: busy.as_ref().map(|busy| f64::from(busy.gpu)),
        memory_busy_percent: busy.as_ref().map(|busy| f64::from(busy.memory)),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        power_watts: watts(gpu.power_usage()),
        power_limit_watts: watts(gpu.enforced_power_limit()),
        temperature_celsius: gpu.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        sm_clock_mhz: gpu.clock_info(Clock::SM).ok(),
        memory_clock_mhz: gpu.clock_info(Clock::Memory).ok(),
        pcie_rx_bytes_per_second: bus(PcieUtilCounter::Receive),
        pcie_tx_bytes_per_second: bus(PcieUtilCounter::Send),
        error,
    }
}

/// How many `NVLinks` lead from a GPU to each of the others. A link whose other end is no GPU leads to a switch, and
/// through it to every GPU that has such links too.
fn nv_links(gpu: Option<&Device<'_>>, all: &[Result<Device<'_>, NvmlError>]) -> BTreeMap<u32, u32> {
    let Some(gpu) = gpu else { return BTreeMap::new() };
    let places: Vec<Option<Place>> =
        all.iter().map(|gpu| gpu.as_ref().ok()?.pci_info().ok().as_ref().map(place)).collect();
    let mut counts = BTreeMap::new();
    let mut to_switch = 0;
    for end in ends(gpu) {
        match places.iter().position(|place| *place == Some(end)) {
            Some(other) => *counts.entry(other as u32).or_default() += 1,
            None => to_switch += 1,
        }
    }
    if to_switch > 0 {
        for (index, other) in (0_u32..).zip(all) {
            let Ok(other) = other else { continue };
            let also = ends(other).filter(|end| !places.contains(&Some(*end))).count() as u32;
            if also > 0 {
                counts.entry(index).or_insert(to_switch.min(also));
            }
        }
    }
    counts
}

/// Domain, bus, device.
type Place = (u32, u32, u32);

fn place(pci: &PciInfo) -> Place {
    (pci.domain, pci.bus, pci.device)
}

/// The other ends of a GPU's active `NVLinks`. Most GPUs have none, and say so at the first question.
fn ends<'a>(gpu: &'a Device<'_>) -> impl Iterator<Item = Place> + 'a {
    (0..MOST_LINKS)
        .map_while(|link| gpu.link_wrapper_for(link).is_active().ok().map(|active| (link, active)))
        .filter(|(_, active)| *active)
        .filter_map(|(link, _)| gpu.link_wrapper_for(link).remote_pci_info().ok().as_ref().map(place))
}

/// What lies between two GPUs, in the words of `nvidia-smi topo`.
#[cfg(target_os = "linux")]
fn path(from: &Device<'_>, to: &Device<'_>) -> Option<&'static str> {
    use nvml_wrapper::enum_wrappers::device::TopologyLevel;
    // The handle is taken by value; asking for it again is how there are two.
    let to = from.nvml().device_by_index(to.index().ok()?).ok()?;
    Some(match from.topology_common_ancestor(to).ok()? {
        TopologyLevel::Internal => "PSB",
        TopologyLevel::Single => "PIX",
        TopologyLevel::Multiple => "PXB",
        TopologyLevel::HostBridge => "PHB",
        TopologyLevel::Node => "NODE",
        TopologyLevel::System => "SYS",
    })
}

/// The library answers this on Linux alone.
#[cfg(not(target_os = "linux"))]
fn path(_: &Device<'_>, _: &Device<'_>) -> Option<&'static str> {
    None
}
