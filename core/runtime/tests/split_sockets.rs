//! What splitting opens; alone in its process, so that nobody else opens anything meanwhile.

#![allow(clippy::unwrap_used)]

use ccl::local;

#[test]
fn splitting_opens_no_socket() {
    const RANKS: u32 = 256;
    let held = local::run(RANKS, |comm| {
        comm.barrier()?;
        let before = sockets();
        comm.barrier()?;
        let mut made = Vec::new();
        for split in 0..64 {
            // Ever other neighbours: by 16, by 8, by 4, and by distance.
            let color = if split % 2 == 0 { comm.rank().0 >> (split % 3 + 2) } else { comm.rank().0 % 8 };
            let child = comm.split(Some(color), 0)?.unwrap();
            child.barrier()?;
            made.push(child);
        }
        comm.barrier()?;
        let after = sockets();
        comm.barrier()?;
        Ok((before, after))
    });
    for (before, after) in held.unwrap() {
        assert_eq!(after, before);
    }
}

/// Sockets that this process holds.
fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
