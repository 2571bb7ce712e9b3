//! Making tables.

use super::{Found, Tables};
use quire_arch::{Entry, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, Kind};
use quire_sync::atomic::raw::Ordering;

/// The result of linking a table below another.
enum Linked {
    /// There is one.
    Table(Pfn),
    /// A large leaf is in its place.
    Leaf,
    /// The upper one is dead.
    Gone,
}

impl<P: Platform> Tables<'_, P> {
    /// The bottom table that covers `addr`, made with everything above it where missing; `None` where a large
    /// leaf is in its place. On failure the tables that were made stay: they are empty and are freed with the
    /// mapping.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn find_or_make(&self, pin: &Pin<'_, P>, addr: VirtAddr) -> Result<Option<Pfn>, AllocError> {
        match self.lookup(addr) {
            Found::Table(table) => Ok(Some(table)),
            Found::Huge(_) => Ok(None),
            Found::Nothing => self.make(pin, addr, Level::PTE),
        }
    }

    /// The table at `lowest` that covers `addr`, likewise.
    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn make(&self, pin: &Pin<'_, P>, addr: VirtAddr, lowest: Level) -> Result<Option<Pfn>, AllocError> {
        let mut table = self.space.root();
        let mut level = P::Paging::root_level();
        let mut attempt = 0;
        while level > lowest
            && let Some(below) = level.down()
        {
            let index = P::Paging::index(addr, level);
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            (table, level) = match P::Paging::decode(raw, level) {
                Entry::Table(pfn) => (pfn, below),
                Entry::Leaf(_) => return Ok(None),
                _ => match self.link(pin, table, level, addr)? {
                    Linked::Table(pfn) => (pfn, below),
                    Linked::Leaf => return Ok(None),
                    Linked::Gone => {
                        P::relax(attempt);
                        attempt = attempt.saturating_add(1);
                        (self.space.root(), P::Paging::root_level())
                    }
                },
            };
        }
        Ok(Some(table))
    }

    /// Puts a new table below `parent` for `addr`, or finds that another thread just did, or put a large leaf
    /// there.
    #[cfg_attr(debug_assertions, track_caller)]
    fn link(
        &self,
        pin: &Pin<'_, P>,
        parent: Pfn,
        level: Level,
        addr: VirtAddr,
    ) -> Result<Linked, AllocError> {
        let frames = self.memory.frames();
        let below = Level(level.0 - 1);
        // Allocated before the lock is taken, and checked again after: no allocation under a table lock.
        let new = frames.allocate(pin, AllocRequest::table().kind(Kind::Table))?;
        self.space.init_table(frames, new, below, P::Paging::table_range(addr, below).start());
        let index = P::Paging::index(addr, level);
        let locked = self.lock(pin, parent, level);
        let found = match locked.get(index) {
            Entry::Table(winner) => Linked::Table(winner),
            Entry::Leaf(_) => Linked::Leaf,
            _ if locked.is_dead() => Linked::Gone,
            _ => {
                locked.install(index, Entry::Table(new));
                // Under the lock: a thread that finds the table empty may free it at once, and subtracts it.
                self.space.residency.table_made();
                return Ok(Linked::Table(new));
            }
        };
        drop(locked);
        self.memory.memcgs().folios().release_unused(pin, new, Order::ZERO);
        Ok(found)
    }
}
