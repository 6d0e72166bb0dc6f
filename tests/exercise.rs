//! Runs one case on real ranks and compares with the oracle.

use ccl::reference::{Case, Counts, Data, compare};
use ccl::{Blocks, Buffers, Collective, Communicator, Dtype, Rank, Reduce, ReduceOp, Request, Result};

/// Whether send and receive buffer are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Two buffers.
    OutOfPlace,
    /// One buffer.
    InPlace,
}

/// Makes the call of `case` on this rank; a sentence about what is wrong, if anything is.
///
/// # Errors
///
/// The call's.
pub fn run(comm: &Communicator, case: &Case<'_>, placement: Placement, seed: u64) -> Result<Option<String>> {
    let mut buffers = [Vec::new(), Vec::new()];
    let [send, recv] = lengths(comm, case, placement);
    buffers[0].resize(send, FILL);
    buffers[1].resize(recv, FILL);
    let [send, recv] = &mut buffers;
    run_in(comm, case, placement, seed, (send, recv))
}

/// [`run`] with given send and receive buffers, at least as long as [`lengths`] says.
///
/// # Errors
///
/// The call's.
pub fn run_in(
    comm: &Communicator,
    case: &Case<'_>,
    placement: Placement,
    seed: u64,
    (send, recv): (&mut [u8], &mut [u8]),
) -> Result<Option<String>> {
    let rank = comm.rank();
    let data = Data::new(case, seed);
    let (input, expected) = (data.input(rank), data.expected(rank));
    let tables = Tables::new(case, rank);
    let output_bytes = case.recv_count(rank) * case.dtype.size_bytes();
    let output = match placement {
        Placement::OutOfPlace => {
            let (send, recv) = (&mut send[..input.len()], &mut recv[..output_bytes]);
            send.copy_from_slice(&input);
            recv.fill(FILL);
            comm.run(request(case, &tables, Buffers::Separate { send, recv }))?;
            &*recv
        }
        Placement::InPlace => {
            let [length, _] = lengths(comm, case, placement);
            in_place(comm, case, &tables, &input, &mut send[..length])?
        }
    };
    let Some(expected) = expected else { return Ok(None) };
    Ok(compare(case.dtype, output, &expected).map(|mismatch| {
        format!("rank {rank}: {case:?} {placement:?}: {} wrong, first at {}", mismatch.count, mismatch.first)
    }))
}

/// Every collective that has data, with the cases worth trying for `count` elements on `n` ranks.
pub fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL
        .into_iter()
        .filter(|c| !matches!(c, Collective::Send | Collective::Recv | Collective::Barrier))
}

/// `CCL_ALGO` that forces, in each turn, another algorithm of each collective among those that serve `n`
/// ranks.
pub fn forced(collectives: &[Collective], n: u32, turn: usize) -> String {
    let one = |collective: &Collective| {
        let all = ccl_plan::algorithms(*collective).iter();
        let serving: Vec<_> = all.filter(|algorithm| n <= algorithm.most_ranks(*collective)).collect();
        format!("{collective}:{}", serving[turn % serving.len()])
    };
    collectives.iter().map(one).collect::<Vec<_>>().join(";")
}

/// Block lengths around `count` that differ from rank to rank, zeros among them.
pub fn uneven_counts(collective: Collective, n: u32, count: usize) -> Vec<usize> {
    let entries = if collective == Collective::AllToAllV { n * n } else { n };
    (0..entries as usize).map(|i| if i % 3 == 1 { 0 } else { count * (i % 4 + 1) / 2 + i % 2 }).collect()
}

/// A case; `counts` is used by the v-forms.
pub fn case<'a>(
    (collective, dtype, op): (Collective, Dtype, ReduceOp),
    (n, root): (u32, Rank),
    count: usize,
    counts: &'a [usize],
) -> Case<'a> {
    let counts = match collective {
        Collective::AllToAllV => Counts::PerPair(counts),
        c if c.uneven() => Counts::PerRank(counts),
        _ => Counts::Even(count),
    };
    let scalar = if op == ReduceOp::PreMulSum { ccl::reference::exact_scalar(dtype) } else { 1.0 };
    Case { collective, dtype, op, n, root, scalar, counts }
}

/// One rank's block tables.
struct Tables {
    count: usize,
    send_counts: Vec<usize>,
    send_offsets: Vec<usize>,
    recv_counts: Vec<usize>,
    recv_offsets: Vec<usize>,
}

impl Tables {
    fn new(case: &Case<'_>, rank: Rank) -> Tables {
        let n = case.n as usize;
        let (count, send_counts, recv_counts) = match case.counts {
            Counts::Even(count) => (count, vec![count; n], vec![count; n]),
            Counts::PerRank(counts) => (0, counts.to_vec(), counts.to_vec()),
            Counts::PerPair(counts) => {
                let sent = counts[rank.index() * n..][..n].to_vec();
                (0, sent, (0..n).map(|from| counts[from * n + rank.index()]).collect())
            }
        };
        let (send_offsets, recv_offsets) = (offsets(&send_counts), offsets(&recv_counts));
        Tables { count, send_counts, send_offsets, recv_counts, recv_offsets }
    }
}

fn offsets(counts: &[usize]) -> Vec<usize> {
    let sums = counts.iter().scan(0, |sum, count| {
        *sum += count;
        Some(*sum - count)
    });
    sums.collect()
}

fn request<'a>(case: &Case<'_>, tables: &'a Tables, buffers: Buffers<'a>) -> Request<'a> {
    let reduce =
        if case.op == ReduceOp::PreMulSum { Reduce::pre_mul_sum(case.scalar) } else { case.op.into() };
    let blocks = Blocks {
        send_counts: &tables.send_counts,
        send_offsets: &tables.send_offsets,
        recv_counts: &tables.recv_counts,
        recv_offsets: &tables.recv_offsets,
    };
    Request {
        collective: case.collective,
        dtype: case.dtype,
        reduce,
        count: tables.count,
        root: case.root,
        buffers,
        blocks: case.collective.uneven().then_some(blocks),
    }
}

/// Bytes of this rank's send and receive buffers; in place the first is the only one.
pub fn lengths(comm: &Communicator, case: &Case<'_>, placement: Placement) -> [usize; 2] {
    let (rank, size) = (comm.rank(), case.dtype.size_bytes());
    let (input, output) = (case.send_count(rank) * size, case.recv_count(rank) * size);
    match placement {
        Placement::OutOfPlace => [input, output],
        Placement::InPlace => {
            let (send_at, recv_at) = in_place_offsets(case, &Tables::new(case, rank), rank);
            [(send_at + input).max(recv_at + output), 0]
        }
    }
}

/// Where this rank's block starts in an in-place buffer, in bytes: what it sends, and what it receives.
fn in_place_offsets(case: &Case<'_>, tables: &Tables, rank: Rank) -> (usize, usize) {
    use Collective as C;

    let (size, root) = (case.dtype.size_bytes(), rank == case.root);
    let send_at = match case.collective {
        C::AllGather | C::AllGatherV => tables.recv_offsets[rank.index()] * size,
        C::Gather | C::GatherV if root => tables.recv_offsets[rank.index()] * size,
        _ => 0,
    };
    let recv_at = match case.collective {
        C::ReduceScatter | C::ReduceScatterV => tables.send_offsets[rank.index()] * size,
        C::Scatter | C::ScatterV if root => tables.send_offsets[rank.index()] * size,
        _ => 0,
    };
    (send_at, recv_at)
}

/// Makes the call in `buffer`; where the result is.
fn in_place<'a>(
    comm: &Communicator,
    case: &Case<'_>,
    tables: &Tables,
    input: &[u8],
    buffer: &'a mut [u8],
) -> Result<&'a [u8]> {
    let rank = comm.rank();
    let (send_at, recv_at) = in_place_offsets(case, tables, rank);
    buffer.fill(FILL);
    buffer[send_at..send_at + input.len()].copy_from_slice(input);
    comm.run(request(case, tables, Buffers::InPlace(&mut *buffer)))?;
    Ok(&buffer[recv_at..recv_at + case.recv_count(rank) * case.dtype.size_bytes()])
}

/// What receive buffers hold before the call.
const FILL: u8 = 0xa5;
