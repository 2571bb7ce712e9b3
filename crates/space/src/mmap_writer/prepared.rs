//! Memory that a change needs, allocated before the change begins.

use super::MmapWriter;
use crate::spaces::Spaces;
use core::ptr::NonNull;
use quire_arch::{Platform, VirtRange};
use quire_frame::AllocError;
use quire_vma::{AnonVmaRef, Backing, VmFlags, Vma, VmaSnapshot};
use quire_vma_tree::tree::OutOfNodes;

/// No single change makes more mappings than this.
const MOST_PREPARED: usize = 2;

/// VMAs that were allocated before a change. What is left over is freed when it is dropped.
#[must_use]
pub(crate) struct Prepared<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    vmas: [Option<NonNull<Vma>>; MOST_PREPARED],
}

impl<P: Platform> Prepared<'_, P> {
    /// A VMA with `snapshot`, if one is left.
    pub(super) fn take(&mut self, snapshot: VmaSnapshot) -> Option<NonNull<Vma>> {
        let vma = self.vmas.iter_mut().find_map(Option::take)?;
        // SAFETY: allocated by `prepare` and reachable from nowhere else.
        unsafe { vma.as_ref() }.set(snapshot);
        Some(vma)
    }
}

impl<P: Platform> Prepared<'_, P> {
    #[cold]
    fn free_rest(&mut self) {
        for vma in self.vmas.iter_mut().filter_map(Option::take) {
            // SAFETY: it was never given to a tree.
            unsafe { self.spaces.vmas().free(vma) };
        }
    }
}

impl<P: Platform> Drop for Prepared<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if self.vmas.iter().any(Option::is_some) {
            self.free_rest();
        }
    }
}

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Allocates `vmas` VMAs and the tree nodes for as many insertions.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn prepare(&mut self, vmas: usize) -> Result<Prepared<'s, P>, AllocError> {
        let mut prepared = Prepared { spaces: self.spaces, vmas: [None; MOST_PREPARED] };
        for slot in prepared.vmas.iter_mut().take(vmas) {
            let blank = VmaSnapshot {
                range: VirtRange::default(),
                flags: VmFlags::empty(),
                page_offset: 0,
                backing: Backing::ANONYMOUS,
                anon: AnonVmaRef::NONE,
            };
            *slot = Some(self.spaces.vmas().allocate(Vma::new(blank))?);
        }
        if vmas > 0 {
            self.tree.reserve(vmas).map_err(|OutOfNodes(cause)| cause)?;
        }
        Ok(prepared)
    }
}
