//! The walk from pages of a file to the mappings that may map them.

use super::{Mapped, Rmap};
use crate::space_core::Vma;
use core::fmt;
use core::ops::ControlFlow;
use quire_arch::{Pfn, Platform};
use quire_file::{CachedFile, FileCore, FileMappings, FileMappingsRead, IndexRange, PageIndex};
use quire_pagetable::{MemoryCore, Tables};

/// The mappings of a file, with their lock held shared.
///
/// A walker finds each mapping whole, before or after a change of it, and `mremap` moves pages under the
/// lock. Pages that are being unmapped may be missed: a mapping is removed before they are. A folio with
/// more maps than the walk finds has met one of those.
pub struct FileRmap<'s, P: Platform> {
    memory: &'s MemoryCore<P>,
    mappings: FileMappingsRead<'s, Vma, P>,
}

impl<'s, P: Platform> Rmap<'s, P> {
    /// Takes the lock of `mappings` shared. The caller is not pinned, and holds no lock of class FileRmap or
    /// later; it may hold folio locks.
    pub fn hold_file(self, mappings: &'s FileMappings<Vma>) -> FileRmap<'s, P> {
        FileRmap { memory: self.memory, mappings: mappings.read(self.memory.platform()) }
    }

    /// The same if that is possible at once, for a caller that may hold locks of mappings, and perhaps this
    /// one.
    pub fn try_hold_file(self, mappings: &'s FileMappings<Vma>) -> Option<FileRmap<'s, P>> {
        let mappings = mappings.try_read(self.memory.platform())?;
        Some(FileRmap { memory: self.memory, mappings })
    }
}

impl<P: Platform> Rmap<'_, P> {
    /// Calls `visit` for each mapping that may map pages of the folio at `head`, of private or shared memory.
    /// `None` if its mappings cannot be looked at now.
    ///
    /// # Safety
    ///
    /// The caller has a reference to the folio, and the folio lock.
    pub unsafe fn try_walk_locked<B>(
        self,
        head: Pfn,
        visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>,
    ) -> Option<ControlFlow<B>> {
        let frames = self.memory.frames();
        if !frames.known(head).kind().is_of_file() {
            return self.try_hold(head, |mappings| mappings.walk(visit));
        }
        // SAFETY: the caller's promise.
        let file = unsafe { CachedFile::<P>::of_folio(frames, head) }?;
        // SAFETY: files of a machine are of this type, and this one lives while the folio is in its cache.
        let mappings = unsafe { FileCore::<P, Vma>::of_cached(file) }.mappings();
        let index = PageIndex::new(frames.known(head).as_folio().index())?;
        let pages = IndexRange::block(index, frames.folio(head).order());
        Some(self.try_hold_file(mappings)?.walk(pages, visit))
    }
}

impl<P: Platform> FileRmap<'_, P> {
    /// Calls `visit` for each mapping that may map one of `pages`, with the range in that mapping where they
    /// would be, until one breaks. A mapping comes before the copies that forks make of it: what a fork
    /// copies from a mapping that was visited before is visited after it.
    ///
    /// Entries may change under the lock of their table, and tables may be freed, but a `visit` is in a
    /// section of the epoch.
    pub fn walk<B>(
        &self,
        pages: IndexRange,
        mut visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.walk_unpinned(pages, |mapped| {
            // Its tables may be freed meanwhile.
            let pin = self.memory.platform().pin();
            let _epoch = self.memory.frames().epoch().enter(&pin);
            visit(mapped)
        })
    }

    /// As [`walk`](Self::walk), for a `visit` that may take long: it is not pinned, and enters a section of
    /// the epoch itself where it looks at tables, for one part of the range after the other.
    pub fn walk_unpinned<B>(
        &self,
        pages: IndexRange,
        mut visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if pages.is_empty() {
            return ControlFlow::Continue(());
        }
        for vma in self.mappings.holding(pages.start(), pages.end() - 1) {
            let Some(core) = vma.membership().core() else { continue };
            // SAFETY: a VMA of a file belongs to a space of this machine, which lives until its VMAs are
            // gone.
            let core = unsafe { core.as_ref() };
            let snapshot = vma.snapshot();
            if let Some(range) = snapshot.range_of(pages.start(), pages.pages()) {
                let tables = Tables::new(self.memory, &core.tables);
                visit(&Mapped { tables, space: core, vma: &snapshot, range })?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl<P: Platform> fmt::Debug for FileRmap<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileRmap").field(&self.mappings).finish()
    }
}
