//! Where is it computed? On the CPU, or on any GPU through its Vulkan driver where that was built in.

use burn_tensor::Device;

use crate::{Error, Result};

/// Where data is prepared, and where the model is.
#[derive(Clone, Debug)]
pub struct Devices {
    /// For features and augmentation.
    pub data: Device,
    /// For the model.
    pub model: Device,
}

impl Devices {
    /// One for both.
    pub fn one(device: Device) -> Self {
        Self { data: device.clone(), model: device }
    }

    /// Whether they are the same.
    pub fn are_one(&self) -> bool {
        self.data == self.model
    }
}

/// A device by its name: `cpu`, `vulkan` (the best there is) or `vulkan:N` (the discrete GPU with this number).
pub fn named(name: &str) -> Result<Device> {
    let (kind, number) = match name.split_once(':') {
        Some((kind, number)) => (kind, Some(number)),
        None => (name, None),
    };
    let number = number.map(str::parse::<usize>).transpose();
    match (kind, number) {
        ("cpu", Ok(None)) => Ok(Device::flex()),
        ("vulkan", Ok(number)) => vulkan(number),
        _ => Err(Error::config(format!("there is no device `{name}`"), "`cpu`, `vulkan` or `vulkan:0`")),
    }
}

#[cfg(feature = "vulkan")]
fn vulkan(number: Option<usize>) -> Result<Device> {
    use burn_tensor::{DeviceKind, Tensor};
    let kind = number.map_or(DeviceKind::DefaultDevice, DeviceKind::DiscreteGpu);
    // Without a driver, its first use is a panic.
    let tried = std::panic::catch_unwind(|| {
        let device = Device::vulkan(kind);
        let _ = Tensor::<1>::ones([1], &device).into_data();
        device
    });
    tried.map_err(|_| {
        let hint = "`vulkaninfo --summary` lists what there is; `--device cpu` needs none";
        Error::config("no such GPU answers through Vulkan", hint)
    })
}

#[cfg(not(feature = "vulkan"))]
fn vulkan(_: Option<usize>) -> Result<Device> {
    let hint = "build it in: `cargo run --release --features vulkan -- train …`; or `--device cpu`";
    Err(Error::config("this program was built without Vulkan", hint))
}
