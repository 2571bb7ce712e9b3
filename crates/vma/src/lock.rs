//! A VMA's own lock.
//!
//! A fault holds it shared, so that faults need no lock on the whole space. A thread that changes a VMA holds
//! the mmap lock for writing and then *write-locks* each VMA that it changes, once. Write locks are not
//! released one by one: they are numbered by the space's *lock sequence*, and the end of the mmap-locked
//! section ends them all by stepping the sequence. (Linux does the same since 6.4; the state words here are
//! our own.)
//!
//! The words: `readers` counts holders and carries two bits, WRITER while someone waits for readers to leave,
//! and DETACHED once the VMA is out of its tree. `write_sequence` equals the space's sequence while
//! write-locked.
//!
//! Why a reader can not slip past a writer: the writer sets WRITER, waits for zero readers, stores
//! `write_sequence`, and only then clears WRITER with release. A reader adds itself with acquire: it either
//! sees WRITER and backs off, or its addition comes after the clearing and then sees `write_sequence`; the
//! space's sequence that it compares with is at least the writer's, since the writer read it before. Equal
//! means locked.

use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

const WRITER: u32 = 1 << 31;
const DETACHED: u32 = 1 << 30;
const READERS: u32 = DETACHED - 1;

/// The lock sequence of a space: the number of mmap-locked sections that have ended, plus one. Those of
/// page-out, which lock no VMA, do not count.
#[derive(Debug)]
pub struct LockSequence(AtomicU64);

impl Default for LockSequence {
    fn default() -> Self {
        Self::new()
    }
}

impl LockSequence {
    /// Not held.
    #[inline]
    pub fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    /// Ends every write lock that was taken in the section. The caller holds the mmap lock for writing and is
    /// about to release it.
    #[inline]
    pub fn end_section(&self) {
        // Pairs with the acquiring load in `try_read`: a reader that sees the new number sees all changes
        // made under it.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// The lock itself, part of each VMA.
#[derive(Debug)]
pub struct VmaLock {
    readers: AtomicU32,
    write_sequence: AtomicU64,
}

impl Default for VmaLock {
    fn default() -> Self {
        Self::new()
    }
}

impl VmaLock {
    /// Not held.
    #[inline]
    pub fn new() -> Self {
        Self { readers: AtomicU32::new(0), write_sequence: AtomicU64::new(0) }
    }

    /// Takes the lock shared, or returns false where a writer has it, wants it, or the VMA is out of its
    /// tree. Never waits. `wake` is called if a waiting writer must be woken because this attempt was undone.
    #[inline]
    pub fn try_read(&self, sequence: &LockSequence, wake: impl FnOnce()) -> bool {
        let before = self.readers.fetch_add(1, Ordering::Acquire);
        if before & (WRITER | DETACHED) == 0
            && self.write_sequence.load(Ordering::Relaxed) != sequence.0.load(Ordering::Acquire)
        {
            return true;
        }
        self.unlock_read(wake);
        false
    }

    /// Releases a shared hold. `wake` is called when the last reader leaves while a writer waits.
    #[inline]
    pub fn unlock_read(&self, wake: impl FnOnce()) {
        // Pairs with the acquiring load in `write`: the writer sees what was done under the shared hold.
        let before = self.readers.fetch_sub(1, Ordering::Release);
        if before & (WRITER | DETACHED) != 0 && before & READERS == 1 {
            wake();
        }
    }

    /// Write-locks a VMA that no other thread can reach yet, until the section ends: there can be no readers.
    #[inline]
    pub fn write_lock_new(&self, sequence: &LockSequence) {
        // The release by which the VMA is put into its tree makes this visible to a fault that finds it
        // there.
        self.write_sequence.store(sequence.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Write-locks the VMA until the section ends. The caller holds the mmap lock for writing. `wait` is
    /// called until the readers have left, each time with a closure that returns whether there still are any.
    #[inline]
    pub fn write(&self, sequence: &LockSequence, wait: impl FnMut(&mut dyn FnMut() -> bool)) {
        let now = sequence.0.load(Ordering::Relaxed);
        if self.write_sequence.load(Ordering::Relaxed) == now {
            return;
        }
        let readers = self.readers.fetch_or(WRITER, Ordering::Acquire) & READERS;
        self.await_readers(readers, wait);
        self.write_sequence.store(now, Ordering::Relaxed);
        // Pairs with the addition in `try_read`, see the head of this file.
        self.readers.fetch_and(!WRITER, Ordering::Release);
    }

    /// Whether the VMA is write-locked in the running section. For assertions of the section's owner.
    #[inline]
    pub fn is_write_locked(&self, sequence: &LockSequence) -> bool {
        self.write_sequence.load(Ordering::Relaxed) == sequence.0.load(Ordering::Relaxed)
    }

    /// Marks the VMA as out of its tree, for good. The caller has write-locked it in this section; `wait` is
    /// as in [`write`](Self::write).
    ///
    /// A reader that added itself before the mark may still be about to compare sequences, and once the
    /// section has ended it would find them different and assume that it holds the lock. So its back-off is
    /// awaited here.
    #[inline]
    pub fn detach(&self, wait: impl FnMut(&mut dyn FnMut() -> bool)) {
        let readers = self.readers.fetch_or(DETACHED, Ordering::AcqRel) & READERS;
        self.await_readers(readers, wait);
    }

    #[inline]
    fn await_readers(&self, mut readers: u32, mut wait: impl FnMut(&mut dyn FnMut() -> bool)) {
        while readers != 0 {
            wait(&mut || self.readers.load(Ordering::Acquire) & READERS != 0);
            readers = self.readers.load(Ordering::Acquire) & READERS;
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;
    use quire_sync::Watched;

    struct Model {
        lock: VmaLock,
        sequence: LockSequence,
        value: Watched<u32>,
    }

    impl Model {
        fn new() -> Self {
            Self { lock: VmaLock::new(), sequence: LockSequence::new(), value: Watched::new(0) }
        }

        fn read(&self) {
            if self.lock.try_read(&self.sequence, || ()) {
                let _ = self.value.get();
                self.lock.unlock_read(|| ());
            }
        }

        fn write(&self) {
            self.lock.write(&self.sequence, |_| thread::yield_now());
            self.value.set(self.value.get() + 1);
            self.sequence.end_section();
        }
    }

    /// A fault against a change of its VMA.
    #[test]
    fn loom_a_fault_never_overlaps_a_change_of_its_vma() {
        loom::model(|| {
            let model = Arc::new(Model::new());
            let reader = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.read())
            };
            model.write();
            model.write();
            reader.join().unwrap();
        });
    }

    /// After munmap returned, no fault gets hold of the VMA again.
    #[test]
    fn loom_a_detached_vma_is_never_locked_again() {
        loom::model(|| {
            let model = Arc::new(Model::new());
            let reader = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.read())
            };
            model.lock.write(&model.sequence, |_| thread::yield_now());
            model.lock.detach(|_| thread::yield_now());
            model.sequence.end_section();
            // No fault can hold it.
            model.value.set(7);
            assert!(!model.lock.try_read(&model.sequence, || ()));
            reader.join().unwrap();
        });
    }
}
