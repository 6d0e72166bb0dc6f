//! One call, ready to be made again and again.

use ccl::reference::exact_scalar;
use ccl::{
    Blocks as BlockTables, Buffers, Collective, Communicator, Error, Level, Rank, Reduce, ReduceOp, Request,
    Result,
};

use super::area::Area;
use super::device::{At, Device, Graph, Mirror};
use super::geometry::Blocks;
use super::layout::{Layout, Segment};
use super::operation::Operation;
use super::point::{Placement, Point};

/// The buffers of one call.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// What is sent; in place, the only buffer.
    pub(crate) send: Area,
    /// Where results go; unused in place.
    pub(crate) recv: Area,
    /// The same on the rank's device, for calls on device memory.
    pub(crate) mirror: Option<Mirror>,
}

/// How to make the calls of one point on one rank. Making one allocates nothing here.
pub(crate) struct Call<'a> {
    comm: &'a Communicator,
    point: Point,
    placement: Placement,
    level: Level,
    blocks: Blocks,
    /// Where data lies in every lane.
    pub(crate) layout: Layout,
    /// What calls are put on, if on a stream.
    device: Option<&'a Device>,
    /// With whom rank 0 exchanges messages.
    partner: Rank,
}

impl<'a> Call<'a> {
    /// The calls of `point` on the rank that holds `comm`.
    pub(crate) fn new(comm: &'a Communicator, point: &Point, placement: Placement) -> Call<'a> {
        let (rank, n) = (comm.rank(), comm.size());
        let blocks = Blocks::seen_by(point.operation, point.amount.count, n, rank);
        let layout = Layout::new(point, placement, rank, n, &blocks);
        let partner = Rank(1);
        Call { comm, point: *point, placement, level: Level::Run, blocks, layout, device: None, partner }
    }

    /// The same calls on device memory, where there is a device.
    pub(crate) fn on(self, device: Option<&'a Device>) -> Call<'a> {
        Call { device, ..self }
    }

    /// The same calls, with another rank than 1 to exchange messages with rank 0.
    pub(crate) fn with(self, partner: Rank) -> Call<'a> {
        Call { partner, ..self }
    }

    /// The same calls at a level of determinism.
    pub(crate) fn at(self, level: Level) -> Call<'a> {
        Call { level, ..self }
    }

    /// Makes so many calls and waits for all of them.
    pub(crate) fn repeat(&self, lanes: &mut [Lane], calls: u64) -> Result<()> {
        for number in 1..=calls {
            self.put(lanes)?;
            if number % STREAM_DEPTH == 0 {
                self.wait()?;
            }
        }
        self.wait()
    }

    /// Replays a graph so often and waits for it.
    pub(crate) fn replay(&self, graph: &mut Graph, replays: u64) -> Result<()> {
        let Some(device) = self.device else { return Ok(()) };
        for number in 1..=replays {
            device.replay(graph)?;
            if number % STREAM_DEPTH == 0 {
                device.wait()?;
            }
        }
        device.wait()
    }

    /// A graph of so many calls; nothing on a rank without a device.
    pub(crate) fn capture(&self, lanes: &mut [Lane], calls: u64) -> Result<Option<Graph>> {
        let Some(device) = self.device else { return Ok(None) };
        device.capture(|| (0..calls).try_for_each(|_| self.put(lanes))).map(Some)
    }

    /// Makes the call once on every lane, and waits for it.
    pub(crate) fn once(&self, lanes: &mut [Lane]) -> Result<()> {
        self.put(lanes)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        self.device.map_or(Ok(()), Device::wait)
    }

    /// Makes the call once on every lane: together, if there are several. On a device it is put on the stream.
    fn put(&self, lanes: &mut [Lane]) -> Result<()> {
        if let Some(device) = self.device {
            return lanes.iter_mut().try_for_each(|lane| self.put_on(device, lane));
        }
        match (self.point.operation, lanes) {
            (Operation::Collective(collective), [lane]) => self.comm.run(self.request(collective, lane)),
            (Operation::Collective(collective), lanes) => ccl::group(|group| {
                lanes.iter_mut().for_each(|lane| group.add(self.comm, self.request(collective, lane)));
                Ok(())
            }),
            (Operation::SendRecv, lanes) => self.exchange(lanes),
            (Operation::PingPong, lanes) => lanes.iter_mut().try_for_each(|lane| self.ping_pong(lane)),
        }
    }

    /// Puts the call on the device's stream.
    fn put_on(&self, device: &Device, lane: &mut Lane) -> Result<()> {
        let Some(mirror) = lane.mirror.take() else {
            return Err(Error::bug("a lane has no memory on its device"));
        };
        let put = self.put_at(device, &mirror, lane);
        lane.mirror = Some(mirror);
        put
    }

    fn put_at(&self, device: &Device, mirror: &Mirror, lane: &mut Lane) -> Result<()> {
        let size = self.point.dtype.size_bytes();
        let start = |segments: &[Segment]| segments.first().map_or(0, |segment| segment.offset * size);
        let at = At {
            mirror,
            send_bytes: start(&self.layout.inputs),
            recv_bytes: start(&self.layout.outputs),
            in_place: self.placement == Placement::InPlace,
        };
        let (rank, n) = (self.comm.rank().0, self.comm.size());
        let message = |collective, peer| self.message(collective, peer, &[], &mut []);
        match (self.point.operation, self.sender()) {
            (Operation::Collective(collective), _) => {
                device.put(self.comm, self.request(collective, lane), at)
            }
            (Operation::SendRecv, _) => {
                let sent = message(Collective::Send, Rank((rank + 1) % n));
                let received = message(Collective::Recv, Rank((rank + n - 1) % n));
                device.put_together(self.comm, [sent, received], at)
            }
            (Operation::PingPong, Some(peer)) => {
                let mut messages = [message(Collective::Send, peer), message(Collective::Recv, peer)];
                if self.comm.rank() != Rank(0) {
                    messages.reverse();
                }
                messages.into_iter().try_for_each(|message| device.put(self.comm, message, at))
            }
            (Operation::PingPong, None) => Ok(()),
        }
    }

    /// The rank whose message this rank receives, if this is about messages and it receives one.
    pub(crate) fn sender(&self) -> Option<Rank> {
        let (rank, n) = (self.comm.rank().0, self.comm.size());
        match self.point.operation {
            Operation::SendRecv => Some(Rank((rank + n - 1) % n)),
            Operation::PingPong if rank == 0 => Some(self.partner),
            Operation::PingPong if self.comm.rank() == self.partner => Some(Rank(0)),
            _ => None,
        }
    }

    /// A collective's request on one lane.
    pub(crate) fn request<'r>(&'r self, collective: Collective, lane: &'r mut Lane) -> Request<'r> {
        let buffers = match self.placement {
            Placement::OutOfPlace => {
                Buffers::Separate { send: lane.send.bytes(), recv: lane.recv.bytes_mut() }
            }
            Placement::InPlace => Buffers::InPlace(lane.send.bytes_mut()),
        };
        let tables = BlockTables {
            send_counts: &self.blocks.counts,
            send_offsets: &self.blocks.offsets,
            recv_counts: &self.blocks.counts,
            recv_offsets: &self.blocks.offsets,
        };
        Request {
            collective,
            dtype: self.point.dtype,
            reduce: reduce(&self.point).at(self.level),
            count: self.point.amount.count,
            root: self.point.root,
            buffers,
            blocks: collective.uneven().then_some(tables),
        }
    }

    fn exchange(&self, lanes: &mut [Lane]) -> Result<()> {
        let (rank, n) = (self.comm.rank().0, self.comm.size());
        let (next, last) = (Rank((rank + 1) % n), Rank((rank + n - 1) % n));
        ccl::group(|group| {
            for Lane { send, recv, .. } in lanes {
                group.add(self.comm, self.message(Collective::Send, next, send.bytes(), &mut []));
                group.add(self.comm, self.message(Collective::Recv, last, &[], recv.bytes_mut()));
            }
            Ok(())
        })
    }

    fn ping_pong(&self, lane: &mut Lane) -> Result<()> {
        let Some(peer) = self.sender() else { return Ok(()) };
        let first = self.comm.rank() == Rank(0);
        if first {
            self.comm.run(self.message(Collective::Send, peer, lane.send.bytes(), &mut []))?;
        }
        self.comm.run(self.message(Collective::Recv, peer, &[], lane.recv.bytes_mut()))?;
        if !first {
            self.comm.run(self.message(Collective::Send, peer, lane.send.bytes(), &mut []))?;
        }
        Ok(())
    }

    fn message<'r>(
        &self,
        collective: Collective,
        peer: Rank,
        send: &'r [u8],
        recv: &'r mut [u8],
    ) -> Request<'r> {
        Request {
            collective,
            dtype: self.point.dtype,
            reduce: ReduceOp::Sum.into(),
            count: self.point.amount.count,
            root: peer,
            buffers: Buffers::Separate { send, recv },
            blocks: None,
        }
    }
}

/// The reduce operation with its scalar: one for which every order of folding gives the same.
pub(crate) fn reduce(point: &Point) -> Reduce {
    match point.reduce {
        ReduceOp::PreMulSum => Reduce::pre_mul_sum(exact_scalar(point.dtype)),
        other => other.into(),
    }
}

/// Calls that a stream may hold: a driver takes about a thousand launches before it blocks, and whoever blocks there
/// drives nothing; and ranks that are threads of one process share what it has.
const STREAM_DEPTH: u64 = 64;
