//! The functions of any version behind one form: a table becomes a [`Calls`] once, with what it lacks named, and
//! nothing else asks for the version.

use std::ffi::{c_char, c_int, c_void};

use super::costs::Costs;
use super::layout::{
    self, Constants, Domains, InfoV2, InfoV3, InfoV4, InitPlain, InitTold, Logger, Table, TableV6, UNDEFINED,
};

type Ptr = *mut c_void;

/// A plugin's functions.
pub(crate) struct Calls {
    init: Init,
    info: Info,
    finalize: layout::Finalize,
    chunk_size: Option<layout::ChunkSize>,
}

enum Init {
    Plain(InitPlain),
    Told(InitTold),
}

enum Info {
    V2(InfoV2),
    V3(InfoV3),
    V4(InfoV4),
}

/// What `init` is told of a communicator.
pub(crate) struct Told {
    pub(crate) comm_id: u64,
    pub(crate) nranks: u32,
    pub(crate) nnodes: u32,
    pub(crate) min_node_ranks: u32,
    pub(crate) max_node_ranks: u32,
}

/// What a plugin is asked about.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) collective: c_int,
    pub(crate) bytes: usize,
    pub(crate) pipelined: c_int,
    pub(crate) registered: c_int,
}

impl Calls {
    /// The functions of a table of this version, and its name; or what it lacks, in NCCL's words.
    ///
    /// # Safety
    ///
    /// `table` points to a table of that version, 2 to 6, as `layout` has it.
    pub(crate) unsafe fn read(
        version: u32,
        table: *const c_void,
    ) -> Result<(Calls, *const c_char), &'static str> {
        // SAFETY: the caller's contract: the version says which table it is.
        unsafe {
            match version {
                ..=2 => read(&*table.cast::<Table<InitPlain, InfoV2>>(), Init::Plain, Info::V2, "destroy"),
                3 => read(&*table.cast::<Table<InitPlain, InfoV3>>(), Init::Plain, Info::V3, "destroy"),
                4 => read(&*table.cast::<Table<InitPlain, InfoV4>>(), Init::Plain, Info::V4, "destroy"),
                5 => read(&*table.cast::<Table<InitTold, InfoV4>>(), Init::Told, Info::V4, "finalize"),
                6.. => {
                    let table = &*table.cast::<TableV6>();
                    let (calls, name) = read(&table.before, Init::Told, Info::V4, "finalize")?;
                    Ok((Calls { chunk_size: table.get_chunk_size, ..calls }, name))
                }
            }
        }
    }

    /// Makes a context.
    ///
    /// # Safety
    ///
    /// A table that was read.
    pub(crate) unsafe fn init(&self, told: &Told, logger: Logger, out: &mut Ptr) -> c_int {
        let (ranks, nodes) = (told.nranks as usize, told.nnodes as usize);
        match self.init {
            // SAFETY: the function of such a table.
            Init::Plain(init) => unsafe { init(ranks, nodes, logger, out) },
            Init::Told(init) => {
                let mut domains = Domains {
                    count: narrow(told.nnodes),
                    min_ranks: narrow(told.min_node_ranks),
                    max_ranks: narrow(told.max_node_ranks),
                };
                let mut constants = Constants([0.0; 144]);
                // SAFETY: as above; both structs are valid during the call.
                unsafe { init(out, told.comm_id, ranks, nodes, logger, &mut domains, &mut constants) }
            }
        }
    }

    /// Asks for advice: writes costs, and channels where there is an opinion.
    ///
    /// # Safety
    ///
    /// A context of `init` that is not ended.
    pub(crate) unsafe fn info(
        &self,
        context: Ptr,
        asked: Question,
        costs: &mut Costs,
        channels: &mut c_int,
    ) -> c_int {
        let Question { collective, bytes, pipelined, registered } = asked;
        let (rows, columns) = (layout::ALGORITHMS as c_int, layout::PROTOCOLS as c_int);
        match self.info {
            Info::V2(info) => {
                let (mut algorithm, mut protocol) = (UNDEFINED, UNDEFINED);
                let (collnet, nvls) = (costs.has_collnet().into(), costs.has_nvls().into());
                // SAFETY: the caller's contract; all three places are writable.
                let result = unsafe {
                    info(
                        context,
                        collective,
                        bytes,
                        collnet,
                        nvls,
                        pipelined,
                        &mut algorithm,
                        &mut protocol,
                        channels,
                    )
                };
                costs.choose(algorithm, protocol);
                result
            }
            // SAFETY: the caller's contract; a table with as many rows and columns as stated.
            Info::V3(info) => unsafe {
                info(context, collective, bytes, pipelined, costs.address(), rows, columns, channels)
            },
            // SAFETY: as above.
            Info::V4(info) => unsafe {
                info(
                    context,
                    collective,
                    bytes,
                    pipelined,
                    costs.address(),
                    rows,
                    columns,
                    registered,
                    channels,
                )
            },
        }
    }

    /// Asks for the chunk of a choice, if the plugin says chunks: its result, and the bytes.
    ///
    /// # Safety
    ///
    /// As for [`Calls::info`].
    pub(crate) unsafe fn chunk_size(
        &self,
        context: Ptr,
        asked: Question,
        (algorithm, protocol, channels): (usize, usize, c_int),
        bytes: usize,
    ) -> Option<(c_int, usize)> {
        let chunk_size = self.chunk_size?;
        let (mut chunk, algorithm, protocol) = (bytes, algorithm as c_int, protocol as c_int);
        // SAFETY: the caller's contract; the place is writable.
        let result = unsafe {
            chunk_size(context, asked.collective, asked.bytes, algorithm, protocol, channels, &mut chunk)
        };
        Some((result, chunk))
    }

    /// Ends a context.
    ///
    /// # Safety
    ///
    /// A context of `init` that is not ended, and not used again.
    pub(crate) unsafe fn finalize(&self, context: Ptr) -> c_int {
        // SAFETY: the caller's contract.
        unsafe { (self.finalize)(context) }
    }
}

fn read<I: Copy, F: Copy>(
    table: &Table<I, F>,
    init: impl Fn(I) -> Init,
    info: impl Fn(F) -> Info,
    end: &'static str,
) -> Result<(Calls, *const c_char), &'static str> {
    let calls = Calls {
        init: init(table.init.ok_or("init")?),
        info: info(table.get_coll_info.ok_or("getCollInfo")?),
        finalize: table.finalize.ok_or(end)?,
        chunk_size: None,
    };
    if table.name.is_null() { Err("name") } else { Ok((calls, table.name)) }
}

fn narrow(number: u32) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}
