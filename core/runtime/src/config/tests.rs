use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Fault;

fn vars(vars: &[(&str, &str)]) -> Result<Config> {
    Config::from_vars(vars.iter().copied())
}

#[test]
fn defaults_parse_and_print_themselves() {
    let config = Config::default();
    assert_eq!(config.timeout(), Duration::from_secs(300));
    assert_eq!(config.init_timeout(), config.timeout());
    assert_eq!(config.buffsize(), 512 << 10);
    assert_eq!(config.comm_id(), None);
    assert!(config.resolved().iter().all(|resolved| resolved.source == Source::Default));
    for Resolved { setting, value, .. } in config.resolved() {
        let open = setting.default.is_empty() || setting.default.starts_with('=');
        assert!(open || value == setting.default, "{}: {value}", setting.name);
    }
}

#[test]
fn names_are_unique_and_well_formed() {
    let mut names: Vec<_> =
        SETTINGS.iter().flat_map(|setting| [Some(setting.name), setting.alias]).flatten().collect();
    assert!(SETTINGS.iter().all(|setting| setting.name.starts_with("CCL_")));
    assert!(SETTINGS.iter().filter_map(|setting| setting.alias).all(|alias| alias.starts_with("NCCL_")));
    assert!(SETTINGS.iter().all(|setting| setting.about.trim().ends_with('.')));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn sources_have_their_order() {
    let name = "CCL_BUFFSIZE";
    let all = [
        (Config::builder().set(name, "1"), "the program"),
        (Config::builder().vars([(name, "2")]), "CCL_BUFFSIZE in the environment"),
        (Config::builder().vars([("NCCL_BUFFSIZE", "3")]), "NCCL_BUFFSIZE in the environment"),
        (Config::builder().file("user", "\nCCL_BUFFSIZE=4"), "CCL_BUFFSIZE in user:2"),
        (Config::builder().file("user", "NCCL_BUFFSIZE=5"), "NCCL_BUFFSIZE in user:1"),
        (Config::builder().file("etc", "CCL_BUFFSIZE=6"), "CCL_BUFFSIZE in etc:1"),
        (Config::builder(), "the default"),
    ];
    for first in 0..all.len() {
        // Everything from `first` on, in an order that does not matter except among files.
        let mut builder = Config::builder();
        let (program, rest): (Vec<_>, Vec<_>) = (first..all.len()).partition(|&place| place == 0);
        if !program.is_empty() {
            builder = builder.set(name, "1");
        }
        for place in rest {
            builder = match place {
                1 => builder.vars([(name, "2")]),
                2 => builder.vars([("NCCL_BUFFSIZE", "3")]),
                3 => builder.file("user", "\nCCL_BUFFSIZE=4"),
                4 => builder.file("user", "NCCL_BUFFSIZE=5"),
                5 => builder.file("etc", "CCL_BUFFSIZE=6"),
                _ => builder,
            };
        }
        let config = builder.build().unwrap();
        let expected = all[first].0.build().unwrap();
        assert_eq!(config.buffsize(), expected.buffsize());
        assert_eq!(config.find(name).unwrap().source.to_string(), all[first].1);
    }
}

#[test]
fn a_later_call_of_set_wins() {
    let config = Config::builder().set("CCL_SLOTS", "4").set("CCL_SLOTS", "16").build().unwrap();
    assert_eq!(config.slots(), 16);
}

#[test]
fn an_empty_value_says_nothing() {
    let config =
        vars(&[("CCL_TIMEOUT", " "), ("NCCL_DEBUG", ""), ("CCL_BUFFSIZE", ""), ("NCCL_BUFFSIZE", "8M")])
            .unwrap();
    assert_eq!(config.timeout(), Duration::from_secs(300));
    assert_eq!(config.buffsize(), 8 << 20);
}

#[test]
fn a_bad_value_is_an_error_that_says_everything() {
    let error = vars(&[("NCCL_SOCKET_FAMILY", "AF_IPX")]).unwrap_err();
    assert_eq!(*error.fault(), Fault::Usage);
    for part in
        ["CCL_SOCKET_FAMILY", "`AF_IPX`", "NCCL_SOCKET_FAMILY in the environment", "AF_INET or AF_INET6"]
    {
        assert!(error.cause().contains(part), "{part}: {error}");
    }
    let error = Config::builder().file("/etc/ccl.conf", "#\nCCL_SLOTS=0").build().unwrap_err();
    assert!(error.cause().contains("/etc/ccl.conf:2"), "{error}");
}

#[test]
fn an_unknown_name_gets_a_warning_with_the_nearest() {
    let config = vars(&[
        ("CCL_TIMOUT", "3"),
        ("CCL_QUUX_FROBNICATE", "1"),
        ("NCCL_NVLS_NCHANNELS", "1"),
        ("PATH", "/"),
    ])
    .unwrap();
    assert_eq!(config.warnings().len(), 2);
    assert!(config.warnings()[0].contains("did you mean CCL_TIMEOUT?"), "{:?}", config.warnings());
    assert!(!config.warnings()[1].contains("did you mean"), "{:?}", config.warnings());
    assert_eq!(config.ignored(), ["NCCL_NVLS_NCHANNELS"]);
    let error = Config::builder().set("CCL_ALGOS", "ring").build().unwrap_err();
    assert!(error.cause().contains("did you mean CCL_ALGO?"), "{error}");
    assert!(vars(&[("CCL_IB_HCA", "mlx5")]).unwrap().warnings().is_empty());
}

#[test]
fn the_digest_covers_what_must_agree_and_nothing_else() {
    let digest = |pairs| vars(pairs).unwrap().digest();
    let plain = digest(&[]);
    assert_eq!(digest(&[("CCL_TIMEOUT", "1"), ("CCL_SECRET", "x"), ("CCL_HOSTID", "a")]), plain);
    assert_eq!(digest(&[("CCL_BUFFSIZE", "524288")]), plain);
    assert_ne!(digest(&[("CCL_BUFFSIZE", "8M")]), plain);
    assert_ne!(digest(&[("CCL_ALGO", "ring")]), digest(&[("CCL_NET", "ring")]));
}

#[test]
fn differences_name_both_values() {
    let ours = vars(&[("CCL_SLOTS", "16")]).unwrap();
    let theirs = vars(&[("CCL_ALGO", "ring")]).unwrap();
    let shown: Vec<_> = ours.differences(&theirs.agreed()).iter().map(Difference::to_string).collect();
    assert_eq!(shown, ["CCL_SLOTS: ours `16`, theirs `8`", "CCL_ALGO: ours ``, theirs `ring`"]);
    let newer: Vec<_> = ours.agreed().into_iter().skip(1).chain([("CCL_NEW", "1")]).collect();
    let shown: Vec<_> = ours.differences(&newer).iter().map(Difference::to_string).collect();
    assert_eq!(shown, ["CCL_OOB_NET_ENABLE: ours `0`, theirs unknown", "CCL_NEW: ours unknown, theirs `1`"]);
}

#[test]
fn printing_shows_values_and_sources_but_no_secret() {
    let config = vars(&[("CCL_SECRET", "hunter2"), ("CCL_SLOTS", "16")]).unwrap();
    let shown = config.to_string();
    assert!(shown.contains("16") && shown.contains("(CCL_SLOTS in the environment)"), "{shown}");
    assert_eq!(shown.lines().count(), SETTINGS.len());
    for text in [shown, config.to_toml(), format!("{config:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn toml_reads_back_as_the_same_settings() {
    let config =
        vars(&[("CCL_ALGO", "allreduce:^tree"), ("CCL_HOSTID", "a \"b\""), ("CCL_DEBUG_SUBSYS", "^NET")])
            .unwrap();
    let table: toml::Table = config.to_toml().parse().unwrap();
    let again =
        Config::from_vars(table.into_iter().map(|(name, value)| (name, value.as_str().unwrap().to_owned())))
            .unwrap();
    let values = |config: &Config| config.resolved().iter().map(|one| one.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&again), values(&config));
}

proptest! {
    #[test]
    fn no_text_is_taken_for_a_value_it_does_not_print_back(which in 0..SETTINGS.len(), text in "[ -~]{0,24}") {
        let name = SETTINGS[which].name;
        if let Ok(config) = Config::from_vars([(name, text.as_str())]) {
            let printed = config.find(name).unwrap().value.clone();
            if printed != choice::HIDDEN && !printed.is_empty() {
                let again = Config::from_vars([(name, printed.as_str())]).unwrap();
                prop_assert_eq!(&again.find(name).unwrap().value, &printed);
            }
        }
    }
}
