//! How fast, beside a network that is known. Told, never judged.

use std::time::{Duration, Instant};

use crate::breach::{Outcome, breach, skip};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::pair::{Pair, Stage};

pub(super) fn speed(stage: &Stage) -> Outcome<String> {
    let Some(reference) = stage.reference else { return skip("there is nothing to compare with") };
    let (mine, theirs) = (stage, stage.with(reference));
    let longest = stage.properties(&stage.context()?)?.max_message_bytes.min(LARGE as u64) as usize;
    let mut ratios = [Vec::new(), Vec::new()];
    let mut best = [Duration::MAX; 2];
    // In turns, so that whatever else the machine does hits both.
    for _ in 0..ROUNDS {
        for (place, (bytes, window, count)) in [(8, 1, 500), (longest, 4, 24)].into_iter().enumerate() {
            let (mine, theirs) = (time(mine, bytes, window, count)?, time(&theirs, bytes, window, count)?);
            ratios[place].push(mine.as_secs_f64() / theirs.as_secs_f64());
            best[place] = best[place].min(mine);
        }
    }
    let [latency, transfer] = ratios.map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    });
    let gb_per_s = longest as f64 / best[1].as_secs_f64() / 1e9;
    Ok(format!(
        "8 bytes in {:.1?}, {latency:.2} of the socket network's time; {longest} bytes at {gb_per_s:.2} GB/s, {:.2} of \
         its bandwidth",
        best[0],
        1.0 / transfer
    ))
}

/// The time of one message, of `count` with at most `window` in flight.
fn time(stage: &Stage, bytes: usize, window: usize, count: u32) -> Outcome<Duration> {
    let mut pair = stage.pair()?;
    let (message, room) = (Buffer::message(1, bytes), Buffer::new(bytes));
    run(stage, &mut pair, (&message, &room), window, count / 5)?;
    let begun = Instant::now();
    run(stage, &mut pair, (&message, &room), window, count)?;
    Ok(begun.elapsed() / count)
}

fn run(
    stage: &Stage,
    pair: &mut Pair,
    (message, room): (&Buffer, &Buffer),
    window: usize,
    count: u32,
) -> Outcome<()> {
    let (mut sends, mut recvs): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let begun = Instant::now();
    while received < count || !sends.is_empty() {
        if posted < count
            && recvs.len() < window
            && let Some(request) = pair.recv.post(&[(*room, 0)])?
        {
            recvs.push(request);
            posted += 1;
        }
        if sent < posted
            && sends.len() < window
            && let Some(request) = pair.send.post(message, 0)?
        {
            sends.push(request);
            sent += 1;
        }
        for request in &mut sends {
            pair.send.test(request)?;
        }
        for request in &mut recvs {
            received += u32::from(pair.recv.test(request)?);
        }
        sends.retain(|request| !request.is_dead());
        recvs.retain(|request| !request.is_dead());
        if begun.elapsed() > stage.patience() {
            return breach(format!(
                "expected {count} messages within {:?}, found {received}",
                stage.patience()
            ));
        }
    }
    Ok(())
}

const LARGE: usize = 1 << 20;
const ROUNDS: usize = 5;
