//! Which memcg a program is in.

use crate::id::MemcgId;
use quire_sync::atomic::AtomicU64;
use quire_sync::atomic::raw::Ordering;

/// The memcg that a program's new pages are charged to, and whether it was killed: in one word, so that a
/// killed program is counted at the memcg that it is in. A new one is in the root.
#[derive(Debug)]
pub struct Membership(AtomicU64);

/// The program was killed.
const KILLED: u64 = 1 << 32;

impl Membership {
    /// The memcg that new pages are charged to.
    #[inline]
    pub fn memcg(&self) -> MemcgId {
        MemcgId::from_bits(self.0.load(Ordering::Relaxed) as u16)
    }

    /// Sets another one, to which the caller has a reference. Returns the previous one with its reference,
    /// and whether its program [was killed](Self::mark_killed).
    pub fn replace(&self, memcg: MemcgId) -> (MemcgId, bool) {
        let replaced = |word| Some(u64::from(memcg.get()) | word & KILLED);
        // It cannot fail: there always is a next value.
        let (Ok(before) | Err(before)) = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced);
        (MemcgId::from_bits(before as u16), before & KILLED != 0)
    }

    /// Marks the program as killed, and returns the memcg that it was in at that moment. `None` if it was
    /// marked.
    pub fn mark_killed(&self) -> Option<MemcgId> {
        let before = self.0.fetch_or(KILLED, Ordering::Relaxed);
        (before & KILLED == 0).then(|| MemcgId::from_bits(before as u16))
    }
}

impl Default for Membership {
    fn default() -> Self {
        Self(AtomicU64::new(u64::from(MemcgId::ROOT.get())))
    }
}
