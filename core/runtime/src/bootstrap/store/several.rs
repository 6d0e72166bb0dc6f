//! Exchanging several unique ids: each address is that of the first rank of a share, which hosts a store there.
//!
//! The first ranks give each other the ids that they make, and each then gives all of them to its share. So the
//! store of a share serves its ranks and the other first ranks, however many ranks there are.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use crate::bootstrap::roots::{share, share_of};
use crate::bootstrap::store::client::Client;
use crate::bootstrap::store::link::Address;
use crate::bootstrap::store::message::{Sealer, open, open_all, pack, pack_all};
use crate::bootstrap::store::server::Server;
use crate::bootstrap::store::{ID_BYTES, Store};
use crate::config::Endpoint;
use crate::discover::launcher::Job;
use crate::error::{Error, Result};

/// A place of exchange for each share of the ranks of a job.
pub(super) struct Places<'a> {
    endpoints: &'a [Endpoint],
    job: &'a Job,
    /// The key of the exchange; that of each value begins with it.
    key: &'a str,
    sealer: &'a Sealer,
}

impl<'a> Places<'a> {
    /// Errors: more addresses than ranks or than a value can hold ids, or one twice.
    pub(super) fn new(
        endpoints: &'a [Endpoint],
        job: &'a Job,
        key: &'a str,
        sealer: &'a Sealer,
    ) -> Result<Places<'a>> {
        let most = MOST_PLACES.min(job.nranks as usize);
        let mut seen = BTreeMap::new();
        let twice =
            endpoints.iter().map(Endpoint::to_string).find(|text| seen.insert(text.clone(), ()).is_some());
        let cause = match twice {
            Some(twice) => format!("setting CCL_COMM_ID: expected different addresses, found {twice} twice"),
            None if endpoints.len() > most => {
                let (found, nranks) = (endpoints.len(), job.nranks);
                format!(
                    "setting CCL_COMM_ID: expected at most {most} addresses for {nranks} ranks, found {found}"
                )
            }
            None => return Ok(Places { endpoints, job, key, sealer }),
        };
        Err(Error::usage(cause, "give one address for some tens or hundreds of ranks"))
    }

    /// This rank's part: the ids in the order of the addresses.
    pub(super) fn exchange(
        &self,
        deadline: Instant,
        make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
    ) -> Result<Vec<[u8; ID_BYTES]>> {
        let k = self.endpoints.len() as u32;
        let index = share_of(self.job.rank.0, self.job.nranks, k);
        match self.first_of(index) == self.job.rank {
            true => self.lead(index, deadline, make_id),
            false => {
                let value = self.client(index).get(&self.key_of_all(), deadline)?;
                open_all(&self.sealer.open(&value)?, self.first_of(index))
            }
        }
    }

    /// The part of the first rank of a share.
    fn lead(
        &self,
        index: u32,
        deadline: Instant,
        make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
    ) -> Result<Vec<[u8; ID_BYTES]>> {
        let k = self.endpoints.len() as u32;
        let others = (0..k).filter(|other| *other != index).map(|other| self.first_of(other).0);
        let mut server = self.server(index, others.collect())?;
        let made = make_id();
        // What goes wrong among the first ranks is told to their shares, which takes a moment.
        let left = deadline.saturating_duration_since(Instant::now());
        let sooner = deadline - (left / 8).min(LONGEST_MARGIN);
        let own = self.sealer.seal(&pack(&made))?;
        let (served, gathered) = thread::scope(|scope| {
            let serving = scope.spawn(|| server.set(&self.key_of(index), &own, sooner));
            let gathered = made.and_then(|id| self.gather(index, id, sooner));
            let served = serving.join().unwrap_or_else(|_| Err(Error::bug("the store of a share panicked")));
            (served, gathered)
        });
        let all = gathered.and_then(|ids| served.map(|()| ids));
        let share = share(index, self.job.nranks, k);
        server.expect(share.filter(|rank| *rank != self.job.rank.0).collect());
        let told = server.set(&self.key_of_all(), &self.sealer.seal(&pack_all(&all))?, deadline);
        let all = all?;
        told.map(|()| all)
    }

    /// The ids of all shares, of which `own` is that of share `index`.
    fn gather(&self, index: u32, own: [u8; ID_BYTES], deadline: Instant) -> Result<Vec<[u8; ID_BYTES]>> {
        let fetch = |other: u32| {
            if other == index {
                return Ok(own);
            }
            let value = self.client(other).get(&self.key_of(other), deadline)?;
            open(&self.sealer.open(&value)?).map_err(|error| error.with_peer(self.first_of(other)))
        };
        (0..self.endpoints.len() as u32).map(fetch).collect()
    }

    fn server(&self, index: u32, others: BTreeSet<u32>) -> Result<Server> {
        let address = self.address(index);
        Server::listen_for(address.clone(), others).map_err(|error| {
            let doing = format!("host {address}, which is number {index} of CCL_COMM_ID");
            Error::system(
                &doing,
                error,
                "free the address, or set CCL_COMM_ID to an address of the host of each share's first rank",
            )
        })
    }

    fn client(&self, index: u32) -> Client {
        Client::new(self.address(index), self.job.rank).set_by(self.first_of(index))
    }

    fn address(&self, index: u32) -> Address {
        Address::Tcp(self.endpoints[index as usize].clone())
    }

    fn first_of(&self, index: u32) -> Rank {
        Rank(share(index, self.job.nranks, self.endpoints.len() as u32).start)
    }

    fn key_of(&self, index: u32) -> String {
        format!("{}/of/{index}", self.key)
    }

    fn key_of_all(&self) -> String {
        format!("{}/all", self.key)
    }
}

/// Ids that fit, sealed, into the longest value of a store.
const MOST_PLACES: usize = 30;
const LONGEST_MARGIN: Duration = Duration::from_secs(1);
