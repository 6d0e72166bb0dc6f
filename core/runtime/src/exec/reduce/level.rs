//! Levels of the instruction set that kernels are compiled for.

/// A set of processor features, the lowest being what every processor of the architecture has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// The architecture's baseline.
    Baseline,
    /// x86-64 with AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best level of this processor. The standard library remembers what it found.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn detect() -> Level {
        use std::arch::is_x86_feature_detected as has;

        let avx2 = has!("avx2") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    /// The best level of this processor.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn detect() -> Level {
        Level::Baseline
    }

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "AVX-512",
        }
    }

    /// Every level that this processor can run, the lowest first.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Level> {
        let mut levels = vec![Level::Baseline];
        #[cfg(target_arch = "x86_64")]
        match Level::detect() {
            Level::Baseline => {}
            Level::Avx2 => levels.push(Level::Avx2),
            Level::Avx512 => levels.extend([Level::Avx2, Level::Avx512]),
        }
        levels
    }
}
