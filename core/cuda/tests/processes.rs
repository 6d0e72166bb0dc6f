//! Two processes that share memory and events, and processes with other drivers.
#![allow(clippy::unwrap_used)]

mod fake;

use std::os::fd::AsRawFd;
use std::process::Command;

use ccl_cuda::*;
use fake::{Fake, bytes, hex};

#[test]
fn memory_and_events_are_shared() {
    let fake = Fake::new();
    let device = fake.driver.devices().unwrap().remove(0);
    let context = Context::primary(&device).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let memory = DeviceMemory::new(&context, 8192).unwrap();
    memory.fill(1, &stream).unwrap();
    stream.synchronize().unwrap();
    let event = Event::new(&context, EventKind::Interprocess).unwrap();
    event.record(&stream).unwrap();
    let physical = PhysicalMemory::new(&device, 2 << 20, Sharing::DescriptorOrFabric).unwrap();
    let mapping = Mapping::new(&physical, &[&device]).unwrap();
    let shared = SharedMemory::of(&context, memory.address() + 4096).unwrap();
    let descriptor = physical.descriptor().unwrap();
    let output = child("sharing_child")
        .env("SHARED_MEMORY", hex(&shared.handle))
        .env("SHARED_EVENT", hex(&event.share().unwrap().0))
        .env("SHARED_FABRIC", hex(&physical.fabric().unwrap().0))
        .env("SHARED_FILE", format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut back = [0; 8192];
    memory.read(0, &mut back, &stream).unwrap();
    assert!(back[..4096].iter().all(|byte| *byte == 1) && back[4096..].iter().all(|byte| *byte == 2));
    // SAFETY: fake device memory is memory of the host.
    let mapped = unsafe { std::slice::from_raw_parts(mapping.address() as *const u8, 2 << 20) };
    assert_eq!((mapped[0], mapped[(2 << 20) - 1]), (3, 4));
}

#[test]
fn sharing_child() {
    let Ok(handle) = std::env::var("SHARED_MEMORY") else { return };
    let fake = Fake::new();
    let device = fake.driver.devices().unwrap().remove(0);
    let context = Context::primary(&device).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let event = Event::open(&context, &SharedEvent(bytes(&std::env::var("SHARED_EVENT").unwrap()))).unwrap();
    stream.wait(&event).unwrap();
    let shared = SharedMemory { handle: bytes(&handle), offset_bytes: 4096 };
    let memory = IpcMemory::open(&context, &shared).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(std::env::var("SHARED_FILE").unwrap());
    let by_file =
        PhysicalMemory::from_descriptor(&fake.driver, std::os::fd::AsFd::as_fd(&file.unwrap()), 2 << 20);
    let fabric = FabricHandle(bytes(&std::env::var("SHARED_FABRIC").unwrap()));
    let by_fabric = PhysicalMemory::from_fabric(&fake.driver, &fabric, 2 << 20);
    let first = Mapping::new(&by_file.unwrap(), &[&device]).unwrap();
    let second = Mapping::new(&by_fabric.unwrap(), &[&device]).unwrap();
    // SAFETY: all ranges outlive the synchronisation.
    unsafe {
        fill(&stream, memory.address(), 2, 4096).unwrap();
        fill(&stream, first.address(), 3, 1).unwrap();
        fill(&stream, second.address() + (2 << 20) - 1, 4, 1).unwrap();
    }
    stream.synchronize().unwrap();
    fake.fail("cuIpcCloseMemHandle", 1, 999);
    assert_eq!(memory.close().unwrap_err().call(), "cuIpcCloseMemHandle");
    drop((first, second, event, stream, context));
    fake.assert_nothing_is_left("sharing");
}

#[test]
fn drivers_are_taken_for_what_they_say() {
    for (setting, value, expected) in [
        ("CCL_FAKE_DEVICES", "0", "no device"),
        ("CCL_FAKE_DRIVER_VERSION", "11080", "TooOld"),
        ("CCL_FAKE_DRIVER_VERSION", "12020", "captured by 12.2"),
    ] {
        let output = child("driver_child").env("AS_A_CHILD", "1").env(setting, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{setting}={value}: {said}");
    }
}

#[test]
fn driver_child() {
    if std::env::var("AS_A_CHILD").is_err() {
        return;
    }
    let driver = match Driver::load(Some(&fake::path())) {
        Ok(driver) => driver,
        Err(absent) => return println!("{absent} {absent:?}"),
    };
    assert!(!driver.has("cuFuncLoad") && !driver.has("cuStreamGetCaptureInfo_v3"));
    let context = Context::primary(&driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    stream.begin_capture(CaptureMode::Relaxed).unwrap();
    let info = stream.capture_info().unwrap().unwrap();
    stream.set_capture_dependencies(info.dependencies()).unwrap();
    stream.end_capture().unwrap();
    println!("captured by {}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
}

#[test]
fn the_contract_holds() {
    let contract = fake::path().with_file_name("contract");
    let output = Command::new(contract).arg(fake::path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("\"failed\":0"), "{said}");
}

fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}
