//! Paths: the shortest way through a topology, and the widest of the shortest.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::topology::{Kind, Link, Medium, Topology, Vertex, Wire};

/// A way from one vertex to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    /// The links, in order; none from a vertex to itself.
    pub links: Vec<Link>,
    /// The sum of their latencies.
    pub latency_ns: f64,
    /// The least of their bandwidths; infinite if there is none.
    pub gb_per_s: f64,
}

impl Path {
    /// This path and then another, which starts where this one ends.
    #[must_use]
    pub fn then(mut self, rest: Path) -> Path {
        self.links.extend(rest.links);
        Path {
            links: self.links,
            latency_ns: self.latency_ns + rest.latency_ns,
            gb_per_s: self.gb_per_s.min(rest.gb_per_s),
        }
    }
}

/// Finds paths, one after the other, in one working memory.
///
/// GPUs do not forward what is meant for others. A NIC forwards between its node and the network, and
/// nothing else.
pub struct Router<'a> {
    topology: &'a Topology,
    /// Two places for each vertex: reached from within its node, and over the network. Only NICs care.
    places: Vec<Reached>,
    /// Places that belong to the question asked now carry this number.
    question: u32,
    queue: BinaryHeap<Waiting>,
}

/// How a place was reached best, so far.
#[derive(Clone, Copy)]
struct Reached {
    question: u32,
    is_settled: bool,
    by: Option<(Link, u32)>,
    label: Label,
}

/// What makes a way better than another: latency, then width, then the number of links.
#[derive(Clone, Copy, PartialEq)]
struct Label {
    latency_ns: f64,
    gb_per_s: f64,
    links: u32,
}

/// A place whose label may still improve.
struct Waiting {
    label: Label,
    place: u32,
}

impl<'a> Router<'a> {
    /// A router with working memory for `topology`: 40 bytes for each place, two places for each vertex.
    pub fn new(topology: &'a Topology) -> Router<'a> {
        let nowhere = Reached { question: 0, is_settled: false, by: None, label: Label::START };
        let places = vec![nowhere; 2 * topology.vertices().len()];
        Router { topology, places, question: 0, queue: BinaryHeap::new() }
    }

    /// The path of least latency; among those the widest, then the one with the fewest links. `None`
    /// if there is no way.
    ///
    /// Dijkstra's algorithm, "A note on two problems in connexion with graphs", 1959: at most
    /// O(links · log vertices), less if the target is near.
    pub fn path(&mut self, from: Vertex, to: Vertex) -> Option<Path> {
        self.question = self.question.checked_add(1).unwrap_or_else(|| {
            self.places.iter_mut().for_each(|place| place.question = 0);
            1
        });
        self.queue.clear();
        self.reach(2 * from.0, Label::START, None);
        while let Some(Waiting { place, label }) = self.queue.pop() {
            let reached = &mut self.places[place as usize];
            if core::mem::replace(&mut reached.is_settled, true) {
                continue;
            }
            let by = reached.by.map(|(link, _)| link);
            if place / 2 == to.0 {
                return Some(self.collect(place, label));
            }
            self.leave(Vertex(place / 2), place, by, label);
        }
        None
    }

    /// Looks along the links that may be taken from a vertex that was reached `by` a link.
    fn leave(&mut self, vertex: Vertex, place: u32, by: Option<Link>, label: Label) {
        let topology = self.topology;
        let kind = &topology.component(vertex).kind;
        let arrived = by.map(|link| topology.wire(link).medium);
        for link in topology.links_from(vertex) {
            let wire = topology.wire(link);
            if may_pass(kind, arrived, wire.medium) {
                let over_network = u32::from(wire.medium == Medium::Network);
                self.reach(2 * wire.to.0 + over_network, label.after(wire), Some((link, place)));
            }
        }
    }

    fn reach(&mut self, place: u32, label: Label, by: Option<(Link, u32)>) {
        let known = &mut self.places[place as usize];
        let is_new = known.question != self.question;
        if is_new || (!known.is_settled && label.cmp(&known.label).is_lt()) {
            *known = Reached { question: self.question, is_settled: false, by, label };
            self.queue.push(Waiting { label, place });
        }
    }

    fn collect(&self, mut place: u32, label: Label) -> Path {
        let mut links = Vec::with_capacity(label.links as usize);
        while let Some((link, before)) = self.places[place as usize].by {
            links.push(link);
            place = before;
        }
        links.reverse();
        Path { links, latency_ns: label.latency_ns, gb_per_s: label.gb_per_s }
    }
}

/// Whether what arrived over one medium may leave over another; what starts here may leave.
fn may_pass(kind: &Kind, arrived: Option<Medium>, leaves: Medium) -> bool {
    let Some(arrived) = arrived else { return true };
    let crosses = (arrived == Medium::Network) != (leaves == Medium::Network);
    kind.forwards() || (matches!(kind, Kind::Nic(_)) && crosses)
}

impl Label {
    const START: Label = Label { latency_ns: 0.0, gb_per_s: f64::INFINITY, links: 0 };

    fn after(self, wire: &Wire) -> Label {
        Label {
            latency_ns: self.latency_ns + wire.latency_ns,
            gb_per_s: self.gb_per_s.min(wire.gb_per_s),
            links: self.links + 1,
        }
    }

    /// Less is better.
    fn cmp(&self, other: &Label) -> Ordering {
        let by_latency = self.latency_ns.total_cmp(&other.latency_ns);
        let by_width = other.gb_per_s.total_cmp(&self.gb_per_s);
        by_latency.then(by_width).then(self.links.cmp(&other.links))
    }
}

impl Ord for Waiting {
    /// The best is the greatest; of equals the lowest place, so that every rank finds the same.
    fn cmp(&self, other: &Waiting) -> Ordering {
        other.label.cmp(&self.label).then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}
