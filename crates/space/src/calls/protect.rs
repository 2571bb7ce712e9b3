//! `mprotect`.

use super::page_range;
use crate::caller::Caller;
use crate::calls::populate::populate_part;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_pagetable::{FlushCause, Protector, Unmapper};
use quire_vma::{Protection, VmFlags, Vma, VmaSnapshot};

pub(crate) fn mprotect<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    len: u64,
    protection: Protection,
    grows_down: bool,
) -> Result<(), Error> {
    let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
    caller.with_reclaim(|| protect_once(caller, range, protection, grows_down))?
}

/// As [`in_turns`](Self::in_turns).
fn protect_once<P: Platform>(
    caller: Caller<'_, P>,
    mut range: VirtRange,
    protection: Protection,
    grows_down: bool,
) -> Result<Result<(), Error>, Error> {
    let mut section = MmapWriter::begin(caller.spaces, caller.core);
    let first = section.first_in(range).ok_or(Error::NotMapped)?;
    if grows_down {
        range = VirtRange::new(first.range().start(), range.end());
        if !first.flags().is_stack() {
            return Err(Error::BadFlags);
        }
    } else if first.range().start() > range.start() {
        return Err(Error::NotMapped);
    }
    let mut at = range.start();
    caller.in_turns(|| {
        let result = loop {
            match protect_turn(caller, &mut section, range, &mut at, protection) {
                Ok(None) => break Ok(()),
                Ok(Some(part)) if caller.populates => populate_locked(&section, part),
                Ok(Some(_)) => {}
                Err(error) => break Err(error),
            }
        };
        (result, at.0 - range.start().0)
    })
}

/// A turn of a call, with a frame of its own: reclaim, which comes between two turns, needs the stack.
#[inline(never)]
fn protect_turn<'s, P: Platform>(
    caller: Caller<'s, P>,
    section: &mut MmapWriter<'s, P>,
    range: VirtRange,
    at: &mut VirtAddr,
    protection: Protection,
) -> Result<Option<VirtRange>, Error> {
    let mut unmapper = Unmapper::new(caller.tables(), FlushCause::Protect);
    let result = protect_range(section, range, at, protection, &mut unmapper);
    // Also after a failure: what has changed until then must not be in any TLB.
    unmapper.finish();
    result
}

/// Changes what lies in `range` from `at` on, and moves `at` behind what it has changed. Ends early
/// behind a part that is to be populated, which it returns.
pub(crate) fn protect_range<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    range: VirtRange,
    at: &mut VirtAddr,
    protection: Protection,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<Option<VirtRange>, Error> {
    while *at < range.end() {
        let vma = writer.find(*at).ok_or(Error::NotMapped)?;
        let part = VirtRange::new(*at, vma.range().end().min(range.end()));
        let populates = protect_part(writer, vma, part, protection, unmapper)?;
        *at = part.end();
        if populates {
            return Ok(Some(part));
        }
    }
    Ok(None)
}

/// Mlocked memory that has become writable gets its own pages now. As in Linux, a failure is ignored.
fn populate_locked<P: Platform>(writer: &MmapWriter<'_, P>, part: VirtRange) {
    if let Some(vma) = writer.find(part.start()) {
        let _ = populate_part(writer.spaces, writer.core, vma, part, None);
    }
}

/// Changes nothing if it fails. Returns whether the part is to be [populated](populate_locked).
fn protect_part<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    part: VirtRange,
    protection: Protection,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<bool, Error> {
    let snapshot = vma.snapshot();
    let old = snapshot.flags;
    let mut new = (old - VmFlags::ACCESS) | VmFlags::from_protection(protection);
    // Each access must have its MAY flag, four bits up.
    let may = VmFlags::from_bits_truncate((old & VmFlags::MAY_ACCESS).bits() >> 4);
    if !may.contains(new & VmFlags::ACCESS) {
        return Err(Error::AccessDenied);
    }
    writer.check_exec_gain(old, new)?;
    if new == old {
        return Ok(false);
    }
    let pages = part.pages();
    let mut charged = 0;
    let mut released = 0;
    if new.contains(VmFlags::WRITE) {
        if let Err(error) = writer.may_expand(new, pages)
            && writer.may_expand(old, pages).is_ok()
        {
            return Err(error);
        }
        let counted = VmFlags::ACCOUNT | VmFlags::WRITE | VmFlags::SHARED | VmFlags::NORESERVE;
        if !old.intersects(counted) {
            writer.spaces.promise(pages)?;
            charged = pages;
            new |= VmFlags::ACCOUNT;
        }
    } else if old.contains(VmFlags::ACCOUNT) && snapshot.backing.is_anonymous() && !snapshot.anon.is_some() {
        // Nothing was ever written there, and now nothing can be written.
        released = pages;
        new -= VmFlags::ACCOUNT;
    }
    if let Err(error) = writer.modify(vma, part, new) {
        writer.spaces.commit().release(charged);
        return Err(error);
    }
    writer.spaces.commit().release(released);
    let permissions = VmaSnapshot { flags: new, ..snapshot }.permissions();
    Protector::new(&writer.tables()).protect(part, permissions, unmapper.gather());
    let locked = VmFlags::WRITE | VmFlags::SHARED | VmFlags::LOCKED;
    Ok(old & locked == VmFlags::LOCKED && new.contains(VmFlags::WRITE))
}
