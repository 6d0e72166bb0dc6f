//! What links carry, where only their kind is known.
//!
//! Bandwidths are those that NCCL takes for the same parts, so that a machine read from its files looks
//! the same; latencies are rough, and serve to tell near from far.

use crate::topology::{Arch, Cpu, Medium, Pci, Vendor};

impl Medium {
    /// What a link of this kind adds to the time of a message, more or less.
    pub const fn latency_ns(self) -> f64 {
        match self {
            Medium::Memory | Medium::C2c => 100.0,
            Medium::NvLink => 200.0,
            Medium::Pcie => 250.0,
            Medium::Network => 1000.0,
        }
    }
}

impl Pci {
    /// What the link upwards carries: the lanes' rate less encoding and headers. A link of unknown speed
    /// counts as 8 GT/s, one of unknown width as 16 lanes.
    pub fn gb_per_s(&self) -> f64 {
        let lane_speed = if self.lane_speed == 0 { 80 } else { self.lane_speed };
        let lanes = if self.lanes == 0 { 16 } else { self.lanes };
        // Up to 5 GT/s a byte takes ten bits, later little more than eight.
        let useful = if lane_speed <= 50 { 0.6 } else { 0.75 };
        f64::from(lane_speed) * useful * f64::from(lanes) / 80.0
    }

    /// The same with the link that carries about so much.
    #[must_use]
    pub fn with_gb_per_s(self, gb_per_s: f64) -> Pci {
        let pci = |lane_speed| Pci { lane_speed, lanes: 16, ..self };
        let wide_enough = LANE_SPEEDS.into_iter().find(|speed| pci(*speed).gb_per_s() >= gb_per_s);
        pci(wide_enough.unwrap_or(640))
    }
}

impl Cpu {
    /// What a link between two sockets with such CPUs carries.
    pub const fn socket_gb_per_s(&self) -> f64 {
        match (self.arch, self.vendor) {
            (Arch::Power, _) => 32.0,
            (Arch::Arm, _) => 6.0,
            (_, Vendor::Amd) => 16.0,
            (_, Vendor::Zhaoxin) => 6.0,
            (_, Vendor::Intel) if self.family == 6 => match self.model {
                0xcf.. => 40.0,
                0x8f.. => 22.0,
                0x55.. => 10.0,
                _ => 6.0,
            },
            _ => 10.0,
        }
    }
}

/// What one NVLink of a GPU of this compute capability carries.
pub const fn nvlink_gb_per_s(sm: u32) -> f64 {
    match sm {
        ..=69 => 18.0,
        86 => 12.0,
        70..=89 => 20.0,
        90..=99 => 20.6,
        _ => 40.1,
    }
}

/// In 10⁸ transfers per second.
const LANE_SPEEDS: [u16; 6] = [25, 50, 80, 160, 320, 640];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcie_carries_what_its_generation_does() {
        let gb_per_s = |lane_speed, lanes| Pci { lane_speed, lanes, ..Pci::default() }.gb_per_s();
        let full = LANE_SPEEDS.map(|speed| gb_per_s(speed, 16));
        assert_eq!(full, [3.0, 6.0, 12.0, 24.0, 48.0, 96.0]);
        assert_eq!((gb_per_s(160, 8), gb_per_s(0, 0)), (12.0, 12.0));
        for width in full {
            assert_eq!(Pci::default().with_gb_per_s(width).gb_per_s(), width);
        }
        assert_eq!(Pci::default().with_gb_per_s(1e9).lane_speed, 640);
    }

    #[test]
    fn sockets_and_nvlinks_differ_by_generation() {
        let intel =
            |model| Cpu { arch: Arch::X86, vendor: Vendor::Intel, family: 6, model, ..Cpu::default() };
        assert_eq!(
            [0x4f, 0x55, 0x8f, 0xcf].map(|model| intel(model).socket_gb_per_s()),
            [6.0, 10.0, 22.0, 40.0]
        );
        assert_eq!([60, 70, 80, 86, 90, 100].map(nvlink_gb_per_s), [18.0, 20.0, 20.0, 12.0, 20.6, 40.1]);
    }
}
