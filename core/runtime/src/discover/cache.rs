//! How much the processor's caches hold.

use std::path::Path;
use std::sync::OnceLock;

/// Bytes of the last-level cache of the first processor, as the system tells; `None` if it does not.
///
/// A virtual machine of few processors is shown the cache of a whole host, of which it has a share. So no more counts than
/// 20 MiB for each processor that shares it (ADR 0071, 0120).
pub fn last_level_bytes() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| last_level_under(Path::new("/sys/devices/system/cpu/cpu0/cache")))
}

/// The largest cache that holds data, of those that `folder` describes.
fn last_level_under(folder: &Path) -> Option<usize> {
    let caches = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let text = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        let holds_data = text("type")?.trim() != "Instruction";
        let share = text("shared_cpu_list")
            .and_then(|list| Some(processors_in(list.trim())?.max(1) * MOST_BYTES_EACH));
        let bytes = holds_data.then(|| parse(text("size")?.trim())).flatten()?;
        Some(bytes.min(share.unwrap_or(usize::MAX)))
    });
    caches.max()
}

/// How many processors a list such as `0-3,8` names, as the system writes them; `None` if it is no such list.
pub fn processors_in(list: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    list.split(',').map(range).sum()
}

/// What others on the host leave of it at times. Nearly all processors have less for each of those that share a cache.
const MOST_BYTES_EACH: usize = 20 << 20;

/// A size as in `1024K`.
pub(super) fn parse(size: &str) -> Option<usize> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_cache_that_holds_data_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(last_level_under(folder.path()), None);
        for (index, (kind, size)) in
            [("Data", "48K"), ("Instruction", "1G"), ("Unified", "2048K"), ("Unified", "36M")]
                .iter()
                .enumerate()
        {
            let cache = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&cache).unwrap();
            std::fs::write(cache.join("type"), format!("{kind}\n")).unwrap();
            std::fs::write(cache.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(last_level_under(folder.path()), Some(36 << 20));
        let shared = folder.path().join("index3");
        std::fs::write(shared.join("size"), "491520K\n").unwrap();
        std::fs::write(shared.join("shared_cpu_list"), "0-1\n").unwrap();
        assert_eq!(
            last_level_under(folder.path()),
            Some(40 << 20),
            "two processors are shown a host's cache"
        );
        std::fs::write(shared.join("shared_cpu_list"), "0-31,64-95\n").unwrap();
        assert_eq!(last_level_under(folder.path()), Some(480 << 20));
    }

    #[test]
    fn lists_of_processors_are_counted() {
        let counted = ["0", "0-3", "0-3,8", "1,3,5-6"].map(|list| processors_in(list).unwrap());
        assert_eq!(counted, [1, 4, 5, 4]);
        assert_eq!(["", "x", "3-1", "1-"].map(processors_in), [None; 4]);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [parse("512"), parse("48K"), parse("2M"), parse("1G")].map(Option::unwrap),
            [512, 49_152, 2 << 20, 1 << 30]
        );
        assert_eq!([parse(""), parse("K"), parse("3X"), parse("-1K")], [None; 4]);
    }
}
