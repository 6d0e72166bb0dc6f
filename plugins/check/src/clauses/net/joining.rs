//! Listeners, handles, connections.

use std::time::{Duration, Instant};

use ccl_plugin::c::HANDLE_BYTES;

use crate::breach::{Failed, Outcome, Stop, breach, expect};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::pair::{Message, Pair, Stage};
use crate::clauses::net::raw::{Connecting, Context, Listener};

pub(super) fn handle(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let mut open = Vec::new();
    for fill in [0xaa, 0x55] {
        let mut room = [fill; 256];
        let listener = context.listen_into(stage.device, &mut room)?;
        if let Some(at) = (HANDLE_BYTES..room.len()).find(|at| room[*at] != fill) {
            return breach(format!(
                "expected {HANDLE_BYTES} bytes of handle, found byte {at} behind them written"
            ));
        }
        open.push((listener, room));
    }
    let (first, second) = (&open[0].1, &open[1].1);
    // What nobody wrote is still as it was before both calls.
    let unwritten = (0..HANDLE_BYTES).rev().take_while(|at| (first[*at], second[*at]) == (0xaa, 0x55));
    let unwritten = unwritten.count();
    expect(unwritten < 4, || {
        format!(
            "expected all {HANDLE_BYTES} bytes of the handle written, found the last {unwritten} as they were"
        )
    })?;
    expect(first[..HANDLE_BYTES] != second[..HANDLE_BYTES], || {
        "expected a handle for each listener, found the same twice".to_owned()
    })?;
    Ok("two listeners".to_owned())
}

pub(super) fn connect(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let (handle, mut listener) = context.listen(stage.device)?;
    for _ in 0..3 {
        expect(listener.accept()?.is_none(), || {
            "expected nothing to accept before anyone connected, found a comm".to_owned()
        })?;
    }
    let mut pairs = Vec::new();
    let count = if stage.is_made_for_nccl() { 1 } else { 3 };
    for seed in 0..count {
        let mut connecting = context.connect(stage.device, &handle)?;
        let mut pair = stage.join(&mut connecting, &mut listener)?;
        drop(connecting);
        stage.carry(&mut pair, &[Message::new(seed, 100, 0)])?;
        pairs.push(pair);
    }
    expect(listener.accept()?.is_none(), || {
        format!("expected {count} connections, found another that nobody made")
    })?;
    drop(listener);
    // Comms outlive what they came from.
    for (seed, pair) in pairs.iter_mut().enumerate() {
        stage.carry(pair, &[Message::new(seed as u64 + 9, 5000, 0)])?;
    }
    Ok(format!("{count} connections by one handle, in use after the listener closed"))
}

pub(super) fn admission(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let (wanted, mut right) = context.listen(stage.device)?;
    let (other, mut wrong) = context.listen(stage.device)?;
    let mut connecting = context.connect(stage.device, &wanted)?;
    let (mut send, mut recv) = (None, None);
    stage.wait("a connection at the listener whose handle was used", || {
        if send.is_none() {
            send = connecting.poll()?;
        }
        if recv.is_none() {
            recv = right.accept()?;
        }
        expect(wrong.accept()?.is_none(), || {
            "expected the connection at the listener that made the handle, found it at another".to_owned()
        })?;
        Ok(send.is_some() && recv.is_some())
    })?;
    let mut connecting = context.connect(stage.device, &other)?;
    let mut second = stage.join(&mut connecting, &mut wrong)?;
    let (Some(send), Some(recv)) = (send, recv) else { return breach("expected both ends") };
    let mut first = Pair { send, recv };
    stage.carry(&mut first, &[Message::new(1, 3000, 0)])?;
    stage.carry(&mut second, &[Message::new(2, 3000, 0)])?;
    Ok("two listeners, each with its connection".to_owned())
}

pub(super) fn refusal(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let (_, mut bystander) = context.listen(stage.device)?;
    for fill in [0, 0xff] {
        nobody(stage, &context, [fill; HANDLE_BYTES])?;
        expect(bystander.accept()?.is_none(), || {
            "expected nobody admitted by a handle of nobody, found a comm".to_owned()
        })?;
    }
    let (handle, listener) = context.listen(stage.device)?;
    let connecting = context.connect(stage.device, &handle)?;
    drop(listener);
    let refused = refused(stage, connecting, &mut bystander)?.expect_words()?;
    Ok(format!("of a closed listener: {refused}"))
}

/// A handle that no listener made gives no comm.
fn nobody(stage: &Stage, context: &Context, handle: [u8; HANDLE_BYTES]) -> Outcome<()> {
    let mut connecting = match context.connect(stage.device, &handle) {
        Ok(connecting) => connecting,
        Err(failed) => return failed.expect_words().map(drop),
    };
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        match connecting.poll() {
            Ok(None) => std::thread::yield_now(),
            Ok(Some(_)) => return breach("expected a handle of nobody to be refused, found a comm"),
            Err(failed) => return failed.expect_words().map(drop),
        }
    }
    Ok(())
}

/// The listener's process goes on calling, at another listener.
fn refused(stage: &Stage, mut connecting: Connecting, bystander: &mut Listener) -> Outcome<Failed> {
    let mut given = None;
    let failed = stage.wait_for_error("for a connection to a listener that closed", || {
        bystander.accept()?;
        given = connecting.poll()?.or(given.take());
        // Some networks give a comm before the peer accepted, and refuse the first message.
        if let Some(send) = &mut given
            && let Some(mut request) = send.post(&Buffer::message(0, 8), 0)?
        {
            send.test(&mut request)?;
        }
        Ok(())
    });
    match failed {
        Err(Stop::Breach(words)) => {
            breach(format!("{words}: connections that were not accepted are refused"))
        }
        other => other,
    }
}

pub(super) fn nonblocking(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let mut slowest = Slowest::default();
    let mut open = slowest.median("listen", 5, || context.listen(stage.device))?;
    let (handle, mut listener) = context.listen(stage.device)?;
    slowest.median("accept with nobody there", TRIES, || listener.accept())?;
    let mut connecting = slowest.median("connect", 5, || context.connect(stage.device, &handle))?;
    let mut given = None;
    slowest.median("poll_connect before the peer accepts", TRIES, || {
        if given.is_none() {
            given = connecting[0].poll()?;
        }
        Ok(())
    })?;
    drop((given, connecting, listener));
    slowest.median("close_listen", 5, || {
        drop(open.pop());
        Ok(())
    })?;
    let mut pair = stage.pair_between(&context, &context)?;
    // One buffer each, which is registered in the first of the calls: registering may be slow.
    let small = Buffer::new(8);
    let mut receives = slowest.median("irecv", 8, || pair.recv.post(&[(small, 1)]))?;
    let mut first = receives.iter_mut().flatten().next();
    slowest.median("test_recv of what is pending", TRIES, || {
        first.as_mut().map_or(Ok(false), |request| pair.recv.test(request))
    })?;
    let big = Buffer::message(1, 1 << 20);
    let mut sends = slowest.median("isend with no receive posted", 8, || pair.send.post(&big, 2))?;
    let mut last = sends.iter_mut().flatten().last();
    slowest.median("test_send of what is pending", TRIES, || {
        last.as_mut().map_or(Ok(false), |request| pair.send.test(request))
    })?;
    let (call, took) = slowest.0;
    Ok(format!("at most {took:.0?} in the middle of its tries, {call}"))
}

/// The call with the largest median.
#[derive(Default)]
struct Slowest((&'static str, Duration));

impl Slowest {
    /// What the tries gave; a breach if most of them took long.
    fn median<T>(
        &mut self,
        call: &'static str,
        tries: usize,
        mut run: impl FnMut() -> Result<T, Failed>,
    ) -> Outcome<Vec<T>> {
        let (mut took, mut gave) = (Vec::new(), Vec::new());
        for _ in 0..tries {
            let begun = Instant::now();
            gave.push(run()?);
            took.push(begun.elapsed());
        }
        took.sort();
        let median = took[tries / 2];
        if median > self.0.1 {
            self.0 = (call, median);
        }
        expect(median < BOUND, || {
            format!(
                "expected {call} to return at once, found {median:.0?} in the middle of {tries} tries: nothing blocks"
            )
        })?;
        Ok(gave)
    }
}

/// Far above what a call takes on a loaded machine, far below a wait for somebody.
const BOUND: Duration = Duration::from_millis(50);
const TRIES: usize = 15;
/// In which a handle of nobody is given every chance.
const A_WHILE: Duration = Duration::from_millis(200);
