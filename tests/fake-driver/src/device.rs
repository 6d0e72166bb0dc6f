//! Devices and contexts.

use std::sync::atomic::Ordering;

use crate::code::{self, *};
use crate::state::{self, current, device, devices};
use crate::symbols::{Out, Text, item, put};

pub(crate) fn init(flags: u32) -> Answer {
    match (flags, devices().all.len()) {
        (0, 0) => Err(NO_DEVICE),
        (0, _) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn driver_version(version: Out<i32>) -> Answer {
    version.set(devices().version);
    Ok(())
}

pub(crate) fn error_name(code: i32, name: Out<usize>) -> Answer {
    let found = code::name(code);
    name.set(found.map_or(0, |name| name.as_ptr() as usize));
    found.map(drop).ok_or(INVALID_VALUE)
}

pub(crate) fn error_string(code: i32, text: Out<usize>) -> Answer {
    let found = code::name(code).map(|_| "as the fake driver was told\0");
    text.set(found.map_or(0, |text| text.as_ptr() as usize));
    found.map(drop).ok_or(INVALID_VALUE)
}

pub(crate) fn device_count(count: Out<i32>) -> Answer {
    count.set(devices().all.len() as i32);
    Ok(())
}

pub(crate) fn device_get(place: Out<i32>, ordinal: i32) -> Answer {
    device(ordinal)?;
    place.set(ordinal);
    Ok(())
}

pub(crate) fn device_name(name: usize, bytes: i32, ordinal: i32) -> Answer {
    device(ordinal)?;
    text(name, bytes, "Fake device")
}

pub(crate) fn device_pci_bus_id(id: usize, bytes: i32, ordinal: i32) -> Answer {
    device(ordinal)?;
    text(id, bytes, &format!("0000:{:02X}:00.0", FIRST_BUS + ordinal))
}

pub(crate) fn device_by_pci_bus_id(place: Out<i32>, id: Text) -> Answer {
    let id = id.value()?;
    let bus = id.split(':').nth(1).and_then(|bus| i32::from_str_radix(bus, 16).ok()).ok_or(INVALID_VALUE)?;
    device_get(place, bus - FIRST_BUS)
}

pub(crate) fn device_uuid(uuid: Out<[u8; 16]>, ordinal: i32) -> Answer {
    device(ordinal)?;
    let mut bytes = *b"ccl-fake-device\0";
    bytes[15] = ordinal as u8;
    uuid.set(bytes);
    Ok(())
}

pub(crate) fn device_total_mem(bytes: Out<usize>, ordinal: i32) -> Answer {
    bytes.set(device(ordinal)?.arena.bytes());
    Ok(())
}

/// Its compute capability, and everything that this driver does.
pub(crate) fn device_attribute(value: Out<i32>, attribute: i32, ordinal: i32) -> Answer {
    device(ordinal)?;
    value.set(match attribute {
        1 => 1024,
        16 => devices().multiprocessors(ordinal as usize),
        39 => 2048,
        75 => devices().capability / 10,
        76 => devices().capability % 10,
        97 => 227 << 10,
        41 | 93 | 95 | 102 | 103 | 116 | 122 | 124 | 125 | 128 | 132 => 1,
        ..=0 | 200.. => return Err(INVALID_VALUE),
        _ => 0,
    });
    Ok(())
}

pub(crate) fn device_primary_context_retain(context: Out<usize>, ordinal: i32) -> Answer {
    device(ordinal)?.retained.fetch_add(1, Ordering::Relaxed);
    context.set(state::context_of(ordinal as usize));
    Ok(())
}

pub(crate) fn device_primary_context_release(ordinal: i32) -> Answer {
    let retained = &device(ordinal)?.retained;
    let less = retained.try_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    less.map(drop).map_err(|_| INVALID_CONTEXT)
}

pub(crate) fn device_primary_context_state(ordinal: i32, flags: Out<u32>, active: Out<i32>) -> Answer {
    flags.set(0);
    active.set(i32::from(device(ordinal)?.retained.load(Ordering::Relaxed) > 0));
    Ok(())
}

pub(crate) fn context_push_current(context: usize) -> Answer {
    state::push(context)
}

pub(crate) fn context_pop_current(context: Out<usize>) -> Answer {
    context.set(state::pop()?);
    Ok(())
}

pub(crate) fn context_current(context: Out<usize>) -> Answer {
    context.set(state::current_context());
    Ok(())
}

pub(crate) fn context_device(device: Out<i32>) -> Answer {
    device.set(current()? as i32);
    Ok(())
}

pub(crate) fn context_synchronize() -> Answer {
    crate::capture::breaks_others()?;
    let device = current()?;
    let streams = state::lock(|state| state.streams.values().cloned().collect::<Vec<_>>());
    streams.iter().filter(|stream| stream.device == device).for_each(|stream| stream.synchronize());
    devices().all[device].legacy.synchronize();
    failed()
}

pub(crate) fn context_stream_priority_range(least: Out<i32>, greatest: Out<i32>) -> Answer {
    current()?;
    least.set(0);
    greatest.set(GREATEST_PRIORITY);
    Ok(())
}

pub(crate) fn device_can_access_peer(can: Out<i32>, ordinal: i32, peer: i32) -> Answer {
    device(ordinal)?;
    device(peer)?;
    can.set(i32::from(ordinal != peer));
    Ok(())
}

pub(crate) fn device_link_attribute(value: Out<i32>, attribute: i32, ordinal: i32, peer: i32) -> Answer {
    if device(ordinal).is_err() || device(peer).is_err() || ordinal == peer {
        return Err(INVALID_DEVICE);
    }
    value.set(match attribute {
        1 => 0,
        2..=5 => 1,
        _ => return Err(INVALID_VALUE),
    });
    Ok(())
}

pub(crate) fn context_enable_peer_access(peer: usize, flags: u32) -> Answer {
    let pair = (current()?, state::of_context(peer)?);
    if flags != 0 || pair.0 == pair.1 {
        return Err(INVALID_VALUE);
    }
    state::lock(|state| {
        if state.peers.contains(&pair) {
            return Err(PEER_ALREADY_ENABLED);
        }
        state.peers.push(pair);
        Ok(())
    })
}

pub(crate) fn context_disable_peer_access(peer: usize) -> Answer {
    let pair = (current()?, state::of_context(peer)?);
    state::lock(|state| {
        let place = state.peers.iter().position(|found| *found == pair).ok_or(PEER_NOT_ENABLED)?;
        state.peers.swap_remove(place);
        Ok(())
    })
}

/// What work that ended has left behind.
pub(crate) fn failed() -> Answer {
    state::sticky().map_or(Ok(()), Err)
}

/// Writes a text with a zero at its end.
fn text(place: usize, bytes: i32, text: &str) -> Answer {
    if text.len() >= bytes as usize {
        return Err(INVALID_VALUE);
    }
    let letters = text.bytes().chain([0]);
    letters.enumerate().for_each(|(index, letter)| put(place, index, letter));
    debug_assert_eq!(item::<u8>(place, text.len()), 0);
    Ok(())
}

pub(crate) const GREATEST_PRIORITY: i32 = -5;
const FIRST_BUS: i32 = 0x10;
