//! Communicators on the control connections of others, over real sockets.

use std::thread;
use std::time::Instant;

use super::tests::{SECONDS, each, joined, settings, until};
use super::*;

/// Controls made from `controls`: the ranks of either half, in their order.
fn halves(controls: &[Control]) -> Vec<Control> {
    let half = controls.len() as u32 / 2;
    each(controls, |control| {
        let (side, rank) = (control.rank().0 / half, Rank(control.rank().0 % half));
        let info = vec![rank.0 as u8; 3];
        let (made, infos) = control.begin(u64::from(side) + 1, (rank, half), info).unwrap();
        let expected: Vec<_> = (0..half).map(|rank| vec![rank as u8; 3]).collect();
        assert_eq!(infos.to_vec(), expected);
        made
    })
}

fn gather(controls: &[Control]) {
    for (rank, infos) in each(controls, |control| control.all_gather(vec![control.rank().0 as u8]).unwrap())
        .into_iter()
        .enumerate()
    {
        let n = controls[rank].n();
        assert_eq!(infos, (0..n).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
    }
}

#[test]
fn branches_talk_among_themselves_and_outlive_the_trunk() {
    let (controls, root) = joined(6, &settings(30_000));
    let made = halves(&controls);
    for _ in 0..3 {
        gather(&controls);
        gather(&made);
    }
    made[0].send(Rank(2), 5, vec![9]).unwrap();
    assert_eq!(made[2].take(Rank(0), 5).unwrap(), [9]);
    assert!(made[5].try_take(Rank(0), 5).is_none(), "it is another branch");
    assert!(controls.iter().all(Control::is_connected) && !made.iter().any(Control::is_connected));
    drop(controls);
    gather(&made);
    assert!(!root.is_over());
    drop(made);
    until("the root to end", SECONDS, || root.is_over());
}

#[test]
fn a_death_concerns_the_branches_that_it_is_in() {
    let (controls, _root) = joined(6, &settings(30_000));
    let made = halves(&controls);
    controls[4].die();
    for rank in [3, 5] {
        until("the alarm", SECONDS, || made[rank].alarm().raised());
        let error = made[rank].alarm().error().unwrap();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(1) }, "{error}");
    }
    for rank in [0, 1, 2, 3, 5] {
        until("the alarm", SECONDS, || controls[rank].alarm().raised());
    }
    gather(&made[..3]);
}

#[test]
fn an_abort_ends_what_was_made_but_not_what_it_was_made_from() {
    let (controls, _root) = joined(4, &settings(30_000));
    let (left, right) = (halves(&controls), controls);
    left[0].abort("enough of this half");
    for control in &left[..2] {
        until("the alarm", SECONDS, || control.alarm().raised());
        assert!(control.alarm().error().unwrap().cause().contains("enough of this half"));
    }
    gather(&left[2..]);
    gather(&right);
    right[1].abort("enough of all");
    for control in right.iter().chain(&left[2..]) {
        until("the alarm", SECONDS, || control.alarm().raised());
        assert!(control.alarm().error().unwrap().cause().contains("enough of all"));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_one_that_fails_gives_its_reason() {
    let (controls, _root) = joined(4, &settings(1500));
    let errors = each(&controls[..3], |control| {
        control.begin(7, (control.rank(), 4), Vec::new()).err().unwrap().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("missing: rank 3")), "{errors:?}");
    let errors = each(&controls, |control| match control.rank() {
        Rank(2) => {
            control.begin_failed(8, (Rank(2), 4), "no memory here");
            String::new()
        }
        rank => control.begin(8, (rank, 4), Vec::new()).err().unwrap().to_string(),
    });
    for rank in [0, 1, 3] {
        assert!(errors[rank].contains("rank 2") && errors[rank].contains("no memory here"), "{errors:?}");
    }
    // Neither ended the communicator.
    gather(&controls);
}

#[test]
fn joining_a_branch_ends_with_the_communicator_it_is_made_from() {
    let (controls, _root) = joined(2, &settings(30_000));
    let started = Instant::now();
    let errors = each(&controls, |control| match control.rank() {
        Rank(0) => control.begin(3, (Rank(0), 2), Vec::new()).err(),
        _ => {
            thread::sleep(Duration::from_millis(50));
            control.abort("another plan");
            None
        }
    });
    assert!(errors[0].as_ref().unwrap().cause().contains("another plan"), "{errors:?}");
    assert!(started.elapsed() < SECONDS);
}
