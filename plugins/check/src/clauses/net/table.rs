//! Contexts, devices, and words for failures.

use std::mem::offset_of;

use ccl_plugin::Code;
use ccl_plugin::c::{
    CclErrorV1, CclNetPropertiesV1, FLAG_NEEDS_FLUSH, FLAG_ONE_SIDED, MAX_RECVS, MEMORY_HOST,
};

use crate::breach::{Failed, Outcome, breach, expect};
use crate::clauses::net::pair::{Message, Stage};
use crate::clauses::net::raw::{empty_properties, text};

/// Whoever loads a plugin checks its table; here is said what else it offers.
pub(super) fn table(stage: &Stage) -> Outcome<String> {
    let entries = stage.table.entries;
    macro_rules! offered {
        ($($entry:ident)*) => { [$((stringify!($entry), entries.$entry.is_some())),*] };
    }
    let optional =
        offered!(test_sends test_recvs flush abort export_mr put get signal turn isend_more watch isend_from);
    let there: Vec<_> = optional.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    let more = if there.is_empty() { "nothing optional".to_owned() } else { there.join(" ") };
    Ok(format!("version {}, {} bytes; {more}", entries.version, entries.size))
}

pub(super) fn contexts(stage: &Stage) -> Outcome<String> {
    let (first, second) = (stage.context()?, stage.context()?);
    expect(first.raw() != second.raw(), || {
        "expected a context for each init, found one pointer twice".to_owned()
    })?;
    let mut within = stage.pair_between(&first, &first)?;
    let mut across = stage.pair_between(&first, &second)?;
    stage.carry(&mut within, &[Message::new(1, 100, 0)])?;
    stage.carry(&mut across, &[Message::new(2, 1000, 0)])?;
    let third = stage.context()?;
    drop(within);
    drop(across);
    drop(first);
    let mut left = stage.pair_between(&third, &second)?;
    stage.carry(&mut left, &[Message::new(3, 1000, 0)])?;
    Ok("three contexts, connections within and across, one of them ended".to_owned())
}

pub(super) fn properties(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let (count, again) = (context.devices()?, context.devices()?);
    expect(count == again, || format!("expected {count} devices again, found {again}"))?;
    expect(stage.device < count, || format!("expected a device {}, found {count} devices", stage.device))?;
    for device in 0..count {
        let mut found = empty_properties();
        context.properties(device, &mut found)?;
        plausible(stage, device, &found)?;
    }
    // A host of the past, whose struct ends before the name.
    let known = offset_of!(CclNetPropertiesV1, name);
    let mut short = CclNetPropertiesV1 { size: known as u32, name: [0x77; _], ..empty_properties() };
    context.properties(stage.device, &mut short)?;
    expect(short.name == [0x77; 64], || {
        format!(
            "expected no more than the {known} bytes of the struct to be filled, found bytes behind them written"
        )
    })?;
    let found = stage.properties(&context)?;
    let (name, mbps, recvs) = (text(&found.name), found.speed_mbps, found.max_recvs);
    let requests = found.max_requests;
    Ok(format!("{count} devices; {name}: {mbps} Mbit/s, {recvs} receives in a group, {requests} requests"))
}

fn plausible(stage: &Stage, device: u32, found: &CclNetPropertiesV1) -> Outcome<()> {
    let that = |holds: bool, words: &str| expect(holds, || format!("device {device}: expected {words}"));
    let entries = stage.table.entries;
    that(found.memory_kinds & MEMORY_HOST != 0, "HOST among memory_kinds")?;
    that((1..=MAX_RECVS as u32).contains(&found.max_recvs), "max_recvs from 1 to CCL_NET_MAX_RECVS")?;
    that(found.max_requests >= 8, "max_requests of 8 or more")?;
    that(found.max_message_bytes > 0, "max_message_bytes above 0")?;
    that(found.name.contains(&0) && found.name[0] != 0, "a name, ended by a NUL")?;
    that(found.pci_path.contains(&0), "a pci_path ended by a NUL, or empty")?;
    that(found.reserved == 0, "0 in reserved")?;
    let one_sided = entries.put.is_some()
        && entries.get.is_some()
        && entries.signal.is_some()
        && entries.export_mr.is_some();
    that(found.flags & FLAG_ONE_SIDED == 0 || one_sided, "export_mr, put, get and signal with ONE_SIDED")?;
    that(found.flags & FLAG_NEEDS_FLUSH == 0 || entries.flush.is_some(), "flush with NEEDS_FLUSH")
}

pub(super) fn last_error(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let beyond = context.devices()?;
    let failed = match context.properties(beyond, &mut empty_properties()) {
        Ok(()) => {
            return breach(format!("expected an error for device {beyond} of {beyond}, found success"));
        }
        Err(failed) => failed.expect_words()?,
    };
    expect(failed.is(Code::NO_DEVICE) || failed.is(Code::INVALID), || {
        format!("expected no such device for device {beyond} of {beyond}, found {failed}")
    })?;
    short_struct(stage, &failed)?;
    let others = std::thread::scope(|scope| {
        scope.spawn(|| stage.table.last_error(size_of::<CclErrorV1>()).1.code).join()
    });
    match others {
        Ok(0) => Ok(format!("of device {beyond}: {}", failed.message)),
        Ok(code) => breach(format!(
            "expected no error on a thread that had none, found {}: last_error speaks of the calling thread",
            Code(code)
        )),
        Err(_) => breach("expected last_error to return on another thread, found a panic"),
    }
}

/// A host of the past, whose struct ends before the message.
fn short_struct(stage: &Stage, failed: &Failed) -> Outcome<()> {
    let known = offset_of!(CclErrorV1, message);
    let (code, words) = stage.table.last_error(known);
    expect(code == 0, || format!("expected last_error to succeed, found {}", Code(code)))?;
    expect(words.message.iter().all(|c| *c == 0), || {
        format!(
            "expected no more than the {known} bytes of the struct to be filled, found bytes behind them written"
        )
    })?;
    expect(words.code == failed.code, || {
        format!("expected the words of the last failure once more, found {}", Code(words.code))
    })
}
