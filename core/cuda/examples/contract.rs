//! The same checks against whichever driver is loaded: the fake one in CI, the real one on a machine with a device.
//!
//! `contract [LIBRARY]` prints a line for each check and one line of JSON, and fails if a check did.

use std::path::PathBuf;
use std::process::ExitCode;

use ccl_cuda::*;

type Check = (&'static str, fn(&Context) -> std::result::Result<(), String>);

const CHECKS: &[Check] = &[
    ("copies arrive", copies_arrive),
    ("a kernel has its argument", a_kernel_has_its_argument),
    ("events order streams", events_order_streams),
    ("a stream waits for a value", a_stream_waits_for_a_value),
    ("pointers are told apart", pointers_are_told_apart),
    ("a graph replays", a_graph_replays),
    ("allocation breaks a global capture", allocation_breaks_a_global_capture),
    ("what a graph keeps is destroyed", what_a_graph_keeps_is_destroyed),
    ("physical memory is mapped twice", physical_memory_is_mapped_twice),
    ("pieces of physical memory are mapped one behind the other", pieces_are_mapped_one_behind_the_other),
    ("a handle is not opened where it was made", a_handle_is_not_opened_where_it_was_made),
];

fn main() -> ExitCode {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let driver = match Driver::load(path.as_deref()) {
        Ok(driver) => driver,
        Err(absent) => {
            println!("{absent}");
            return ExitCode::from(2);
        }
    };
    let context = driver.devices().and_then(|devices| Context::primary(&devices[0]));
    let context = context.expect("a driver that loads has a device");
    let results: Vec<_> = CHECKS.iter().map(|(name, check)| (*name, check(&context))).collect();
    for (name, result) in &results {
        println!(
            "{} {name}{}",
            if result.is_ok() { "ok  " } else { "FAIL" },
            result.as_ref().err().map_or(String::new(), |why| format!(": {why}"))
        );
    }
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    let checks: serde_json::Map<_, _> =
        results.iter().map(|(name, result)| ((*name).to_owned(), result.is_ok().into())).collect();
    println!("{}", serde_json::json!({ "driver": driver.version(), "failed": failed, "checks": checks }));
    ExitCode::from(u8::from(failed > 0))
}

fn copies_arrive(context: &Context) -> std::result::Result<(), String> {
    let (stream, memory) = (stream(context)?, memory(context)?);
    memory.write(3, b"bytes", &stream).map_err(text)?;
    let mut back = [0; 5];
    memory.read(3, &mut back, &stream).map_err(text)?;
    equal(&back, b"bytes")
}

fn a_kernel_has_its_argument(context: &Context) -> std::result::Result<(), String> {
    let (stream, memory) = (stream(context)?, memory(context)?);
    let module = Module::load(context, PTX).map_err(text)?;
    let fill = module.function("ccl_contract_fill").map_err(text)?;
    fill.load().map_err(text)?;
    // SAFETY: the kernel stores three words in the memory, which outlives it.
    unsafe { ONE.run(&fill, &stream, &Fill { address: memory.address(), value: 5, count: 3 }) }
        .map_err(text)?;
    let mut back = [0; 12];
    memory.read(0, &mut back, &stream).map_err(text)?;
    equal(&back, &[5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0])
}

fn events_order_streams(context: &Context) -> std::result::Result<(), String> {
    let (one, other) = (stream(context)?, stream(context)?);
    let event = Event::new(context, EventKind::Order).map_err(text)?;
    one.run_on_host(|| std::thread::sleep(std::time::Duration::from_millis(50))).map_err(text)?;
    event.record(&one).map_err(text)?;
    other.wait(&event).map_err(text)?;
    let early = (event.query().map_err(text)?, other.query().map_err(text)?);
    other.synchronize().map_err(text)?;
    equal(&early, &(Progress::NotReady, Progress::NotReady))?;
    equal(&event.query().map_err(text)?, &Progress::Done)
}

fn a_stream_waits_for_a_value(context: &Context) -> std::result::Result<(), String> {
    let (one, other, memory) = (stream(context)?, stream(context)?, memory(context)?);
    memory.fill(0, &one).and_then(|()| one.synchronize()).map_err(text)?;
    // SAFETY: the memory outlives the synchronisation below.
    unsafe { one.wait_u64(memory.address(), 7, WaitFor::AtLeast) }.map_err(text)?;
    let early = one.query().map_err(text)?;
    // SAFETY: as above.
    unsafe { other.write_u64(memory.address(), 8) }.map_err(text)?;
    one.synchronize().map_err(text)?;
    equal(&early, &Progress::NotReady)
}

fn pointers_are_told_apart(context: &Context) -> std::result::Result<(), String> {
    let memory = memory(context)?;
    let pinned = PinnedMemory::new(context, 4096, HostCaching::Cached).map_err(text)?;
    let own = 0u8;
    let addresses = [memory.address() + 5, pinned.device_address(), &raw const own as u64];
    let kinds = addresses.map(|address| PointerFacts::of(context, address).map(|facts| facts.kind));
    let expected = [PointerKind::Device, PointerKind::Host, PointerKind::Unknown].map(Ok);
    equal(&kinds, &expected)
}

fn a_graph_replays(context: &Context) -> std::result::Result<(), String> {
    let (stream, memory) = (stream(context)?, memory(context)?);
    stream.begin_capture(CaptureMode::ThreadLocal).and_then(|()| memory.fill(7, &stream)).map_err(text)?;
    let mut exec = stream.end_capture().and_then(|graph| graph.instantiate()).map_err(text)?;
    for _ in 0..3 {
        memory.write(0, &[0; 16], &stream).map_err(text)?;
        // SAFETY: the memory outlives the run.
        unsafe { exec.launch(&stream) }.map_err(text)?;
        let mut back = [0; 16];
        memory.read(0, &mut back, &stream).map_err(text)?;
        equal(&back, &[7; 16])?;
    }
    Ok(())
}

fn allocation_breaks_a_global_capture(context: &Context) -> std::result::Result<(), String> {
    let stream = stream(context)?;
    stream.begin_capture(CaptureMode::Global).map_err(text)?;
    let refused = DeviceMemory::new(context, 4096).map_err(|error| error.fault()).err();
    let ended = stream.end_capture().map_err(|error| error.fault()).err();
    equal(&(refused, ended), &(Some(Fault::Capture), Some(Fault::Capture)))
}

fn what_a_graph_keeps_is_destroyed(context: &Context) -> std::result::Result<(), String> {
    let stream = stream(context)?;
    let (tell, told) = std::sync::mpsc::channel();
    stream.begin_capture(CaptureMode::Relaxed).map_err(text)?;
    let info = stream.capture_info().map_err(text)?.ok_or("no capture")?;
    info.keep(move || tell.send(()).unwrap_or_default()).map_err(text)?;
    let exec = stream.end_capture().and_then(|graph| graph.instantiate()).map_err(text)?;
    let early = told.try_recv().is_ok();
    drop(exec);
    told.recv_timeout(std::time::Duration::from_secs(5)).map_err(|error| error.to_string())?;
    equal(&early, &false)
}

fn physical_memory_is_mapped_twice(context: &Context) -> std::result::Result<(), String> {
    let (stream, device) = (stream(context)?, context.device());
    let bytes = PhysicalMemory::granularity(device, Sharing::Descriptor).map_err(text)?;
    let memory = PhysicalMemory::new(device, bytes, Sharing::Descriptor).map_err(text)?;
    let shared = memory.descriptor().map_err(text)?;
    let shared = std::os::fd::AsFd::as_fd(&shared);
    let again = PhysicalMemory::from_descriptor(context.driver(), shared, bytes).map_err(text)?;
    let first = Mapping::new(&memory, &[device]).map_err(text)?;
    let second = Mapping::new(&again, &[device]).map_err(text)?;
    let mut back = [0u8; 16];
    // SAFETY: all ranges outlive the synchronisation.
    unsafe {
        fill(&stream, first.address(), 9, bytes).map_err(text)?;
        copy(&stream, back.as_mut_ptr() as u64, second.address(), 16).map_err(text)?;
    }
    stream.synchronize().map_err(text)?;
    equal(&back, &[9; 16])
}

/// What is known of an address in the second of two pieces, and whether a copy crosses where they meet.
fn pieces_are_mapped_one_behind_the_other(context: &Context) -> std::result::Result<(), String> {
    let (stream, device) = (stream(context)?, context.device());
    let bytes = PhysicalMemory::granularity(device, Sharing::Descriptor).map_err(text)?;
    let piece = |sharing| PhysicalMemory::new(device, bytes, sharing).map_err(text);
    let pieces = [piece(Sharing::Descriptor)?, piece(Sharing::Private)?];
    equal(&pieces[1].descriptor().is_err(), &true)?;
    let mapping = Mapping::of_pieces(&pieces, &[device]).map_err(text)?;
    let second = mapping.address() + bytes as u64;
    let facts = |address| PointerFacts::of(context, address).map_err(text);
    equal(&[facts(second - 1)?.sharing, facts(second)?.sharing], &[Sharing::Descriptor, Sharing::Private])?;
    equal(&facts(second)?.ipc_capable, &false)?;
    equal(&PointerFacts::range(context, second + 5).map_err(text)?, &(second, bytes))?;
    equal(&PhysicalMemory::mapped(context, second, bytes).is_ok(), &true)?;
    let plain = memory(context)?;
    equal(&PhysicalMemory::behind(context, plain.address()).is_err(), &true)?;
    let mut back = [0u8; 16];
    // SAFETY: all ranges outlive the synchronisation.
    unsafe {
        fill(&stream, mapping.address(), 9, 2 * bytes).map_err(text)?;
        copy(&stream, back.as_mut_ptr() as u64, second - 8, 16).map_err(text)?;
    }
    stream.synchronize().map_err(text)?;
    equal(&back, &[9; 16])
}

fn a_handle_is_not_opened_where_it_was_made(context: &Context) -> std::result::Result<(), String> {
    let memory = memory(context)?;
    let shared = SharedMemory::of(context, memory.address()).map_err(text)?;
    equal(&IpcMemory::open(context, &shared).is_err(), &true)
}

fn stream(context: &Context) -> std::result::Result<Stream, String> {
    Stream::new(context, 0).map_err(text)
}

fn memory(context: &Context) -> std::result::Result<DeviceMemory, String> {
    DeviceMemory::new(context, 4096).map_err(text)
}

fn text(error: Error) -> String {
    error.to_string()
}

fn equal<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> std::result::Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("expected {expected:?}, found {found:?}")) }
}

/// The argument of `ccl_contract_fill`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    address: u64,
    value: u32,
    count: u32,
}

const ONE: Launch<'static> = Launch { grid: [1; 3], block: [1; 3], shared_bytes: 0, attributes: &[] };

/// Stores `value` at `count` words from `address` on; one thread.
const PTX: &[u8] = b"
.version 7.0
.target sm_80
.address_size 64
.visible .entry ccl_contract_fill(.param .align 8 .b8 args[16]) {
  .reg .u64 %address;
  .reg .u32 %value, %left;
  .reg .pred %done;
  ld.param.u64 %address, [args];
  ld.param.u32 %value, [args+8];
  ld.param.u32 %left, [args+12];
again:
  setp.eq.u32 %done, %left, 0;
  @%done bra end;
  st.global.u32 [%address], %value;
  add.u64 %address, %address, 4;
  sub.u32 %left, %left, 1;
  bra again;
end:
  ret;
}
";
