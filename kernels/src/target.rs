//! What machine code is made for, and which of several a device runs.

use std::fmt;

/// What machine code is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Devices of this capability, times ten (90 is 9.0), and later ones of the same generation.
    Machine(u32),
    /// Any device from this capability on: text that the driver compiles.
    Portable(u32),
}

impl Target {
    /// The one that a device of this capability runs best: its own, else the latest earlier one of its generation, else
    /// the latest text that is not newer than it. Nothing if there is none of these.
    ///
    /// ```
    /// use ccl_kernels::target::Target::{self, Machine, Portable};
    ///
    /// let targets = [Machine(80), Machine(90), Portable(80)];
    /// let best = |capability| Target::best(targets, capability);
    /// assert_eq!([best(90), best(89), best(100)], [Some(Machine(90)), Some(Machine(80)), Some(Portable(80))]);
    /// assert_eq!(best(75), None);
    /// ```
    pub fn best(targets: impl IntoIterator<Item = Target>, capability: u32) -> Option<Target> {
        let fit = targets.into_iter().filter_map(|target| Some((target.fitness(capability)?, target)));
        fit.max_by_key(|(fitness, _)| *fitness).map(|(_, target)| target)
    }

    /// How well a device of this capability runs it; nothing if not at all.
    fn fitness(self, capability: u32) -> Option<(bool, u32)> {
        match self {
            Target::Machine(own) if own / 10 == capability / 10 && own <= capability => Some((true, own)),
            Target::Portable(own) if own <= capability => Some((false, own)),
            _ => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Machine(capability) => write!(f, "sm_{capability}"),
            Target::Portable(capability) => write!(f, "compute_{capability}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Target::{Machine, Portable};
    use super::*;

    #[test]
    fn a_device_gets_its_own_code_before_that_of_its_generation_before_text() {
        let all = [Machine(80), Machine(90), Machine(100), Machine(120), Portable(80)];
        let expected = [
            (70, None),
            (80, Some(Machine(80))),
            (86, Some(Machine(80))),
            (90, Some(Machine(90))),
            (100, Some(Machine(100))),
            (103, Some(Machine(100))),
            (110, Some(Portable(80))),
            (121, Some(Machine(120))),
            (130, Some(Portable(80))),
        ];
        for (capability, target) in expected {
            assert_eq!(Target::best(all, capability), target, "{capability}");
        }
        assert_eq!(Target::best([Machine(86), Portable(90)], 80), None, "newer than the device");
        assert_eq!(Target::best([Portable(80), Portable(90), Portable(100)], 90), Some(Portable(90)));
        assert_eq!(Target::best([], 90), None);
    }
}
