//! `fork`.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{Platform, VirtAddr};
use quire_frame::AllocError;
use quire_pagetable::{Copying, FlushCause, Forker, Unmapper};
use quire_vma::{AnonVmaRef, Branch, SpaceCore, VmFlags, VmaSnapshot};

pub(crate) fn copy_to<P: Platform>(writer: &MmapWriter<'_, P>, child: &SpaceCore) -> Result<(), Error> {
    let mut unmapper = Unmapper::new(writer.tables(), FlushCause::Fork);
    writer.core.forks.begin();
    let result = copy_mappings(writer, child, &mut unmapper);
    writer.core.forks.end();
    // Also after a failure: a write-protected page must not be writable in any TLB.
    unmapper.finish();
    result
}

fn copy_mappings<P: Platform>(
    writer: &MmapWriter<'_, P>,
    child: &SpaceCore,
    unmapper: &mut Unmapper<'_, P>,
) -> Result<(), Error> {
    let mut to = MmapWriter::begin(writer.spaces, child);
    let mut at = VirtAddr(0);
    while let Some(vma) = writer.first_ending_after(at) {
        let snapshot = vma.snapshot();
        at = snapshot.range.end();
        if writer.core.is_killed() || child.is_killed() {
            // As in Linux, before each mapping: the reaper waits for the lock of the one, or of the
            // other.
            return Err(Error::NoFrames(AllocError::OutOfMemory));
        }
        if snapshot.flags.contains(VmFlags::DONTCOPY) {
            continue;
        }
        let branch = child_anon_vma(writer, &snapshot)?;
        let copy =
            VmaSnapshot { flags: snapshot.flags - VmFlags::LOCK_MASK, anon: branch.anon(), ..snapshot };
        to.adopt(copy)?;
        branch.keep();
        // Pages of files that were never written to can be read again by the child, but guard pages must
        // be there. What is wiped on fork has no anon_vma there.
        let guarded = copy.flags & (VmFlags::MAYBE_GUARD | VmFlags::WIPEONFORK) == VmFlags::MAYBE_GUARD;
        let is_numbered = copy.flags.contains(VmFlags::SHARED) && !copy.backing.is_opened();
        if !is_numbered && !copy.anon.is_some() && !guarded {
            continue;
        }
        writer.lock_range(vma.range());
        let new_page = |addr| copy.new_page(addr);
        let copying = Copying {
            range: snapshot.range,
            parent: snapshot.permissions(),
            of_file: snapshot.backing.is_opened(),
            child: &new_page,
        };
        let forker = Forker { parent: &writer.tables(), child: &to.tables() };
        forker.copy_to(&copying, unmapper.gather())?;
    }
    Ok(())
}

/// The anon_vma of a child's VMA: marked, since its pages may still be shared with the parent's.
#[cfg_attr(debug_assertions, track_caller)]
fn child_anon_vma<'s, P: Platform>(
    writer: &MmapWriter<'s, P>,
    parent: &VmaSnapshot,
) -> Result<Branch<'s, P>, AllocError> {
    let wiped = parent.flags.contains(VmFlags::WIPEONFORK);
    writer.spaces.rmap().branch(if wiped { AnonVmaRef::NONE } else { parent.anon })
}
