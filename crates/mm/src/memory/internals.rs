//! The layers below [`Memory`], for the tests and tools of this project.
//!
//! These functions keep the invariants of their crates only if their callers do: they free the frames passed
//! to them, trust the counts passed to them, and so on. So they are not for embedders.

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
