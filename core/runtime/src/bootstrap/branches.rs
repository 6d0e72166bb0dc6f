//! The root of a communicator and of those that were made from it: one machine for each, on the same
//! connections.
//!
//! A rank that splits its communicator joins the new one, a *branch*, on the control connection that it has,
//! under a number that all its ranks have agreed on. A branch is a root of its own, which lets only members
//! of the others in; what it says is wrapped in its number. A connection is closed when its rank has left
//! all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::BootstrapSettings;
use super::auth::Key;
use super::machine::{Action, Conn, Ending, Event, Time};
use super::process::{Life, Process};
use super::root::RootMachine;
use super::wire::{self, Frame, ToRoot};
use crate::control::hub::LifeOf;

/// The machines of all communicators that meet at one root.
pub(crate) struct RootTree {
    /// That which the connections were made for.
    pub(super) trunk: RootMachine,
    branches: BTreeMap<u64, RootMachine>,
    /// Connections whose ranks have left the trunk, but not all branches.
    held: BTreeSet<Conn>,
    key: Key,
    settings: BootstrapSettings,
    this: (Process, LifeOf),
}

impl RootTree {
    pub(crate) fn new(
        key: Key,
        settings: &BootstrapSettings,
        this: (Process, LifeOf),
        now: Time,
    ) -> RootTree {
        let trunk = RootMachine::new(key.clone(), settings, this.clone(), now);
        // Life on a connection shows in the trunk.
        let settings = BootstrapSettings { heartbeat: Duration::ZERO, ..settings.clone() };
        RootTree { trunk, branches: BTreeMap::new(), held: BTreeSet::new(), key, settings, this }
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Received { conn, body } => match wire::of_branch(&body).filter(|_| self.knows(conn)) {
                Some(message) => self.received(conn, message, now, &mut actions),
                None => self.tell_trunk(Event::Received { conn, body }, now, &mut actions),
            },
            Event::Closed { .. } | Event::Tick => {
                for branch in self.branches.keys().copied().collect::<Vec<_>>() {
                    self.tell_branch(branch, event.clone(), now, &mut actions);
                }
                self.tell_trunk(event, now, &mut actions);
            }
            Event::Accepted { .. } | Event::Connected { .. } => self.tell_trunk(event, now, &mut actions),
        }
        self.let_go(&mut actions);
        actions
    }

    /// The root of a service has ended, and with it the connections of its ranks.
    pub(crate) fn service_lost(&mut self, service: u32, why: &Ending, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        for branch in self.branches.keys().copied().collect::<Vec<_>>() {
            let Some(machine) = self.branches.get_mut(&branch) else { continue };
            let done = machine.service_lost(service, why, now);
            self.pass_on(branch, done, &mut actions);
        }
        let done = self.trunk.service_lost(service, why, now);
        self.pass_on_of_trunk(done, now, &mut actions);
        self.let_go(&mut actions);
        actions
    }

    /// What the root of a service sees of its ranks.
    pub(crate) fn seen(&mut self, seen: &[(Conn, Duration, Life)], now: Time) {
        for machine in self.branches.values_mut().chain([&mut self.trunk]) {
            seen.iter().for_each(|(conn, silence, life)| machine.seen(*conn, *silence, *life, now));
        }
    }

    /// Closes the connections of ranks that have left everything.
    fn let_go(&mut self, actions: &mut Vec<Action>) {
        let left: Vec<Conn> = self.held.iter().filter(|conn| !self.on_branch(**conn)).copied().collect();
        for conn in left {
            self.held.remove(&conn);
            actions.push(Action::Close { conn });
        }
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let branches = self.branches.values().filter_map(RootMachine::deadline);
        self.trunk.deadline().into_iter().chain(branches).min()
    }

    /// A message of a member about a branch.
    fn received(&mut self, conn: Conn, message: ToRoot, now: Time, actions: &mut Vec<Action>) {
        let (branch, body) = match message {
            ToRoot::Begin { branch, rank, n, body } => {
                let Some(address) = self.trunk.address(conn) else { return };
                let (key, settings, this) = (&self.key, &self.settings, &self.this);
                let services = &self.trunk.services;
                let fresh = || RootMachine::new(key.clone(), settings, this.clone(), now).beside(services);
                let machine = self.branches.entry(branch).or_insert_with(fresh);
                machine.admit(conn, address, (rank, n), now);
                (branch, body)
            }
            ToRoot::Branch { branch, body } => (branch, body),
            _ => return,
        };
        self.tell_branch(branch, Event::Received { conn, body: body.into_vec() }, now, actions);
    }

    fn tell_trunk(&mut self, event: Event, now: Time, actions: &mut Vec<Action>) {
        let done = self.trunk.on(event, now);
        self.pass_on_of_trunk(done, now, actions);
    }

    fn pass_on_of_trunk(&mut self, done: Vec<Action>, now: Time, actions: &mut Vec<Action>) {
        for action in done {
            match action {
                Action::Close { conn } if self.on_branch(conn) => {
                    self.held.insert(conn);
                }
                Action::Drop { conn } => {
                    self.lose(conn, now, actions);
                    actions.push(Action::Drop { conn });
                }
                Action::Finish if !self.branches.is_empty() => {}
                action => actions.push(action),
            }
        }
    }

    /// The trunk gave a connection up.
    fn lose(&mut self, conn: Conn, now: Time, actions: &mut Vec<Action>) {
        let event = Event::Closed { conn, why: Ending::Closed };
        for branch in self.branches.keys().copied().collect::<Vec<_>>() {
            self.tell_branch(branch, event.clone(), now, actions);
        }
    }

    fn tell_branch(&mut self, branch: u64, event: Event, now: Time, actions: &mut Vec<Action>) {
        let Some(machine) = self.branches.get_mut(&branch) else { return };
        let done = machine.on(event, now);
        self.pass_on(branch, done, actions);
    }

    fn pass_on(&mut self, branch: u64, done: Vec<Action>, actions: &mut Vec<Action>) {
        let mut wrapped: Option<(Frame, Frame)> = None;
        let mut is_over = false;
        for action in done {
            match action {
                Action::Send { conn, frame } => {
                    // What everybody is told is wrapped once.
                    let wrapped = match &mut wrapped {
                        Some((inner, outer)) if Arc::ptr_eq(inner, &frame) => outer.clone(),
                        other => {
                            let outer = wire::in_branch(branch, &frame);
                            other.insert((frame, outer)).1.clone()
                        }
                    };
                    actions.push(Action::Send { conn, frame: wrapped });
                }
                Action::Warn(text) => actions.push(Action::Warn(text)),
                Action::Finish => is_over = true,
                // Connections and the port are the trunk's.
                Action::Connect { .. }
                | Action::Trust { .. }
                | Action::Close { .. }
                | Action::Drop { .. }
                | Action::StopListening => {}
            }
        }
        if is_over {
            self.branches.remove(&branch);
        }
    }

    /// Whether a member has this connection, which has proved itself then.
    fn knows(&self, conn: Conn) -> bool {
        self.trunk.address(conn).is_some()
    }

    fn on_branch(&self, conn: Conn) -> bool {
        self.branches.values().any(|machine| machine.owns(conn))
    }
}
