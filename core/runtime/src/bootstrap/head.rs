//! The head of several roots: joins and keeps ranks that it has no connections to, through their roots.
//!
//! To the machine of the communicator a rank at a deputy is a rank like any other, with a connection of a number
//! that says which deputy has it. What it is told travels once for all ranks of a deputy that are told the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::between::{Guest, Seen, ToDeputy, ToHead, Word};
use super::branches::RootTree;
use super::machine::{Action, Conn, Ending, Event, MOST_SERVICES, Time};
use super::process::{Life, Process};
use super::roots::Claim;
use super::wire::{self, FaultCode, Frame, ToRoot};
use super::words;
use crate::control::hub::{LifeOf, MISSED_HEARTBEATS};
use bytes::Bytes;

/// What the head knows of its deputies.
pub(crate) struct Head {
    /// The unique ids, and the rank that said so first.
    claim: Option<(Claim, u32)>,
    /// Which of them is the head's own, once a rank that came here has said so.
    own: Option<u32>,
    deputies: BTreeMap<Conn, Deputy>,
    services: u32,
    heartbeat: Duration,
    this: (Process, LifeOf),
    /// The deputies have been told not to keep anybody back.
    hurried: bool,
}

struct Deputy {
    /// Counts from 1; 0 is the head itself.
    service: u32,
    /// Which of the unique ids is its.
    index: u32,
    process: Process,
    heard: Time,
}

impl Head {
    pub(crate) fn new(heartbeat: Duration, this: (Process, LifeOf)) -> Head {
        Head {
            claim: None,
            own: None,
            deputies: BTreeMap::new(),
            services: 0,
            heartbeat,
            this,
            hurried: false,
        }
    }

    /// The unique ids, and the rank that said so first.
    pub(crate) fn claim(&self) -> Option<(&Claim, u32)> {
        self.claim.as_ref().map(|(claim, rank)| (claim, *rank))
    }

    /// `rank` says that these are the unique ids.
    pub(crate) fn claimed(&mut self, claim: Claim, rank: u32) {
        self.claim.get_or_insert((claim, rank));
    }

    /// A rank that came here says which of the unique ids is the head's.
    pub(crate) fn is_number(&mut self, index: u32) {
        self.own.get_or_insert(index);
    }

    /// A deputy is there, in `process`, for the ranks of unique id `index`.
    pub(crate) fn represented(
        &mut self,
        conn: Conn,
        index: u32,
        process: Process,
        tree: &mut RootTree,
        now: Time,
    ) -> Vec<Action> {
        if self.services == MOST_SERVICES {
            return vec![Action::Close { conn }];
        }
        self.services += 1;
        let service = self.services;
        tree.trunk.services.push(process.clone());
        self.deputies.insert(conn, Deputy { service, index, process, heard: now });
        let mut actions = Vec::new();
        if self.hurried {
            actions.push(say(conn, &ToDeputy::Hurry));
        }
        actions.extend(self.on(Event::Tick, tree, now));
        actions
    }

    /// Takes in an event of the tree or of a deputy; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, tree: &mut RootTree, now: Time) -> Vec<Action> {
        if tree.trunk.gathering.patience().is_some() {
            self.remark_absent(tree);
        }
        let mut actions = match event {
            Event::Received { conn, body } if self.deputies.contains_key(&conn) => {
                self.received(conn, &body, tree, now)
            }
            Event::Closed { conn, why } if self.deputies.contains_key(&conn) => {
                self.lost(conn, &why, tree, now)
            }
            Event::Tick => {
                let mut actions = self.look_for_dead(tree, now);
                actions.extend(tree.on(Event::Tick, now));
                actions
            }
            event => tree.on(event, now),
        };
        self.hurry(tree, now, &mut actions);
        self.translate(actions)
    }

    /// Everybody is told that joining has failed.
    pub(crate) fn give_up(
        &mut self,
        fault: FaultCode,
        text: String,
        tree: &mut RootTree,
        now: Time,
    ) -> Vec<Action> {
        let mut actions = tree.trunk.gathering.give_up(fault, text, now);
        self.hurry(tree, now, &mut actions);
        self.translate(actions)
    }

    /// When to tick next, beside the tree.
    pub(crate) fn deadline(&self, tree: &RootTree) -> Option<Time> {
        let patience = tree.trunk.gathering.patience().filter(|_| !self.hurried);
        let hurry = patience.map(|(at, patience)| at.saturating_sub(margin(patience)));
        let silent = self.silence_limit().and_then(|limit| {
            let heard = self.deputies.values().map(|deputy| deputy.heard);
            Some(heard.min()? + limit)
        });
        hurry.into_iter().chain(silent).min()
    }

    fn received(&mut self, conn: Conn, body: &[u8], tree: &mut RootTree, now: Time) -> Vec<Action> {
        let Some(deputy) = self.deputies.get_mut(&conn) else { return Vec::new() };
        deputy.heard = now;
        let service = deputy.service;
        match wire::decode(body) {
            Some(ToHead::Arrived { guests, infos }) if guests.len() == infos.len() => {
                let guests = guests.into_iter().zip(infos.to_vec());
                guests.flat_map(|(guest, info)| arrived(service, guest, info.into(), tree, now)).collect()
            }
            Some(ToHead::Said { lines, bodies }) if lines.len() == bodies.len() => {
                let said = lines.into_iter().zip(bodies.to_vec());
                let event = |(line, body): (_, Bytes)| Event::Received {
                    conn: Conn::at(service, line),
                    body: body.into(),
                };
                said.flat_map(|said| tree.on(event(said), now)).collect()
            }
            Some(ToHead::Closed { line, why }) => {
                tree.on(Event::Closed { conn: Conn::at(service, line), why }, now)
            }
            Some(ToHead::Seen { lines }) => {
                let seen = |seen: Seen| {
                    (Conn::at(service, seen.line), Duration::from_millis(seen.silent_ms), seen.life)
                };
                tree.seen(&lines.into_iter().map(seen).collect::<Vec<_>>(), now);
                Vec::new()
            }
            Some(ToHead::Objection { text }) => {
                tree.trunk.gathering.give_up(FaultCode::Usage, wire::bounded(&text), now)
            }
            Some(ToHead::Ping) => vec![say(conn, &ToDeputy::Pong)],
            _ => {
                let why = Ending::Broken("a message that is none".into());
                let mut actions = self.lost(conn, &why, tree, now);
                actions.push(Action::Drop { conn });
                actions
            }
        }
    }

    fn lost(&mut self, conn: Conn, why: &Ending, tree: &mut RootTree, now: Time) -> Vec<Action> {
        let Some(deputy) = self.deputies.remove(&conn) else { return Vec::new() };
        if tree.trunk.gathering.is_open() {
            let Deputy { index, process, .. } = deputy;
            let text =
                format!("the root of unique id {index} ({process}) was lost while ranks were joining: {why}");
            return tree.trunk.gathering.give_up(FaultCode::Network, text, now);
        }
        tree.service_lost(deputy.service, why, now)
    }

    /// A process may end while a child of it keeps its connection open.
    fn look_for_dead(&mut self, tree: &mut RootTree, now: Time) -> Vec<Action> {
        let Some(limit) = self.silence_limit() else { return Vec::new() };
        let (this, life) = &self.this;
        let mut dead = Vec::new();
        for (conn, deputy) in &mut self.deputies {
            if now >= deputy.heard + limit {
                deputy.heard = now;
                if life(&deputy.process, this) == Life::Gone {
                    dead.push(*conn);
                }
            }
        }
        let mut actions = Vec::new();
        for conn in dead {
            actions.extend(self.lost(conn, &Ending::Closed, tree, now));
            actions.push(Action::Drop { conn });
        }
        actions
    }

    fn silence_limit(&self) -> Option<Duration> {
        (!self.heartbeat.is_zero()).then_some(self.heartbeat * MISSED_HEARTBEATS)
    }

    /// Shortly before ranks give up, or when joining has failed, whoever is kept back at a deputy should be
    /// known.
    fn hurry(&mut self, tree: &RootTree, now: Time, actions: &mut Vec<Action>) {
        let patience = tree.trunk.gathering.patience();
        let late = patience.is_some_and(|(at, patience)| now + margin(patience) >= at);
        if !self.hurried && (late || tree.trunk.gathering.has_failed()) {
            self.hurried = true;
            actions.extend(self.deputies.keys().map(|conn| say(*conn, &ToDeputy::Hurry)));
        }
    }

    /// Has the error about missing ranks say which roots nobody speaks for.
    fn remark_absent(&self, tree: &mut RootTree) {
        let (Some((claim, _)), Some(own)) = (&self.claim, self.own) else { return };
        let known: BTreeSet<u32> = self.deputies.values().map(|deputy| deputy.index).chain([own]).collect();
        let absent: Vec<u32> = (0..claim.roots).filter(|index| !known.contains(index)).take(LISTED).collect();
        let remark = match absent.is_empty() {
            true => String::new(),
            false => {
                let absent = words::list(absent.iter().map(u32::to_string));
                format!("; no word from the root of unique id {absent} (of 0 to {})", claim.roots - 1)
            }
        };
        tree.trunk.gathering.remark(remark);
    }

    /// Has deputies do what concerns their lines.
    fn translate(&self, actions: Vec<Action>) -> Vec<Action> {
        let links: BTreeMap<u32, Conn> =
            self.deputies.iter().map(|(conn, deputy)| (deputy.service, *conn)).collect();
        let mut letters = Letters { links, open: BTreeMap::new(), actions: Vec::new() };
        for action in actions {
            match action {
                Action::Send { conn, frame } if conn.service() > 0 => letters.add(conn, Some(frame)),
                Action::Close { conn } | Action::Drop { conn } if conn.service() > 0 => {
                    letters.add(conn, None);
                }
                Action::Trust { conn } if conn.service() > 0 => {}
                Action::Finish => {
                    letters.post_all();
                    letters.actions.push(Action::Finish);
                }
                action => letters.actions.push(action),
            }
        }
        letters.post_all();
        letters.actions
    }
}

/// What deputies are to do, gathered so that what is the same for many lines travels once.
struct Letters {
    /// The deputies' connections by service.
    links: BTreeMap<u32, Conn>,
    /// What each is to say, or close, and on which lines.
    open: BTreeMap<u32, (Option<Frame>, Vec<u64>)>,
    actions: Vec<Action>,
}

impl Letters {
    /// A frame to say on a connection, or nothing to close it.
    fn add(&mut self, conn: Conn, frame: Option<Frame>) {
        let service = conn.service();
        let same = |other: &Option<Frame>| match (other, &frame) {
            (Some(other), Some(frame)) => Arc::ptr_eq(other, frame),
            (None, None) => true,
            _ => false,
        };
        if self.open.get(&service).is_some_and(|(other, _)| !same(other)) {
            self.post(service);
        }
        self.open.entry(service).or_insert_with(|| (frame, Vec::new())).1.push(conn.line());
    }

    fn post(&mut self, service: u32) {
        let (Some((frame, lines)), Some(conn)) = (self.open.remove(&service), self.links.get(&service))
        else {
            return;
        };
        let letter = match frame {
            Some(frame) => ToDeputy::Say { lines, body: wire::blob(wire::body_of(&frame)) },
            None => ToDeputy::Close { lines },
        };
        self.actions.push(say(*conn, &letter));
    }

    fn post_all(&mut self) {
        for service in self.open.keys().copied().collect::<Vec<_>>() {
            self.post(service);
        }
    }
}

/// A rank came to a deputy.
fn arrived(service: u32, guest: Guest, info: Vec<u8>, tree: &mut RootTree, now: Time) -> Vec<Action> {
    let conn = Conn::at(service, guest.line);
    let (kept_ms, word) = match guest.word {
        Word::Join { process, remaining_ms, kept_ms } => {
            (kept_ms, ToRoot::Join { process, remaining_ms, info: info.into() })
        }
        Word::Fail { reason } => (0, ToRoot::Fail { reason }),
    };
    let kept = Duration::from_millis(kept_ms);
    tree.trunk.gathering.admit_after(kept, conn, guest.address, (guest.rank, guest.n), now);
    tree.on(Event::Received { conn, body: wire::body(&word) }, now)
}

fn say(conn: Conn, letter: &ToDeputy) -> Action {
    Action::Send { conn, frame: wire::encode(letter) }
}

/// How long before a deadline what is known elsewhere must be asked for.
pub(crate) fn margin(patience: Duration) -> Duration {
    (patience / 8).min(LONGEST_MARGIN)
}

/// Absent roots looked for before the list is cut anyway.
const LISTED: usize = 64;
const LONGEST_MARGIN: Duration = Duration::from_millis(500);
