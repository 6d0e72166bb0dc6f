//! What splitting opens; alone in its process, so that nobody else opens anything meanwhile.

#![allow(clippy::unwrap_used)]

use ccl::{Communicator, Rank, local};

#[test]
fn splitting_opens_no_socket() {
    const RANKS: u32 = 256;
    let held = local::run(RANKS, |comm| {
        comm.barrier()?;
        let before = count(&comm);
        comm.barrier()?;
        let mut made = Vec::new();
        for split in 0..64 {
            // Ever other neighbours: by 16, by 8, by 4, and by distance.
            let color = if split % 2 == 0 { comm.rank().0 >> (split % 3 + 2) } else { comm.rank().0 % 8 };
            let child = comm.split(Some(color), 0)?.unwrap();
            // Some of either kind are used, as something might connect late; using all takes half as long again.
            if split % 7 == 0 {
                child.barrier()?;
            }
            made.push(child);
        }
        comm.barrier()?;
        let after = count(&comm);
        comm.barrier()?;
        Ok((before, after))
    });
    let (before, after) = held.unwrap()[0];
    assert!(before > 0, "the ranks are connected to their root");
    assert_eq!(after, before);
}

/// Sockets that this process holds, which is all ranks; one of them counts.
fn count(comm: &Communicator) -> usize {
    if comm.rank() == Rank(0) { sockets() } else { 0 }
}

/// Sockets that this process holds.
fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
