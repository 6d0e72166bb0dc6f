//! Several devices: which there are, and how ranks with a device of their own reach each other.

use std::collections::BTreeSet;

use ccl::{Collective, Communicator, Dtype, Rank, local};
use serde_json::{Value, json};

use crate::machine::{Machine, Options, Outcome};

/// How many devices there are, between which of them kernels have no way, and whether all have multicast memory.
pub(crate) fn devices(machine: &Machine) -> Outcome<bool> {
    let devices = machine.context.driver().devices()?;
    let mut apart = Vec::new();
    for (place, one) in devices.iter().enumerate() {
        for other in &devices[place + 1..] {
            if !(one.link_to(other)?.access && other.link_to(one)?.access) {
                apart.push(json!([one.ordinal(), other.ordinal()]));
            }
        }
    }
    let multicast = devices.iter().all(|device| device.abilities().multicast);
    println!(
        "{}",
        json!({ "fact": "devices", "devices": devices.len(), "apart": apart, "multicast": multicast })
    );
    Ok(true)
}

/// What ranks in threads say of their devices and of the ways between them; a broadcast that must be right, and the
/// payloads of it that were stored once for all.
pub(crate) fn ways(machine: &Machine, options: &Options) -> Outcome<bool> {
    let (n, count) = (options.number("ranks", 2)? as u32, options.number("count", 1 << 16)? as usize);
    let mut ok = true;
    for (rank, outcome) in
        local::try_run_with(&machine.config, n, |comm| of_rank(&comm, count))?.into_iter().enumerate()
    {
        match outcome {
            Ok(said) => {
                ok &= said["ok"] == Value::Bool(true);
                println!("{said}");
            }
            Err(error) => {
                ok = false;
                eprintln!("facts ways: rank {rank}: {error}");
            }
        }
    }
    Ok(ok)
}

/// What selection takes of each number of bytes, and how many channels: as said by the first rank, which must be what all say.
pub(crate) fn channels(machine: &Machine, options: &Options) -> Outcome<bool> {
    let n = options.number("ranks", 2)? as u32;
    let sizes = options.numbers("bytes", &[1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 24, 1 << 28])?;
    let said = local::run_with(&machine.config, n, |comm| {
        let mut rows = Vec::new();
        for kind in [Collective::AllReduce, Collective::AllGather, Collective::Send] {
            for bytes in sizes.iter().copied() {
                let blocks = if kind == Collective::AllGather { u64::from(n) } else { 1 };
                let count = (bytes / blocks / 4) as usize;
                let said = comm.explain(kind, Dtype::F32, count, Rank(0))?;
                rows.push(json!({ "fact": "channels", "ranks": n, "coll": kind.name(), "bytes": bytes,
                    "algorithm": said.choice.algorithm.name(), "channels": said.choice.channels,
                    "protocol": said.protocol }));
            }
        }
        let memory = comm.device_memory()?;
        comm.barrier()?;
        Ok((rows, memory))
    })?;
    said[0].0.iter().for_each(|row| println!("{row}"));
    println!(
        "{}",
        json!({ "fact": "slots", "ranks": n, "device_memory": said[0].1,
            "two_shot_from": machine.config.cuda_two_shot() })
    );
    Ok(said.iter().all(|one| one.0 == said[0].0))
}

fn of_rank(comm: &Communicator, count: usize) -> ccl::Result<Value> {
    let (me, n) = (comm.rank(), comm.size());
    let mut paths = BTreeSet::new();
    for peer in (0..n).map(Rank).filter(|peer| *peer != me) {
        paths.insert(comm.path(peer)?.kind.name());
    }
    let mut values = vec![me.0; count];
    let root = Rank(n - 1);
    comm.broadcast(&mut values, root)?;
    let ok = values.iter().all(|value| *value == root.0);
    let explained = comm.explain(Collective::Broadcast, Dtype::U32, count, root)?;
    let payloads = if comm.device().is_some() { comm.multicast_payloads()? } else { 0 };
    // Nobody leaves before all have looked.
    comm.barrier()?;
    Ok(json!({ "fact": "ways", "rank": me.0, "ranks": n, "device": comm.device(), "paths": paths,
        "protocol": explained.protocol, "payloads": payloads, "ok": ok }))
}
