//! Putting mappings in place as requested.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::Platform;
use quire_rmap::{VmFlags, VmaSnapshot};

impl<P: Platform> MmapWriter<'_, P> {
    /// Puts a mapping into a free range as it is, and counts and charges it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn adopt(&mut self, facts: VmaSnapshot) -> Result<(), Error> {
        let charge = if facts.flags.contains(VmFlags::ACCOUNT) { facts.range.pages() } else { 0 };
        self.spaces.commit().charge(charge)?;
        match self.prepare(1) {
            Ok(mut prepared) => {
                self.core.usage.map(facts.flags, facts.range.pages());
                let root_lock = self.lock_anon_vmas([facts.anon]);
                self.insert_vma(facts, &mut prepared, &root_lock);
                Ok(())
            }
            Err(error) => {
                self.spaces.commit().release(charge);
                Err(error.into())
            }
        }
    }
}
