//! Making a communicator: join, compare, connect.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use ccl_plan::Rank;
use ccl_plan::cost::Multicast;
use ccl_plugin_host::NetPlugin;
use ccl_plugin_host::profiler::Watched;

use super::hello::{self, Common};
use super::tuner::{self, Beside, Facts};
use super::{Communicator, Ownership, network, out_of_band};
use crate::bootstrap::infos::Infos;
use crate::bootstrap::{self, BootstrapSettings, Root, UniqueId};
use crate::config::Config;
use crate::control::Control;
use crate::discover::interfaces::{self, Wishes};
use crate::discover::launcher::Job;
use crate::discover::processor::is_of_amd;
use crate::discover::topology;
use crate::error::{Error, Fault, Result};
use crate::exec;
use crate::exec::Tuning;
use crate::exec::device::{Channels, DeviceCut, DeviceEngine, Opened};
use crate::exec::engine::{Engine, EngineParts};
use crate::exec::plans::{self, Cut, Direct, Plans, Reach, Room};
use crate::exec::trial::{self, Verdict};
use crate::memory::fork::Birthplace;
use crate::observe::flight::{Flight, Place, Recorded};
use crate::observe::profiler::Profile;
use crate::transport::{
    Checksum, Fabric, FaultRule, NetSettings, Networking, Relay, SharedMemory, TransportSettings,
    WaitSettings,
};

impl Communicator {
    /// Joins as the rank that the launcher (torchrun, mpirun, srun, `ccl run`) gave this process, with
    /// the environment's settings. Without a launcher, a communicator of one rank.
    ///
    /// Blocks until all ranks have joined, at most until `CCL_INIT_TIMEOUT`.
    ///
    /// # Errors
    ///
    /// A half-set environment, and all of [`Communicator::init_rank`].
    pub fn from_env() -> Result<Communicator> {
        let config = Config::load()?;
        Communicator::from_job(&Job::discover(&config)?, &config)
    }

    /// Joins as this process's rank in `job`, with given settings.
    ///
    /// # Errors
    ///
    /// As [`Communicator::from_env`].
    pub fn from_job(job: &Job, config: &Config) -> Result<Communicator> {
        if job.nranks == 1 {
            return Communicator::alone(config);
        }
        let ids = exchange_ids(job, config)?;
        Communicator::init_rank_scalable(&ids, job.rank, job.nranks, config)
    }

    /// A communicator of one rank: no socket, no thread.
    ///
    /// # Errors
    ///
    /// No memory to be had.
    pub fn alone(config: &Config) -> Result<Communicator> {
        Communicator::alone_in(Recorded::first((Rank(0), 1), config), config)
    }

    /// The same, as a part of what others are split from as well.
    pub(super) fn alone_in(recorded: Recorded, config: &Config) -> Result<Communicator> {
        crate::log::install(config)?;
        let (mut fabric, hello) = open(&[], Rank(0), 1, config)?;
        let control = Arc::new(Control::alone(&BootstrapSettings::from_config(config, None)));
        let deadline = Instant::now() + config.init_timeout();
        connect(&mut fabric, &control, &Infos::from_iter([hello]), (Rank(0), config), deadline)?;
        Communicator::assemble(fabric, control, recorded, config)
    }

    /// Joins the communicator of `id` as `rank` of `n`. Every rank calls this with the same id and n.
    ///
    /// Blocks until all ranks have joined, at most until `CCL_INIT_TIMEOUT`.
    ///
    /// # Errors
    ///
    /// Missing ranks by name, with those present; a setting on which ranks disagree, with both values;
    /// a rank that failed, with its reason; addresses that cannot be reached.
    pub fn init_rank(id: &UniqueId, rank: Rank, n: u32, config: &Config) -> Result<Communicator> {
        Communicator::init_rank_scalable(std::slice::from_ref(id), rank, n, config)
    }

    /// As [`Communicator::init_rank`], for many ranks: with k unique ids, each made by a process of its own, so that
    /// each of those processes serves n/k ranks. Every rank calls this with the same ids in the same order, and the same n.
    ///
    /// Ranks are cut into k contiguous shares, the first n mod k of them one rank longer, and share i meets at
    /// the root of `ids[i]`; that id is best made by a rank of the share, such as its first, see [`UniqueId::first_rank`].
    ///
    /// # Errors
    ///
    /// As [`Communicator::init_rank`]; no id, more than ranks, or one twice; ranks that were given others, or in
    /// another order.
    pub fn init_rank_scalable(ids: &[UniqueId], rank: Rank, n: u32, config: &Config) -> Result<Communicator> {
        crate::log::install(config)?;
        let started = Instant::now();
        let settings = BootstrapSettings::from_config(config, None);
        let opened = open(ids, rank, n, config);
        let (mut fabric, hello) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The others must not wait for a rank that cannot come.
                if let Err(second) = bootstrap::fail_several(ids, rank, n, &error.to_string(), &settings) {
                    tracing::debug!(error = %second, "could not announce a failure");
                }
                return Err(error.on(rank).during("init"));
            }
        };
        let (control, hellos) = bootstrap::join_several(ids, rank, n, hello, &settings)
            .map_err(|error| error.on(rank).during("init"))?;
        let (control, recorded) = (Arc::new(control), Recorded::first((rank, n), config));
        connect(&mut fabric, &control, &hellos, (rank, config), started + config.init_timeout())
            .and_then(|()| Communicator::assemble(fabric, Arc::clone(&control), recorded, config))
            .map_err(|error| control.report(error.on(rank).during("init")))
    }

    /// Starts joining on a thread of its own and returns at once.
    ///
    /// # Errors
    ///
    /// Only if no thread could be started.
    pub fn init_rank_nonblocking(id: &UniqueId, rank: Rank, n: u32, config: &Config) -> Result<Joining> {
        let (id, config) = (id.clone(), config.clone());
        let join = move || Communicator::init_rank(&id, rank, n, &config);
        let thread = std::thread::Builder::new().name("ccl-init".into()).spawn(join);
        let thread =
            thread.map_err(|error| Error::system("start a thread", error, "raise the limit on threads"))?;
        Ok(Joining { thread: Some(thread) })
    }

    // long: what ranks agree on follows from what they agreed on before, one after the other.
    pub(super) fn assemble(
        mut fabric: Fabric,
        control: Arc<Control>,
        recorded: Recorded,
        config: &Config,
    ) -> Result<Communicator> {
        let (rank, n) = (control.rank(), control.n());
        recorded.record(&control);
        // Every rank must choose alike, so one networked pair anywhere decides for all.
        let opened = Opened::of(config, config.local_rank().map_or_else(|| fabric.local_rank(), Ok)?)?;
        let own = Networking { device: opened.is_some(), ..fabric.start_network()? }.to_vote();
        // And one tuning and one tuner serve all: rank 0's, which travels with its vote.
        let tuning = if rank.0 == 0 { Tuning::of(config)? } else { None };
        let tuner = if rank.0 == 0 && n > 1 { tuner::choose(config, fabric.network_plugin()) } else { None };
        let votes = control.all_gather([own, Beside::to_bytes(tuner.is_some(), tuning)].concat())?;
        let all = fabric.settle_networking(&votes);
        let Beside { asks, tuning } = Beside::parse(Networking::beside(&votes[0]))?;
        // What goes through a device's slots is in them: nothing is lent, and nothing is mapped.
        let hosted = !all.device;
        let cores = fabric.cores_of_one_host()?;
        let roomy = !all.used && fabric.is_roomy_for_all()?;
        let direct = if hosted { direct_reads(&mut fabric, &control, roomy, config)? } else { Direct::Never };
        let device_cut = (!hosted).then(|| device_cut(fabric.usual_slots(), config));
        let device = match device_cut {
            None => None,
            Some(cut) => {
                let gather = |bytes| control.all_gather(bytes);
                DeviceEngine::join(opened, (rank, n), fabric.infos()?, cut, (control.board(), &gather))?
            }
        };
        let channels = device
            .as_ref()
            .map_or_else(|| Channels::all(plans::most_channels(config)), |device| device.channels());
        let mapped = hosted && fabric.one_process() && config.mapped() > 0;
        let links @ (reach, ..) = match device.as_ref().and_then(|device| device.reach()) {
            // What devices do takes no core's time.
            Some((reach, multicast)) => (reach, 0, multicast),
            None => (host_reach(&all, (n, cores), direct), cores, Multicast::NONE),
        };
        let network_only = all.used && !all.memory && hosted;
        let nodes = fabric.nodes()?;
        let nnodes = nodes.len() as u32;
        let whole = if fabric.hosts_are_whole()? { &nodes[..] } else { &[] };
        // In a host ranks go through memory, unless they are not to anywhere.
        let near = if network_only { Reach::Loopback } else { Reach::Memory };
        let selection = plans::tuned_selection((config, channels), n, links, (whole, near), &tuning)?;
        let selection = plans::mapped_selection(selection, mapped.then(|| config.mapped()))?;
        let chunk_bytes = config.chunk_bytes().map_or(reach.chunk_bytes(), |bytes| bytes as usize);
        let direct = if all.used { Direct::Never } else { direct };
        let own_slot_bytes = own_slot_bytes(&fabric, device.as_deref(), hosted);
        let slot_bytes = match device {
            None if network_only => fabric.net_slot_bytes(),
            _ => own_slot_bytes,
        };
        let chunk_bytes = chunk_bytes.min(slot_bytes);
        let (lends_on_the_way, mapped_bytes) =
            (network_only && all.lends, if hosted { config.mapped() as usize } else { 0 });
        let room = match config.chunk_bytes() {
            _ if matches!(reach, Reach::Devices | Reach::Multicast) => Room::Other,
            None if roomy => Room::CoreForEach,
            None if !all.used && hosted && fabric.has_long_slots() => Room::LongSlots,
            None if !all.used && fabric.are_few_for_all()? => Room::FewOnFewer,
            None if !all.used && fabric.is_sparing_for_all()? => Room::ManyOnFewer,
            None if !all.used && cores > 0 => Room::Many,
            _ => Room::Other,
        };
        let cut =
            Cut { slot_bytes, own_slot_bytes, chunk_bytes, room, direct, lends_on_the_way, mapped_bytes };
        let selection = if asks {
            let comm = (rank, n, fabric.number()?);
            let facts = Facts::new(comm, &nodes, reach, channels.collectives, chunk_bytes, mapped, config);
            tuner::advised(selection, tuner, facts, (&control, config))?
        } else {
            selection
        };
        let mut plans = Plans::new((rank, n), cut, reach, selection, nodes);
        if !hosted {
            plans.keep_to_slots(device.as_ref().map(|device| device.lines()));
        }
        if fabric.one_process() && hosted {
            plans.expect_mapped();
        }
        let watched = Watched { rank: rank.0, nranks: n, nnodes, comm_id: fabric.number()? };
        let crowded = || fabric.processes_without_a_core_left().unwrap_or(0);
        let profile = Profile::open(config, watched, fabric.net_plugin(), crowded);
        profile.iter().for_each(|profile| fabric.profile(profile.emitter()));
        let flight = Arc::clone(&recorded.flight);
        let (for_engine, deadline) = (Arc::clone(&control), config.timeout());
        let parts = EngineParts {
            rank,
            n,
            fabric,
            control: for_engine,
            plans,
            flight,
            deadline,
            profile,
            device,
            device_cut,
        };
        let engine = Engine::new(parts)?;
        if !hosted {
            // Freeing memory may wait for kernels that wait for this rank: none runs before all ranks are here.
            control.all_gather(Vec::new())?;
        }
        if let Some(device) = engine.device() {
            control.alarm().on_raise(device.aborter());
        }
        control.alarm().on_raise(engine.alarm_waker());
        Ok(Communicator {
            rank,
            n,
            config: config.clone(),
            control,
            engine: Ownership::Alone(Box::new(engine)).into(),
            splits: Cell::new(0),
            recorded,
            birthplace: Birthplace::here(),
        })
    }
}

/// What ranks know of the edges of devices.
pub(super) fn device_cut(usual_slots: (usize, usize), config: &Config) -> DeviceCut {
    let needs_all_slots = !config.algo_file().is_empty();
    let chunk_bytes = config.chunk_bytes().map_or(Reach::Devices.chunk_bytes(), |bytes| bytes as usize);
    let channels = config.max_nchannels().map(|channels| channels as u16);
    DeviceCut::new(usual_slots, needs_all_slots, chunk_bytes, channels)
}

/// How the farthest peer is reached, unless all ranks have devices that reach each other.
fn host_reach(all: &Networking, (n, cores): (u32, u32), direct: Direct) -> Reach {
    match (all.used, direct) {
        (true, _) if cores > 0 => Reach::Loopback,
        (true, _) => Reach::Network,
        (false, Direct::Slower) => Reach::of_slots(n),
        // What a trial says must not choose another algorithm, and with it other bits.
        (false, Direct::WhereFaster | Direct::From(_)) => Reach::MemoryDirect,
        (false, Direct::Never | Direct::Tried { .. }) => Reach::Memory,
    }
}

/// What a slot in memory holds, by which calls are cut: the same on all ranks, those on the host beside others with devices too.
fn own_slot_bytes(fabric: &Fabric, device: Option<&DeviceEngine>, hosted: bool) -> usize {
    match device {
        Some(device) => device.slot_bytes(),
        None if !hosted => fabric.usual_slots().1,
        None => fabric.slot_bytes(),
    }
}

/// Which messages ranks read out of each other's memory. The same on all ranks, of which all call this.
fn direct_reads(fabric: &mut Fabric, control: &Control, roomy: bool, config: &Config) -> Result<Direct> {
    match config.direct() {
        _ if !fabric.reads_directly() => Ok(Direct::Never),
        Some(0) => Ok(Direct::Never),
        Some(bytes) => Ok(Direct::From(bytes as usize)),
        None if control.n() < 2 => Ok(Direct::WhereFaster),
        // All are on one host, and find the same.
        None if !roomy || fabric.one_process() => {
            Ok(if is_of_amd() { Direct::Slower } else { Direct::WhereFaster })
        }
        // However their cores lie (ADR 0109).
        None if is_of_amd() => Ok(Direct::Never),
        None => {
            let (ranks, deadline) = ((control.rank(), control.n()), Instant::now() + config.init_timeout());
            let found = trial::reading(fabric, ranks, &|| Relay::check(control), deadline)?;
            let votes = control.all_gather(vec![found as u8])?;
            let all = |least: Verdict| {
                votes.iter().all(|vote| vote.first().is_some_and(|vote| *vote >= least as u8))
            };
            Ok(match all(Verdict::Faster) {
                true => Direct::Tried { far: all(Verdict::FasterByFar) },
                false => Direct::Never,
            })
        }
    }
}

impl Recorded {
    /// What `rank` of the `n` that join writes.
    fn first((rank, n): (Rank, u32), config: &Config) -> Recorded {
        Recorded { flight: Arc::new(Flight::new(rank, config.flight_file())), place: Place::first(n) }
    }

    /// From now on `control`'s board is written as well; when it fails even if the rank makes no call.
    fn record(&self, control: &Control) {
        self.flight.add(self.place.clone(), control.board());
        if self.flight.writes_failures() {
            let (flight, board) = (Arc::clone(&self.flight), Arc::downgrade(control.board()));
            control.alarm().on_raise(Box::new(move || Flight::write_apart(&flight, &board)));
        }
    }
}

/// A communicator that is being made by [`Communicator::init_rank_nonblocking`].
///
/// Dropping it gives up waiting, not joining: the thread goes on until its deadline.
#[derive(Debug)]
pub struct Joining {
    thread: Option<JoinHandle<Result<Communicator>>>,
}

/// How far joining is.
#[derive(Debug)]
pub enum JoiningState {
    /// Some ranks are missing yet.
    InProgress,
    /// Done: here it is.
    Ready(Box<Communicator>),
    /// It failed.
    Failed(Error),
}

impl Joining {
    /// How far joining is; never blocks. After `Ready` or `Failed` it answers `Failed`.
    pub fn poll(&mut self) -> JoiningState {
        match &self.thread {
            Some(thread) if !thread.is_finished() => JoiningState::InProgress,
            _ => match self.take() {
                Ok(communicator) => JoiningState::Ready(Box::new(communicator)),
                Err(error) => JoiningState::Failed(error),
            },
        }
    }

    /// Waits until joining is done, at most until `CCL_INIT_TIMEOUT`.
    ///
    /// # Errors
    ///
    /// As [`Communicator::init_rank`].
    pub fn wait(mut self) -> Result<Communicator> {
        self.take()
    }

    fn take(&mut self) -> Result<Communicator> {
        let taken =
            || Error::usage("expected a join in progress, found one that was taken", "poll until Ready once");
        let thread = self.thread.take().ok_or_else(taken)?;
        thread.join().unwrap_or_else(|_| Err(Error::bug("the joining thread panicked")))
    }
}

impl UniqueId {
    /// A new id; the calling process keeps the root at which the ranks meet, until they have all left.
    ///
    /// # Errors
    ///
    /// No interface or port that the settings allow.
    pub fn generate(config: &Config) -> Result<UniqueId> {
        let bind = Some(best_address(config)?);
        let (id, _root) = Root::start(&BootstrapSettings::from_config(config, bind))?;
        Ok(id)
    }

    /// The first rank of share `index` of k, of n ranks: who should make id `index` of k for
    /// [`Communicator::init_rank_scalable`].
    ///
    /// With k of 0, an index from k on, or fewer ranks than ids, there is no such rank.
    pub fn first_rank(index: u32, n: u32, k: u32) -> Option<Rank> {
        (index < k && k <= n).then(|| Rank(bootstrap::roots::share(index, n, k).start))
    }

    /// A new id for ranks of this host only: the root listens on the loopback interface.
    ///
    /// # Errors
    ///
    /// No port that the settings allow.
    pub fn generate_local(config: &Config) -> Result<UniqueId> {
        let bind = Some(Ipv4Addr::LOCALHOST.into());
        let (id, _root) = Root::start(&BootstrapSettings::from_config(config, bind))?;
        Ok(id)
    }
}

/// Rank 0 makes the id, the launcher's store carries it; or the first rank of each share makes one.
fn exchange_ids(job: &Job, config: &Config) -> Result<Vec<UniqueId>> {
    let generate = if job.is_on_one_node() { UniqueId::generate_local } else { UniqueId::generate };
    let deadline = Instant::now() + config.init_timeout();
    let make = || generate(config).map(|id| id.to_bytes());
    let ids = bootstrap::store::exchange_ids(job, config, deadline, make)?;
    ids.iter().map(|bytes| UniqueId::from_bytes(bytes)).collect()
}

/// Opens the fabric; the bytes to join with.
fn open(ids: &[UniqueId], rank: Rank, n: u32, config: &Config) -> Result<(Fabric, Vec<u8>)> {
    topology::at_init(rank, config)?;
    open_with(&transport_settings(ids, n, config)?, rank, n, config)
}

/// The same with given settings.
pub(super) fn open_with(
    settings: &TransportSettings,
    rank: Rank,
    n: u32,
    config: &Config,
) -> Result<(Fabric, Vec<u8>)> {
    let (fabric, transport) = Fabric::open(settings, rank, n)?;
    let network = settings.net.plugin.map_or(Ok(String::new()), describe)?;
    let agreed = config.agreed().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let common = Common {
        version: env!("CARGO_PKG_VERSION").into(),
        network,
        programs: exec::user_programs(config)?,
        agreed,
    };
    let mut bytes = hello::write(&common)?;
    if !goes_out_of_band(n, config) {
        bytes.extend(hello::write_place(&transport)?);
    }
    Ok((fabric, bytes))
}

fn describe(plugin: NetPlugin) -> Result<String> {
    let digest = plugin.digest().map_err(|error| {
        let fault = Fault::Plugin { name: plugin.name().to_owned() };
        Error::new(fault, error.to_string(), "make its file readable: ranks compare what they loaded")
    })?;
    let short: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{} (contract {}, file digest {short})", plugin.name(), plugin.contract()))
}

/// Compares what ranks must agree on and connects them.
pub(super) fn connect(
    fabric: &mut Fabric,
    control: &Arc<Control>,
    hellos: &Infos,
    (rank, config): (Rank, &Config),
    deadline: Instant,
) -> Result<()> {
    let places = hello::agreed(hellos, rank, config)?;
    let relay: Arc<dyn Relay> = Arc::clone(control) as Arc<dyn Relay>;
    let infos = if goes_out_of_band(control.n(), config) {
        let own = hello::write_place(fabric.info())?;
        // Ranks come to joining when they like, but to this at one time: then none gives up before the others.
        let deadline = Instant::now() + config.init_timeout();
        hello::places(&out_of_band::all_gather(fabric, control, own, config.oob_net_ifname(), deadline)?)?
    } else {
        hello::places(&places)?
    };
    fabric.connect(&relay, infos, deadline)
}

/// Whether ranks tell each other where they are over the network and not through the roots.
fn goes_out_of_band(n: u32, config: &Config) -> bool {
    config.oob_net_enable() && n > 1
}

/// The address that others can reach this host at.
fn best_address(config: &Config) -> Result<IpAddr> {
    let choice = interfaces::choose(&interfaces::list()?, &Wishes::of(config))?;
    for rejected in &choice.rejected {
        tracing::debug!(target: "ccl::bootstrap", interface = rejected.name, reason = rejected.reason, "not used");
    }
    let best = choice.chosen.first().ok_or_else(|| Error::bug("a choice of no interface"))?;
    tracing::info!(target: "ccl::bootstrap", interface = best.name, reason = best.reason, "listens");
    Ok(best.address.ip)
}

/// A root's address, unless it is one that only this host has.
fn root_beyond_this_host(ids: &[UniqueId]) -> Option<IpAddr> {
    let addresses = ids.iter().filter_map(|id| id.addresses().first());
    addresses.map(|root| root.ip()).find(|root| !root.is_loopback())
}

/// What only the ranks of these ids can derive.
fn secret_of(ids: &[UniqueId]) -> [u8; 32] {
    match ids {
        [] => blake3::derive_key("ccl 2026 transport", &[0; UniqueId::SIZE_BYTES]),
        ids => {
            let bytes: Vec<u8> = ids.iter().flat_map(UniqueId::to_bytes).collect();
            blake3::derive_key("ccl 2026 transport", &bytes)
        }
    }
}

fn transport_settings(ids: &[UniqueId], n: u32, config: &Config) -> Result<TransportSettings> {
    let shared_memory = if config.shm_disable() { SharedMemory::Avoid } else { SharedMemory::Use };
    Ok(TransportSettings {
        shared_memory,
        host: config.hostid().map(str::to_owned),
        secret: secret_of(ids),
        wait: WaitSettings { spin: config.spin(), ..WaitSettings::default() },
        faults: config.fault().map_or(Ok(Vec::new()), FaultRule::parse)?,
        net: if n == 1 {
            NetSettings::default()
        } else {
            network::settings(config, root_beyond_this_host(ids))?
        },
        ..edge_settings(n, config)
    })
}

/// How many edges there are and how long they are.
pub(super) fn edge_settings(n: u32, config: &Config) -> TransportSettings {
    let slots = config.slots() as usize;
    // With many ranks an edge each way for every pair adds up: smaller slots keep the sum in cache.
    let share = config.buffsize() as usize / slots / (n as usize).div_ceil(EDGES_AT_FULL_SIZE);
    let slot_bytes = share.clamp(LEAST_SLOT_BYTES, MOST_SLOT_BYTES).next_multiple_of(64);
    // A program of the user's may need all slots that it was verified with.
    let near_slots = if config.algo_file().is_empty() { (slots / 4).max(LEAST_SLOTS) } else { slots };
    TransportSettings {
        // What users say of slots holds, and so does what their programs were verified with.
        lengthens: slots == DEFAULT_SLOTS && config.algo_file().is_empty(),
        channels: plans::most_channels(config),
        tags: crate::exec::host::EDGE_TAGS,
        slots,
        near_slots,
        slot_bytes,
        net_slot_bytes: NET_SLOTS_LONGER * slot_bytes,
        checksum: if config.checksum() { Checksum::Crc32 } else { Checksum::Off },
        ..TransportSettings::default()
    }
}

/// Ranks up to which an edge gets its full buffer.
const EDGES_AT_FULL_SIZE: usize = 8;
const LEAST_SLOT_BYTES: usize = 4 << 10;
/// Slots where settings do not say how many.
const DEFAULT_SLOTS: usize = 8;
/// What the library's own programs need to run without ever waiting for each other for good.
const LEAST_SLOTS: usize = 2;
const MOST_SLOT_BYTES: usize = 1 << 20;
/// How much longer a slot towards a network is: long messages cost it less.
const NET_SLOTS_LONGER: usize = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Fault;

    /// Two ranks of this process, connected, each with the other's memory to read.
    fn connected<T: Send>(body: impl Fn(Fabric, &Control) -> T + Sync) -> [T; 2] {
        let config = Config::from_vars([("CCL_SOCKET_IFNAME", "lo")]).unwrap();
        let id = [UniqueId::generate_local(&config).unwrap()];
        let rank = |rank: u32| {
            let deadline = Instant::now() + Duration::from_secs(20);
            let (mut fabric, hello) = open(&id, Rank(rank), 2, &config).unwrap();
            let settings = BootstrapSettings::from_config(&config, None);
            let (control, hellos) = bootstrap::join_several(&id, Rank(rank), 2, hello, &settings).unwrap();
            let control = Arc::new(control);
            connect(&mut fabric, &control, &hellos, (Rank(rank), &config), deadline).unwrap();
            assert!(fabric.reads_directly());
            let found = body(fabric, &control);
            // Neither leaves while the other still looks at its memory.
            control.all_gather(Vec::new()).unwrap();
            found
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| rank(1));
            [rank(0), other.join().unwrap()]
        })
    }

    #[test]
    fn few_slots_are_used_within_a_host_unless_a_program_may_need_all() {
        let near = |vars: &[(&str, &str)]| {
            edge_settings(2, &Config::from_vars(vars.iter().copied()).unwrap()).near_slots
        };
        let slots = ["2", "8", "16"].map(|slots| near(&[("CCL_SLOTS", slots)]));
        assert_eq!(slots, [2, 2, 4]);
        assert_eq!(near(&[("CCL_SLOTS", "16"), ("CCL_ALGO_FILE", "mine.ccl")]), 16);
    }

    #[test]
    fn slots_get_longer_unless_somebody_has_said_how_many() {
        let lengthens = |vars: &[(&str, &str)]| {
            edge_settings(8, &Config::from_vars(vars.iter().copied()).unwrap()).lengthens
        };
        assert!(lengthens(&[]));
        assert!(!lengthens(&[("CCL_SLOTS", "16")]));
        assert!(!lengthens(&[("CCL_ALGO_FILE", "mine.ccl")]));
    }

    #[test]
    fn a_trial_leaves_edges_as_they_were() {
        let sums = connected(|mut fabric, control| {
            let (rank, peer) = (control.rank(), Rank(1 - control.rank().0));
            let deadline = Instant::now() + Duration::from_secs(20);
            trial::reading(&mut fabric, (rank, 2), &|| Relay::check(control), deadline).unwrap();
            let send = fabric.send_edge(peer, ccl_plan::Channel(0), 0).unwrap();
            let receive = fabric.receive_edge(peer, ccl_plan::Channel(0), 0).unwrap();
            fabric.sender(send).acquire(0).unwrap().unwrap();
            fabric.sender(send).post(0, 7 + rank.0).unwrap();
            loop {
                assert!(Instant::now() < deadline, "the message after the trial is lost");
                if let Some(slot) = fabric.receiver(receive).peek().unwrap() {
                    fabric.receiver(receive).release().unwrap();
                    return (slot.tag, slot.bytes);
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(sums, [(8, 0), (7, 0)]);
    }

    #[test]
    fn a_peer_that_does_not_try_is_named() {
        let found = connected(|mut fabric, control| {
            let rank = control.rank();
            let soon = Instant::now() + Duration::from_millis(50);
            let trial = || trial::reading(&mut fabric, (rank, 2), &|| Relay::check(control), soon);
            (rank.0 == 0).then(trial).map(Result::unwrap_err)
        });
        let error = found[0].as_ref().unwrap();
        assert_eq!((error.fault(), error.peer()), (&Fault::Timeout, Some(Rank(1))));
    }

    #[test]
    fn a_rank_without_another_agrees() {
        let config = Config::from_vars([("CCL_SOCKET_IFNAME", "lo")]).unwrap();
        let (mut fabric, _) = open(&[], Rank(0), 1, &config).unwrap();
        let found = trial::reading(&mut fabric, (Rank(2), 3), &|| Ok(()), Instant::now()).unwrap();
        assert_eq!(found, Verdict::FasterByFar);
    }
}
