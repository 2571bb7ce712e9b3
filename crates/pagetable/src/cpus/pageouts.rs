//! Page-outs whose flush is pending.
//!
//! Page-out clears entries under the locks of their tables, and flushes later, once for a batch. Until then
//! CPUs may have the old translations, whatever the entries hold: a swap entry, nothing, or what replaced
//! those since. So while a batch is pending,
//!
//! - a call that removes, moves or restricts what a range maps flushes all of it (`Gather::add_paged_out`);
//! - a fault flushes a page before it is mapped where the entry is none (`SpaceTables::flush_discarded`).
//!
//! A batch is counted after the first entry is cleared, and before the lock of its table is released and the
//! count of the table's entries falls. So a thread that sees an entry gone finds the batch counted, or
//! flushed:
//!
//! - *under the lock of the table*, by the lock;
//! - *without it*, in a table that seems to be empty: [`Pageouts::count`] has a release fence between the
//!   count and the store that makes the table empty; [`Pageouts::is_pending`] has an acquire fence between
//!   the look at the table and the count;
//! - *in the table above*, where the table was freed meanwhile: the thread that freed it held its lock, and
//!   the entry above is emptied with release and read with acquire.

use quire_sync::atomic::{AtomicUsize, Ordering, fence};

/// The page-outs of one space whose flush is pending.
#[derive(Debug, Default)]
pub struct Pageouts {
    /// Batches.
    pending: AtomicUsize,
    /// Those of them that left entries none.
    discarding: AtomicUsize,
}

impl Pageouts {
    /// A batch has cleared its first entry; it calls [`end`](Self::end) after its flush.
    pub fn begin(&self) {
        Self::count(&self.pending);
    }

    /// The batch has left its first entry none.
    pub fn begin_discard(&self) {
        Self::count(&self.discarding);
    }

    fn count(batches: &AtomicUsize) {
        batches.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `is_pending`: whatever is stored after this, such as the table's count,
        // shows the batch to a thread that reads it.
        fence(Ordering::Release);
    }

    /// What the batch has cleared is in no TLB. `discarded` if it left entries none.
    pub fn end(&self, discarded: bool) {
        // Release: pairs with the loads below. A thread that finds the batch gone finds its flush done.
        if discarded {
            self.discarding.fetch_sub(1, Ordering::Release);
        }
        self.pending.fetch_sub(1, Ordering::Release);
    }

    /// Whether TLBs may hold translations of pages whose entries were cleared. Asked after the look at what
    /// the entries hold.
    #[inline]
    pub fn is_pending(&self) -> bool {
        // Pairs with the fence in `count`: the look may have been at a table's count, without its lock.
        fence(Ordering::Acquire);
        // Pairs with `end`.
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Whether they may hold those of pages whose entries are none. Asked under the lock of a table in which
    /// an entry is none.
    #[inline]
    pub fn is_discarding(&self) -> bool {
        // Pairs with `end`.
        self.discarding.load(Ordering::Acquire) != 0
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Loom models of a thread that looks at a table without its lock while page-out empties it. Run by
    //! `scripts/models.sh loom`.

    use super::Pageouts;
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use quire_sync::atomic::{AtomicUsize, Ordering};

    struct Model {
        pageouts: Pageouts,
        /// The table's lock.
        lock: Mutex<()>,
        /// The entries that are not none.
        live: AtomicUsize,
        /// Translations that are still cached.
        cached: AtomicUsize,
    }

    impl Model {
        fn new(entries: usize) -> Arc<Self> {
            Arc::new(Self {
                pageouts: Pageouts::default(),
                lock: Mutex::new(()),
                live: AtomicUsize::new(entries),
                cached: AtomicUsize::new(entries),
            })
        }

        /// A batch discards one entry, the batch's first unless it has begun.
        fn discard(&self, begun: bool) {
            {
                let _locked = self.lock.lock().expect("no model panics and goes on");
                if !begun {
                    self.begin();
                }
                self.live.store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            }
            self.cached.fetch_sub(1, Ordering::Relaxed);
            self.pageouts.end(true);
        }

        fn begin(&self) {
            self.pageouts.begin();
            self.pageouts.begin_discard();
        }

        fn look(&self) {
            if self.live.load(Ordering::Relaxed) == 0 {
                let pending = self.pageouts.is_pending();
                assert!(pending || self.cached.load(Ordering::Relaxed) == 0, "a call flushes nothing");
            }
        }
    }

    fn spawn(model: &Arc<Model>, action: impl FnOnce(&Model) + 'static) -> thread::JoinHandle<()> {
        let model = Arc::clone(model);
        thread::spawn(move || action(&model))
    }

    #[test]
    fn loom_a_table_that_seems_empty_shows_its_pending_flush() {
        loom::model(|| {
            let model = Model::new(1);
            let call = spawn(&model, Model::look);
            model.discard(false);
            call.join().expect("the call flushes");
        });
    }

    /// The one that empties the table has begun before the other.
    #[test]
    fn loom_a_table_that_two_batches_empty_shows_both() {
        loom::model(|| {
            let model = Model::new(2);
            model.begin();
            let call = spawn(&model, Model::look);
            let other = spawn(&model, |model| model.discard(true));
            model.discard(false);
            other.join().expect("a batch cannot fail");
            call.join().expect("the call flushes");
        });
    }
}
