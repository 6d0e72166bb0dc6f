//! A tuner in Rust that goes wrong in every way there is: collectives are right, and the cost model chooses.

use std::time::{Duration, Instant};

use ccl::{Collective, Config, Dtype, Rank, ReduceOp, local};

/// What an all-reduce of 4 KiB on three ranks does, and by whose advice; `how` is what the tuner is to do.
fn choice(how: &str) -> (String, Option<String>) {
    let beside = std::env::current_exe().unwrap();
    let file = beside.parent().unwrap().parent().unwrap().join("examples/libadvising_ranks.so");
    assert!(file.exists(), "{} is not built; run all tests of the package", file.display());
    let config = Config::from_vars([
        ("CCL_TUNER_PLUGIN", file.to_str().unwrap()),
        ("CCL_TUNER_CONFIG_FILE", how),
        ("CCL_TUNING_FILE", "none"),
        ("CCL_TIMEOUT", "6s"),
    ]);
    let all = local::run_with(&config.unwrap(), 3, |comm| {
        let mut sum = vec![i64::from(comm.rank().0); 512];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|value| *value == 3));
        let said = comm.explain(Collective::AllReduce, Dtype::I64, 512, Rank(0))?;
        Ok((said.choice.algorithm.name().to_owned(), said.tuner))
    });
    let all = all.unwrap();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    all[0].clone()
}

#[test]
fn what_goes_wrong_in_a_tuner_costs_its_advice_and_nothing_else() {
    let model = choice("says nothing");
    assert_eq!(model.1, None);
    let (advised, tuner) = choice("");
    assert_eq!(tuner.as_deref(), Some("advising"));
    assert_ne!(advised, model.0, "it wants the last candidate");
    for how in ["init fails", "init panics", "advise fails", "advise panics", "forbids all", "is no number"] {
        assert_eq!(choice(how), model, "{how}");
    }
    // Last, since it is not asked again.
    let started = Instant::now();
    assert_eq!(choice("never returns"), model);
    let first = started.elapsed();
    assert!((Duration::from_secs(3)..Duration::from_secs(6)).contains(&first), "{first:?}");
    assert_eq!(choice(""), model, "it is asked no more");
}
