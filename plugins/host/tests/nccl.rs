//! Plugins made for NCCL, one for each version of its contract, compiled from C: what they carry, which table is
//! taken, and how those that fail are refused.

#![allow(clippy::unwrap_used)]

#[path = "../../../net-socket/tests/common/mod.rs"]
mod common;
#[path = "../../nccl/tests/common/mod.rs"]
mod toys;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use ccl_plugin_host::{Candidate, LogFn, NetContext, NetError, NetPlugin, RecvBuffer, RecvComm, SendComm};
use common::*;
use toys::{ask, toy, toy_of_versions};

const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;

fn load(spec: &str) -> (String, NetPlugin) {
    let (candidates, plugin) = NetPlugin::load(spec);
    let plugin = plugin.unwrap_or_else(|error| panic!("{error}\n{candidates:?}"));
    (candidates.iter().find(|candidate| candidate.is_chosen()).unwrap().to_string(), plugin)
}

/// The line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = NetPlugin::load(spec);
    assert!(matches!(plugin, Err(NetError::Load(_))), "{plugin:?}");
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(!only.is_chosen());
    only.to_string()
}

#[test]
fn every_version_carries_messages() {
    for version in VERSIONS {
        let file = toy(&format!("nccl_traffic_{version}"), version, &[]);
        let (line, plugin) = load(&file);
        let symbol = format!("ncclNetPlugin_v{version}");
        assert!(
            line.contains(&format!("(offers {symbol}): chosen, network Toy{version}, {symbol}")),
            "{line}"
        );
        assert_eq!((plugin.name(), plugin.contract()), (&*format!("Toy{version}"), symbol));
        let context = context(plugin, &[]);
        describes(&context, version);
        let there = pair(&context);
        let back = pair(&context);
        for (mut send, mut recv) in [there, back] {
            traffic(&mut send, &mut recv);
            grouped(&mut send, &mut recv);
        }
        drop(context);
        assert_eq!(ask(&file, "toy_live", version), 0, "version {version} has objects left");
        // Where there are contexts, the look at its devices has one of its own.
        assert_eq!(ask(&file, "toy_inits", version), if version < 11 { 1 } else { 2 });
    }
}

fn describes(context: &NetContext, version: u32) {
    let found = context.properties(0).unwrap();
    // From version 7 on it has a second device, which would need a program on a GPU.
    assert_eq!(context.device_count(), 1);
    assert_eq!((&*found.name, found.speed_mbps, found.latency_ns), ("toy0", 10_000, 2500));
    assert_eq!((found.guid, found.port, found.max_comms, found.max_recvs), (0x70, 1, 1000, 8));
    assert_eq!(found.pci_path.as_deref(), Some("/sys/devices/virtual/net/lo"));
    assert_eq!(found.max_message_bytes, if version < 9 { 1 << 30 } else { 1 << 29 });
    assert_eq!((found.rail, found.plane), if version < 12 { (None, None) } else { (Some(3), Some(1)) });
}

/// Messages of many sizes, none among them, with more in flight than there is room for.
fn traffic(send: &mut SendComm, recv: &mut RecvComm) {
    let bytes = [0, 1, 3, 4096, 0, 65_537, 300_000];
    let messages: Vec<Message> = (0..70)
        .map(|i| Message { tag: 7, bytes: bytes[i % bytes.len()], room: bytes[i % bytes.len()] + i % 2 })
        .collect();
    let order: Vec<usize> = (0..messages.len()).collect();
    exchange(send, recv, &messages, &order, 40);
}

/// Eight messages into one request, sent in another order.
fn grouped(send: &mut SendComm, recv: &mut RecvComm) {
    const N: usize = 8;
    let sources: Vec<Vec<u8>> = (0..N).map(|i| pattern(i, i * 5000)).collect();
    let mut rooms = vec![vec![0xEE; 40_000]; N];
    let mrs: Vec<_> = rooms.iter_mut().map(|room| register_recv(recv, room)).collect();
    let buffers: Vec<_> = rooms
        .iter_mut()
        .zip(&mrs)
        .enumerate()
        .map(|(i, (room, mr))| RecvBuffer {
            data: room.as_mut_ptr(),
            bytes: room.len(),
            tag: 100 + i as u32,
            mr,
        })
        .collect();
    // SAFETY: the rooms outlive the wait for all of them.
    let mut receiving = wait("room for a group", || unsafe { recv.recv_group(&buffers) }.unwrap());
    let mut sending = Vec::new();
    for i in (0..N).rev() {
        let mr = register_send(send, &sources[i]);
        let (data, bytes) = (sources[i].as_ptr(), sources[i].len());
        // SAFETY: the sources outlive the wait for all of them.
        let request = wait("a send", || unsafe { send.send(data, bytes, 100 + i as u32, &mr) }.unwrap());
        sending.push(request);
    }
    let mut sizes = [0; N];
    wait("the group", || {
        sending.retain_mut(|request| send.test(request).unwrap().is_none());
        recv.test_group(&mut receiving, &mut sizes).unwrap().then_some(())
    });
    wait("the sends", || {
        sending.retain_mut(|request| send.test(request).unwrap().is_none());
        sending.is_empty().then_some(())
    });
    for i in 0..N {
        assert_eq!(sizes[i], i * 5000);
        assert!(rooms[i][..sizes[i]] == sources[i][..], "message {i} of the group");
    }
}

#[test]
fn the_newest_table_is_taken_and_told() {
    let file = toy_of_versions("nccl_several", &[6, 8, 10], &[]);
    let (line, plugin) = load(&file);
    assert_eq!(plugin.contract(), "ncclNetPlugin_v10");
    assert_eq!(
        line,
        format!(
            "{file} (offers ncclNetPlugin_v6, ncclNetPlugin_v8, ncclNetPlugin_v10): chosen, network Toy10, \
             ncclNetPlugin_v10 of NCCL's contract, the newest it offers"
        )
    );
    let inits = |version| ask(&file, "toy_inits", version);
    assert_eq!([inits(6), inits(8), inits(10)], [0, 0, 1], "only one was called");
    let again = load(&file);
    assert!(again.0.ends_with("already loaded"), "{}", again.0);
    assert_eq!((again.1, inits(10)), (plugin, 1));
}

#[test]
fn tables_that_are_not_adapted_are_named() {
    let odd = toys::source(
        "nccl_odd",
        "#define HERE __attribute__((visibility(\"default\")))\n\
         HERE void *ncclNetPlugin_v5[32], *ncclNetPlugin_v13[32], *ncclCollNetPlugin_v9[32];\n",
    );
    let line = refusal(&toys::link("nccl_odd", std::slice::from_ref(&odd)));
    assert!(line.contains("offers ncclNetPlugin_v5, ncclNetPlugin_v13, ncclCollNetPlugin_v9"), "{line}");
    assert!(line.contains("expected cclNet_v1, or one of ncclNetPlugin_v6 to ncclNetPlugin_v12"), "{line}");
    let toy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nccl_odd_too-net-9.o");
    toy_of_versions("nccl_odd_too", &[9], &[]);
    let (line, plugin) = load(&toys::link("nccl_with_odd", &[odd, toy]));
    assert_eq!(plugin.name(), "Toy9");
    let how = "ncclNetPlugin_v9 of NCCL's contract, the newest of those that are adapted; its collectives \
               (ncclCollNetPlugin) are not used";
    assert!(line.ends_with(how), "{line}");
}

#[test]
fn ccls_own_table_comes_first() {
    toy_of_versions("nccl_beside", &[9], &[]);
    let toy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nccl_beside-net-9.o");
    let own = toys::plugins().join("examples/loopback_net.c");
    let (line, plugin) = load(&toys::link("nccl_beside_ours", &[own, toy]));
    assert_eq!((plugin.name(), &*plugin.contract()), ("loopback-c", "cclNet_v1"));
    assert!(line.contains("offers cclNet_v1, ncclNetPlugin_v9"), "{line}");
}

#[test]
fn what_cannot_be_used_is_refused_and_the_next_is_taken() {
    let good = toy("nccl_good", 8, &[]);
    for (fault, version, expected) in [
        (1, 6, "ncclNetPlugin_v6: expected irecv, found a null pointer"),
        (
            2,
            9,
            "ncclNetPlugin_v9: expected ncclSuccess from init of contract v9, found ncclSystemError (2); its last \
             warning: toy: no hardware of kind 42 on this host",
        ),
        (2, 12, "ncclNetPlugin_v12: expected ncclSuccess from init of contract v12"),
        (3, 7, "ncclNetPlugin_v7: expected at least one device, found 0"),
        (3, 11, "ncclNetPlugin_v11: expected at least one device, found 0"),
        (6, 10, "expected ncclSuccess from getProperties of contract v10, found ncclInternalError (3)"),
        (7, 12, "expected at least one device, found 2 that need a program on a GPU to receive"),
    ] {
        let file = toy(&format!("nccl_fault_{fault}_{version}"), version, &[&format!("-DTOY_FAULT={fault}")]);
        let line = refusal(&file);
        assert!(line.contains(": not used, ") && line.contains(expected), "{line}");
        let (candidates, plugin) = NetPlugin::load(&format!("{file},{good}"));
        assert_eq!(plugin.unwrap().name(), "Toy8");
        assert_eq!(candidates.iter().map(Candidate::is_chosen).collect::<Vec<_>>(), [false, true]);
        // It said so once, and is not asked again.
        assert_eq!(ask(&file, "toy_inits", version), i32::from(fault != 1));
        assert_eq!(ask(&file, "toy_live", version), 0, "what was made before it failed has ended");
    }
}

#[test]
fn an_error_names_the_call_the_result_and_the_plugins_words() {
    let (_, plugin) = load(&toy("nccl_test_fails", 11, &["-DTOY_FAULT=4"]));
    let context = context(plugin, &[]);
    let (mut send, _recv) = pair(&context);
    let bytes = [1; 64];
    let mr = register_send(&mut send, &bytes);
    // SAFETY: the bytes outlive the comm's use of them.
    let mut request = wait("a send", || unsafe { send.send(bytes.as_ptr(), 64, 0, &mr) }.unwrap());
    let error = send.test(&mut request).unwrap_err();
    assert!(matches!(error, NetError::System(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "network Toy11: test_send: expected ncclSuccess from test of contract v11, found ncclSystemError (2); its last \
         warning: toy: the adapter of a sender fell out"
    );
}

#[test]
fn a_peer_that_is_gone_and_a_message_that_is_too_long_are_errors() {
    let (_, plugin) = load(&toy("nccl_gone", 9, &[]));
    let context = context(plugin, &[]);
    let (send, mut recv) = pair(&context);
    let mut room = [0; 8];
    let mr = register_recv(&mut recv, &mut room);
    // SAFETY: the room outlives the comm's use of it.
    let mut request = wait("room", || unsafe { recv.recv(room.as_mut_ptr(), 8, 0, &mr) }.unwrap());
    drop(send);
    let error = wait("the end", || recv.test(&mut request).err());
    assert!(
        matches!(error, NetError::Remote(_)) && error.to_string().contains("ncclRemoteError (6)"),
        "{error}"
    );

    let (_, narrow) = load(&toy("nccl_narrow", 7, &[]));
    let (mut send, _recv) = pair(&common::context(narrow, &[]));
    let mr = send.register(room.as_ptr(), 1 << 31, ccl_plugin_host::MemoryKind::Host).unwrap_err();
    assert!(mr.to_string().contains("regMr: contract v7 takes at most 2147483647 bytes"), "{mr}");
    let mr = send.register(room.as_ptr(), (1 << 30) + 1, ccl_plugin_host::MemoryKind::Host).unwrap();
    // SAFETY: refused before anything is read.
    let error = unsafe { send.send(room.as_ptr(), (1 << 30) + 1, 0, &mr) }.unwrap_err();
    assert!(error.to_string().contains("isend: contract v7 takes at most 1073741824 bytes"), "{error}");
}

#[test]
fn a_connection_that_never_comes_can_be_given_up() {
    for version in [6, 12] {
        let file = toy(&format!("nccl_never_{version}"), version, &["-DTOY_FAULT=5"]);
        let (_, plugin) = load(&file);
        let context = context(plugin, &[]);
        let (handle, mut listener) = context.listen(0).unwrap();
        let mut connecting = context.connect(0, handle).unwrap();
        for _ in 0..100 {
            assert!(connecting.poll().unwrap().is_none() && listener.poll().unwrap().is_none());
        }
        context.abort().unwrap();
        assert!(matches!(connecting.poll(), Err(NetError::Aborted(_))));
        assert!(matches!(listener.poll(), Err(NetError::Aborted(_))));
        drop((connecting, listener, context));
        assert_eq!(ask(&file, "toy_live", version), 0);
    }
}

#[test]
fn what_a_communicator_asks_for_reaches_the_plugin_and_its_log_the_host() {
    let settings = [("communicator", "42"), ("traffic_class", "7")];
    let lines = |version: u32| {
        let (_, plugin) = load(&toy(&format!("nccl_log_{version}"), version, &[]));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&kept);
        let log = LogFn::new(move |line| {
            sink.lock().unwrap().push(format!("{} {}: {}", line.level, line.plugin, line.message));
        });
        let context = plugin.init(&settings, log).unwrap();
        pair(&context);
        drop(context);
        Arc::into_inner(kept).unwrap().into_inner().unwrap()
    };
    let said = lines(12);
    assert_eq!(
        said,
        ["INFO Toy12: toy: communicator 42, traffic class 7", "INFO Toy12: toy: version 12 is up"]
    );
    assert_eq!(lines(10), ["INFO Toy10: toy: connect with traffic class 7"]);
    let (_, plugin) = load(&toy("nccl_log_bad", 12, &[]));
    let error = plugin.init(&[("traffic_class", "high")], LogFn::none()).unwrap_err();
    assert!(matches!(error, NetError::Usage(_)) && error.to_string().contains("traffic_class"), "{error}");
}

#[test]
fn names_mean_what_they_mean_to_nccl() {
    // Again in a process of its own, since the path is read from the environment.
    const MARK: &str = "CCL_TEST_NCCL_FOLDER";
    if let Some(folder) = std::env::var_os(MARK) {
        let (line, plugin) = load("toyfabric");
        assert_eq!(plugin.file(), Some(&*Path::new(&folder).join("libnccl-net-toyfabric.so")), "{line}");
        assert_eq!(load("libnccl-net.so").1.name(), "Toy12");
        let (candidates, none) = NetPlugin::load("STATIC_PLUGIN");
        let line = candidates[0].to_string();
        assert!(none.is_err() && line.contains("STATIC_PLUGIN: not used, exports neither"), "{line}");
        // What a library shows to all is found in the program, as what is linked into it.
        let linked = Path::new(&folder).join("libnccl_names_linked.so");
        let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL;
        // SAFETY: a library whose initialisers do nothing.
        std::mem::forget(unsafe { libloading::os::unix::Library::open(Some(linked), flags) }.unwrap());
        let (line, plugin) = load("static");
        assert_eq!((plugin.name(), plugin.file()), ("Toy7", None));
        assert!(line.starts_with("STATIC_PLUGIN (offers ncclNetPlugin_v7): chosen, network Toy7"), "{line}");
        traffic_once(plugin);
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nccl_names");
    std::fs::create_dir_all(&folder).unwrap();
    for (file, name, version) in [
        (toy("nccl_names_9", 9, &[]), "libnccl-net-toyfabric.so", 9),
        (toy("nccl_names_12", 12, &[]), "libnccl-net.so", 12),
        (toy("nccl_names_7", 7, &[]), "libnccl_names_linked.so", 7),
    ] {
        std::fs::copy(file, folder.join(name)).unwrap_or_else(|error| panic!("version {version}: {error}"));
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "names_mean_what_they_mean_to_nccl"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(MARK, &folder)
        .status()
        .unwrap();
    assert!(status.success());
}

fn traffic_once(plugin: NetPlugin) {
    let (mut send, mut recv) = pair(&context(plugin, &[]));
    traffic(&mut send, &mut recv);
}
