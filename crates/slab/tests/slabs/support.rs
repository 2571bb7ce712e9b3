//! What all tests of slabs use: `use crate::support::*`.

pub(crate) use crate::common::*;
pub(crate) use quire_arch::*;
pub(crate) use quire_frame::*;
pub(crate) use quire_slab::*;
use std::ptr::NonNull;

/// As [`crate::common::frames`], audited at its end.
pub(crate) fn frames(banks: &[(u64, u64)], cpus: usize, pcp: PcpTechnique) -> Audited {
    Audited(crate::common::frames(banks, cpus, pcp))
}

/// 16 MiB and two CPUs.
pub(crate) fn machine() -> Audited {
    frames(&[(0, 4096)], 2, PcpTechnique::OrderZero)
}

/// A cache of the machine.
pub(crate) fn cache<T: Send + 'static>(
    frames: &Frames<Machine>,
    name: &'static str,
) -> SlabCache<T, Machine> {
    SlabCache::new(frames, &frames.platform().pin(), name).unwrap()
}

/// Frees objects of the test.
pub(crate) fn free_all<T: Send + 'static>(
    frames: &Frames<Machine>,
    cache: &SlabCache<T, Machine>,
    objects: impl IntoIterator<Item = NonNull<T>>,
) {
    for object in objects {
        // SAFETY: the caller has the object, and no use for it any more.
        unsafe { cache.free(frames, &frames.platform().pin(), object) };
    }
}
