//! Copying pages to a child's tables.

use super::Tables;
use super::zap::Residency;
use crate::vma::VmaFacts;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Platform};
use quire_frame::{AllocError, AllocRequest};

impl<P: Platform> Tables<'_, P> {
    /// Gives `child` a copy of every page that `vma` has here. On failure the child holds part of them, which its
    /// exit takes back.
    ///
    /// The caller holds this space's mmap lock for writing and has write-locked the VMA, so entries change only by
    /// the MMU's bits; nobody else knows the child yet.
    pub(crate) fn copy_to(&self, child: &Tables<'_, P>, vma: &VmaFacts) -> Result<(), AllocError> {
        let frames = self.spaces.frames();
        let mut result = Ok(());
        let mut copied = Residency::default();
        self.for_each_table(vma.range, &mut |table, part| {
            if result.is_err() {
                return;
            }
            let entries = self.entries(table);
            for (index, addr) in Self::pages(part) {
                let raw = entries[index].load(Ordering::Acquire);
                let new = match P::Paging::decode(raw, Level::PTE) {
                    Entry::None => continue,
                    Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => {
                        let pin = frames.platform().pin();
                        let kind = frames.known(leaf.pfn).kind();
                        let request = AllocRequest::anonymous().uninitialised().kind(kind);
                        let copy = match frames.allocate(&pin, request) {
                            Ok(copy) => copy,
                            Err(error) => {
                                result = Err(error);
                                return;
                            }
                        };
                        // SAFETY: the copy is new and ours; the original stays mapped, so it is in RAM. The program may
                        // be writing to it meanwhile, as `Platform::copy` allows.
                        unsafe { frames.platform().copy(leaf.pfn, copy, Order::ZERO) };
                        self.spaces.init_page(copy, vma, addr);
                        copied.add(kind);
                        Entry::Leaf(Leaf { pfn: copy, flags: leaf.flags })
                    }
                    other => other,
                };
                let pin = frames.platform().pin();
                match child.find_or_make(&pin, addr) {
                    Ok(table) => child.lock(&pin, table, Level::PTE).install(index, new),
                    Err(error) => {
                        if let Entry::Leaf(Leaf { pfn, flags }) = new
                            && !flags.contains(LeafFlags::SPECIAL)
                        {
                            copied.remove(frames.known(pfn).kind());
                            self.spaces.release_unused(&pin, pfn);
                        }
                        result = Err(error);
                        return;
                    }
                }
            }
        });
        child.core.usage.pages_mapped(copied);
        result
    }
}
