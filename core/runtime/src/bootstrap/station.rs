//! A root: by what the first ranks say, the only one, the head of several, or a deputy.

use super::BootstrapSettings;
use super::auth::Key;
use super::branches::RootTree;
use super::deputy::Deputy;
use super::head::Head;
use super::machine::{Action, Conn, Event, Time};
use super::process::Process;
use super::roots::{self, Claim};
use super::wire::{self, FaultCode, Refusal, ToMember, ToRoot};
use crate::control::hub::LifeOf;

/// The machine of one root.
pub(crate) struct Station {
    /// Makes the handshakes; of the only root and of the head it is the rest as well.
    tree: RootTree,
    /// What it does as the head of several.
    head: Option<Head>,
    /// What it does as a deputy.
    deputy: Option<Box<Deputy>>,
    key: Key,
    settings: BootstrapSettings,
    this: (Process, LifeOf),
}

impl Station {
    pub(crate) fn new(key: Key, settings: &BootstrapSettings, this: (Process, LifeOf), now: Time) -> Station {
        let tree = RootTree::new(key.clone(), settings, this.clone(), now);
        Station { tree, head: None, deputy: None, key, settings: settings.clone(), this }
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let event = match event {
            Event::Received { conn, body } => match self.first_word(conn, &body) {
                Some(word) => return self.introduced(conn, word, now),
                None => Event::Received { conn, body },
            },
            other => other,
        };
        if let Some(head) = &mut self.head {
            return head.on(event, &mut self.tree, now);
        }
        let Some(deputy) = &mut self.deputy else { return self.tree.on(event, now) };
        match event {
            Event::Tick => {
                let mut actions = self.tree.on(Event::Tick, now);
                actions.extend(deputy.on(Event::Tick, now));
                actions
            }
            Event::Connected { .. } => deputy.on(event, now),
            Event::Received { conn, .. } | Event::Closed { conn, .. } if deputy.owns(conn) => {
                deputy.on(event, now)
            }
            event => self.tree.on(event, now),
        }
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let head = self.head.as_ref().and_then(|head| head.deadline(&self.tree));
        let deputy = self.deputy.as_ref().and_then(|deputy| deputy.deadline());
        self.tree.deadline().into_iter().chain(head).chain(deputy).min()
    }

    /// What somebody says who has just proved to know the secret, if it says which unique ids it has.
    fn first_word(&self, conn: Conn, body: &[u8]) -> Option<ToRoot> {
        let several = self.head.is_some() || self.deputy.is_some();
        if !several && !wire::is_of_several(body) {
            return None;
        }
        self.tree.trunk.gathering.proven(conn)?;
        let word = wire::decode(body)?;
        let counts = match &word {
            ToRoot::Share { .. } | ToRoot::Represent { .. } => true,
            ToRoot::Join { .. } | ToRoot::Fail { .. } => several,
            _ => false,
        };
        counts.then_some(word)
    }

    fn introduced(&mut self, conn: Conn, word: ToRoot, now: Time) -> Vec<Action> {
        let gathering = &mut self.tree.trunk.gathering;
        let Some((address, (rank, n))) = gathering.proven(conn) else { return Vec::new() };
        let claim = match &word {
            ToRoot::Share { claim, .. } | ToRoot::Represent { claim, .. } => Some(claim),
            _ => None,
        };
        if claim.is_some_and(|claim| claim.roots < 2 || claim.index >= claim.roots) {
            return self.tree.on(Event::Received { conn, body: Vec::new() }, now);
        }
        if let Some(text) = self.objection(rank, claim) {
            return self.object(conn, word, text, now);
        }
        match word {
            ToRoot::Share { claim, first } if claim.is_of_head() => {
                let head = head(&mut self.head, &self.settings, &self.this);
                head.is_number(claim.index);
                head.claimed(claim, rank);
                head.on(Event::Received { conn, body: first.into_vec() }, &mut self.tree, now)
            }
            ToRoot::Share { claim, first } => {
                self.tree.trunk.gathering.release(conn);
                self.tree.trunk.gathering.only_greet();
                let fresh = || {
                    let (key, settings, this) = (&self.key, &self.settings, self.this.clone());
                    Box::new(Deputy::new(key, settings, this, (claim, rank, n), now))
                };
                let deputy = self.deputy.get_or_insert_with(fresh);
                deputy.came(conn, address, (rank, n), &first, now)
            }
            ToRoot::Represent { claim, process } => {
                self.tree.trunk.gathering.release(conn);
                let head = head(&mut self.head, &self.settings, &self.this);
                head.claimed(claim.clone(), rank);
                head.represented(conn, claim.index, process, &mut self.tree, now)
            }
            _ => Vec::new(),
        }
    }

    /// Why `rank`, who says `claim` or that it has one id, is not of the same communicator as those here.
    fn objection(&self, rank: u32, claim: Option<&Claim>) -> Option<String> {
        let deputy = self.deputy.as_ref().map(|deputy| deputy.claim());
        let known = self.head.as_ref().and_then(Head::claim).or(deputy);
        match (known, claim) {
            (Some((known, first)), Some(claim)) => claim.objection(rank, known, first),
            (Some((known, first)), None) => Some(roots::mixed(rank, first, known)),
            (None, Some(claim)) => {
                self.tree.trunk.gathering.first().map(|first| roots::mixed(first, rank, claim))
            }
            (None, None) => None,
        }
    }

    /// Nobody can join: tells those here, this one, and the other roots.
    fn object(&mut self, conn: Conn, word: ToRoot, text: String, now: Time) -> Vec<Action> {
        self.tree.trunk.gathering.release(conn);
        if let (ToRoot::Represent { claim, process }, None) = (&word, &self.deputy) {
            // It brings its ranks, and they hear why.
            let head = head(&mut self.head, &self.settings, &self.this);
            let mut actions = head.represented(conn, claim.index, process.clone(), &mut self.tree, now);
            actions.extend(head.give_up(FaultCode::Usage, text, &mut self.tree, now));
            return actions;
        }
        let mut actions = Vec::new();
        if !matches!(word, ToRoot::Represent { .. }) {
            let refusal = ToMember::Refused(Refusal { fault: FaultCode::Usage, text: text.clone() });
            actions.push(Action::Send { conn, frame: wire::encode(&refusal) });
        }
        actions.push(Action::Close { conn });
        actions.extend(match (&mut self.head, &mut self.deputy) {
            (Some(head), _) => head.give_up(FaultCode::Usage, text, &mut self.tree, now),
            (_, Some(deputy)) => deputy.object(text, now),
            _ => self.tree.trunk.gathering.give_up(FaultCode::Usage, text, now),
        });
        actions
    }
}

/// The root as the head, which it has just been said to be.
fn head<'a>(
    place: &'a mut Option<Head>,
    settings: &BootstrapSettings,
    this: &(Process, LifeOf),
) -> &'a mut Head {
    place.get_or_insert_with(|| Head::new(settings.heartbeat, this.clone()))
}
