use std::time::Duration;

use ccl_plan::Channel;
use proptest::prelude::*;

use super::super::exchange::Reuse;
use super::super::layout::Layout;
use super::*;
use crate::discover::processor::on_each;

/// An edge from a region to another of the same process.
fn edge() -> (MemorySend, MemoryReceive, Arc<Region>) {
    edge_between([Region::for_tests(2), Region::for_tests(2)])
}

/// The same between these two.
fn edge_between(regions: [Region; 2]) -> (MemorySend, MemoryReceive, Arc<Region>) {
    let [from, into] = regions.map(Arc::new);
    let memory = PeerMemory::of(std::process::id());
    assert!(from.shows_through(memory).unwrap());
    let ends = Ends { sender: 0, receiver: 1, channel: Channel(0), tag: 0 };
    let regions = (Arc::clone(&from), Arc::clone(&into));
    let send = MemorySend::new(ends, regions, Some(memory), Way::default()).unwrap();
    let sender = (Arc::clone(&from), Some(memory));
    (send, MemoryReceive::new(ends, (into, Arc::default()), sender, Way::default()).unwrap(), from)
}

fn fetched(receive: &mut MemoryReceive, slot: &Slot) -> Vec<u8> {
    let mut found = vec![0; slot.bytes];
    // SAFETY: the vector is as long as asked.
    while !unsafe { receive.fetch(slot, found.as_mut_ptr()) }.unwrap() {}
    found
}

#[test]
fn what_is_lent_is_read_where_it_is_and_comes_back() {
    let (mut send, mut receive, _from) = edge();
    let payload: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    assert!(send.lend((payload.as_ptr(), payload.len()), 7, false).is_err(), "nothing was acquired");
    for round in 0..5 {
        send.acquire(0).unwrap().unwrap();
        send.lend((payload.as_ptr(), payload.len()), round, round % 2 == 0).unwrap();
        let slot = receive.peek().unwrap().unwrap();
        assert_eq!((slot.lent, slot.bytes, slot.tag), (true, payload.len(), round));
        assert_eq!(fetched(&mut receive, &slot), payload);
        assert!(!send.all_released());
        receive.release().unwrap();
        assert!(send.all_released());
    }
}

#[test]
fn who_lends_and_waits_writes_a_part_of_it() {
    let payload: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    let (mut send, mut receive, _from) = edge();
    let mut helped = 0;
    for (round, bytes) in (0..400).zip([3_000_001, 64 << 10, 100_000, 1 << 20, 1000].into_iter().cycle()) {
        std::thread::scope(|scope| {
            let (payload, helped, send) = (&payload[..bytes], &mut helped, &mut send);
            scope.spawn(move || {
                while send.acquire(0).unwrap().is_none() {}
                send.lend((payload.as_ptr(), bytes), round, round % 3 != 0).unwrap();
                while !send.all_released() {
                    *helped += u32::from(send.help());
                }
            });
            let slot = std::iter::repeat_with(|| receive.peek().unwrap()).flatten().next().unwrap();
            assert!(fetched(&mut receive, &slot) == payload, "round {round}");
            receive.release().unwrap();
        });
    }
    assert!(helped > 0);
}

#[test]
fn nobody_writes_once_the_receiver_has_given_up() {
    let (mut send, receive, _from) = edge();
    let (payload, mut target) = (vec![1u8; 1 << 20], vec![0u8; 128 << 10]);
    send.acquire(0).unwrap().unwrap();
    send.lend((payload.as_ptr(), payload.len()), 0, true).unwrap();
    let (first, second) = target.split_at_mut(64 << 10);
    // SAFETY: the head line lies in the receiver's mapping and is only used as atomics.
    let offers = unsafe { &receive.place.head.as_ref().offers };
    offers.make(0, first.as_mut_ptr(), 0, first.len());
    offers.make(1, second.as_mut_ptr(), first.len(), second.len());
    assert!(send.help() && first.iter().all(|byte| *byte == 1));
    receive.own.withdraw();
    assert!(!send.help() && second.iter().all(|byte| *byte == 0));
}

#[test]
fn reading_what_was_taken_back_is_an_error() {
    let (mut send, mut receive, from) = edge();
    let payload = [1u8; 1000];
    send.acquire(0).unwrap().unwrap();
    send.lend((payload.as_ptr(), payload.len()), 0, false).unwrap();
    let slot = receive.peek().unwrap().unwrap();
    fetched(&mut receive, &slot);
    from.withdraw();
    let error = receive.release().unwrap_err();
    assert!(error.cause().contains("gave up while its buffer was read"), "{error}");
}

/// How a slot is filled with 2000 results, one after the other, where each that is timed seems to take so long.
fn ways(edge: &mut MemorySend, took: impl Fn(Filler) -> Duration) -> Vec<Filling> {
    edge.acquire(9000).unwrap().unwrap();
    let mut fill = || {
        let filling = edge.filling(Filler::Fold);
        let timed = match filling {
            Filling::Timed => Some(Filler::Fold),
            Filling::AsideTimed => Some(Filler::Aside),
            _ => None,
        };
        if let Some(filler) = timed {
            edge.took(filler, 9000, Instant::now() - took(filler));
        }
        filling
    };
    (0..2000).map(|_| fill()).collect()
}

#[test]
fn results_go_aside_where_storing_them_is_slow_and_around_the_caches_where_copies_are_too() {
    let layout = Layout { locals: 2, channels: 1, tags: 1, slots: 2, slot_bytes: 9000 };
    let (none, long) = (Duration::ZERO, Duration::from_secs(1));
    let used = |took: &dyn Fn(Filler) -> Duration| {
        let (mut send, ..) = edge_between([0, 1].map(|_| Region::of_layout(layout)));
        let ways = ways(&mut send, took);
        [Filling::Aside, Filling::Streaming].map(|way| ways.contains(&way))
    };
    assert_eq!(used(&|_| none), [false, false]);
    let fold_is_slow = |filler| if filler == Filler::Fold { long } else { none };
    // Other processors store results as they store copies, which alone are timed.
    assert_eq!(used(&fold_is_slow), [is_of_amd(), false]);
    assert_eq!(used(&|_| long), [is_of_amd(); 2]);
}

#[test]
fn slots_that_are_slowly_emptied_are_emptied_in_strings_on_amd_processors() {
    on_each(|| {
        let ways = |bytes| {
            let (_, mut receive, _) = edge();
            let mut empty = || {
                let way = receive.emptying(bytes);
                if way == Emptying::Timed {
                    receive.took(bytes, Instant::now() - Duration::from_secs(1));
                }
                way
            };
            let ways: Vec<_> = (0..2000).map(|_| empty()).collect();
            [Emptying::Timed, Emptying::Strings].map(|way| ways.contains(&way))
        };
        let (least, most) = IN_STRINGS_BYTES.into_inner();
        assert_eq!([ways(least), ways(most)], [[is_of_amd(); 2]; 2]);
        assert_eq!([ways(least - 1), ways(most + 1)], [[false; 2]; 2]);
    });
}

/// The two ends of each of two edges, to and fro between two ranks, whose slots go from hand to hand; of `tags` that of number 0.
fn pair(tags: usize) -> [(MemorySend, MemoryReceive); 2] {
    let layout = Layout { locals: 2, channels: 1, tags, slots: 4, slot_bytes: 9000 };
    let regions: Regions = [0, 1].map(|_| Arc::new(Region::of_layout(layout))).into();
    let way = |own: usize| Way {
        roomy: false,
        sparing: false,
        pool: Some(Arc::new(Pool::of_rank(&layout, (own, 1 - own), Reuse::AsItGoes))),
    };
    let ways = [way(0), way(1)];
    [0, 1].map(|from| {
        let ends = Ends { sender: from, receiver: 1 - from, channel: Channel(0), tag: 0 };
        let [own, other] = [from, 1 - from].map(|rank| Arc::clone(&regions[rank]));
        let send = MemorySend::new(ends, (Arc::clone(&own), Arc::clone(&other)), None, ways[from].clone());
        let receive =
            MemoryReceive::new(ends, (other, Arc::clone(&regions)), (own, None), ways[1 - from].clone());
        (send.unwrap(), receive.unwrap())
    })
}

/// Sends that many bytes, each like the tag, the short way or the general one; whether there was room.
fn send(edge: &mut MemorySend, bytes: usize, tag: u32, quick: bool) -> bool {
    let fill = |at: NonNull<u8>| {
        // SAFETY: it was acquired for as many bytes.
        unsafe { at.write_bytes(tag as u8, bytes) };
    };
    match if quick { edge.acquire_short(bytes) } else { Quick::Otherwise } {
        Quick::At(at) => {
            fill(at);
            edge.post_short(bytes, tag);
        }
        Quick::NotYet => return false,
        Quick::Otherwise => {
            let Some(at) = edge.acquire(bytes).unwrap() else { return false };
            fill(at);
            edge.post(bytes, tag).unwrap();
        }
    }
    true
}

/// Receives what [`send`] sent, the short way or the general one, and says which marks it had.
fn receive(edge: &mut MemoryReceive, bytes: usize, tag: u32, quick: bool) -> u32 {
    let at = match if quick { edge.expect_short(bytes, tag) } else { Quick::Otherwise } {
        Quick::At(at) => at,
        _ => {
            let slot = edge.peek().unwrap().unwrap();
            assert_eq!((slot.bytes, slot.tag, slot.lent), (bytes, tag, false));
            slot.data
        }
    };
    // SAFETY: it is the receiver's until it is released.
    let found = unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) };
    assert!(found.iter().all(|byte| *byte == tag as u8), "message {tag} of {bytes} bytes");
    let marks = edge.marks;
    edge.release().unwrap();
    marks & (IN_LINE | SHORT)
}

#[test]
fn short_payloads_that_go_to_and_fro_are_in_slots_and_those_that_go_one_way_beside_the_lines() {
    for quick in [false, true] {
        on_each(|| {
            let [(mut there, mut arrived), (mut back, mut returned)] = pair(1);
            let hands = if is_of_amd() { 0 } else { SHORT };
            for (bytes, to_and_fro) in [(INLINE_BYTES, IN_LINE), (HANDED_BYTES, SHORT), (4096, hands)] {
                let mut ways = Vec::new();
                for round in 0..20 {
                    assert!(send(&mut there, bytes, round, quick));
                    ways.push(receive(&mut arrived, bytes, round, quick));
                    assert!(send(&mut back, bytes, round, quick));
                    ways.push(receive(&mut returned, bytes, round, quick));
                }
                // The first goes before any came.
                assert!(ways[1..].iter().all(|way| *way == to_and_fro), "{bytes} bytes: {ways:x?}");
            }
            let mut ways = Vec::new();
            for round in 0..100 {
                assert!(send(&mut there, 4096, round, quick));
                ways.push(receive(&mut arrived, 4096, round, quick));
            }
            assert!(ways[..10].iter().all(|way| *way == hands), "{ways:x?}");
            assert!(ways[30..].iter().all(|way| *way == SHORT), "{ways:x?}");
        });
    }
}

#[test]
fn short_payloads_are_beside_the_lines_while_others_are_under_way() {
    on_each(|| {
        let [(mut there, mut arrived), (mut back, mut returned)] = pair(1);
        assert!(send(&mut back, 3000, 0, true));
        receive(&mut returned, 3000, 0, true);
        let mut sent = 0;
        while send(&mut there, 3000, sent, true) {
            sent += 1;
        }
        assert_eq!(sent, 64, "as many as there are lines");
        let ways: Vec<_> = (0..sent).map(|tag| receive(&mut arrived, 3000, tag, true)).collect();
        assert_eq!(ways[0], if is_of_amd() { 0 } else { SHORT });
        assert!(ways[1..].iter().all(|way| *way == SHORT));
    });
}

#[test]
fn a_cell_that_does_not_exist_is_an_error() {
    let [(mut there, mut arrived), _] = pair(1);
    assert!(send(&mut there, 100, 0, true));
    let line = arrived.place.line(0);
    line.marks.store(line.marks.load(Ordering::Relaxed) | CELL, Ordering::Relaxed);
    assert!(matches!(arrived.expect_short(100, 0), Quick::Otherwise));
    let error = arrived.peek().unwrap_err();
    assert!(error.cause().contains("which slot it is in"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever goes to and fro, in whatever order, arrives as it was sent.
    #[test]
    fn payloads_of_all_lengths_arrive_as_they_were_sent(
        steps in prop::collection::vec((0..2usize, any::<bool>(), any::<bool>(), 0..9usize), 1..400),
        tags in 1..3usize,
    ) {
        const LENGTHS: [usize; 9] = [0, 8, 48, 49, 1024, 1025, 2049, 4096, 9000];
        on_each(|| {
            let mut edges = pair(tags);
            let mut under_way = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
            let mut next = [0, 0];
            for (way, sends, quick, length) in &steps {
                let (edge, under_way) = (&mut edges[*way], &mut under_way[*way]);
                if *sends {
                    let bytes = LENGTHS[*length];
                    if send(&mut edge.0, bytes, next[*way], *quick) {
                        under_way.push_back((bytes, next[*way]));
                        next[*way] += 1;
                    }
                } else if let Some((bytes, tag)) = under_way.pop_front() {
                    receive(&mut edge.1, bytes, tag, *quick);
                }
            }
        });
    }
}
