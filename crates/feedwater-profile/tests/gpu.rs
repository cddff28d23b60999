//! What is said of GPUs, through the real binding and a stand-in for NVIDIA's library.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod nvml;

use feedwater_profile::machine::{GpuSample, Gpus, NoGpus};

#[test]
fn two_gpus_answer_and_a_lost_one_keeps_its_row() {
    let Some(stub) = nvml::stub(&[]) else { return };
    let gpus = Gpus::open_library(&stub.path).unwrap();
    assert_eq!(gpus.driver().as_deref(), Some("580.65.06"));
    assert_eq!(gpus.cuda().as_deref(), Some("13.0"));
    let samples = gpus.sample();
    let expected = GpuSample {
        index: 0,
        name: "NVIDIA Stub 4090".to_owned(),
        uuid: Some("GPU-00000000-0000-0000-0000-000000000000".to_owned()),
        busy_percent: Some(10.0),
        memory_busy_percent: Some(5.0),
        memory_used_bytes: Some(1 << 30),
        memory_total_bytes: Some(24 << 30),
        power_watts: Some(215.5),
        power_limit_watts: Some(450.0),
        temperature_celsius: Some(61.0),
        sm_clock_mhz: Some(2520),
        memory_clock_mhz: Some(10_501),
        pcie_rx_bytes_per_second: Some(8_400_000),
        pcie_tx_bytes_per_second: Some(120_000),
        error: None,
    };
    assert_eq!(samples[0], expected);
    // One value that is not offered is unknown, and the others are not.
    assert_eq!((samples[1].power_watts, samples[1].power_limit_watts), (None, Some(450.0)));
    assert_eq!(samples[1].error, None);
    assert_eq!(samples.len(), 3);
    let lost = &samples[2];
    assert!(lost.error.as_ref().unwrap().contains("fell off the bus"), "{lost:?}");
    assert_eq!((lost.index, lost.busy_percent, lost.memory_total_bytes), (2, None, None));
}

#[test]
fn every_question_is_asked_anew() {
    let Some(stub) = nvml::stub(&[]) else { return };
    let gpus = Gpus::open_library(&stub.path).unwrap();
    let busy: Vec<f64> = (0..12).map(|_| gpus.sample()[1].busy_percent.unwrap()).collect();
    assert_eq!(busy, [10., 20., 30., 40., 50., 60., 70., 80., 90., 100., 10., 20.]);
}

#[test]
fn devices_have_names_memory_and_links() {
    let Some(stub) = nvml::stub(&["TOPOLOGY=50"]) else { return };
    let devices = Gpus::open_library(&stub.path).unwrap().devices();
    assert_eq!(devices.len(), 3);
    assert_eq!(devices[0].name, "NVIDIA Stub 4090");
    assert_eq!(devices[1].uuid.as_deref(), Some("GPU-00000000-0000-0000-0000-000000000001"));
    assert_eq!(devices[1].memory_bytes, Some(24 << 30));
    assert!(!devices[0].simulated);
    assert!(devices[2].name.starts_with("unavailable: "), "{}", devices[2].name);
    assert!(devices[2].links.is_empty());
    if cfg!(target_os = "linux") {
        assert_eq!(devices[0].links, [(1, "SYS".to_owned())].into());
        assert_eq!(devices[1].links, [(0, "SYS".to_owned())].into());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn links_have_the_names_that_people_know() {
    for (level, name) in [(0, "PSB"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE")] {
        let Some(stub) = nvml::stub(&[&format!("TOPOLOGY={level}"), "GPUS=2"]) else { return };
        let devices = Gpus::open_library(&stub.path).unwrap().devices();
        assert_eq!(devices[0].links[&1], name);
    }
}

#[test]
fn nvlinks_are_counted() {
    let Some(stub) = nvml::stub(&["NVLINKS=4", "GPUS=2"]) else { return };
    let devices = Gpus::open_library(&stub.path).unwrap().devices();
    assert_eq!(devices[0].links, [(1, "NV4".to_owned())].into());
    assert_eq!(devices[1].links, [(0, "NV4".to_owned())].into());
}

#[test]
fn no_driver_and_a_broken_one_are_told_apart() {
    assert_eq!(Gpus::open_library("/no/such/library.so").err(), Some(NoGpus::Absent));
    // 9: the library is there, and the driver is not loaded.
    let Some(stub) = nvml::stub(&["INIT=9"]) else { return };
    let why = Gpus::open_library(&stub.path).err().unwrap();
    assert_eq!(why, NoGpus::Broken("NVIDIA driver is not loaded".to_owned()));
}
