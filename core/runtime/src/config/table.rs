//! The one table of settings. Accessors, documentation and checks are made from it.

use std::path::PathBuf;

use crate::config::Config;
use crate::config::choice::{Choices, Determinism, Endpoints, Family, NameFilter, PortRange, Secret};
use crate::config::debug::{Level, Subsystems};
use crate::config::device::{CudaUse, Seats};
use crate::config::kind::{Between, Bytes, Kind, Limit, Micros, Names, Span};
use crate::error::Result;

/// One setting: how it is called, what it takes, and what it is for.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the environment and in files.
    pub name: &'static str,
    /// NCCL's name for the same thing, read where ours is not set.
    pub alias: Option<&'static str>,
    /// Its default as it would be written; empty for none, `=NAME` for the value of another setting.
    pub default: &'static str,
    /// Whether ranks must agree on it.
    pub agreement: Agreement,
    /// Where the manual describes it.
    pub section: Section,
    /// What it is for.
    pub about: &'static str,
    /// What it takes, to end the sentence "expected ...".
    pub expected: fn() -> String,
}

/// Whether all ranks of a communicator must have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// They must: it decides what is sent.
    Must,
    /// They may differ.
    May,
}

/// Where the manual describes a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Finding the other ranks.
    Joining,
    /// Interfaces, sockets and network plugins.
    Network,
    /// What the machine is made of.
    Topology,
    /// Memory and the node.
    Memory,
    /// Devices and their driver.
    Devices,
    /// Plans: algorithms, protocols, channels.
    Choosing,
    /// Who drives operations, and how eagerly.
    Progress,
    /// Logs.
    Logging,
}

/// Declares settings: `accessor: type = default, NAME [alias], agreement;` with the doc comment as
/// its sentence.
macro_rules! settings {
    ($($section:ident {
        $($(#[doc = $about:literal])+
        $field:ident: $type:ty = $default:literal, $name:ident $([$alias:ident])?, $agreement:ident;)+
    })+) => {
        /// Every setting there is.
        pub static SETTINGS: &[Setting] = &[$($(Setting {
            name: stringify!($name),
            alias: [$(Some(stringify!($alias)),)? None][0],
            default: $default,
            agreement: Agreement::$agreement,
            section: Section::$section,
            about: concat!($($about),+),
            expected: <$type as Kind>::expected,
        }),+),+];

        /// The value of every setting.
        #[derive(Clone, Debug)]
        pub(super) struct Values {
            $($($field: $type),+),+
        }

        impl Values {
            /// Reads every value through `text`, which gives a setting's text or a default's.
            pub(super) fn read(parse: &Parse<'_>) -> Result<Values> {
                Ok(Values { $($($field: parse.value(stringify!($name))?),+),+ })
            }

            /// The canonical spelling of every value, in the order of [`SETTINGS`].
            pub(super) fn print(&self) -> Vec<String> {
                vec![$($(self.$field.print()),+),+]
            }
        }

        impl Config {
            $($(
                $(#[doc = $about])+
                #[doc = concat!("\n\nSetting `", stringify!($name), "`.")]
                pub fn $field(&self) -> <$type as Kind>::View<'_> {
                    self.values.$field.view()
                }
            )+)+
        }
    };
}

settings! {
    Joining {
        /// The deadline of every phase that blocks, counted from its start.
        timeout: Limit = "300s", CCL_TIMEOUT, May;
        /// The deadline for making a communicator.
        init_timeout: Limit = "=CCL_TIMEOUT", CCL_INIT_TIMEOUT, May;
        /// This process's rank, over what a launcher says.
        rank: Option<Between<0, { u32::MAX }>> = "", CCL_RANK, May;
        /// The number of ranks, over what a launcher says.
        nranks: Option<Between<1, { u32::MAX }>> = "", CCL_NRANKS, May;
        /// This process's rank among those on its node, over what a launcher says.
        local_rank: Option<Between<0, { u32::MAX }>> = "", CCL_LOCAL_RANK, May;
        /// The number of ranks on this node, over what a launcher says.
        local_nranks: Option<Between<1, { u32::MAX }>> = "", CCL_LOCAL_NRANKS, May;
        /// The address at which rank 0 listens and the others find it, in place of a unique id. With several, the ranks
        /// meet in as many shares, each at the address of its first rank.
        comm_id: Option<Endpoints> = "", CCL_COMM_ID [NCCL_COMM_ID], May;
        /// Where the unique id is exchanged: `env` (what the launcher offers), `pmi`, `tcp:HOST:PORT`, `local` (one
        /// node) or `file:DIRECTORY` (shared by all nodes).
        store: String = "env", CCL_STORE, May;
        /// A secret that ranks prove to each other when they meet by CCL_COMM_ID. Prefer a file that only you can read.
        secret: Option<Secret> = "", CCL_SECRET, May;
        /// Exchange what ranks must know of each other over the network plugin, out of band: the roots then only make the ranks
        /// meet.
        oob_net_enable: bool = "0", CCL_OOB_NET_ENABLE [NCCL_OOB_NET_ENABLE], Must;
        /// The network device for that exchange, in order of preference; the first if not set.
        oob_net_ifname: Option<NameFilter> = "", CCL_OOB_NET_IFNAME [NCCL_OOB_NET_IFNAME], May;
        /// How often ranks tell each other that they are alive; 0 never.
        heartbeat: Span = "5s", CCL_HEARTBEAT, May;
        /// A file of settings, read before `/etc/ccl.conf`, in place of `~/.ccl.conf`.
        conf_file: Option<PathBuf> = "", CCL_CONF_FILE [NCCL_CONF_FILE], May;
        /// Env plugins to try, in order: names or files; `none` for no plugin. The first that works is asked about every other
        /// setting, and stands in place of the environment and the files.
        env_plugin: Names = "", CCL_ENV_PLUGIN [NCCL_ENV_PLUGIN], May;
    }
    Network {
        /// The interfaces to use, in order of preference.
        socket_ifname: Option<NameFilter> = "", CCL_SOCKET_IFNAME [NCCL_SOCKET_IFNAME], May;
        /// The IP version to use.
        socket_family: Option<Family> = "", CCL_SOCKET_FAMILY [NCCL_SOCKET_FAMILY], May;
        /// The ports a process may listen on; any free port if not set.
        port_range: Option<PortRange> = "", CCL_PORT_RANGE, May;
        /// Network plugins to try, in order: names or files; `none` for the built-in networks only.
        net_plugin: Names = "", CCL_NET_PLUGIN [NCCL_NET_PLUGIN], May;
        /// The network that must be used; it is an error if it cannot be had.
        net: Option<String> = "", CCL_NET [NCCL_NET], Must;
        /// Sockets per connection; large messages are spread over them.
        socket_nsocks: Between<1, 16> = "1", CCL_SOCKET_NSOCKS, Must;
        /// The size of a socket's send buffer; if not set 256K within a host, else the system's choice.
        socket_sndbuf: Option<Bytes> = "", CCL_SOCKET_SNDBUF [NCCL_SOCKET_SNDBUF], May;
        /// The size of a socket's receive buffer; the system's choice if not set.
        socket_rcvbuf: Option<Bytes> = "", CCL_SOCKET_RCVBUF [NCCL_SOCKET_RCVBUF], May;
    }
    Topology {
        /// A file with the machine's topology in NCCL's format, in place of what would be detected.
        topo_file: Option<PathBuf> = "", CCL_TOPO_FILE [NCCL_TOPO_FILE], May;
        /// A file into which rank 0 writes the machine's topology, in NCCL's format.
        topo_dump_file: Option<PathBuf> = "", CCL_TOPO_DUMP_FILE [NCCL_TOPO_DUMP_FILE], May;
    }
    Memory {
        /// Do not use shared memory between processes; ranks of one node then talk over the network.
        shm_disable: bool = "0", CCL_SHM_DISABLE [NCCL_SHM_DISABLE], Must;
        /// The node's identity in place of the one found; different values on one machine make it several nodes.
        hostid: Option<String> = "", CCL_HOSTID [NCCL_HOSTID], May;
        /// The bytes of all slots of an edge together.
        buffsize: Bytes = "512K", CCL_BUFFSIZE [NCCL_BUFFSIZE], Must;
        /// The slots of an edge: the long messages that may be under way on it. If it is 8, up to 4 ranks of
        /// one host, and more that share its cores, use 4 of twice the length in shared memory on a processor of AMD;
        /// on others, more than 4 that share its cores have up to 3 messages of more than 32 KiB under way.
        slots: Between<2, 1024> = "8", CCL_SLOTS, Must;
        /// The bytes of a chunk; chosen by size if not set.
        chunk_bytes: Option<Bytes> = "", CCL_CHUNK_BYTES, Must;
        /// Shared memory: parts of at least so many bytes are read straight out of the sender's buffer, where all
        /// ranks may read each other's memory; 0 never; where it is faster if not set, which few processes with a
        /// core each find out by trying, and which it is nowhere on a processor of AMD.
        direct: Option<Bytes> = "", CCL_DIRECT_BYTES, Must;
        /// Shared memory: calls on buffers of at least so many bytes move data straight between them, where all ranks
        /// reach each other's (threads of one process, and registered memory); 0 never.
        mapped: Bytes = "64K", CCL_MAPPED_BYTES, Must;
        /// Faults to inject on edges, for tests: see `ccl::transport::FaultRule`.
        fault: Option<String> = "", CCL_FAULT, May;
        /// Send a checksum with every slot and verify it on arrival.
        checksum: bool = "0", CCL_CHECKSUM, Must;
    }
    Devices {
        /// The device that this rank works on; ranks may differ. A list has an entry for each rank of a host.
        device: Seats = "none", CCL_DEVICE, May;
        /// Look for the CUDA driver when a device is asked for, or never.
        cuda: CudaUse = "auto", CCL_CUDA, May;
        /// The driver's library, in place of the system's.
        cuda_library: Option<PathBuf> = "", CCL_CUDA_LIBRARY, May;
        /// A file with the kernels (cubin, fatbin or PTX), or a folder of such files for each dtype, in place of those that come with the library.
        cuda_image: Option<PathBuf> = "", CCL_CUDA_IMAGE, May;
        /// NVRTC's library, which compiles kernels that the build does not embed; `none`: nothing is compiled. Not set: the
        /// first of the driver's version that the process, the system, CUDA's folders or Python's packages have.
        nvrtc_library: Option<PathBuf> = "", CCL_NVRTC_LIBRARY, May;
        /// The folder in which compiled kernels are kept for later processes; `none`: nowhere. Not set: the user's cache.
        kernel_cache: Option<PathBuf> = "", CCL_KERNEL_CACHE, May;
        /// Do not let devices use each other's memory; what they exchange then goes through the host.
        p2p_disable: bool = "0", CCL_P2P_DISABLE [NCCL_P2P_DISABLE], May;
        /// The protocols that edges between devices may follow (`simple`, `ll`, `ll128`), per collective; messages go by what is
        /// said of `send`. Of several, each call takes what its length asks for.
        proto: Option<Choices> = "", CCL_PROTO [NCCL_PROTO], Must;
        /// The longest all-reduce between devices of a host, in bytes of its vector, that a kernel of its own makes where
        /// `one_shot` is chosen, as it then is; 0: programs are interpreted, whatever their length. Its inboxes take four times
        /// as much memory for every rank. Not set: 256K, among more than 8 ranks less.
        cuda_one_shot: Option<Bytes> = "", CCL_CUDA_ONE_SHOT, Must;
        /// The shortest all-reduce between devices of a host, in bytes of its vector, that a kernel of its own makes
        /// where `two_shot` is chosen and the buffers of all ranks lie in the same windows; 0: programs are
        /// interpreted, whatever lies in windows.
        cuda_two_shot: Bytes = "64K", CCL_CUDA_TWO_SHOT, Must;
        /// Multicast memory (NVLink SHARP) between devices of a host, by which what all ranks are sent is stored once: 0 does
        /// without, 1 and 2 use it where every rank has a device of its own and all devices can.
        cuda_switch: Between<0, 2> = "2", CCL_CUDA_SWITCH [NCCL_NVLS_ENABLE], Must;
        /// Threads of each block of a kernel, a multiple of 32; no more than the kernel takes, which is 512 at most.
        cuda_threads: Between<64, 1024> = "512", CCL_CUDA_THREADS [NCCL_NTHREADS], May;
    }
    Choosing {
        /// The algorithms allowed, per collective.
        algo: Option<Choices> = "", CCL_ALGO [NCCL_ALGO], Must;
        /// Files with programs of your own, one for a collective: verified for the number of ranks, then chosen like the
        /// library's algorithms, under the name `user`. The same texts on all ranks.
        algo_file: Names = "", CCL_ALGO_FILE, May;
        /// A tuning file: what links cost and which algorithms won when they were measured, written by `ccl tune` or by
        /// hand. Rank 0's serves all ranks. Not set: the file of this machine in the user's cache, if there is one;
        /// `none`: not even that.
        tuning_file: Option<PathBuf> = "", CCL_TUNING_FILE, May;
        /// Tuner plugins to try, in order: names or files; `none` for no tuner, not even one in the network's library.
        /// Rank 0's serves all ranks.
        tuner_plugin: Names = "", CCL_TUNER_PLUGIN [NCCL_TUNER_PLUGIN], May;
        /// A file for the tuner plugin, which gets its path as the setting `config_file`.
        tuner_config_file: Option<PathBuf> = "", CCL_TUNER_CONFIG_FILE, May;
        /// The most channels to use. Not set: one, or between devices that reach each other up to 16, as many as all have
        /// room for.
        max_nchannels: Option<Between<1, 1024>> = "", CCL_MAX_NCHANNELS [NCCL_MAX_NCHANNELS], Must;
        /// What the bits of a result may depend on: `run` (only the same ranks and call give the same bits), `size` (not
        /// the count or the chunks), `world` (nor the number of ranks).
        determinism: Determinism = "run", CCL_DETERMINISM, Must;
    }
    Progress {
        /// How long a wait spins before it yields the processor, in microseconds.
        spin: Micros = "20", CCL_SPIN_US, May;
        /// Let a thread drive outstanding operations that nobody waits for.
        progress_thread: bool = "1", CCL_PROGRESS_THREAD, May;
    }
    Logging {
        /// The beginning of the path of a file into which each rank writes its last operations when its communicator
        /// fails, for PyTorch's `torchfrtrace`; the rank's number follows.
        flight_file: Option<PathBuf> = "", CCL_FLIGHT_FILE, May;
        /// How much is logged. The log goes to the program's `tracing` subscriber if it has one.
        debug: Level = "WARN", CCL_DEBUG [NCCL_DEBUG], May;
        /// The file to log to, with `%h` for the host and `%p` for the process; standard error if not set.
        debug_file: Option<PathBuf> = "", CCL_DEBUG_FILE [NCCL_DEBUG_FILE], May;
        /// Profiler plugins to try, in order: names or files, of ccl's contract or NCCL's; `none` for no profiler.
        profiler_plugin: Names = "", CCL_PROFILER_PLUGIN [NCCL_PROFILER_PLUGIN], May;
        /// How much passing events on to a profiler may slow ranks down where they need all cores, in percent. What
        /// comes faster is dropped and counted.
        profiler_share: Between<1, 100> = "1", CCL_PROFILER_SHARE, May;
        /// What INFO and TRACE are about.
        debug_subsys: Subsystems = "INIT,ENV,BOOTSTRAP", CCL_DEBUG_SUBSYS [NCCL_DEBUG_SUBSYS], May;
    }
}

pub(super) use super::resolve::Parse;
