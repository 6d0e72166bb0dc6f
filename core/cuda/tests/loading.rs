//! Drivers that are not there, or are not what they should be.
#![allow(clippy::unwrap_used)]

mod fake;

use std::path::Path;

use ccl_cuda::*;
use fake::Fake;

#[test]
fn without_a_driver_there_is_a_sentence() {
    let begin = std::time::Instant::now();
    let absent = Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err();
    println!("absent after {:?}", begin.elapsed());
    assert!(matches!(absent, Absent::Library { .. }), "{absent}");
    assert!(absent.to_string().starts_with("no CUDA driver: /nowhere/libcuda.so.1"), "{absent}");
    let begin = std::time::Instant::now();
    assert_eq!(Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err(), absent);
    println!("again after {:?}", begin.elapsed());
}

#[test]
fn without_nvml_there_is_a_sentence() {
    if let Err(absent) = nvml_devices() {
        assert!(absent.to_string().starts_with("NVML says nothing"), "{absent}");
    }
}

#[test]
fn what_fails_at_first_is_told_apart() {
    let fake = Fake::new();
    let load = |function: &str, code, turn| {
        fake.fail(function, 1, code);
        // Another way to say the same file, since answers are kept.
        let path = format!(
            "{}/{}libccl_cuda_fake_driver.so",
            fake::path().parent().unwrap().display(),
            "../examples/".repeat(turn)
        );
        Driver::load(Some(Path::new(&path))).unwrap_err()
    };
    assert!(matches!(load("cuInit", 34, 1), Absent::Stub { .. }));
    assert!(matches!(load("cuInit", 100, 2), Absent::NoDevice { .. }));
    assert!(matches!(load("cuInit", 802, 3), Absent::Failed(error) if error.call() == "cuInit"));
    assert!(
        matches!(load("cuDriverGetVersion", 1, 4), Absent::Failed(error) if error.call() == "cuDriverGetVersion")
    );
    fake.fail("cuGetErrorString", 1, 1);
    let absent = load("cuInit", 999, 5);
    assert!(absent.to_string().contains("cuInit failed with CUDA_ERROR_UNKNOWN (999); look"), "{absent}");
    fake.fail("cuGetErrorName", 1, 1);
    let absent = load("cuInit", 999, 6);
    assert!(absent.to_string().contains("a code unknown to this driver"), "{absent}");
}

#[test]
fn functions_that_a_driver_lacks_are_values() {
    let folder = std::env::temp_dir();
    let load = |function: &str| {
        let file = fake::without(function, &folder);
        let loaded = Driver::load(Some(&file));
        std::fs::remove_file(file).unwrap();
        loaded
    };
    let driver = load("cuMulticastCreate").unwrap();
    assert!(!driver.has("cuMulticastCreate") && driver.has("cuMulticastBindMem"));
    assert!(!driver.devices().unwrap()[0].abilities().multicast);
    let error = Multicast::new(&driver, 2, 1 << 21, Sharing::Descriptor).unwrap_err();
    assert_eq!((error.call(), error.fault()), ("cuMulticastCreate", Fault::Unsupported));
    assert!(
        error.to_string().contains("expected cuMulticastCreate of CUDA driver 12.1, found driver 13.0"),
        "{error}"
    );
    let absent = load("cuMemAlloc_v2").unwrap_err();
    assert!(matches!(absent, Absent::MissingSymbol { symbol: "cuMemAlloc_v2", .. }), "{absent}");
}
