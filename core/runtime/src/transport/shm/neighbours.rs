//! The ranks of this host: whose memory is mapped, and the proof that it is theirs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use super::beside::Beside;
use super::edge::Regions;
use super::layout::{Layout, Region};
use crate::error::{Error, Result};
use crate::memory::{Exchange, Mailbox, Mapping, MemoryFile, Neighbour, PeerMemory};

/// One rank's region, and its peers' as far as they can be mapped.
#[derive(Debug)]
pub(crate) struct Neighbours {
    own: Arc<Region>,
    /// All ranks of the host that may share memory, this one included, in order.
    ranks: Vec<Rank>,
    me: usize,
    regions: Vec<Reachable>,
    /// The other memory of each, or why it cannot be read.
    memories: Vec<Result<PeerMemory, String>>,
    /// Whether each is a thread of this process.
    threads: Vec<bool>,
    secret: [u8; 32],
}

/// A peer's region, or why it is not mapped.
pub(crate) type Reachable = Result<Arc<Region>, String>;

/// What a rank brings to the exchange.
pub(crate) struct Own<'a> {
    pub(crate) file: &'a MemoryFile,
    pub(crate) mailbox: Option<&'a Mailbox>,
    pub(crate) secret: [u8; 32],
}

impl Neighbours {
    /// Gives `own`'s file its size, exchanges descriptors with `all` (the ranks of this host, this one
    /// at `me` included) and maps what comes by `deadline`; then writes a probe into each peer's region.
    ///
    /// Errors: only one's own memory's, and those of `check`, which is called now and then.
    pub(crate) fn connect(
        own: &Own<'_>,
        layout: Layout,
        all: &[Neighbour],
        me: usize,
        deadline: Instant,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Neighbours> {
        own.file.fix_size(layout.bytes())?;
        let region = Arc::new(Region::new(own.file.map(layout.bytes())?, layout));
        region.sign(&all[me].nonce);
        let threads: Vec<bool> = all.iter().map(|peer| peer.is_thread_beside(&all[me])).collect();
        let with_threads = || all.iter().zip(&threads);
        let beside = Beside::meet(with_threads().filter(|(_, thread)| **thread).map(|(peer, _)| &peer.nonce));
        beside.bring(all[me].nonce, &region);
        let others = with_threads().filter(|(_, thread)| !**thread).map(|(peer, _)| peer.clone()).collect();
        let exchange = Exchange::new(all[me].clone(), own.secret, own.mailbox, own.file.as_fd(), others);
        let parcels = exchange.run(deadline, check)?;
        beside.wait(deadline, check)?;
        let of_threads = beside.regions(all.iter().map(|peer| &peer.nonce));
        let mut regions: Vec<Reachable> =
            of_threads.into_iter().map(|region| of_thread(region, layout)).collect();
        for (rank, parcel) in parcels {
            if let Ok(local) = all.binary_search_by_key(&rank, |peer| peer.rank) {
                let nonce = &all[local].nonce;
                let map =
                    |descriptor| beside.map_once(nonce, || map(&descriptor, layout, nonce, deadline, check));
                regions[local] = parcel.and_then(map);
            }
        }
        let ranks = all.iter().map(|peer| peer.rank).collect();
        let own_memory = memory(&all[me], &regions[me]);
        let memory_of = |((peer, thread), region): ((&Neighbour, &bool), &Reachable)| match thread {
            true => own_memory.clone(),
            false => memory(peer, region),
        };
        let memories = with_threads().zip(&regions).map(memory_of).collect();
        let neighbours =
            Neighbours { own: region, ranks, me, regions, memories, threads, secret: own.secret };
        neighbours.write_probes();
        Ok(neighbours)
    }

    /// The only rank: a region that nobody else maps, in memory of this process.
    ///
    /// Errors: no memory to be had.
    pub(crate) fn alone(layout: Layout, me: &Neighbour, secret: [u8; 32]) -> Result<Neighbours> {
        let region = Arc::new(Region::new(Mapping::private(layout.bytes())?, layout));
        region.sign(&me.nonce);
        let regions: Vec<Reachable> = vec![Ok(Arc::clone(&region))];
        let memories = vec![memory(me, &regions[0])];
        let (ranks, threads) = (vec![me.rank], vec![true]);
        let neighbours = Neighbours { own: region, ranks, me: 0, regions, memories, threads, secret };
        neighbours.write_probes();
        Ok(neighbours)
    }

    /// Bytes mapped of all regions, this rank's own among them.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.regions.iter().flatten().map(|region| region.bytes()).sum()
    }

    /// This rank's region.
    pub(crate) fn own(&self) -> &Arc<Region> {
        &self.own
    }

    /// This rank's place among the host's.
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// A peer's place among the host's ranks and its region, if that is mapped.
    pub(crate) fn reachable(&self, peer: Rank) -> Option<(usize, &Arc<Region>)> {
        let local = self.local(peer)?;
        self.regions[local].as_ref().ok().map(|region| (local, region))
    }

    /// The regions of all candidates; none if some are not mapped.
    pub(crate) fn regions(&self) -> Regions {
        self.regions
            .iter()
            .map(|region| region.as_ref().ok().cloned())
            .collect::<Option<_>>()
            .unwrap_or_default()
    }

    /// A peer's memory outside its region, if it can be read.
    pub(crate) fn memory(&self, peer: Rank) -> Option<PeerMemory> {
        self.memories[self.local(peer)?].as_ref().ok().copied()
    }

    /// A rank of this host whose memory cannot be read, and why.
    pub(crate) fn unreadable(&self) -> Option<String> {
        let all = self.ranks.iter().zip(&self.memories);
        all.filter_map(|(rank, memory)| Some(format!("rank {rank}: {}", memory.as_ref().err()?))).next()
    }

    /// Takes back all that this rank lent, and keeps others from using its memory from now on.
    pub(crate) fn withdraw(&self) {
        self.own.withdraw();
    }

    /// `None`: the peer is no candidate; else why its region is not mapped, if it is not.
    pub(crate) fn refusal(&self, peer: Rank) -> Option<Option<&str>> {
        Some(self.regions[self.local(peer)?].as_ref().err().map(String::as_str))
    }

    /// All candidates whose region is not mapped, and why.
    pub(crate) fn refused(&self) -> Vec<(u32, String)> {
        let all = self.ranks.iter().zip(&self.regions);
        all.filter_map(|(rank, region)| Some((rank.0, region.as_ref().err()?.clone()))).collect()
    }

    /// Drops what was mapped of a peer.
    pub(crate) fn refuse(&mut self, peer: Rank, reason: String) {
        if let Some(local) = self.local(peer) {
            self.regions[local] = Err(reason);
        }
    }

    /// Whether the probes of all mapped peers have arrived in this rank's region. Ask after a barrier.
    /// Threads of this process share the mapping itself: there is nothing to prove.
    pub(crate) fn check_probes(&self) -> Result<()> {
        let mapped =
            (0..self.ranks.len()).filter(|local| self.regions[*local].is_ok() && !self.threads[*local]);
        mapped.into_iter().try_for_each(|local| self.check_probe(local))
    }

    /// The places of all candidates but this rank.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.me;
        (0..self.ranks.len()).filter(move |local| *local != me)
    }

    /// The rank at a place.
    pub(super) fn rank(&self, local: usize) -> Rank {
        self.ranks[local]
    }

    /// The region of the rank at a place, if it is mapped.
    pub(super) fn region(&self, local: usize) -> Option<&Region> {
        self.regions[local].as_ref().ok().map(Arc::as_ref)
    }

    /// The same, to be kept.
    pub(super) fn shared_region(&self, local: usize) -> Option<Arc<Region>> {
        self.regions[local].as_ref().ok().cloned()
    }

    /// Whether the rank at a place is a thread of this process.
    pub(super) fn is_thread(&self, local: usize) -> bool {
        self.threads[local]
    }

    /// Whether the process of the rank at a place is known to have ended.
    pub(super) fn has_ended(&self, local: usize) -> bool {
        let (Ok(memory), Some(region)) = (&self.memories[local], self.region(local)) else { return false };
        match region.shows_through(*memory) {
            // Its number may be another's already.
            Ok(found) => !found,
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        }
    }

    /// How many ranks of the host may share memory, this one included.
    pub(crate) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Whether all ranks of the host that share memory are threads of this process.
    pub(crate) fn all_threads(&self) -> bool {
        self.threads.iter().all(|thread| *thread)
    }

    fn local(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    fn check_probe(&self, local: usize) -> Result<()> {
        let expected = self.probe(local, self.me);
        // Acquire pairs with the store in `write_probes`; the barrier between is the real order.
        let found = self.own.probe(local).load(Ordering::Acquire);
        if found == expected {
            return Ok(());
        }
        Err(Error::new(
            crate::Fault::System { errno: None },
            format!(
                "expected the probe {expected:#x} in memory shared with a rank of this host, found {found:#x}"
            ),
            "memory shared between these processes does not work here: set CCL_SHM_DISABLE=1",
        )
        .with_peer(self.ranks[local]))
    }

    fn write_probes(&self) {
        for (local, region) in self.regions.iter().enumerate() {
            if let (Ok(region), false) = (region, self.threads[local]) {
                region.probe(self.me).store(self.probe(self.me, local), Ordering::Release);
            }
        }
    }

    /// What `from` writes into `to`'s region.
    fn probe(&self, from: usize, to: usize) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"ccl memory probe");
        hasher.update(&self.ranks[from].0.to_le_bytes());
        hasher.update(&self.ranks[to].0.to_le_bytes());
        hasher.finalize().as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// The region of a peer if it is a thread of this process.
fn of_thread(region: Option<Arc<Region>>, layout: Layout) -> Reachable {
    let region = region.ok_or_else(|| "its memory was not ready in time".to_owned())?;
    match *region.layout() == layout {
        true => Ok(region),
        false => Err("its memory is laid out with other settings".to_owned()),
    }
}

/// A peer's memory, tried.
fn memory(peer: &Neighbour, region: &Reachable) -> Result<PeerMemory, String> {
    let region = region.as_ref().map_err(Clone::clone)?;
    if !peer.same_processes {
        return Err("its process has no number in this namespace".to_owned());
    }
    let memory = PeerMemory::of(peer.process);
    match region.shows_through(memory) {
        Ok(true) => Ok(memory),
        Ok(false) => Err("its process number is another process's here".to_owned()),
        Err(error) => Err(format!("process_vm_readv: {error}")),
    }
}

/// Maps a peer's region once its owner has sized and signed it.
fn map(
    descriptor: &OwnedFd,
    layout: Layout,
    nonce: &[u8; 32],
    deadline: Instant,
    check: &dyn Fn() -> Result<()>,
) -> Result<Region, String> {
    loop {
        if let Some(region) = map_if_ready(descriptor, layout, nonce)? {
            return Ok(region);
        }
        if Instant::now() >= deadline {
            return Err("its memory was not ready in time".to_owned());
        }
        check().map_err(|error| error.to_string())?;
        std::thread::sleep(PAUSE);
    }
}

fn map_if_ready(descriptor: &OwnedFd, layout: Layout, nonce: &[u8; 32]) -> Result<Option<Region>, String> {
    let Some(mapping) = Mapping::try_of_peer(descriptor.as_fd(), layout.bytes())? else { return Ok(None) };
    let region = Region::new(mapping, layout);
    Ok(region.check(nonce).transpose()?.map(|()| region))
}

const PAUSE: Duration = Duration::from_micros(100);

#[cfg(test)]
impl Neighbours {
    /// Ranks 0 and 1, threads of this process.
    pub(super) fn pair_for_tests() -> (Neighbours, Neighbours) {
        let regions = [0, 1].map(|_| Arc::new(Region::for_tests(2)));
        let neighbours = |me: usize| Neighbours {
            own: Arc::clone(&regions[me]),
            ranks: vec![Rank(0), Rank(1)],
            me,
            regions: regions.iter().map(|region| Ok(Arc::clone(region))).collect(),
            memories: vec![Err("not tried".to_owned()); 2],
            threads: vec![true; 2],
            secret: [0; 32],
        };
        (neighbours(0), neighbours(1))
    }
}
