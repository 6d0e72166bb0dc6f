//! Orders of the seats of one node, one for each channel, at a given bandwidth.

use alloc::vec;
use alloc::vec::Vec;

use super::site::{Site, Way};
use super::{Pattern, TOLERANCE};

/// An order of the seats for each channel such that no link carries more than it can when each channel
/// gets `gb_per_s`; `None` if there is none, or none was found in that many steps.
pub(super) fn solve(
    site: &Site,
    pattern: Pattern,
    channels: u16,
    gb_per_s: f64,
    steps: u32,
) -> Option<Vec<Vec<u32>>> {
    let shares = |width: f64| (2.0 * width / gb_per_s * (1.0 + TOLERANCE)) as u32;
    let mut solver = Solver {
        site,
        pattern,
        channels: usize::from(channels),
        free: site.widths().map(shares).collect(),
        steps,
        least_steps: 0,
        ends: Vec::new(),
        done: Vec::new(),
        order: Vec::new(),
        is_taken: vec![false; site.seats()],
    };
    solver.choose_ends().then_some(solver.done)
}

/// A search under way. Bandwidth is counted in half shares of a channel's, so that nothing is rounded.
struct Solver<'a> {
    site: &'a Site,
    pattern: Pattern,
    channels: usize,
    /// For each link, the half shares that nobody has.
    free: Vec<u32>,
    /// Steps left, and with how many left to give up what is between the ends that are chosen now.
    steps: u32,
    least_steps: u32,
    /// For each channel its first seat, and its last if the way out depends on it.
    ends: Vec<(u32, Option<u32>)>,
    /// The orders of the channels that are complete.
    done: Vec<Vec<u32>>,
    /// The beginning of the next one's, and the seats in it.
    order: Vec<u32>,
    is_taken: Vec<bool>,
}

impl<'a> Solver<'a> {
    /// Whether there are ends for the channels that have none yet, such that orders lie between them. Ends
    /// come first because they decide who uses the links at the NICs.
    fn choose_ends(&mut self) -> bool {
        let channel = self.ends.len();
        if channel == self.channels {
            // The last half of the steps is for other ends, if there are any.
            let has_choice = self.ends.iter().zip(0..).any(|(_, at)| self.possible_ends(at).len() > 1);
            self.least_steps = if has_choice { self.steps / 2 } else { 0 };
            return self.start();
        }
        for ends in self.possible_ends(channel) {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            let uses = self.entry_and_exit(channel, ends);
            let found = self.with(&uses, |solver| {
                solver.ends.push(ends);
                let found = solver.choose_ends();
                if !found {
                    solver.ends.pop();
                }
                found
            });
            if found {
                return true;
            }
        }
        false
    }

    /// The ends that a channel may have: those nearest to its NIC first, then in turn.
    fn possible_ends(&self, channel: usize) -> Vec<(u32, Option<u32>)> {
        let (site, seats) = (self.site, self.site.seats() as u32);
        let turned = |seat: u32| (seat + seats - channel as u32 % seats) % seats;
        let mut ends: Vec<(u32, Option<u32>)> = match (self.pattern, site.nic_of(channel)) {
            // A ring within a node begins anywhere.
            (Pattern::Ring, _) if site.is_alone() => return vec![(channel as u32 % seats, None)],
            (Pattern::Ring | Pattern::Chain, Some(_)) => {
                let pairs = (0..seats).flat_map(|first| (0..seats).map(move |last| (first, Some(last))));
                pairs.filter(|(first, last)| seats == 1 || *last != Some(*first)).collect()
            }
            _ => (0..seats).map(|first| (first, None)).collect(),
        };
        ends.sort_by_key(|(first, last)| {
            let length = |way: Option<&Way>| way.map_or(usize::MAX / 2, Vec::len);
            let nic = site.nic_of(channel);
            let enters = nic.map_or(0, |nic| length(site.enter(nic, *first)));
            let leaves = nic.zip(*last).map_or(0, |(nic, last)| length(site.leave(nic, last)));
            (enters + leaves, turned(*first), last.map(turned))
        });
        ends
    }

    /// Whether there are orders for all channels that are not done.
    fn start(&mut self) -> bool {
        match self.ends.get(self.done.len()) {
            None => true,
            Some((first, _)) => self.visit(*first),
        }
    }

    /// Whether the order under way, with `seat` behind it, can be completed, and those after it.
    fn visit(&mut self, seat: u32) -> bool {
        if self.steps <= self.least_steps {
            return false;
        }
        self.steps -= 1;
        self.order.push(seat);
        self.is_taken[seat as usize] = true;
        let found = match self.order.len() == self.site.seats() {
            true => self.with(&self.closing(seat), Solver::finish),
            false => {
                let nexts = self.nexts(seat);
                nexts.into_iter().any(|next| self.with(&self.step(seat, next), |solver| solver.visit(next)))
            }
        };
        if !found {
            self.is_taken[seat as usize] = false;
            self.order.pop();
        }
        found
    }

    /// Whether there are orders for the channels after the one that is complete now.
    fn finish(&mut self) -> bool {
        let (order, seats) = (core::mem::take(&mut self.order), self.site.seats());
        let is_taken = core::mem::replace(&mut self.is_taken, vec![false; seats]);
        self.done.push(order);
        let found = self.start();
        if !found {
            self.order = self.done.pop().unwrap_or_default();
            self.is_taken = is_taken;
        }
        found
    }

    /// The seats to try after one: the nearest first, of those the ones with most left on the way, then
    /// in turn.
    fn nexts(&self, seat: u32) -> Vec<u32> {
        let seats = self.site.seats() as u32;
        let last = self.ends[self.done.len()].1.filter(|_| self.order.len() + 1 < seats as usize);
        let open = (0..seats).filter(|next| !self.is_taken[*next as usize] && Some(*next) != last);
        let mut keyed: Vec<_> = open
            .filter_map(|next| {
                let way = self.site.between(seat, next)?;
                let free = way.iter().map(|link| self.free[link.index()]).min().unwrap_or(u32::MAX);
                Some((way.len(), u32::MAX - free, (next + seats - seat) % seats, next))
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(.., next)| next).collect()
    }

    /// What a step from one seat to the next uses.
    fn step(&self, from: u32, to: u32) -> Uses<'a> {
        let (there, back) = (self.site.between(from, to), self.site.between(to, from));
        match self.pattern {
            Pattern::Ring | Pattern::Chain => Uses([Some((there, WHOLE)), None]),
            Pattern::Tree => Uses([Some((there, HALF)), Some((back, HALF))]),
        }
    }

    /// What a channel uses between its ends and its NIC.
    fn entry_and_exit(&self, channel: usize, (first, last): (u32, Option<u32>)) -> Uses<'a> {
        let Some(nic) = self.site.nic_of(channel) else { return Uses([None, None]) };
        let out = last.unwrap_or(first);
        Uses([Some((self.site.enter(nic, first), WHOLE)), Some((self.site.leave(nic, out), WHOLE))])
    }

    /// What the channel under way uses from its last seat to its first: something only if it is a ring
    /// within one node.
    fn closing(&self, last: u32) -> Uses<'a> {
        let closes = self.pattern == Pattern::Ring && self.site.is_alone();
        Uses([closes.then(|| (self.site.between(last, self.order[0]), WHOLE)), None])
    }

    /// Whether `then` succeeds with those uses; nothing is used if it does not, or if they are too much.
    fn with(&mut self, uses: &Uses<'a>, then: impl FnOnce(&mut Self) -> bool) -> bool {
        let mut taken = Vec::new();
        let fits = uses.0.iter().flatten().all(|(way, shares)| {
            way.is_some_and(|way| {
                way.iter().all(|link| {
                    let free = &mut self.free[link.index()];
                    let rest = free.checked_sub(*shares);
                    rest.inspect(|rest| {
                        *free = *rest;
                        taken.push((*link, *shares));
                    })
                    .is_some()
                })
            })
        });
        let found = fits && then(self);
        if !found {
            taken.into_iter().for_each(|(link, shares)| self.free[link.index()] += shares);
        }
        found
    }
}

/// Ways and half shares of each; no way means that there is none.
struct Uses<'a>([Option<(Option<&'a Way>, u32)>; 2]);

const WHOLE: u32 = 2;
const HALF: u32 = 1;
