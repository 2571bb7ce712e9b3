//! `fork`.

use crate::error::Error;
use crate::section::Section;
use crate::space::Space;
use crate::table::Tables;
use crate::vma::{AnonGroup, VmFlags, Vma, VmaFacts};
use quire_arch::{Platform, VirtAddr};
use quire_sync::atomic::Ordering;

impl<'m, P: Platform> Space<'m, P> {
    /// A copy of this space for a child process: every mapping that is not kept from it, with copies of the pages.
    ///
    /// Pages are copied at once for now, and memory that Linux would share with the child is copied too; see
    /// docs/differences.md.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`] or [`Error::NoFrames`]; nothing is left behind.
    pub fn fork(&self) -> Result<Space<'m, P>, Error> {
        let core = self.core();
        // The child is dropped on every early return, and takes back whatever it got so far. Locks are not
        // inherited, nor is the wish to lock what comes.
        let child = self.spaces.create(core.layout, core.limits.load())?;
        let section = Section::begin(self.spaces, core);
        child.core().brk.store(self.program_break().0, Ordering::Relaxed);
        section.copy_to(&child)?;
        Ok(child)
    }
}

impl<P: Platform> Section<'_, P> {
    fn copy_to(&self, child: &Space<'_, P>) -> Result<(), Error> {
        let mut to = Section::begin(child.spaces, child.core());
        let mut at = VirtAddr(0);
        while let Some(vma) = self.first_ending_after(at) {
            let facts = vma.facts();
            at = facts.range.end();
            if facts.flags.contains(VmFlags::DONTCOPY) {
                continue;
            }
            let copy =
                VmaFacts { flags: facts.flags - VmFlags::LOCK_MASK, anon: self.child_group(&facts), ..facts };
            to.adopt(copy)?;
            self.copy_pages(vma, &facts, &child.tables())?;
        }
        Ok(())
    }

    /// The group of a child's VMA: its own, and marked, since its pages may still be shared with the parent's.
    fn child_group(&self, parent: &VmaFacts) -> AnonGroup {
        if parent.anon.is_some() && !parent.flags.contains(VmFlags::WIPEONFORK) {
            self.spaces.new_group().inherited()
        } else {
            AnonGroup::NONE
        }
    }

    fn copy_pages(&self, vma: &Vma, facts: &VmaFacts, child: &Tables<'_, P>) -> Result<(), Error> {
        // Pages of files that nobody wrote to can be read again by the child.
        let untouched = !facts.flags.contains(VmFlags::SHARED) && !facts.anon.is_some();
        if untouched || facts.flags.contains(VmFlags::WIPEONFORK) {
            return Ok(());
        }
        self.lock_range(vma.range());
        self.tables().copy_to(child, facts)?;
        Ok(())
    }
}
