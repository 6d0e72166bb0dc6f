//! Communicators made from others.

use ccl::{Communicator, Rank, ReduceOp, Result, local};

/// The sum over ranks, which differ in what they bring and in how long it is.
fn check(comm: &Communicator, count: usize) -> Result<()> {
    let mut values = vec![f64::from(comm.rank().0 + 1); count];
    comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
    let n = f64::from(comm.size());
    assert!(values.iter().all(|value| *value == n * (n + 1.0) / 2.0));
    Ok(())
}

#[test]
fn ranks_of_a_color_make_a_communicator_in_the_order_of_their_keys() {
    let outcome = local::run(7, |comm| {
        let rank = comm.rank().0;
        // Rank 6 takes no part; the others go by threes, backwards.
        let color = (rank < 6).then_some(rank % 2);
        let made = comm.split(color, -i64::from(rank))?;
        assert_eq!(made.is_some(), rank < 6);
        for count in [1, 1000, 300_000] {
            check(&comm, count)?;
            made.as_ref().map_or(Ok(()), |made| check(made, count))?;
        }
        let Some(made) = made else { return Ok(None) };
        let mut gathered = [0; 3];
        made.all_gather(&[rank], &mut gathered)?;
        assert_eq!(gathered, [4, 2, 0].map(|even| even + rank % 2));
        // Communicators of one rank, and of all, made from one that was made.
        let alone = made.split(Some(made.rank().0), 0)?.unwrap();
        assert_eq!((alone.size(), alone.rank()), (1, Rank(0)));
        check(&alone, 10)?;
        let again = made.split(Some(0), 0)?.unwrap();
        assert_eq!((again.size(), again.rank()), (3, made.rank()));
        // What was made outlives what it was made from.
        drop((comm, made));
        check(&again, 1000)?;
        again.barrier()?;
        Ok(Some(again.rank()))
    });
    let ranks: Vec<_> = outcome.unwrap().into_iter().map(|rank| rank.map(|rank| rank.0)).collect();
    assert_eq!(ranks, [Some(2), Some(2), Some(1), Some(1), Some(0), Some(0), None]);
}
