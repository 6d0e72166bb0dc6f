//! Making communicators from one: some of its ranks, in an order of their own.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ccl_plan::Rank;

use super::Communicator;
use super::init::{connect, edge_settings, open_with};
use crate::bootstrap::infos::Infos;
use crate::control::Control;
use crate::error::{Error, Fault, Result};
use crate::observe::flight::Recorded;
use crate::transport::{Fabric, TransportSettings};

impl Communicator {
    /// Makes a communicator of all ranks that give the same `color`, or none for a rank that gives none. Its
    /// ranks are in the order of their `key`s, and where these are equal in the order that they have here. A
    /// collective: every rank of this communicator calls it at the same place among its calls.
    ///
    /// Waits for what is outstanding, then blocks until all ranks have called it and those of the new
    /// communicator have connected, at most until `CCL_INIT_TIMEOUT`.
    ///
    /// The new communicator has the settings of this one and uses its control connection, so nobody listens
    /// or connects for it: ranks of one host need no socket at all. Over a network its edges connect when
    /// they are first used. With `CCL_OOB_NET_ENABLE` infos travel over the network, on connections that are closed
    /// before this returns. Either may be dropped first. Aborting this one aborts what was made from it; any
    /// other failure stays with the communicators whose ranks it concerns.
    ///
    /// # Errors
    ///
    /// Ranks that do not come, by name; a rank of the new communicator that failed, with its reason (ranks
    /// of other colors are not concerned); this communicator's failure.
    ///
    /// ```
    /// # ccl::local::run(4, |comm| {
    /// let rank = comm.rank();
    /// let pair = comm.split(Some(rank.0 / 2), i64::from(rank.0))?.expect("this rank gives a color");
    /// let mut sum = [rank.0];
    /// pair.all_reduce_in_place(&mut sum, ccl::ReduceOp::Sum)?;
    /// assert_eq!(sum, [if rank.0 < 2 { 0 + 1 } else { 2 + 3 }]);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        self.split_now(color, key).map_err(|error| error.on(self.rank).during("split"))
    }

    fn split_now(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let started = Instant::now();
        self.with_engine(|engine| engine.finish())?;
        let number = self.splits.replace(self.splits.get() + 1);
        let wishes = self.control.all_gather(Wish { color, key }.to_bytes())?;
        let Some(color) = color else { return Ok(None) };
        let (rank, members) = place(&wishes, color, self.rank)?;
        let place = self.recorded.place.split(number, color, &members);
        let recorded = Recorded { flight: Arc::clone(&self.recorded.flight), place };
        let n = members.len() as u32;
        if n == 1 {
            return Communicator::alone_in(recorded, &self.config).map(Some);
        }
        let branch = self.control.number_of_branch(number, color);
        let settings = self.with_engine(|engine| engine.fabric().settings_of_branch(branch))?;
        let sizes = edge_settings(n, &self.config);
        let (slot_bytes, net_slot_bytes) = (sizes.slot_bytes, sizes.net_slot_bytes);
        let settings = TransportSettings { slot_bytes, net_slot_bytes, ..settings };
        let opened = open_with(&settings, rank, n, &self.config);
        let (fabric, hello) = opened.inspect_err(|error| {
            // The others must not wait for a rank that cannot come.
            self.control.begin_failed(branch, (rank, n), &error.to_string());
        })?;
        let (control, hellos) = self.control.begin(branch, (rank, n), hello)?;
        self.grow(fabric, Arc::new(control), (&hellos, recorded), started).map(Some)
    }

    /// Connects the ranks that have come.
    fn grow(
        &self,
        mut fabric: Fabric,
        control: Arc<Control>,
        (hellos, recorded): (&Infos, Recorded),
        started: Instant,
    ) -> Result<Communicator> {
        let (rank, config) = (control.rank(), &self.config);
        let deadline = started + config.init_timeout();
        connect(&mut fabric, &control, hellos, (rank, config), deadline)
            .and_then(|()| Communicator::assemble(fabric, Arc::clone(&control), recorded, config))
            .map_err(|error| control.report(error.on(rank)))
    }
}

/// What a rank wants of a split.
struct Wish {
    color: Option<u32>,
    key: i64,
}

impl Wish {
    fn to_bytes(&self) -> Vec<u8> {
        let color = self.color.map_or(-1, i64::from);
        [color.to_le_bytes(), self.key.to_le_bytes()].concat()
    }

    fn from_bytes(from: Rank, bytes: &[u8]) -> Result<Wish> {
        let (&[color, key], []) = bytes.as_chunks::<8>() else {
            let cause = format!("expected the color and key of a split, found {} bytes", bytes.len());
            let advice = "call split at the same place on all ranks";
            return Err(Error::new(Fault::Remote { rank: from }, cause, advice));
        };
        let color = u32::try_from(i64::from_le_bytes(color)).ok();
        Ok(Wish { color, key: i64::from_le_bytes(key) })
    }
}

/// The place of rank `me` among those of `color`, and who these are.
fn place(wishes: &[Bytes], color: u32, me: Rank) -> Result<(Rank, Vec<Rank>)> {
    let mut members = Vec::new();
    for (rank, bytes) in (0..).map(Rank).zip(wishes) {
        let wish = Wish::from_bytes(rank, bytes)?;
        if wish.color == Some(color) {
            members.push((wish.key, rank));
        }
    }
    members.sort_unstable();
    let place = members.iter().position(|(_, rank)| *rank == me);
    let place = place.ok_or_else(|| Error::bug("a rank is not among those of its color"))?;
    Ok((Rank(place as u32), members.into_iter().map(|(_, rank)| rank).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_the_ranks_of_a_color() {
        let wishes = [(Some(1), 5), (None, 0), (Some(1), -3), (Some(0), 0), (Some(1), 5)];
        let wishes = wishes.map(|(color, key)| Bytes::from(Wish { color, key }.to_bytes()));
        let places = [0, 2, 4].map(|rank| place(&wishes, 1, Rank(rank)).unwrap());
        let members = [2, 0, 4].map(Rank).to_vec();
        assert_eq!(places, [1, 0, 2].map(|place| (Rank(place), members.clone())));
        assert_eq!(place(&wishes, 0, Rank(3)).unwrap(), (Rank(0), vec![Rank(3)]));
        assert!(place(&[vec![0; 15].into()], 0, Rank(0)).unwrap_err().to_string().contains("15 bytes"));
    }
}
