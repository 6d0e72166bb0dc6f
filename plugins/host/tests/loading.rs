//! Plugins from files: Rust ones, C ones compiled from the header alone, and those that are refused.

#![allow(clippy::unwrap_used)]

#[path = "../../../net-socket/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_plugin_host::{Candidate, LogFn, NetError, NetPlugin};
use common::*;

/// The file of an example of this crate, which cargo builds with the tests.
fn example(name: &str) -> String {
    let beside = std::env::current_exe().unwrap();
    let file = beside.parent().unwrap().parent().unwrap().join(format!("examples/lib{name}.so"));
    assert!(file.exists(), "{} is not built; run all tests of the package", file.display());
    file.to_str().unwrap().to_string()
}

/// Compiles a C plugin to a file named `lib<name>.so`.
fn compile(source: &Path, name: &str, flags: &[&str]) -> String {
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-O1",
            "-g",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .args([&plugins.join("include"), source, Path::new("-o"), &output])
        .args(flags)
        .arg("-lpthread")
        .status()
        .expect("these tests need a C compiler named cc");
    assert!(status.success());
    output.to_str().unwrap().to_string()
}

fn loopback(name: &str, flags: &[&str]) -> String {
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/loopback_net.c"), name, flags)
}

fn load(spec: &str) -> NetPlugin {
    let (candidates, plugin) = NetPlugin::load(spec);
    plugin.unwrap_or_else(|error| panic!("{error}\n{candidates:?}"))
}

/// The one line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = NetPlugin::load(spec);
    let error = plugin.unwrap_err();
    assert!(matches!(error, NetError::Load(_)), "{error:?}");
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(!only.is_chosen());
    let line = only.to_string();
    assert!(!line.contains('\n') && error.to_string().contains(&line), "{error}");
    line
}

fn traffic(plugin: NetPlugin) {
    let (mut send, mut recv) = pair(&context(plugin, &[]));
    let messages: Vec<Message> =
        (0..200).map(|i| Message { tag: i % 3, bytes: (i as usize * 7919) % 50_000, room: 50_000 }).collect();
    let order: Vec<usize> = (0..messages.len()).collect();
    exchange(&mut send, &mut recv, &messages, &order, 8);
}

#[test]
fn a_rust_plugin_carries_messages_and_its_layout_was_checked() {
    let file = example("ccl_net_socket_loaded");
    let (candidates, plugin) = NetPlugin::load(&file);
    let plugin = plugin.unwrap();
    assert_eq!((plugin.name(), plugin.version()), ("socket", 1));
    assert_eq!(plugin.file(), Some(Path::new(&file)));
    let line = candidates[0].to_string();
    assert!(
        line.contains("offers cclNet_v1") && line.contains("chosen") && line.contains("layout"),
        "{line}"
    );
    assert!(plugin.turns());
    traffic(plugin);
    // The one that is loaded and the one that is linked in do not get in each other's way.
    assert_ne!(plugin, linked());
    assert_ne!(plugin.digest().unwrap(), linked().digest().unwrap());
    traffic(linked());
}

#[test]
fn what_the_systems_loader_finds_has_a_file_to_compare() {
    // A library that is loaded already is found by its own name, as one in the loader's folders is.
    let file = loopback("c_named", &["-Wl,-soname,libccl_named_net.so"]);
    let by_path = load(&file);
    let by_name = load("libccl_named_net.so");
    assert_eq!(by_name.file().unwrap().canonicalize().unwrap(), Path::new(&file).canonicalize().unwrap());
    assert_eq!(by_name.digest().unwrap(), by_path.digest().unwrap());
}

#[test]
fn a_c_plugin_from_the_header_alone_carries_messages() {
    let plugin = load(&loopback("c_good", &[]));
    assert_eq!((plugin.name(), plugin.checked_by()), ("loopback-c", "a C table"));
    traffic(plugin);
    let context = context(plugin, &[]);
    assert_eq!(context.properties(0).unwrap().name, "loopback0");
    let (mut send, mut recv) = pair(&context);
    assert!(!plugin.turns());
    assert!(matches!(send.turn(), Err(NetError::Unsupported(_))));
    assert!(matches!(recv.turn(), Err(NetError::Unsupported(_))));
    let bytes = [1u8; 8];
    let mr = register_send(&mut send, &bytes);
    // SAFETY: `bytes` outlives the comm's use of it.
    assert!(unsafe { send.send_more(bytes.as_ptr(), 8, 0, &mr) }.unwrap().is_some(), "an ordinary send");
    drop(recv);
    // SAFETY: `bytes` outlives the comm's use of it.
    let error = unsafe { send.send(bytes.as_ptr(), 8, 0, &mr) }.unwrap_err();
    assert!(matches!(error, NetError::Remote(_)), "{error:?}");
}

#[test]
fn the_words_of_a_c_plugin_reach_the_error_and_the_log() {
    let plugin = load(&loopback("c_words", &[]));
    let error = plugin.init(&[("fail", "yes")], LogFn::none()).unwrap_err();
    assert!(matches!(error, NetError::Usage(_)), "{error:?}");
    assert_eq!(error.to_string(), "network loopback-c: init: setting fail: expected none, found \"yes\"");
    let lines = Lines::default();
    let context = plugin.init(&[], lines.log()).unwrap();
    assert!(lines.text().contains("INFO loopback is ready"), "{}", lines.text());
    let error = context.connect(0, ccl_plugin_host::Handle([0; 128])).unwrap_err();
    assert_eq!(error.detail().peer.as_deref(), Some("loopback"), "{error:?}");
}

#[test]
fn the_same_file_is_the_same_plugin_for_ever() {
    let file = loopback("c_again", &[]);
    let first = load(&file);
    for _ in 0..100 {
        let (candidates, again) = NetPlugin::load(&file);
        assert!(candidates[0].to_string().contains("already loaded"));
        assert_eq!(again.unwrap(), first);
        drop(context(first, &[]));
    }
    assert_eq!(NetPlugin::linked(ccl_net_socket::table()).unwrap(), linked());
}

#[test]
fn wrong_plugins_are_refused_in_words() {
    let line = refusal(&loopback("c_version", &["-DLOOPBACK_VERSION=7"]));
    assert!(line.contains("expected a table of version 1, found version 7"), "{line}");
    let line = refusal(&example("changed_layout"));
    assert!(line.contains("layout does not match"), "{line}");
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nccl.c");
    std::fs::write(&source, "void *ncclNetPlugin_v8[32], *ncclNetPlugin_v10[32];\n").unwrap();
    let line = refusal(&compile(&source, "nccl_shaped", &[]));
    assert!(line.contains("offers ncclNetPlugin_v8, ncclNetPlugin_v10"), "{line}");
    assert!(line.ends_with("not used, ncclNetPlugin_v10: expected init, found a null pointer"), "{line}");
    std::fs::write(&source, "int nothing;\n").unwrap();
    let line = refusal(&compile(&source, "of_something_else", &[]));
    assert!(
        line.contains("exports neither cclNet_v1 nor one of ncclNetPlugin_v6 to ncclNetPlugin_v12"),
        "{line}"
    );
    let line = refusal(source.to_str().unwrap());
    assert!(line.contains("cannot be opened"), "{line}");
    let line = refusal("/no/such/file.so");
    assert!(line.contains("/no/such/file.so: not used, cannot be opened"), "{line}");
}

#[test]
fn a_list_takes_the_first_that_works() {
    let (bad, good) = (loopback("c_list_bad", &["-DLOOPBACK_VERSION=2"]), loopback("c_list", &[]));
    let (candidates, plugin) = NetPlugin::load(&format!("no_such_network, {bad} ,{good},{bad}"));
    assert_eq!(plugin.unwrap().name(), "loopback-c");
    let files: Vec<_> = candidates.iter().map(|c| c.file.to_str().unwrap()).collect();
    let nccls = ["no_such_network", "libnccl-net-no_such_network.so"];
    let ours = ["libccl-net-no_such_network.so", "libccl_net_no_such_network.so"];
    assert_eq!(files, [&ours[..], &nccls[..], &[&bad, &good]].concat());
    assert_eq!(candidates.iter().filter(|c| Candidate::is_chosen(c)).count(), 1);
}

#[test]
fn a_name_is_found_on_the_library_path() {
    // Again in a process of its own, since the path is read from the environment.
    const MARK: &str = "CCL_TEST_LIBRARY_PATH_IS_SET";
    let folder = Path::new(&example("ccl_net_socket_loaded")).parent().unwrap().to_path_buf();
    if std::env::var_os(MARK).is_some() {
        assert_eq!(load("socket_loaded").file().unwrap().parent(), Some(&*folder));
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_name_is_found_on_the_library_path"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(MARK, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_panic_is_a_code_with_words_and_the_rest_goes_on() {
    let (_turn, plugin) = panicking();
    let lines = Lines::default();
    let error = plugin.init(&[("panic", "please")], lines.log()).unwrap_err();
    assert!(lines.text().contains("ERROR panicking: panic in init: told to panic"), "{}", lines.text());
    let NetError::Plugin(detail) = &error else { panic!("{error:?}") };
    assert_eq!(detail.code, ccl_plugin::Code::PANIC.0);
    assert!(detail.message.contains("panic in init: told to panic"), "{error}");

    let lines = Lines::default();
    let context = plugin.init(&[], lines.log()).unwrap();
    let error = context.properties(0).unwrap_err();
    assert!(error.to_string().contains("properties of nothing"), "{error}");
    assert!(lines.text().contains("ERROR panicking: panic in properties"), "{}", lines.text());
    let (_, mut listener) = context.listen(0).unwrap();
    assert!(listener.poll().unwrap_err().to_string().contains("a value that is no text"));
    let error = listener.poll().unwrap_err();
    assert!(error.to_string().contains("can only be closed"), "{error}");
    drop(listener);
    let error = context.connect(0, ccl_plugin_host::Handle([0; 128])).unwrap_err();
    assert_eq!(error.to_string(), "network panicking: connect: peer nobody: there is no device 0");
}

#[test]
fn what_a_rust_plugin_traces_reaches_its_host() {
    let (_turn, plugin) = panicking();
    let lines = Lines::default();
    let log = lines.log();
    log.set_level(Some(tracing::Level::INFO));
    let context = plugin.init(&[], log.clone()).unwrap();
    let text = lines.text();
    assert!(text.contains("INFO hello from the plugin answer=42"), "{text}");
    assert!(!text.contains("nobody wants this"), "{text}");
    let younger = Lines::default();
    let other = plugin.init(&[], younger.log()).unwrap();
    drop(context.listen(0).unwrap());
    assert!(younger.text().contains("WARN closed") && !lines.text().contains("WARN closed"));
    drop(other);
    drop(context.listen(0).unwrap());
    assert!(lines.text().contains("WARN closed"));
}

#[test]
fn a_sink_that_panics_costs_its_line() {
    let (_turn, plugin) = panicking();
    let context = plugin.init(&[], LogFn::new(|line| panic!("{}", line.message))).unwrap();
    assert_eq!(context.device_count(), 1);
}

/// The plugin that panics, for one test at a time: it logs to its youngest context.
fn panicking() -> (MutexGuard<'static, ()>, NetPlugin) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, load(&example("panicking")))
}

/// Lines of log, kept.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Lines {
    fn log(&self) -> LogFn {
        let lines = self.0.clone();
        LogFn::new(move |line| {
            let text = format!("{} {}\n", line.level, line.message);
            lines.lock().unwrap().push_str(&text);
        })
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}
