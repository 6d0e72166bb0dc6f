//! Every call against the fake driver: once as it should be, and each failing once.
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ccl_cuda::*;
use fake::Fake;

#[test]
fn every_call_works_and_is_made() {
    let fake = Fake::new();
    everything(&fake.driver).unwrap();
    fake.assert_nothing_is_left("everything");
    let names = SYMBOLS.iter().map(|symbol| symbol.name);
    let silent: Vec<_> = names.filter(|name| fake.calls(name) == 0).collect();
    let unexpected: Vec<_> = silent.iter().filter(|name| apart(name).is_none()).collect();
    assert!(unexpected.is_empty(), "never called: {unexpected:?}");
    println!("{} of {} functions called", SYMBOLS.len() - silent.len(), SYMBOLS.len());
}

#[test]
fn every_function_of_the_table_fails_once_and_leaves_nothing() {
    let fake = Fake::new();
    for Symbol { name, .. } in SYMBOLS {
        let failed = match apart(name) {
            Some(fails) => fails(&fake),
            None => {
                fake.fail(name, 1, 999);
                let error = everything(&fake.driver).expect_err(name);
                assert_failed(&error, name);
                fake.failed(name)
            }
        };
        assert_eq!(failed, 1, "how often {name} failed");
        fake.reset();
        fake.assert_nothing_is_left(name);
    }
    println!("{} functions failed once", SYMBOLS.len());
}

#[track_caller]
fn assert_failed(error: &Error, name: &str) {
    assert_eq!((error.call(), error.code(), error.fault()), (name, Some(999), Fault::System), "{error}");
    assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN"), "{error}");
}

#[test]
fn memory_is_closed_by_another_process() {
    let Ok(handle) = std::env::var("MEMORY_TO_CLOSE") else { return };
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let shared = SharedMemory { handle: fake::bytes(&handle), offset_bytes: 0 };
    let memory = IpcMemory::open(&context, &shared).unwrap();
    fake.fail("cuIpcCloseMemHandle", 1, 999);
    assert_failed(&memory.close().unwrap_err(), "cuIpcCloseMemHandle");
    drop(context);
    fake.assert_nothing_is_left("closing");
    println!("failed {} times", fake.failed("cuIpcCloseMemHandle"));
}

/// A graph that an object is not given to gives it back, and says only the first failure.
fn release_user_object(fake: &Fake) -> u64 {
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    stream.begin_capture(CaptureMode::Relaxed).unwrap();
    let info = stream.capture_info().unwrap().unwrap();
    fake.fail("cuGraphRetainUserObject", 1, 999);
    fake.fail("cuUserObjectRelease", 1, 999);
    assert_eq!(info.keep(|| ()).unwrap_err().call(), "cuGraphRetainUserObject");
    assert_eq!(fake.calls("cuUserObjectRelease"), 1);
    drop((stream.end_capture().unwrap(), stream, context));
    fake.failed("cuUserObjectRelease")
}

/// What fails while the driver is loaded.
fn load(fake: &Fake, name: &str, again: &str) -> u64 {
    fake.fail(name, 1, 999);
    let absent = Driver::load(Some(&fake::said_otherwise(again))).unwrap_err();
    assert!(matches!(&absent, Absent::Failed(error) if error.call() == name), "{absent}");
    fake.failed(name)
}

/// Without words an error is told by its number.
fn say(fake: &Fake, name: &str, expected: &str) -> u64 {
    fake.fail(name, 1, 999);
    fake.fail("cuDeviceGetCount", 1, 999);
    let said = fake.driver.devices().unwrap_err().to_string();
    assert!(said.contains("cuDeviceGetCount") && said.contains(expected), "{said}");
    fake.failed(name)
}

/// What only drivers are asked that lack the function that took its place.
fn older(fake: &Fake, name: &str, newer: &str) -> u64 {
    let older = fake.lacking(newer);
    let context = Context::primary(&older.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    stream.begin_capture(CaptureMode::Relaxed).unwrap();
    older.fail(name, 1, 999);
    let set = |info: Option<CaptureInfo>| stream.set_capture_dependencies(info.unwrap().dependencies());
    assert_failed(&stream.capture_info().and_then(set).unwrap_err(), name);
    drop((stream.end_capture().unwrap(), stream, context));
    older.assert_nothing_is_left(name);
    older.failed(name)
}

/// Only another process may open what it closes.
fn close_shared_memory(fake: &Fake) -> u64 {
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let memory = DeviceMemory::new(&context, 4096).unwrap();
    let shared = SharedMemory::of(&context, memory.address()).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "memory_is_closed_by_another_process", "--nocapture"]);
    let output = child.env("MEMORY_TO_CLOSE", fake::hex(&shared.handle)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    u64::from(said.contains("failed 1 times"))
}

#[test]
fn what_a_launch_costs() {
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let (stream, memory) = (Stream::new(&context, 0).unwrap(), DeviceMemory::new(&context, 4096).unwrap());
    let module = Module::load(&context, PTX).unwrap();
    let kernel = module.function("ccl_contract_fill").unwrap();
    let begin = std::time::Instant::now();
    for _ in 0..1000 {
        // SAFETY: the kernel stores one word in the memory, which outlives it.
        unsafe { ONE.run(&kernel, &stream, &Fill { address: memory.address(), value: 1, count: 1 }) }
            .unwrap();
    }
    let queued = begin.elapsed();
    stream.synchronize().unwrap();
    println!("1000 launches queued in {queued:?}, done in {:?}", begin.elapsed());
    assert_eq!(fake.calls("cuLaunchKernelEx"), 1000);
}

#[test]
fn codes_that_nobody_knows_are_values() {
    let fake = Fake::new();
    fake.fail("cuDeviceGetCount", 1, 4711);
    let error = fake.driver.devices().unwrap_err();
    assert_eq!(error.code(), Some(4711));
    assert!(error.to_string().contains("a code unknown to this driver (4711)"), "{error}");
}

#[test]
fn what_a_failed_kernel_leaves_stays() {
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let module = Module::load(&context, PTX).unwrap();
    let fault = module.function("ccl_contract_fault").unwrap();
    // SAFETY: the fake driver's kernel touches nothing.
    unsafe { ONE.run(&fault, &stream, &0u64) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_sticky() && error.code() == Some(code::ILLEGAL_ADDRESS), "{error}");
    assert!(DeviceMemory::new(&context, 4096).unwrap_err().is_sticky());
    drop((fault, module, stream, context));
    fake.reset();
    fake.assert_nothing_is_left("a failed kernel");
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    assert!(DeviceMemory::new(&context, 1 << 40).unwrap_err().is_out_of_memory());
    let memory = DeviceMemory::new(&context, 4096).unwrap();
    assert_eq!(memory.write(4000, &[0; 100], &stream).unwrap_err().fault(), Fault::Usage);
    let address = memory.address();
    // SAFETY: the fake driver checks the range before it fills.
    assert!(unsafe { fill(&stream, address, 0, 5000) }.is_err());
    memory.free().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { fill(&stream, address, 0, 10) }.unwrap_err().code(), Some(code::INVALID_VALUE));
    assert_eq!(PointerFacts::of(&context, address).unwrap().kind, PointerKind::Unknown);
}

#[test]
fn captures_forbid_what_would_wait() {
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    stream.begin_capture(CaptureMode::Global).unwrap();
    let relaxed = RelaxedCapture::enter(&fake.driver).unwrap();
    drop(DeviceMemory::new(&context, 4096).unwrap());
    drop(relaxed);
    assert_eq!(stream.synchronize().unwrap_err().fault(), Fault::Capture);
    assert_eq!(DeviceMemory::new(&context, 4096).unwrap_err().fault(), Fault::Capture);
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Invalidated);
    assert_eq!(stream.end_capture().unwrap_err().code(), Some(901));
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
}

#[test]
fn a_graph_replays_and_keeps_what_it_needs() {
    let fake = Fake::new();
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let memory = DeviceMemory::new(&context, 4096).unwrap();
    let ended = Arc::new(AtomicU32::new(0));
    stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    memory.fill(7, &stream).unwrap();
    let told = ended.clone();
    stream
        .capture_info()
        .unwrap()
        .unwrap()
        .keep(move || told.store(told.load(Ordering::SeqCst) + 1, Ordering::SeqCst))
        .unwrap();
    let graph = stream.end_capture().unwrap();
    let mut exec = graph.instantiate().unwrap();
    graph.close().unwrap();
    for _ in 0..100 {
        memory.write(0, &[0; 4096], &stream).unwrap();
        // SAFETY: the memory outlives the runs.
        unsafe { exec.launch(&stream) }.unwrap();
        let mut back = [0; 4096];
        memory.read(0, &mut back, &stream).unwrap();
        assert!(back.iter().all(|byte| *byte == 7));
    }
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    exec.close().unwrap();
    drop((memory, stream, context));
    fake.assert_nothing_is_left("a graph");
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

/// Every function of the table, but [`ELSEWHERE`].
fn everything(driver: &Driver) -> Result<()> {
    let devices = driver.devices()?;
    facts(&devices)?;
    let context = Context::primary(&devices[0])?;
    let peer = Context::primary(&devices[1])?;
    context.enable_peer(&peer)?;
    context.enable_peer(&peer)?;
    let used = streams(&context).and_then(|()| memory(&context)).and_then(|()| kernels(&context));
    let used = used.and_then(|()| sharing(&context)).and_then(|()| physical(&context));
    let used = used.and_then(|()| multicast(&context)).and_then(|()| graphs(&context));
    let disabled = used.and_then(|()| context.disable_peer(&peer));
    let _ = context.disable_peer(&peer);
    disabled?;
    peer.release()?;
    context.release()
}

fn facts(devices: &[Device]) -> Result<()> {
    assert_eq!(devices[0].name()?, "Fake device");
    assert_ne!(devices[0].uuid()?, devices[1].uuid()?);
    assert_eq!(devices[0].limits()?.capability, (9, 0));
    assert!(devices[0].abilities().multicast);
    let bus_id = devices[1].pci_bus_id()?;
    assert_eq!(Device::at_pci(devices[0].driver(), &bus_id)?, devices[1]);
    assert!(devices[0].link_to(&devices[1])?.access);
    Context::is_active(&devices[0])?;
    Ok(())
}

fn streams(context: &Context) -> Result<()> {
    let (least, greatest) = context.stream_priorities()?;
    assert!(greatest < least);
    context.within(|| {
        let (_, device) = Context::current(context.driver())?.expect("a context is current");
        assert_eq!(&device, context.device());
        Ok(())
    })?;
    let (one, other) = (Stream::new(context, greatest)?, Stream::new(context, least)?);
    assert_eq!(one.priority()?, greatest);
    assert!(!one.is_blocking()?);
    assert_eq!(one.raw_context()?, context.raw());
    let (start, end) = (Event::new(context, EventKind::Timed)?, Event::new(context, EventKind::Timed)?);
    start.record(&one)?;
    one.run_on_host(|| ())?;
    end.record_external(&one)?;
    other.wait(&end)?;
    other.synchronize()?;
    end.synchronize()?;
    assert_eq!(end.query()?, Progress::Done);
    assert!(end.ns_since(&start)? >= 0.0);
    assert_eq!(one.query()?, Progress::Done);
    for stream in [Stream::legacy(context), Stream::per_thread(context)] {
        stream.run_on_host(|| ())?;
        stream.synchronize()?;
    }
    start.close()?;
    other.close()?;
    context.synchronize()
}

fn memory(context: &Context) -> Result<()> {
    let stream = Stream::new(context, 0)?;
    let memory = DeviceMemory::new(context, 4096)?;
    memory.write(1, b"bytes", &stream)?;
    let mut back = [0; 5];
    memory.read(1, &mut back, &stream)?;
    assert_eq!(&back, b"bytes");
    memory.fill(1, &stream)?;
    let pinned = PinnedMemory::new(context, 4096, HostCaching::Cached)?;
    let mut lent = vec![0u64; 512];
    // SAFETY: the vector outlives the registration.
    let registered = unsafe { HostRegistration::new(context, lent.as_mut_ptr().cast(), 4096) }?;
    let address = registered.device_address();
    // SAFETY: all ranges outlive the synchronisation.
    unsafe {
        fill_u32(&stream, memory.address(), 0x0101_0101, 4)?;
        copy(&stream, pinned.device_address(), memory.address(), 4096)?;
        stream.write_u32(address, 7)?;
        stream.wait_u32(address, 7, WaitFor::Equal)?;
        stream.write_u64(address, 9)?;
        stream.wait_u64(address, 8, WaitFor::AtLeast)?;
    }
    stream.synchronize()?;
    let facts = PointerFacts::of(context, memory.address() + 10)?;
    assert_eq!((facts.kind, facts.device, facts.base), (PointerKind::Device, Some(0), memory.address()));
    assert_eq!(PointerFacts::of(context, address)?.kind, PointerKind::Host);
    PointerFacts::order_copies(context, memory.address())?;
    dma_buf(context, memory.address(), 4096)?;
    assert!(context.memory()?.free_bytes < context.memory()?.total_bytes);
    registered.close()?;
    pinned.free()?;
    memory.free()
}

fn kernels(context: &Context) -> Result<()> {
    let stream = Stream::new(context, 0)?;
    let memory = DeviceMemory::new(context, 4096)?;
    let module = Module::load(context, PTX)?;
    let library = Library::load(context.driver(), PTX)?;
    for fill in [module.function("ccl_contract_fill")?, library.function(context, "ccl_contract_fill")?] {
        fill.load()?;
        assert!(fill.attributes()?.max_threads >= 32);
        fill.allow_shared_bytes(1024)?;
        assert!(fill.blocks_per_multiprocessor(32, 1024)? > 0);
        assert!(fill.active_clusters(&ONE)? > 0);
        // SAFETY: the kernel stores 3 words in the memory, which outlives it.
        unsafe { ONE.run(&fill, &stream, &Fill { address: memory.address(), value: 5, count: 3 }) }?;
    }
    let mut back = [0; 12];
    memory.read(0, &mut back, &stream)?;
    assert_eq!(back, [5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0]);
    library.close()?;
    module.close()
}

fn sharing(context: &Context) -> Result<()> {
    let memory = DeviceMemory::new(context, 4096)?;
    let shared = SharedMemory::of(context, memory.address() + 16)?;
    assert_eq!(shared.offset_bytes, 16);
    not_in_one_process(IpcMemory::open(context, &shared))?;
    let event = Event::new(context, EventKind::Interprocess)?;
    not_in_one_process(Event::open(context, &event.share()?))
}

fn not_in_one_process<T>(opened: Result<T>) -> Result<()> {
    match opened {
        Err(error) if error.code() == Some(201) => Ok(()),
        other => other.map(drop),
    }
}

fn physical(context: &Context) -> Result<()> {
    let device = context.device();
    let bytes = PhysicalMemory::granularity(device, Sharing::DescriptorOrFabric)?;
    let memory = PhysicalMemory::new(device, bytes, Sharing::DescriptorOrFabric)?;
    let mapping = Mapping::new(&memory, &[device])?;
    let behind = PhysicalMemory::behind(context, mapping.address())?;
    assert_eq!(behind.bytes(), bytes);
    behind.close()?;
    let descriptor = memory.descriptor()?;
    let again =
        PhysicalMemory::from_descriptor(context.driver(), std::os::fd::AsFd::as_fd(&descriptor), bytes)?;
    let thrice = PhysicalMemory::from_fabric(context.driver(), &memory.fabric()?, bytes)?;
    for shared in [again, thrice] {
        let twin = Mapping::new(&shared, &[device])?;
        let stream = Stream::new(context, 0)?;
        // SAFETY: both mappings outlive the synchronisation.
        unsafe { fill(&stream, mapping.address(), 3, bytes) }?;
        stream.synchronize()?;
        // SAFETY: fake device memory is memory of the host.
        assert_eq!(unsafe { *(twin.address() as *const u8) }, 3);
        twin.close()?;
    }
    let private = PhysicalMemory::new(device, bytes, Sharing::Private)?;
    assert_eq!(private.descriptor().unwrap_err().call(), "cuMemExportToShareableHandle");
    pieces(context, [memory, private])?;
    mapping.close()
}

/// Two pieces under one range.
fn pieces(context: &Context, pieces: [PhysicalMemory; 2]) -> Result<()> {
    assert_eq!(Mapping::of_pieces(&[], &[context.device()]).unwrap_err().fault(), Fault::Usage);
    let (each, stream) = (pieces[0].bytes(), Stream::new(context, 0)?);
    let mapping = Mapping::of_pieces(&pieces, &[context.device()])?;
    let second = mapping.address() + each as u64;
    for (address, sharing) in [
        (second - 1, Sharing::DescriptorOrFabric),
        (second, Sharing::Private),
        (second + 5, Sharing::Private),
    ] {
        let facts = PointerFacts::of(context, address)?;
        assert_eq!((facts.base, facts.bytes), (mapping.address(), 2 * each), "what is reserved");
        assert_eq!((facts.ipc_capable, facts.sharing, facts.kind), (false, sharing, PointerKind::Device));
    }
    assert_eq!(PointerFacts::range(context, second + 5)?, (second, each));
    pieces.into_iter().try_for_each(PhysicalMemory::close)?;
    // SAFETY: the mapping outlives the synchronisation.
    unsafe { fill(&stream, second - 8, 7, 16) }?;
    stream.synchronize()?;
    // SAFETY: fake device memory is memory of the host.
    let around = unsafe { std::slice::from_raw_parts((second - 8) as *const u8, 16) };
    assert_eq!(around, [7; 16]);
    mapping.close()
}

fn multicast(context: &Context) -> Result<()> {
    let (driver, device) = (context.driver(), context.device());
    let bytes = Multicast::granularity(driver, 1, 1 << 21, Sharing::Descriptor)?;
    let object = Multicast::new(driver, 1, bytes, Sharing::Descriptor)?;
    object.add(device)?;
    let memory = PhysicalMemory::new(device, bytes, Sharing::Private)?;
    object.bind(0, &memory)?;
    Mapping::of_multicast(&object, &[device])?.close()?;
    object.unbind(device, 0, bytes)?;
    object.close()
}

fn graphs(context: &Context) -> Result<()> {
    let (one, other) = (Stream::new(context, 0)?, Stream::new(context, 0)?);
    let event = Event::new(context, EventKind::Order)?;
    one.begin_capture(CaptureMode::Global)?;
    let captured = fork_and_join(&one, &other, &event);
    let graph = one.end_capture();
    captured?;
    let graph = graph?;
    assert_eq!(graph.nodes()?.len(), 3);
    let mut exec = graph.instantiate()?;
    assert_eq!(exec.update(&graph)?, GraphUpdate::Done);
    exec.upload(&one)?;
    // SAFETY: the graph touches no memory.
    unsafe { exec.launch(&one) }?;
    one.synchronize()?;
    exec.close()?;
    graph.close()
}

fn fork_and_join(one: &Stream, other: &Stream, event: &Event) -> Result<()> {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

    // SAFETY: the function touches nothing.
    unsafe { one.call(nothing, std::ptr::null_mut()) }?;
    event.record(one)?;
    other.wait(event)?;
    // SAFETY: as above.
    unsafe { other.call(nothing, std::ptr::null_mut()) }?;
    // SAFETY: as above.
    unsafe { one.call(nothing, std::ptr::null_mut()) }?;
    let info = one.capture_info()?.expect("a capture is in progress");
    one.set_capture_dependencies(info.dependencies())?;
    info.keep(|| ())?;
    drop(RelaxedCapture::enter(one.context().driver())?);
    event.record(other)?;
    one.wait(event)
}

/// The argument of `ccl_contract_fill`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    address: u64,
    value: u32,
    count: u32,
}

const ONE: Launch<'static> = Launch { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0, attributes: &[] };

const PTX: &[u8] = b".version 7.0\n.target sm_80\n.address_size 64\n";

/// Lets a function fail once, looks at what is said of it, and returns how often it failed.
type Fails = fn(&Fake) -> u64;

/// How functions fail that [`everything`] does not call, or whose failure it does not tell.
fn apart(name: &str) -> Option<Fails> {
    Some(match name {
        "cuInit" => |fake| load(fake, "cuInit", "../examples/"),
        "cuDriverGetVersion" => |fake| load(fake, "cuDriverGetVersion", "../examples/../examples/"),
        "cuGetErrorName" => |fake| say(fake, "cuGetErrorName", "a code unknown to this driver (999)"),
        "cuGetErrorString" => |fake| say(fake, "cuGetErrorString", "CUDA_ERROR_UNKNOWN (999)"),
        "cuIpcCloseMemHandle" => close_shared_memory,
        "cuStreamGetCaptureInfo_v2" => {
            |fake| older(fake, "cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v3")
        }
        "cuStreamUpdateCaptureDependencies" => {
            |fake| older(fake, "cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2")
        }
        // Drops make do without.
        "cuThreadExchangeStreamCaptureMode" => |fake| {
            fake.fail("cuThreadExchangeStreamCaptureMode", 1, 999);
            let error = RelaxedCapture::enter(&fake.driver).unwrap_err();
            assert_failed(&error, "cuThreadExchangeStreamCaptureMode");
            fake.failed("cuThreadExchangeStreamCaptureMode")
        },
        "cuUserObjectRelease" => release_user_object,
        _ => return None,
    })
}
