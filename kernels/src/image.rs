//! The kernels as this build carries them: their sources always, their machine code where the build was asked for it.

/// The sources, as (path below `kernels/cuda`, text), sorted by path.
pub static SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The machine code that this build embeds, as (name, fatbin): `interpret.f32` holds every kernel of the interpreter for
/// one dtype. Empty unless `CCL_KERNELS` asked the build for it.
pub static EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// The image that holds `kernel`, a name such as `ccl_interpret_f32_sum_ll`; nothing if this build embeds none. The
/// driver takes from it what fits its device: 8.0, 9.0, 10.0, 12.0, and any other from 8.0 on by compiling.
pub fn embedded(kernel: &str) -> Option<&'static [u8]> {
    let name = image_of(kernel)?;
    EMBEDDED.iter().find(|(embedded, _)| *embedded == name).map(|(_, bytes)| *bytes)
}

/// The name of the image that holds a kernel, such as `interpret.f32`.
pub fn image_of(kernel: &str) -> Option<String> {
    let (stem, variant) = stem_of(kernel)?;
    Some(format!("{stem}.{}", variant.split('_').next()?))
}

/// The file that a kernel comes from, and which of its kernels it is: `interpret` and `f32_sum_ll`.
pub(crate) fn stem_of(kernel: &str) -> Option<(&'static str, &str)> {
    let rest = kernel.strip_prefix("ccl_")?;
    STEMS.iter().find_map(|stem| Some((*stem, rest.strip_prefix(stem)?.strip_prefix('_')?)))
}

/// What source files are called.
const STEMS: [&str; 4] = ["interpret", "group", "one_shot", "two_shot"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::GROUP_KERNEL;
    use crate::target::Target;

    #[test]
    fn kernels_know_their_image() {
        assert_eq!(image_of("ccl_interpret_bytes_copy_simple").as_deref(), Some("interpret.bytes"));
        assert_eq!(image_of(GROUP_KERNEL).as_deref(), Some("group.bytes"));
        assert_eq!(image_of("ccl_one_shot_bf16_sum").as_deref(), Some("one_shot.bf16"));
        assert_eq!(image_of("ccl_other_f32_sum"), None);
    }

    #[test]
    fn every_kind_of_kernel_has_its_source() {
        for stem in STEMS {
            let file = format!("{stem}.cu");
            assert!(SOURCES.iter().any(|(path, _)| path.rsplit('/').next() == Some(&file)), "no {file}");
        }
    }

    #[test]
    fn every_embedded_image_holds_code_for_every_generation() {
        if EMBEDDED.is_empty() {
            eprintln!(
                "\n*** SKIPPED every_embedded_image_holds_code_for_every_generation: build with CCL_KERNELS=fatbin\n"
            );
        }
        for (name, bytes) in EMBEDDED {
            let targets = crate::fatbin::targets(bytes).unwrap_or_else(|| panic!("{name} is no fatbin"));
            let best = |capability| Target::best(targets.iter().copied(), capability);
            let expected = [(80, 80), (89, 80), (90, 90), (100, 100), (103, 100), (120, 120), (121, 120)];
            for (capability, own) in expected {
                assert_eq!(best(capability), Some(Target::Machine(own)), "{name} for {capability}");
            }
            assert_eq!((best(75), best(130)), (None, Some(Target::Portable(80))), "{name}");
        }
    }
}
