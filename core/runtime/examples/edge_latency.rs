//! One-way latency and throughput of an edge between two threads: `cargo run --release --example
//! edge_latency -p ccl`. Prints the median and the best of several rounds.

use std::time::Instant;

use ccl::Rank;
use ccl::transport::{EdgeIndex, Fabric, TransportSettings, WaitSettings, Waiter};
use ccl_plan::Channel;

#[path = "../tests/support/mod.rs"]
mod support;

struct End {
    fabric: Fabric,
    out: EdgeIndex,
    back: EdgeIndex,
    wait: WaitSettings,
    into: Vec<u8>,
}

impl End {
    fn new(me: Rank, mut fabric: Fabric) -> End {
        let peer = Rank(1 - me.0);
        let edges = fabric
            .send_edge(peer, Channel(0), 0)
            .and_then(|out| Ok((out, fabric.receive_edge(peer, Channel(0), 0)?)));
        let (out, back) = edges.expect("connected fabrics make edges");
        let wait = *fabric.wait().expect("a connected fabric");
        End { fabric, out, back, wait, into: Vec::new() }
    }

    #[inline]
    fn put(&mut self, fill: &[u8]) {
        let mut waiter = Waiter::new(&self.wait);
        while !self.fabric.sender(self.out).try_send(fill, 1).expect("an open edge") {
            waiter.pause(None);
        }
    }

    #[inline]
    fn take(&mut self) {
        let mut waiter = Waiter::new(&self.wait);
        self.into.clear();
        while self.fabric.receiver(self.back).try_receive(&mut self.into).expect("an open edge").is_none() {
            waiter.pause(None);
        }
    }
}

fn ping_pong(bytes: usize, settings: &TransportSettings) -> Vec<f64> {
    // Short rounds: on a shared machine most of them run undisturbed.
    let rounds = 2_000;
    let trips = 100;
    let results = support::on_threads(2, settings, |me, fabric| {
        let mut end = End::new(me, fabric);
        let fill = vec![1; bytes];
        let one = |end: &mut End| {
            let start = Instant::now();
            for _ in 0..trips {
                if me == Rank(0) {
                    end.put(&fill);
                    end.take();
                } else {
                    end.take();
                    end.put(&fill);
                }
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(trips) / 2.0
        };
        (0..rounds).map(|_| one(&mut end)).collect::<Vec<_>>()
    });
    results.into_iter().next().unwrap_or_default()
}

fn stream(bytes: usize, settings: &TransportSettings) -> Vec<f64> {
    let messages = ((8 << 20) / bytes).clamp(64, 10_000);
    let results = support::on_threads(2, settings, |me, fabric| {
        let mut end = End::new(me, fabric);
        let fill = vec![1; bytes];
        let one = |end: &mut End| {
            let start = Instant::now();
            for _ in 0..messages {
                if me == Rank(0) { end.put(&fill) } else { end.take() }
            }
            (messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9
        };
        (0..100).map(|_| one(&mut end)).collect::<Vec<_>>()
    });
    results.into_iter().nth(1).unwrap_or_default()
}

fn print(name: &str, unit: &str, mut values: Vec<f64>, best: fn(&[f64]) -> f64) {
    values.sort_by(f64::total_cmp);
    println!("{name:>24}: median {:8.1} {unit}, best {:8.1} {unit}", values[values.len() / 2], best(&values));
}

fn main() {
    let settings = TransportSettings { slot_bytes: 64 << 10, ..support::settings() };
    let first = |sorted: &[f64]| sorted[0];
    let last = |sorted: &[f64]| sorted[sorted.len() - 1];
    for bytes in [0, 8, 48, 56, 256, 4096] {
        print(&format!("one way, {bytes} bytes"), "ns", ping_pong(bytes, &settings), first);
    }
    for bytes in [4096, 64 << 10] {
        print(&format!("stream of {bytes} bytes"), "GB/s", stream(bytes, &settings), last);
    }
}
