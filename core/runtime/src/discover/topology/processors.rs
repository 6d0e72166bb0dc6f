//! Processors: which share a core, a cache, a socket, a NUMA domain.

use std::fs;
use std::path::Path;

/// One processor, as the operating system counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Its number.
    pub cpu: u32,
    /// Its socket.
    pub package: u32,
    /// Its core, a number within the socket.
    pub core: u32,
    /// Its NUMA domain.
    pub numa: u32,
    /// The caches that it uses for data, from near to far.
    pub caches: Vec<Cache>,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u32,
    /// How much it holds.
    pub bytes: usize,
    /// The processors that share it, as in `0-3,8`.
    pub shared_by: String,
}

/// The processors under a sysfs root such as `/sys`, in order. What the system does not tell is 0 or not
/// there.
pub fn processors(sys: &Path) -> Vec<Processor> {
    let folder = sys.join("devices/system/cpu");
    let mut processors: Vec<_> = numbered(&folder, "cpu")
        .into_iter()
        .map(|cpu| {
            let own = folder.join(format!("cpu{cpu}"));
            let fact = |name: &str| number(&own.join("topology").join(name)).unwrap_or(0);
            let caches = numbered(&own.join("cache"), "index");
            Processor {
                cpu,
                package: fact("physical_package_id"),
                core: fact("core_id"),
                numa: numbered(&own, "node").first().copied().unwrap_or(0),
                caches: caches.into_iter().filter_map(|index| cache(&own, index)).collect(),
            }
        })
        .collect();
    processors.sort_by_key(|processor| processor.cpu);
    processors
}

fn cache(processor: &Path, index: u32) -> Option<Cache> {
    let folder = processor.join(format!("cache/index{index}"));
    let holds_data = text(&folder.join("type"))? != "Instruction";
    let bytes = crate::discover::cache::parse(&text(&folder.join("size"))?)?;
    let shared_by = text(&folder.join("shared_cpu_list")).unwrap_or_default();
    holds_data.then_some(Cache { level: number(&folder.join("level"))?, bytes, shared_by })
}

/// The numbers N of the entries `prefixN` of a folder, ascending.
pub(super) fn numbered(folder: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: String| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| number(entry.file_name().into_string().ok()?)).collect();
    numbers.sort_unstable();
    numbers
}

/// A file's text without what surrounds it.
pub(super) fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A file's number: decimal, or hexadecimal after `0x`.
pub(super) fn number(path: &Path) -> Option<u32> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
