//! Settings from an env plugin made for NCCL: what it says stands in place of the environment and the files.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use ccl::config::{Builder, Source};
use ccl::{Config, Fault, ReduceOp, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, source, toy_env};

fn with(plugin: &str) -> Builder {
    Config::builder().set("CCL_ENV_PLUGIN", plugin).process().unwrap()
}

#[test]
fn a_plugin_stands_between_the_program_and_the_rest() {
    let file = toy_env("env_settings", &[2], &[]);
    let config = with(&file).vars([("CCL_SLOTS", "4"), ("NCCL_BUFFSIZE", "1M")]).build().unwrap();
    assert_eq!(config.env().unwrap().name(), "Toy2");
    assert!(config.env_candidates()[0].is_chosen());
    assert_eq!((config.slots(), config.buffsize()), (16, 1 << 20));
    let slots = config.find("CCL_SLOTS").unwrap();
    assert_eq!(slots.source, Source::Plugin { name: "CCL_SLOTS", plugin: "Toy2" });
    assert_eq!(slots.source.to_string(), "CCL_SLOTS from the env plugin Toy2");
    // What the plugin leaves alone keeps its source.
    let buffsize = config.find("CCL_BUFFSIZE").unwrap();
    assert_eq!(buffsize.source, Source::Environment { name: "NCCL_BUFFSIZE" });
    let config = with(&file).set("CCL_SLOTS", "2").build().unwrap();
    assert_eq!(config.slots(), 2, "the program comes first");
}

#[test]
fn files_count_where_the_plugin_has_nothing() {
    let conf = source("env_conf", "CCL_SLOTS=4\nCCL_BUFFSIZE=2M\n");
    let file = toy_env("env_files", &[1], &[]);
    let config = Config::builder()
        .set("CCL_ENV_PLUGIN", &*file)
        .set("CCL_CONF_FILE", conf.to_str().unwrap())
        .process()
        .and_then(|builder| builder.build())
        .unwrap();
    assert_eq!((config.slots(), config.buffsize()), (16, 2 << 20));
}

#[test]
fn what_cannot_be_read_names_plugin_and_setting() {
    let error = with(&toy_env("env_bytes", &[1], &["-DGARBAGE"])).build().unwrap_err();
    assert_eq!(*error.fault(), Fault::Plugin { name: "Toy1".to_owned() });
    assert!(error.cause().contains("setting CCL_CHUNK_BYTES: expected a value in UTF-8"), "{error}");
    let error = with(&toy_env("env_range", &[2], &["-DSLOTS=\"0\""])).build().unwrap_err();
    assert_eq!(*error.fault(), Fault::Usage);
    let cause = error.cause();
    assert!(cause.contains("found `0`, from CCL_SLOTS from the env plugin Toy2"), "{error}");
}

#[test]
fn without_a_usable_plugin_there_is_a_warning_and_the_environment() {
    let config = with("/no/such/env.so").vars([("CCL_SLOTS", "4")]).build().unwrap();
    assert_eq!((config.slots(), config.env().is_none()), (4, true));
    let [warning] = config.warnings() else { panic!("{:?}", config.warnings()) };
    assert!(
        warning.contains("CCL_ENV_PLUGIN=/no/such/env.so") && warning.contains("cannot be opened"),
        "{warning}"
    );
    let config = with("none").build().unwrap();
    assert!(config.warnings().is_empty() && config.env_candidates().is_empty());
}

#[test]
fn a_hundred_communicators_share_one_init() {
    let file = toy_env("env_hundred", &[1, 2], &[]);
    for _ in 0..100 {
        let config = with(&file).build().unwrap();
        let sums = local::run_with(&config, 2, |comm| {
            let mut sum = [comm.rank().0 + 1; 3];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            Ok(sum)
        });
        assert_eq!((sums.unwrap(), config.slots()), (vec![[3; 3]; 2], 16));
    }
    assert_eq!((ask(&file, "toy_inits", 1), ask(&file, "toy_inits", 2)), (0, 1));
}
