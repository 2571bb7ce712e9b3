//! The memcg of a space.

use super::Space;
use quire_arch::Platform;
use quire_memcg::{MemcgError, MemcgId};

impl<P: Platform> Space<'_, P> {
    /// The memcg that new pages of this space are charged to.
    pub fn memcg(&self) -> MemcgId {
        self.core().memcg()
    }

    /// Moves the space to another memcg. Its pages stay charged to the old one, as in Linux. A space starts
    /// in its parent's memcg, else in the root, which charges nothing.
    ///
    /// # Errors
    ///
    /// [`MemcgError::NoMemcg`], when there is no such memcg.
    pub fn set_memcg(&self, memcg: MemcgId) -> Result<(), MemcgError> {
        let memcgs = self.spaces.memcgs();
        let pin = self.spaces.platform().pin();
        // Another thread may move the space on at once, and then nothing holds the memcg. In the section its
        // number stays, for the count.
        let _section = self.spaces.frames().epoch().enter(&pin);
        memcgs.tree().hold(memcg)?;
        let (before, killed) = self.core().tables.membership.replace(memcg);
        if killed {
            memcgs.tree().count_killed(memcg, true);
            memcgs.tree().count_killed(before, false);
        }
        memcgs.tree().release(before);
        Ok(())
    }

    /// Moves the space to the memcg that `parent` is in. That one may be just changing its memcg, and the old
    /// one may be removed: then it is looked up again.
    pub(crate) fn follow_memcg(&self, parent: &Space<'_, P>) {
        // This space keeps the one that it is in: the same number names the same memcg.
        while parent.memcg() != self.memcg() {
            let pin = self.spaces.platform().pin();
            // Until it ends the number names the memcg that the parent was in when it was read.
            let _section = self.spaces.frames().epoch().enter(&pin);
            if self.set_memcg(parent.memcg()).is_ok() {
                return;
            }
        }
    }
}
