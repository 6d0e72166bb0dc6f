//! What a profiler asks to hear of.

use std::sync::atomic::{AtomicU64, Ordering};

use ccl_plugin_nccl::profiler::Plugin;

/// Which kinds a profiler asks for: the plugin writes, at any time, and the host looks.
#[derive(Clone, Copy, Debug)]
pub struct Interest(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    /// A word of the context.
    Word(&'static AtomicU64),
    /// One mask for all contexts of a plugin made for NCCL, whose bits mean other things.
    Nccl(&'static Plugin),
}

impl Interest {
    pub(super) fn of_word(word: &'static AtomicU64) -> Interest {
        Interest(Source::Word(word))
    }

    pub(super) fn of_nccl(plugin: &'static Plugin) -> Interest {
        Interest(Source::Nccl(plugin))
    }

    /// The kinds' bits now: never blocks.
    #[inline]
    pub fn bits(&self) -> u64 {
        match self.0 {
            // Relaxed: the plugin only says which events it wants.
            Source::Word(word) => word.load(Ordering::Relaxed),
            Source::Nccl(plugin) => plugin.wanted(),
        }
    }
}
