//! What lies below [`Memory`], for the tests and tools of this project.
//!
//! The functions that are reached from here keep the invariants of their crates only if their callers do: they free
//! frames that are named to them, count what they are told, and so on. So an embedder does not have them.

use super::Memory;
use quire_arch::Platform;
use quire_frame::Frames;
use quire_memcg::Memcgs;
use quire_space::Spaces;
use quire_swap::Swap;

impl<P: Platform> Memory<P> {
    /// The page frames.
    #[doc(hidden)]
    pub fn frames(&self) -> &Frames<P> {
        self.parts().frames()
    }

    /// The address spaces.
    #[doc(hidden)]
    pub fn spaces(&self) -> &Spaces<P> {
        self.parts()
    }

    /// The memcgs.
    #[doc(hidden)]
    pub fn memcgs(&self) -> &Memcgs<P> {
        self.parts().memcgs()
    }

    /// Swap: its devices, slots and cache.
    #[doc(hidden)]
    pub fn swap(&self) -> &Swap<P> {
        self.parts().swap()
    }
}
