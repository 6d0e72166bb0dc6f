//! The all-gather of what ranks must know of each other over the network plugin, out of band (`CCL_OOB_NET_ENABLE`).
//!
//! The ranks have met, so the control connections carry what connects the network: a listener's handle for each pair of
//! neighbours in the tree of [`crate::bootstrap::tree`]. The infos themselves go over the plugin, and all that is
//! opened for them is closed again before the communicator is there.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::tree::{Action, Event, Letter, Tree};
use crate::bootstrap::wire::MEMBER_BYTES;
use crate::config::NameFilter;
use crate::control::Control;
use crate::error::{Error, Fault, Result};
use crate::transport::{Fabric, Network, ReceiveEdge, Relay, SendEdge, SlotShape, WaitSettings};

/// Every rank's bytes, by rank; `names` is what CCL_OOB_NET_IFNAME says. Every rank calls it after joining; blocks until
/// all are there, at most a little longer than `deadline`.
///
/// Errors: no network, no device of these names; a rank that did not come in time, or cannot be reached, by name; the
/// communicator's failure. All ranks hear of it before the connections close.
pub(super) fn all_gather(
    fabric: &Fabric,
    control: &Arc<Control>,
    own: Vec<u8>,
    names: Option<&NameFilter>,
    deadline: Instant,
) -> Result<Infos> {
    let relay = Arc::clone(control) as Arc<dyn Relay>;
    let mut network = fabric.network_apart(relay, names, SHAPE)?;
    exchange(&mut network, control, own, deadline)
}

fn exchange(network: &mut Network, control: &Control, own: Vec<u8>, deadline: Instant) -> Result<Infos> {
    let (started, bytes) = (Instant::now(), own.len());
    let tree = Tree::new((control.rank(), control.n()), own, deadline.saturating_duration_since(started));
    let links = tree.peers().map(|peer| Link::new(network, peer)).collect::<Result<_>>()?;
    let mut exchange = Exchange { tree, links, started, pause: Pause::new(control), infos: None };
    // Neighbours would take closed connections for this rank's fault.
    let infos = exchange.run(control).map_err(|error| control.report(error.on(control.rank())))?;
    tracing::info!(
        target: "ccl::bootstrap", rank = control.rank().0, network = network.name(), bytes,
        took = ?started.elapsed(), "infos were exchanged out of band"
    );
    Ok(infos)
}

struct Exchange {
    tree: Tree,
    links: Vec<Link>,
    started: Instant,
    pause: Pause,
    infos: Option<Infos>,
}

impl Exchange {
    fn run(&mut self, control: &Control) -> Result<Infos> {
        self.feed(Event::Begin)?;
        loop {
            let moved = self.turn()?;
            if let Some(infos) = self.infos.take() {
                return Ok(infos);
            }
            self.feed(Event::Tick)?;
            let rest =
                self.tree.due().map_or(Duration::ZERO, |due| due.saturating_sub(self.started.elapsed()));
            control.doze(self.pause.next(moved).min(rest))?;
        }
    }

    /// Moves everything as far as it goes; whether anything moved.
    fn turn(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.links.len() {
            let peer = self.links[index].peer;
            let link = &mut self.links[index];
            if self.tree.awaits(peer) {
                moved |= link.pull()?;
            } else {
                link.receive.progress()?;
            }
            if let Some(letter) = link.arrived.take() {
                self.feed(Event::Received { from: peer, letter })?;
            }
            let link = &mut self.links[index];
            if self.tree.serves(peer) {
                moved |= link.push()?;
                if link.is_flushed() {
                    self.feed(Event::Taken { by: peer })?;
                }
            }
        }
        Ok(moved)
    }

    fn feed(&mut self, event: Event) -> Result<()> {
        for action in self.tree.on(event, self.started.elapsed())? {
            match action {
                Action::Done(infos) => self.infos = Some(infos),
                Action::Send { to, letter } => {
                    let link = self.links.iter_mut().find(|link| link.peer == to);
                    link.ok_or_else(|| Error::bug(format!("no link to rank {to}")))?.out = Some((letter, 0));
                }
            }
        }
        Ok(())
    }
}

/// Letters to and from one peer, cut to slots. The tag of a piece is how many bytes follow it.
struct Link {
    peer: Rank,
    send: SendEdge,
    receive: ReceiveEdge,
    /// What is on its way, and how much of it has a slot.
    out: Option<(Letter, usize)>,
    arriving: Vec<u8>,
    arrived: Option<Vec<u8>>,
}

impl Link {
    fn new(network: &mut Network, peer: Rank) -> Result<Link> {
        let (send, receive) = network.edges_apart(peer, SHAPE)?;
        Ok(Link { peer, send, receive, out: None, arriving: Vec::new(), arrived: None })
    }

    /// Sends what slots take; whether that is anything.
    fn push(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some((letter, sent)) = &mut self.out {
            let rest = &letter[*sent..];
            let piece = &rest[..rest.len().min(SHAPE.slot_bytes)];
            if !self.send.try_send(piece, (rest.len() - piece.len()) as u32)? {
                break;
            }
            moved = true;
            *sent += piece.len();
            if *sent == letter.len() {
                self.out = None;
            }
        }
        self.send.progress()?;
        Ok(moved)
    }

    /// Takes what has arrived, up to the end of a letter; whether that is anything.
    fn pull(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some(follow) = self.receive.try_receive(&mut self.arriving)? {
            moved = true;
            if follow == 0 {
                self.arrived = Some(mem::take(&mut self.arriving));
                break;
            }
            if self.arriving.len() + follow as usize > MEMBER_BYTES {
                return Err(self.too_long(follow));
            }
        }
        Ok(moved)
    }

    /// Whether the network has taken everything.
    fn is_flushed(&self) -> bool {
        self.out.is_none() && self.send.idle()
    }

    #[cold]
    fn too_long(&self, follow: u32) -> Error {
        let (peer, bytes) = (self.peer, self.arriving.len() + follow as usize);
        let cause = format!(
            "expected at most {MEMBER_BYTES} bytes of infos from rank {peer}, found {bytes} announced"
        );
        let advice = "run the same version of ccl on all ranks";
        Error::new(Fault::Remote { rank: peer }, cause, advice).with_peer(peer)
    }
}

/// Sleeps between looks at the network: the longer, the longer nothing moves, and where many ranks share the cores.
struct Pause {
    next: Duration,
    wait: WaitSettings,
}

impl Pause {
    fn new(control: &Control) -> Pause {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wait = WaitSettings::default().on_host(control.ranks_in_process(), cores);
        Pause { next: wait.first_sleep, wait }
    }

    fn next(&mut self, moved: bool) -> Duration {
        let pause = if moved { self.wait.first_sleep } else { self.next };
        self.next = (2 * pause).min(self.wait.longest_sleep);
        pause
    }
}

/// Small, since a rank has six ends; long enough for the infos of a hundred ranks.
const SHAPE: SlotShape = SlotShape { slots: 4, used: 4, slot_bytes: 16 << 10 };

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use ccl_plugin_host::NetPlugin;

    use super::*;
    use crate::bootstrap::{BootstrapSettings, Root, join};
    use crate::transport::counted::{self, ATTEMPTS, CONTEXTS, ENDS, LISTENERS};
    use crate::transport::{NetSettings, TransportSettings};

    /// What `act` gives on each of n ranks that have joined, whose network is `plugin`.
    fn on_ranks<T: Send>(
        n: u32,
        plugin: Option<NetPlugin>,
        act: impl Fn(&Fabric, &Arc<Control>) -> T + Sync,
    ) -> Vec<T> {
        let settings =
            BootstrapSettings { bind: Some(Ipv4Addr::LOCALHOST.into()), ..BootstrapSettings::default() };
        let (id, _root) = Root::start(&settings).unwrap();
        let pairs = vec![("interfaces".to_owned(), "lo=127.0.0.1".to_owned())];
        let net = NetSettings { plugin, settings: pairs, device: Some(0) };
        let transport = TransportSettings { net, ..TransportSettings::default() };
        let rank = |rank| {
            let (control, _) = join(&id, Rank(rank), n, Vec::new(), &settings).unwrap();
            let (fabric, _) = Fabric::open(&transport, Rank(rank), n).unwrap();
            act(&fabric, &Arc::new(control))
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|index| {
                    scope.spawn({
                        let rank = &rank;
                        move || rank(index)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Of all lengths from nothing to several rounds of slots.
    fn info(rank: Rank) -> Vec<u8> {
        let bytes = [0, 1, 40_000, 300_000, SHAPE.slot_bytes][rank.index() % 5];
        (0..bytes).map(|at| (at as u32 * 31 + rank.0) as u8).collect()
    }

    #[test]
    fn infos_reach_all_ranks_and_everything_is_closed_again() {
        for (turns, connections) in [(true, 1), (false, 2)] {
            for n in [2, 3, 9] {
                let gathered = on_ranks(n, Some(counted::plugin(turns)), |fabric, control| {
                    all_gather(fabric, control, info(control.rank()), None, in_(20))
                });
                let expected: Vec<_> = (0..n).map(|rank| info(Rank(rank))).collect();
                for infos in gathered {
                    assert!(infos.unwrap().to_vec() == expected, "{n} ranks, turns: {turns}");
                }
                let pairs = u64::from(n) - 1;
                let listened = connections * pairs;
                assert_eq!(LISTENERS.take(), (listened, listened));
                assert_eq!(ATTEMPTS.take(), (listened, listened));
                assert_eq!(ENDS.take(), (4 * pairs, 4 * pairs), "two for each direction");
                assert_eq!(CONTEXTS.take().1, u64::from(n));
            }
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are_on_all_ranks() {
        let filter = |text| crate::config::Kind::parse(text);
        let errors = on_ranks(3, None, |fabric, control| {
            let names: Option<NameFilter> =
                if control.rank() == Rank(2) { filter("=nosuch0,ib") } else { filter("lo") };
            let gathered = all_gather(fabric, control, info(Rank(1)), names.as_ref(), in_(20));
            gathered.map_err(|error| control.report(error.on(control.rank())))
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("CCL_OOB_NET_IFNAME==nosuch0,ib allows, found lo"), "rank {rank}: {text}");
            assert!(text.contains("rank 2"), "rank {rank}: {text}");
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_by_all_at_the_deadline() {
        // 0 has the children 1 (with 2 and 3) and 4.
        for silent in [0, 1, 3].map(Rank) {
            let started = Instant::now();
            let errors = on_ranks(5, None, |fabric, control| {
                if control.rank() == silent {
                    control.barrier().unwrap();
                    while !control.alarm().raised() && started.elapsed() < Duration::from_secs(10) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    return control.alarm().error();
                }
                control.barrier().unwrap();
                all_gather(fabric, control, Vec::new(), None, in_(1)).err()
            });
            for (rank, error) in errors.into_iter().enumerate() {
                let text = error.expect("all ranks hear of it").to_string();
                assert!(
                    text.contains(&format!("from rank {silent} out of band within")),
                    "rank {rank}: {text}"
                );
            }
            assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        }
    }

    #[test]
    fn an_abort_ends_the_exchange_at_once() {
        let ended = on_ranks(4, None, |fabric, control| {
            let started = Instant::now();
            if control.rank() == Rank(3) {
                thread::sleep(Duration::from_millis(50));
                control.abort("the operator said so");
                return (String::from("the operator said so"), started.elapsed());
            }
            let error = all_gather(fabric, control, Vec::new(), None, in_(30)).unwrap_err();
            (error.to_string(), started.elapsed())
        });
        for (text, took) in ended {
            assert!(text.contains("the operator said so"), "{text}");
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    }

    fn in_(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }
}
