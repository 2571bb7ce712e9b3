//! `brk`.

use crate::mmap_writer::brk::move_break;
use crate::space::Space;
use quire_arch::{Platform, VirtAddr};
use quire_rmap::VmFlags;
use quire_sync::atomic::Ordering;

impl<P: Platform> Space<'_, P> {
    /// The program break.
    pub fn program_break(&self) -> VirtAddr {
        VirtAddr(self.core().brk.load(Ordering::Relaxed))
    }

    /// Moves the program break to `wanted` and returns where it is afterwards: at the old address where Linux
    /// refuses.
    pub fn brk(&self, wanted: VirtAddr) -> VirtAddr {
        let mut now = self.program_break();
        let grown = self.with_reclaim(|| {
            let mut section = self.writer();
            let grown = move_break(&mut section, wanted);
            now = self.program_break();
            grown
        });
        if let Ok(Some(grown)) = grown
            && self.core().default_flags().contains(VmFlags::LOCKED)
        {
            self.populate(grown);
        }
        now
    }
}
