//! Per-CPU compression workspaces. They are allocated when the store is made, since memory is short when they
//! are needed.

use super::codec::{CODEC_OUTPUT, Codec};
use crate::device::memory::{PAGE, give_back};
use crate::device::section::Section;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{CpuId, MAX_CPUS, Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FaultSite, Frames, Kind};

/// A CPU's own: a page, and what comes out of it.
#[repr(C)]
pub(super) struct Workspace<C: Codec> {
    /// A program may change a page while it is compressed; of its copy the compressor gets one view.
    pub(super) page: [u8; PAGE],
    pub(super) output: [u8; CODEC_OUTPUT],
    pub(super) codec: C::Workspace,
}

/// One for each CPU.
pub(super) struct Workspaces<C: Codec> {
    first: [Option<NonNull<Workspace<C>>>; MAX_CPUS],
    blocks: [Pfn; MAX_CPUS],
}

// SAFETY: a workspace is used by the CPU that it belongs to, and sent from one thread of it to the next
// (`Codec` demands `Send`).
unsafe impl<C: Codec> Send for Workspaces<C> {}
// SAFETY: as for `Send`: sharing this gives no thread the workspace of another CPU.
unsafe impl<C: Codec> Sync for Workspaces<C> {}

impl<C: Codec> Workspaces<C> {
    /// Workspaces for all CPUs of a machine.
    pub(super) fn new<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        codec: &C,
        site: FaultSite,
    ) -> Result<Self, AllocError> {
        let mut all = Self { first: [None; MAX_CPUS], blocks: [Pfn(0); MAX_CPUS] };
        for cpu in 0..frames.platform().cpu_count() {
            match Self::make(frames, pin, codec, site) {
                Ok((block, at)) => (all.blocks[cpu], all.first[cpu]) = (block, Some(at)),
                Err(error) => {
                    all.close(frames, pin);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    fn order() -> Result<Order, AllocError> {
        let fits = align_of::<Workspace<C>>() <= PAGE;
        Order::for_bytes(size_of::<Workspace<C>>() as u64).filter(|_| fits).ok_or(AllocError::OutOfMemory)
    }

    fn make<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        codec: &C,
        site: FaultSite,
    ) -> Result<(Pfn, NonNull<Workspace<C>>), AllocError> {
        let order = Self::order()?;
        let block = frames.allocate(pin, AllocRequest::new(order, site).kind(Kind::Swap).zeroed())?;
        let at = frames.platform().direct_map(block).cast::<Workspace<C>>();
        let Some(workspace) = codec.workspace() else {
            give_back(frames, pin, block, order);
            return Err(AllocError::OutOfMemory);
        };
        // SAFETY: the block is this call's, page-aligned and large enough. The bytes of the other fields are
        // zeros.
        unsafe { (&raw mut (*at.as_ptr()).codec).write(workspace) };
        Ok((block, at))
    }

    /// Calls `work` with the CPU's workspace and the frame of its [`page`](Workspace::page).
    #[inline]
    pub(super) fn with<P: Platform, R>(
        &self,
        section: &Section<'_, P>,
        work: impl FnOnce(&mut Workspace<C>, Pfn) -> R,
    ) -> Option<R> {
        let cpu: CpuId = section.pin.cpu();
        let mut workspace = self.first[cpu.index()]?;
        // SAFETY: written by `make`; it stays while there is a section. The pin keeps all others off the CPU,
        // and `work`, which is this module's parent's, does not come here again.
        Some(work(unsafe { workspace.as_mut() }, self.blocks[cpu.index()]))
    }

    /// Gives all of them back. No thread uses one again.
    pub(super) fn close<P: Platform>(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        for (workspace, &block) in self.first.iter().zip(&self.blocks) {
            if let (Some(workspace), Ok(order)) = (workspace, Self::order()) {
                // SAFETY: written by `make` and used for the last time.
                unsafe { workspace.drop_in_place() };
                give_back(frames, pin, block, order);
            }
        }
    }
}

impl<C: Codec> fmt::Debug for Workspaces<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspaces").finish_non_exhaustive()
    }
}
