//! The edges of a walk: found by their ends, made on first use.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashTable;

use super::fault::{EdgeName, Fault};
use super::fiber::Fiber;
use crate::cursor::Site;
use crate::ids::Rank;

/// A filled slot.
pub(super) struct Slot<V> {
    pub(super) count: usize,
    pub(super) value: V,
}

/// All edges, by index.
pub(super) struct Edges<V, C> {
    edges: Vec<Edge<V, C>>,
    by_name: HashTable<u32>,
    slots: usize,
    /// Whether what a rank receives is what it sends, turned round.
    pub(super) turned: bool,
}

struct Edge<V, C> {
    name: EdgeName,
    filled: VecDeque<Slot<V>>,
    credits: VecDeque<C>,
    producer: Option<u32>,
    consumer: Option<u32>,
}

impl<V, C: Clone + Default> Edges<V, C> {
    pub(super) fn new(slots: usize, turned: bool) -> Self {
        Edges { edges: Vec::new(), by_name: HashTable::new(), slots, turned }
    }

    /// Adds the edge that `site` names, if it is one, to what the fiber's action needs.
    pub(super) fn resolve<T>(
        &mut self,
        fiber: &mut Fiber<'_, T>,
        index: usize,
        site: &Site,
    ) -> Result<(), Fault> {
        let (me, n) = (fiber.who.rank, fiber.layout.n);
        let (peer, tag, sends) = match *site {
            Site::Receive { peer, tag } => (peer, tag, false),
            Site::Send { peer, tag } => (peer, tag, true),
            _ => return Ok(()),
        };
        if peer == me || peer.0 >= n {
            return Err(Fault::Peer { peer });
        }
        let (from, to) = match sends {
            true => (me, peer),
            // Who is as far on as the peer is back.
            false if self.turned => (me, Rank((2 * me.0 + n - peer.0) % n)),
            false => (peer, me),
        };
        let id = self.find(EdgeName { from, to, channel: fiber.channel, tag });
        let edge = &mut self.edges[id as usize];
        let end = if sends { &mut edge.producer } else { &mut edge.consumer };
        if *end.get_or_insert(index as u32) != index as u32 {
            return Err(Fault::SharedEdge { edge: edge.name });
        }
        if sends {
            fiber.sends.push(id)
        } else {
            fiber.receives.push(id)
        }
        Ok(())
    }

    fn find(&mut self, name: EdgeName) -> u32 {
        let (edges, slots) = (&mut self.edges, self.slots);
        let hash = hash(name);
        if let Some(id) = self.by_name.find(hash, |id| edges[*id as usize].name == name) {
            return *id;
        }
        let id = edges.len() as u32;
        let credits = core::iter::repeat_n(C::default(), slots).collect();
        edges.push(Edge { name, filled: VecDeque::new(), credits, producer: None, consumer: None });
        self.by_name.insert_unique(hash, id, |id| self::hash(edges[*id as usize].name));
        id
    }

    pub(super) fn is_empty(&self, edge: u32) -> bool {
        self.edges[edge as usize].filled.is_empty()
    }

    pub(super) fn is_full(&self, edge: u32) -> bool {
        self.edges[edge as usize].credits.is_empty()
    }

    pub(super) fn take(&mut self, edge: u32) -> Option<Slot<V>> {
        self.edges[edge as usize].filled.pop_front()
    }

    pub(super) fn post(&mut self, edge: u32, slot: Slot<V>) {
        self.edges[edge as usize].filled.push_back(slot);
    }

    pub(super) fn spend(&mut self, edge: u32) -> C {
        self.edges[edge as usize].credits.pop_front().unwrap_or_default()
    }

    pub(super) fn refund(&mut self, edge: u32, credit: C) {
        self.edges[edge as usize].credits.push_back(credit);
    }

    pub(super) fn producer(&self, edge: u32) -> Option<u32> {
        self.edges[edge as usize].producer
    }

    pub(super) fn consumer(&self, edge: u32) -> Option<u32> {
        self.edges[edge as usize].consumer
    }

    pub(super) fn to(&self, edge: u32) -> Rank {
        self.edges[edge as usize].name.to
    }

    pub(super) fn name(&self, edge: u32) -> EdgeName {
        self.edges[edge as usize].name
    }

    /// The first edge that still holds slots, and how many.
    pub(super) fn leftover(&self) -> Option<(u32, usize)> {
        let index = self.edges.iter().position(|edge| !edge.filled.is_empty())?;
        Some((index as u32, self.edges[index].filled.len()))
    }
}

/// Spreads the bits of an edge's name; equal on every run.
fn hash(name: EdgeName) -> u64 {
    let ends = u64::from(name.from.0) << 32 | u64::from(name.to.0);
    let lane = u64::from(name.channel.0) << 8 | u64::from(name.tag);
    let mixed = (ends ^ lane.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}
