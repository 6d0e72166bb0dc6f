//! Events for a profiler plugin.
//!
//! An engine that has a [`Profile`] puts down what its operations do. Records go into a bounded buffer
//! without locks ([`ring`]); one thread of the process ([`thread`]) takes them out and calls the plugin
//! ([`delivery`]), which therefore can neither fail nor hold up an operation. Without a profiler an engine
//! has no `Profile`, and that is all that calls look at.

mod ctrl;
mod delivery;
mod emitter;
mod launch;
mod record;
mod ring;
mod share;
mod thread;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl_plugin_host::profiler::Watched;
use ccl_plugin_host::{LogFn, NetPlugin, ProfilerPlugin};

use self::delivery::Delivery;
use self::launch::Launches;
use self::share::Share;
use self::thread::Done;
use crate::config::Config;
use crate::error::Result;

pub(crate) use self::ctrl::Ctrl;
pub(crate) use self::emitter::{Emitter, Span, now_ns};
pub(crate) use self::launch::{Ticket, Work};
pub(crate) use self::record::Body;
pub(crate) use ccl_plugin_host::profiler::{Kind, StateKind};

/// One communicator's profiler. Dropping it waits for the profiler to be finalised, not for long.
pub(crate) struct Profile {
    emitter: Arc<Emitter>,
    launches: Launches,
    done: Arc<Done>,
    /// The process it was made in.
    pid: u32,
}

impl Profile {
    /// The profiler that the settings ask for: the first usable of `CCL_PROFILER_PLUGIN`, else
    /// `libccl-profiler.so` or `libnccl-profiler.so` if there is one, else that of the library that `net` came from.
    /// `None`, with a line of log, if it cannot be had: a communicator goes without.
    /// `crowded`: the processes between which the share of a core is divided, 0 if the host has cores that no rank needs.
    pub(crate) fn open(
        config: &Config,
        watched: Watched,
        net: Option<NetPlugin>,
        crowded: impl FnOnce() -> usize,
    ) -> Option<Box<Profile>> {
        let plugin = choose(config, net)?;
        let share = Share::of(config.profiler_share(), crowded());
        match Profile::new(plugin, watched, share) {
            Ok(profile) => Some(Box::new(profile)),
            Err(error) => {
                tracing::warn!(target: "ccl::profiler", rank = watched.rank, %error, "goes without a profiler");
                None
            }
        }
    }

    fn new(plugin: ProfilerPlugin, watched: Watched, share: Share) -> Result<Profile, String> {
        let context = plugin.init(watched, LogFn::tracing()).map_err(|error| error.to_string())?;
        let (interest, done) = (context.interest(), Arc::<Done>::default());
        let emitter = thread::serve(Arc::clone(&done), |bell| {
            let emitter = Arc::new(Emitter::new(interest, bell, PLACES));
            (Delivery::new(Arc::clone(&emitter), context, share), emitter)
        });
        let emitter = emitter.map_err(|error| error.to_string())?;
        let launches = Launches::new(Arc::clone(&emitter), watched.nranks);
        Ok(Profile { emitter, launches, done, pid: std::process::id() })
    }

    /// Where events are put down.
    pub(crate) fn emitter(&self) -> &Arc<Emitter> {
        &self.emitter
    }
}

impl std::ops::Deref for Profile {
    type Target = Launches;

    fn deref(&self) -> &Launches {
        &self.launches
    }
}

impl std::ops::DerefMut for Profile {
    fn deref_mut(&mut self) -> &mut Launches {
        &mut self.launches
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.launches.end_all();
        // Release: pairs with the load in `Delivery::is_over`.
        self.emitter.closed.store(true, Ordering::Release);
        self.emitter.bell.wake();
        // In a child that was forked the thread is the parent's.
        if self.pid == std::process::id() && !self.done.wait(FINALIZE_LIMIT) {
            tracing::warn!(target: "ccl::profiler", "a profiler was not finalised within {FINALIZE_LIMIT:?}");
        }
    }
}

/// What became of every file that is considered, a line each, best first.
fn choose(config: &Config, net: Option<NetPlugin>) -> Option<ProfilerPlugin> {
    let names = config.profiler_plugin();
    let spec = match names {
        [] => DEFAULT_PLUGINS.to_owned(),
        [only] if only.eq_ignore_ascii_case("none") => return None,
        names => names.join(","),
    };
    let (candidates, loaded) = ProfilerPlugin::load_beside(&spec, net);
    match loaded {
        Ok(plugin) => {
            for candidate in &candidates {
                tracing::info!(target: "ccl::profiler", %candidate, "profiler plugin");
            }
            Some(plugin)
        }
        Err(error) if names.is_empty() => {
            tracing::debug!(target: "ccl::profiler", %error, "no profiler");
            None
        }
        Err(error) => {
            tracing::warn!(
                target: "ccl::profiler", %error,
                "goes without a profiler; check CCL_PROFILER_PLUGIN and LD_LIBRARY_PATH",
            );
            None
        }
    }
}

/// Used where they are installed and nothing else is asked for.
const DEFAULT_PLUGINS: &str = "libccl-profiler.so,libnccl-profiler.so";
/// Records that one communicator may have waiting: some 700 KiB.
const PLACES: usize = 4096;
/// How long closing a communicator waits for its profiler.
const FINALIZE_LIMIT: Duration = Duration::from_secs(5);
