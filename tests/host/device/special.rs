//! Short all-reduces by a kernel of their own: the bytes of the program that they stand for, and its errors.

use ccl::{Collective, Communicator, Config, Dtype, Rank, ReduceOp, local};

use super::alone::{alone, settings};
use super::graphs::replays;
use super::{hears_of_an_abort, on};
use crate::matrix::sweep_of;

const OWN: [(&str, &str); 2] = [("CCL_CUDA_ONE_SHOT", "4K"), ("CCL_ALGO", "all_reduce:one_shot")];

/// How an all-reduce of so many `f32` gets from device to device.
fn way(comm: &Communicator, count: usize) -> Option<&'static str> {
    comm.explain(Collective::AllReduce, Dtype::F32, count, Rank(0)).unwrap().protocol
}

fn ways(config: &Config, n: u32, count: usize) -> Vec<Option<&'static str>> {
    local::run_with(config, n, |comm| Ok(way(&comm, count))).unwrap()
}

#[test]
fn a_kernel_of_their_own_gives_the_programs_bytes() {
    for (n, device) in [(2, "local"), (3, "0"), (5, "local")] {
        let Some(config) = on(device, "a_kernel_of_their_own_gives_the_programs_bytes", &OWN) else { return };
        // As long as the setting says, and longer.
        sweep_of(&config, n, &[0, 1, 29, 1024, 1025], &[Dtype::F32], &[Collective::AllReduce]);
        let seen = [1, 1024, 1025].map(|count| ways(&config, n, count));
        let all = |way| vec![Some(way); n as usize];
        assert_eq!(seen, [all("special"), all("special"), all("ll")]);
    }
}

#[test]
fn every_dtype_and_operation_by_a_kernel_of_its_own() {
    let Some(config) = on("0", "every_dtype_and_operation_by_a_kernel_of_its_own", &OWN) else { return };
    sweep_of(&config, 3, &[257], &Dtype::ALL, &[Collective::AllReduce]);
}

#[test]
fn without_the_setting_or_the_algorithm_programs_are_interpreted() {
    let test = "without_the_setting_or_the_algorithm_programs_are_interpreted";
    for more in [&OWN[1..], &[OWN[0], ("CCL_ALGO", "all_reduce:ring")]] {
        let Some(config) = on("0", test, more) else { return };
        assert_eq!(ways(&config, 2, 1), [Some("ll"); 2]);
    }
    for (device, more) in [("0,none", None), ("0", Some(("CCL_P2P_DISABLE", "1")))] {
        let settings: Vec<_> = OWN.into_iter().chain(more).collect();
        let Some(config) = on(device, test, &settings) else { return };
        assert_eq!(ways(&config, 2, 1)[0], Some("simple"));
        sweep_of(&config, 2, &[1, 100], &[Dtype::F32], &[Collective::AllReduce]);
    }
}

#[test]
fn where_nothing_is_said_short_calls_take_it() {
    let test = "where_nothing_is_said_short_calls_take_it";
    let unset = ("CCL_CUDA_ONE_SHOT", "");
    let Some(config) = on("local", test, &[unset]) else { return };
    // Up to 256 KiB.
    assert_eq!([1, 1 << 16].map(|count| ways(&config, 3, count)[0]), [Some("special"); 2]);
    assert_ne!(ways(&config, 3, (1 << 16) + 1)[0], Some("special"));
    sweep_of(&config, 3, &[1, 1031, 1 << 16], &[Dtype::F32], &[Collective::AllReduce]);
    // Whoever leaves out its protocol leaves it out, too, and whoever asks for another algorithm.
    for other in [("CCL_PROTO", "simple"), ("CCL_ALGO", "all_reduce:ring")] {
        let Some(config) = on("local", test, &[unset, other]) else { return };
        assert_ne!(ways(&config, 3, 1)[0], Some("special"), "{other:?}");
    }
}

/// Its calls follow those on edges, and those on edges its.
#[test]
fn kernels_of_both_kinds_take_turns() {
    let Some(config) = on("local", "kernels_of_both_kinds_take_turns", &OWN) else { return };
    local::run_with(&config, 3, |comm| {
        for turn in 0..200u32 {
            let count = [1, 700, 1024, 1025, 3, 5000][turn as usize % 6];
            let mut values = vec![turn + comm.rank().0; count];
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            assert!(values.iter().all(|value| *value == 3 * turn + 3), "turn {turn}: {:?}", values[0]);
            let mut gathered = [99; 3];
            comm.all_gather(&[values[0] + comm.rank().0], &mut gathered)?;
            assert_eq!(gathered, [0, 1, 2].map(|rank| 3 * turn + 3 + rank), "turn {turn}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn communicators_have_inboxes_of_their_own() {
    let Some(config) = on("0", "communicators_have_inboxes_of_their_own", &OWN) else { return };
    local::run_with(&config, 4, |comm| {
        let half = comm.split(Some(comm.rank().0 % 2), 0)?;
        for turn in 0..20u32 {
            let (mut all, mut own) = ([turn + comm.rank().0; 9], [turn; 5]);
            comm.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
            if let Some(half) = &half {
                half.all_reduce_in_place(&mut own, ReduceOp::Sum)?;
            }
            assert_eq!((all, own), ([4 * turn + 6; 9], [2 * turn; 5]));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn graphs_replay_a_kernel_of_their_own() {
    alone(module_path!(), "graphs_replay_a_kernel_of_their_own", &[], |fake| {
        let own = [OWN[0], OWN[1], ("CCL_DEVICE", "local")];
        replays(fake, &settings(&own), 2, 300);
        fake.assert_nothing_is_left("replays of a kernel of their own");
    });
}

/// The first line of each rank says what call it is in.
#[test]
fn ranks_that_disagree_hear_of_it_from_a_kernel_of_their_own() {
    let test = "ranks_that_disagree_hear_of_it_from_a_kernel_of_their_own";
    let Some(config) = on("0", test, &OWN) else { return };
    let begin = std::time::Instant::now();
    for counts in [[100, 101], [100, 1000], [1, 2]] {
        heard(&config, counts);
    }
    // The deadline is after 30.
    assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
    // Whoever is not in such a call says nothing in lines: the deadline finds it.
    let Some(config) = on("0", test, &[OWN[0], OWN[1], ("CCL_TIMEOUT", "2s")]) else { return };
    heard(&config, [100, 20_000]);
}

/// Both ranks of an all-reduce of different counts hear of both.
fn heard(config: &Config, counts: [usize; 2]) {
    let outcomes = local::try_run_with(config, 2, |comm| {
        let count = counts[comm.rank().index()];
        comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
    });
    for outcome in outcomes.unwrap() {
        let text = outcome.unwrap_err().to_string();
        assert!(counts.iter().all(|count| text.contains(&count.to_string())), "{counts:?}: {text}");
    }
}

#[test]
fn an_abort_ends_a_kernel_of_their_own() {
    let short = [OWN[0], OWN[1], ("CCL_TIMEOUT", "20s")];
    let Some(config) = on("0", "an_abort_ends_a_kernel_of_their_own", &short) else { return };
    hears_of_an_abort(&config);
}
