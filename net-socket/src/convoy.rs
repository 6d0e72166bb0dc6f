//! Which short messages wait for company.
//!
//! A segment takes 3 µs on its way through the kernel within a host, whatever is in it, and a short message leaves in one of its own.
//! Who sends a stream therefore lets the kernel hold what comes after a segment until that is acknowledged (Nagle's algorithm), and
//! marks its messages. Who is about to wait for more after marked ones has them acknowledged first, which sends what was held. So
//! messages wait for nobody but a reader who is busy with earlier ones, and no sender has to promise that it comes back to send the
//! rest (ADR 0100).

/// Whether one socket's messages wait for company.
#[derive(Debug, Default)]
pub(crate) struct Convoy {
    /// Whether they ever may.
    may: bool,
    is_on: bool,
    /// Short messages in a row, less what the rank waited between them.
    streak: u32,
    /// How often it had waited by then.
    waits: u32,
}

/// What to do about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It goes alone.
    Alone,
    /// It and what comes after it do: the kernel must hear of it before.
    Disband,
    /// It is marked, but goes alone; what comes after it may wait: the kernel must hear of it then, and this of that.
    Form,
    /// It is marked, and may wait.
    Together,
}

impl Convoy {
    /// Of a socket that holds nothing. `may`: whether it ever may.
    pub(crate) fn new(may: bool) -> Convoy {
        Convoy { may, ..Convoy::default() }
    }

    /// A message of so many bytes is about to be sent, by a rank that has so often found nothing where it looked for others'.
    #[inline]
    pub(crate) fn sends(&mut self, bytes: usize, waits: u32) -> Step {
        if !self.may {
            return Step::Alone;
        }
        let waited = waits.wrapping_sub(std::mem::replace(&mut self.waits, waits));
        let streak = if bytes < LONG_BYTES { self.streak + 1 } else { 0 };
        self.streak = streak.min(LONGEST).saturating_sub(waited.saturating_mul(MESSAGES_PER_WAIT));
        match self.streak {
            0 if std::mem::take(&mut self.is_on) => Step::Disband,
            _ if self.is_on => Step::Together,
            STREAK.. => Step::Form,
            _ => Step::Alone,
        }
    }

    /// From now on the kernel holds what may wait.
    pub(crate) fn formed(&mut self) {
        self.is_on = true;
    }
}

impl Step {
    /// Whether the message is marked.
    #[inline]
    pub(crate) fn marks(self) -> bool {
        matches!(self, Step::Form | Step::Together)
    }
}

/// Longer messages go alone: they gain little, and broadcasts of MiBs among ranks that share cores take up to 1.4 times as long. A
/// message of 16 KiB fits, with what is ahead of its payload.
const LONG_BYTES: usize = 20 << 10;
/// Short messages that make a stream.
const STREAK: u32 = 128;
/// More are not counted, so that the end of a stream is noticed soon.
const LONGEST: u32 = 2 * STREAK;
/// A rank that waits more often than once for so many messages sends no stream: others wait for what it sends.
const MESSAGES_PER_WAIT: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// After enough short messages, with `waits` by the rank before each.
    fn after_messages(waits: u32) -> (Convoy, Step) {
        let mut convoy = Convoy::new(true);
        for sent in 1..STREAK {
            assert_eq!(convoy.sends(LONG_BYTES - 1, sent * waits), Step::Alone, "{sent}");
        }
        let step = convoy.sends(LONG_BYTES - 1, STREAK * waits);
        (convoy, step)
    }

    /// One that was formed.
    fn formed() -> Convoy {
        let (mut convoy, step) = after_messages(0);
        assert_eq!(step, Step::Form);
        convoy.formed();
        convoy
    }

    #[test]
    fn a_stream_forms_one_when_the_kernel_complies() {
        let (mut convoy, step) = after_messages(0);
        assert_eq!(step, Step::Form);
        assert_eq!(convoy.sends(8, 0), Step::Form, "it did not");
        convoy.formed();
        assert_eq!(convoy.sends(8, 0), Step::Together);
        assert!(Step::Form.marks() && Step::Together.marks());
        assert!(!Step::Alone.marks() && !Step::Disband.marks());
    }

    #[test]
    fn a_long_message_disbands_it() {
        let mut convoy = formed();
        assert_eq!(convoy.sends(LONG_BYTES, 0), Step::Disband);
        assert_eq!(convoy.sends(8, 0), Step::Alone);
    }

    #[test]
    fn who_waits_for_others_forms_none() {
        assert_eq!(after_messages(1).1, Step::Alone);
        let mut convoy = Convoy::new(true);
        let steps = (0..4 * STREAK).map(|sent| convoy.sends(8, sent / MESSAGES_PER_WAIT));
        assert!(steps.into_iter().all(|step| step == Step::Alone));
    }

    #[test]
    fn who_waits_now_and_then_forms_one() {
        let mut convoy = Convoy::new(true);
        let last = (0..4 * STREAK).map(|sent| convoy.sends(8, sent / (2 * MESSAGES_PER_WAIT))).last();
        assert_eq!(last, Some(Step::Form));
    }

    #[test]
    fn the_end_of_a_stream_disbands_it_soon() {
        let mut convoy = formed();
        (0..10 * STREAK).for_each(|_| assert_eq!(convoy.sends(8, 0), Step::Together));
        let steps: Vec<_> = (1..=STREAK).map(|waits| convoy.sends(8, waits)).collect();
        let end = steps.iter().position(|step| *step == Step::Disband).unwrap() as u32;
        assert!(end <= LONGEST / (MESSAGES_PER_WAIT - 1), "{end}");
        assert!(steps[end as usize + 1..].iter().all(|step| *step == Step::Alone));
    }

    #[test]
    fn between_hosts_messages_go_alone() {
        let mut convoy = Convoy::new(false);
        (0..2 * STREAK).for_each(|_| assert_eq!(convoy.sends(8, 0), Step::Alone));
    }
}
