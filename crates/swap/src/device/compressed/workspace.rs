//! Per-CPU compression workspaces. They are allocated when the store is made, since memory is short when they
//! are needed.

use super::codec::{CODEC_OUTPUT, Codec};
use crate::device::memory::{PAGE, give_back, own_block};
use crate::device::section::Section;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};

/// A CPU's own: a page, and what comes out of it.
#[repr(C)]
pub(super) struct Workspace<C: Codec> {
    /// A program may change a page while it is compressed; of its copy the compressor gets one view.
    pub(super) page: [u8; PAGE],
    pub(super) output: [u8; CODEC_OUTPUT],
    pub(super) codec: C::Workspace,
}

/// One for each CPU. Which block each CPU has is in a block of its own: devices are passed by value, on
/// kernel stacks of a few pages.
pub(super) struct Workspaces<C: Codec> {
    /// A word for each CPU: zero, or its block's frame number plus one. While a CPU works in its block the
    /// word is zero.
    directory: (Pfn, Order),
    cpus: usize,
    codec: PhantomData<fn() -> C>,
}

/// A CPU's word that was taken, to be put back whatever happens.
struct Back {
    word: NonNull<u64>,
    own: u64,
}

impl Drop for Back {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as where it was taken: the section and the pin outlive this.
        unsafe { self.word.write(self.own) };
    }
}

impl<C: Codec> Workspaces<C> {
    /// Workspaces for all CPUs of a machine.
    pub(super) fn new<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        codec: &C,
        site: FailSite,
    ) -> Result<Self, AllocError> {
        let cpus = frames.platform().cpu_count();
        let directory = own_block(frames, pin, (cpus * size_of::<u64>()) as u64, site)?;
        let all = Self { directory, cpus, codec: PhantomData };
        for cpu in 0..cpus {
            match Self::make(frames, pin, codec, site) {
                // SAFETY: the directory is this call's and has a word for each CPU.
                Ok(block) => unsafe { all.word(frames, cpu).write(block.0 + 1) },
                Err(error) => {
                    all.close(frames, pin);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    /// The word of a CPU of the machine.
    #[inline]
    fn word<P: Platform>(&self, frames: &Frames<P>, cpu: usize) -> NonNull<u64> {
        debug_assert!(cpu < self.cpus);
        // SAFETY: the directory has a word for each CPU.
        unsafe { frames.platform().direct_map(self.directory.0).cast::<u64>().add(cpu) }
    }

    /// The block of a CPU, if it was made.
    #[inline]
    fn block<P: Platform>(&self, frames: &Frames<P>, cpu: usize) -> Option<Pfn> {
        // SAFETY: the directory was allocated as zeros, and no other thread writes it: `new` and `close` are
        // alone.
        unsafe { self.word(frames, cpu).read() }.checked_sub(1).map(Pfn)
    }

    fn order() -> Result<Order, AllocError> {
        let fits = align_of::<Workspace<C>>() <= PAGE;
        Order::for_bytes(size_of::<Workspace<C>>() as u64).filter(|_| fits).ok_or(AllocError::OutOfMemory)
    }

    fn make<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        codec: &C,
        site: FailSite,
    ) -> Result<Pfn, AllocError> {
        let order = Self::order()?;
        let block = frames.allocate(pin, AllocRequest::new(order, site).kind(Kind::Swap).zeroed())?;
        let at = frames.platform().direct_map(block).cast::<Workspace<C>>();
        // SAFETY: the block is this call's, page-aligned and large enough. The bytes of the other fields are
        // zeros.
        let place = unsafe { (&raw mut (*at.as_ptr()).codec).cast::<MaybeUninit<C::Workspace>>().as_mut() };
        // A codec is safe code: what it claims to have written counts only if that is what it shows.
        let written = |place: &mut MaybeUninit<C::Workspace>| {
            let at = place.as_ptr();
            codec.init(place).is_some_and(|workspace| ptr::eq(workspace, at))
        };
        if !place.is_some_and(written) {
            give_back(frames, pin, block, order);
            return Err(AllocError::OutOfMemory);
        }
        Ok(block)
    }

    /// Calls `fill` with the frame of the [`page`](Workspace::page) of the CPU's workspace, and then `work`
    /// with the workspace: as long as there is a reference to it nothing writes it by another way. `None`
    /// within `work`, where a codec may call its store, which would be its own workspace again.
    #[inline]
    pub(super) fn with<P: Platform, R>(
        &self,
        section: &Section<'_, P>,
        fill: impl FnOnce(Pfn),
        work: impl FnOnce(&mut Workspace<C>) -> R,
    ) -> Option<R> {
        let word = self.word(section.frames, section.pin.cpu().index());
        // SAFETY: a word of the directory, which stays while there is a section; the pin keeps all others off the CPU.
        let own = unsafe { word.replace(0) };
        let block = Pfn(own.checked_sub(1)?);
        let _back = Back { word, own };
        fill(block);
        let mut workspace = section.frames.platform().direct_map(block).cast::<Workspace<C>>();
        // SAFETY: written by `make`; it stays while there is a section. The CPU's word was taken, so nothing
        // else gets here. `Codec` demands `Send`, so that the threads of a CPU may use it one after the
        // other.
        Some(work(unsafe { workspace.as_mut() }))
    }

    /// Gives all of them back. No thread uses one again.
    pub(super) fn close<P: Platform>(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        for cpu in 0..self.cpus {
            if let (Some(block), Ok(order)) = (self.block(frames, cpu), Self::order()) {
                let workspace = frames.platform().direct_map(block).cast::<Workspace<C>>();
                // SAFETY: written by `make` and used for the last time.
                unsafe { workspace.drop_in_place() };
                give_back(frames, pin, block, order);
            }
        }
        let (directory, order) = self.directory;
        give_back(frames, pin, directory, order);
    }
}

impl<C: Codec> fmt::Debug for Workspaces<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspaces").finish_non_exhaustive()
    }
}
