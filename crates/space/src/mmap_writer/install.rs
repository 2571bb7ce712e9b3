//! Putting mappings in place as requested.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::Platform;
use quire_vma::{VmFlags, VmaSnapshot};

impl<P: Platform> MmapWriter<'_, P> {
    /// Puts a mapping into a free range as it is, and counts and charges it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn adopt(&mut self, snapshot: VmaSnapshot) -> Result<(), Error> {
        let charge = if snapshot.flags.contains(VmFlags::ACCOUNT) { snapshot.range.pages() } else { 0 };
        self.spaces.promise(charge)?;
        match self.prepare(1) {
            Ok(mut prepared) => {
                self.core.usage.map(snapshot.flags, snapshot.range.pages());
                let rmap_locks = self.lock_rmap(snapshot.backing, [snapshot.anon]);
                self.insert_vma(snapshot, &mut prepared, &rmap_locks);
                Ok(())
            }
            Err(error) => {
                self.spaces.commit().release(charge);
                Err(error.into())
            }
        }
    }
}
