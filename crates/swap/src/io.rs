//! Reading and writing folios of the cache.
//!
//! A folio is one request. A synchronous device completes it at once, with no further state. For any other
//! the folio has WRITEBACK or READING until some thread has reaped the completion. Such a folio does not
//! leave the cache, and the cache holds a reference: that keeps the folio, the slots and the device.
//!
//! Safe code implements devices, so a completion is believed only if it is that of a request which the device
//! was asked for, and of several for one request only the first ([`claim`](quire_frame::FolioIo::claim)).

use crate::cache::SwapCache;
use crate::counts::SlotCounts;
use crate::device::{DeviceError, DeviceFlags, Direction, PageIo, Submitted, SwapDevice, keep_for_ever};
use crate::devices::{Device, SwapDevices};
use crate::held::look_at;
use crate::shadow::Shadow;
use crate::slot::SlotId;
use core::ptr;
use core::sync::atomic::AtomicU64;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform, prefetch};
use quire_frame::{FailClass, FailSite, FolioCounter, FolioGuard, FrameFlags, VmEvent};
use quire_memcg::{MemcgId, MemcgStat};
use quire_sync::atomic::Ordering;

/// The site of reads and writes in fail plans.
const SITE: FailSite = FailSite::new("swap");

/// How far a read or a write has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a failure has to be dealt with"]
pub enum IoState {
    /// It is complete, with success or an error.
    Done(Result<(), DeviceError>),
    /// The folio has [`FrameFlags::READING`] or [`FrameFlags::WRITEBACK`] until it is.
    Begun,
}

quire_arch::part_of! {
    /// Reading and writing folios of the swap cache.
    pub struct SwapIo { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SwapIo<'_, P> {
    /// Writes a folio of the cache. If all its pages are zero-filled and the technique supports it, they are
    /// only marked. It is clean from then on, unless the write fails: then it is dirty again. The caller
    /// holds the folio lock; may sleep.
    pub fn write_folio(self, head: Pfn) -> IoState {
        let zero = self.clean_is_zero(head);
        self.write_cleaned(head, zero)
    }

    /// Writes a folio of the cache if it is dirty, as [`write_folio`](Self::write_folio) does, and
    /// [evicts](SwapCache::evict) it with the `shadow` that it has then. `Ok` says whether it was evicted;
    /// the error how far a write has come that is not complete, or failed. The caller holds the folio lock;
    /// may sleep. Zeros are clean and not noted yet when `shadow` is called: it does not panic.
    pub fn page_out(
        self,
        head: Pfn,
        expected_refs: u32,
        shadow: impl FnOnce() -> Shadow,
    ) -> Result<bool, IoState> {
        let cache = SwapCache::new(self.devices);
        if self.devices.frames().known(head).word().flags().contains(FrameFlags::DIRTY) {
            if self.clean_is_zero(head) {
                let pin = self.devices.platform().pin();
                // It is in the cache until then, with its memcg.
                self.count_pages_on(&pin, head, (VmEvent::SwpoutZero, MemcgStat::SwpoutZero));
                let evicted = cache.evict_zeros(&pin, head, expected_refs, shadow());
                return evicted.ok_or_else(|| self.not_cached(head, Direction::Write));
            }
            match self.write_cleaned(head, false) {
                IoState::Done(Ok(())) => {}
                other => return Err(other),
            }
        }
        Ok(cache.evict(head, expected_refs, Some(shadow())))
    }

    /// Makes a folio clean, and returns whether it is zeros that need not be written.
    fn clean_is_zero(self, head: Pfn) -> bool {
        let frame = self.devices.frames().known(head);
        // Before the contents are read: a later write to them makes the folio dirty again.
        frame.clear_flags(FrameFlags::DIRTY);
        self.devices.technique().knows_zeros() && self.devices.frames().is_zero(head, frame.word().order())
    }

    /// Writes a folio that was just made clean, or marks it as zeros.
    fn write_cleaned(self, head: Pfn, zero: bool) -> IoState {
        let noted = SwapCache::new(self.devices)
            .with_folio(head, |held, first, end| held.note_zero(first, end, zero));
        if noted.is_none() {
            return self.not_cached(head, Direction::Write);
        }
        if zero {
            self.count_pages(head, VmEvent::SwpoutZero, MemcgStat::SwpoutZero);
            return IoState::Done(Ok(()));
        }
        self.submit(head, Direction::Write, FrameFlags::empty())
    }

    #[cold]
    fn not_cached(self, head: Pfn, direction: Direction) -> IoState {
        debug_assert!(false, "{head:?} is not in the cache");
        self.failed(head, direction, DeviceError::OutOfRange)
    }

    /// Prefetches what [`write_folio`](Self::write_folio) will read first, while there is other work.
    #[inline]
    pub fn prefetch_folio(self, head: Pfn) {
        if self.devices.technique().knows_zeros() {
            // The end of a page is looked at first: `Frames::is_zero`.
            let last = PAGE_SIZE as usize / size_of::<AtomicU64>() - 1;
            // SAFETY: the page lies in RAM and is aligned, and the caller has a reference.
            prefetch(unsafe {
                self.devices.platform().direct_map(head).cast::<AtomicU64>().add(last).as_ref()
            });
        }
    }

    /// Reads a folio of the cache. If that fails the folio has [`FrameFlags::READ_FAILED`]. The caller holds
    /// the folio lock, and keeps it until the completion has come ([`wait_read`](Self::wait_read)); may
    /// sleep.
    pub fn read_folio(self, head: Pfn) -> IoState {
        match SwapCache::new(self.devices)
            .with_folio(head, |held, first, _| held.guard.word_of(first).is_zero())
        {
            Some(zero) => self.read_inserted(head, zero),
            None => self.not_cached(head, Direction::Read),
        }
    }

    /// Begins to read a folio of the cache that no thread waits for. Its lock, which the caller hands over
    /// with one reference, is released when the device has completed it. It has had [`FrameFlags::READING`]
    /// since before it came into the cache.
    pub fn read_unattended(self, lock: FolioGuard<'_, P>, head: Pfn) {
        let frame = self.devices.frames().known(head);
        // Until the end: a device may report it before this is done with it.
        let kept = frame.get(1);
        debug_assert!(kept, "the caller holds a reference");
        lock.leave_held();
        let zero = SwapCache::new(self.devices)
            .with_folio(head, |held, first, _| held.guard.word_of(first).is_zero());
        let state = if zero == Some(false) {
            self.fill_for_read(head);
            self.submit(head, Direction::Read, FrameFlags::UNATTENDED)
        } else {
            self.read_folio(head)
        };
        if let IoState::Done(_) = state {
            let slot = SlotId::from_raw(frame.as_folio().slot());
            frame.clear_flags(FrameFlags::READING);
            // A thread that found it meanwhile sleeps until the device has completed it.
            if let Some(device) = self.devices.use_device(slot.device_index()) {
                self.devices.platform().unpark(device.backing().wait_key());
            }
            frame.clear_flags(FrameFlags::UNATTENDED);
            self.end_unattended(head);
        }
        self.devices.memcgs().folios().release_folio(head);
    }

    /// The device has completed a folio that no thread waited for. If it could not read it, a thread that
    /// waits by then gets the error, and a later one reads again. A thread that dropped the last entry of
    /// its slots meanwhile left the folio to this.
    fn end_unattended(self, head: Pfn) {
        let lock = self.devices.frames().folios().adopt_folio_lock(head);
        let frame = self.devices.frames().known(head);
        let (order, slot) = (frame.word().order(), SlotId::from_raw(frame.as_folio().slot()));
        let failed = frame.word().flags().contains(FrameFlags::READ_FAILED);
        let left = failed && SwapCache::new(self.devices).discard_failed(head);
        drop(lock);
        if left {
            self.devices.memcgs().folios().release_folio(head);
        } else if SlotCounts::new(self.devices).is_cached_only(slot, order.pages() as u32) {
            SwapCache::new(self.devices).leave_if_unnamed(head);
        }
        self.devices.memcgs().folios().release_folio(head);
    }

    /// As [`read_folio`](Self::read_folio), for a caller that has just inserted the folio and knows whether
    /// its pages are zero-filled.
    pub fn read_inserted(self, head: Pfn, zero: bool) -> IoState {
        if !zero {
            self.fill_for_read(head);
            return self.submit(head, Direction::Read, FrameFlags::empty());
        }
        let order = self.devices.frames().known(head).word().order();
        self.count_pages(head, VmEvent::SwpinZero, MemcgStat::SwpinZero);
        // One page of it is wanted. SAFETY: the caller has inserted the folio and no thread sees its contents
        // before it is read.
        unsafe { self.devices.platform().zero_ahead(head, order) };
        IoState::Done(Ok(()))
    }

    /// A device is about to fill a folio that was just inserted.
    fn fill_for_read(self, head: Pfn) {
        let order = self.devices.frames().known(head).word().order();
        // SAFETY: the caller has inserted the folio and no thread sees its contents before it is read.
        unsafe { self.devices.platform().fill_user(head, order) };
    }

    /// Counts the pages of a folio, for the machine and for their memcg.
    pub fn count_pages(self, head: Pfn, event: VmEvent, stat: MemcgStat) {
        self.count_pages_on(&self.devices.platform().pin(), head, (event, stat));
    }

    fn count_pages_on(self, pin: &Pin<'_, P>, head: Pfn, what: (VmEvent, MemcgStat)) {
        let frame = self.devices.frames().known(head);
        // The memcg may be removed, and the folio be another one's at once.
        let _section = self.devices.frames().epoch().enter(pin);
        let (pages, memcg) = (frame.word().order().pages(), frame.as_folio().memcg());
        self.count_some(pin, MemcgId::from_bits(memcg), pages, what);
    }

    /// Counts `pages` for the machine and for their memcg.
    #[inline]
    fn count_some(self, pin: &Pin<'_, P>, memcg: MemcgId, pages: u64, (event, stat): (VmEvent, MemcgStat)) {
        self.devices.frames().events().add(pin, event, pages);
        self.devices.memcgs().counters().add_stat(pin, memcg, stat, pages as i64);
    }

    /// Counts what is read or written of a folio, of which a compressed cache in front of the device has
    /// `cached` pages. A large folio counts as one as well: where some of it is the device's, as the
    /// device's.
    fn count_io(self, io: PageIo, cached: u64) {
        let (pin, frame) = (self.devices.platform().pin(), self.devices.frames().known(io.pfn));
        let _section = self.devices.frames().epoch().enter(&pin);
        let (order, memcg) = (frame.word().order(), MemcgId::from_bits(frame.as_folio().memcg()));
        let cached = cached.min(u64::from(io.pages));
        let on_device = u64::from(io.pages) - cached;
        let (of_device, of_cache, whole) = match io.direction {
            Direction::Read => (
                (VmEvent::Pswpin, MemcgStat::Pswpin),
                (VmEvent::Zswpin, MemcgStat::Zswpin),
                (on_device > 0).then_some(FolioCounter::Swpin),
            ),
            Direction::Write => (
                (VmEvent::Pswpout, MemcgStat::Pswpout),
                (VmEvent::Zswpout, MemcgStat::Zswpout),
                Some(if on_device > 0 { FolioCounter::Swpout } else { FolioCounter::Zswpout }),
            ),
        };
        if on_device > 0 {
            self.count_some(&pin, memcg, on_device, of_device);
        }
        if cached > 0 {
            self.count_some(&pin, memcg, cached, of_cache);
        }
        if order == Order::ZERO {
            return;
        }
        if let Some(whole) = whole {
            self.devices.frames().events().count_folio(&pin, order, whole, 1);
        }
        if whole == Some(FolioCounter::Swpout) && order == Order::PMD {
            // Memcgs count folios as large as a PMD entry's only.
            self.devices.memcgs().counters().add_stat(&pin, memcg, MemcgStat::ThpSwpout, 1);
        }
    }

    /// Reads the page of a slot into a frame that is not in the cache; see
    /// [`try_begin_bypass`](SwapCache::try_begin_bypass). May sleep.
    ///
    /// # Errors
    ///
    /// The device's error, or one injected by the fail plan. Only for synchronous devices.
    ///
    /// # Safety
    ///
    /// The frame is an allocated block of one page that belongs to the caller, and until this returns no
    /// other thread reads or writes its contents. On an error the frame may be the device's for ever: then it
    /// has one reference more.
    pub unsafe fn read_past_cache(self, slot: SlotId, pfn: Pfn) -> Result<(), DeviceError> {
        let zero = look_at(self.devices, &self.devices.platform().pin(), slot, |state, at| {
            state.word_of(at).is_zero()
        });
        if zero.ok_or(DeviceError::OutOfRange)? {
            self.count_pages(pfn, VmEvent::SwpinZero, MemcgStat::SwpinZero);
            // SAFETY: the caller's promise.
            unsafe { self.devices.platform().zero_user(pfn, Order::ZERO) };
            return Ok(());
        }
        if self.devices.frames().fail_points().strikes(FailClass::DeviceRead, SITE) {
            return Err(DeviceError::Io);
        }
        let device = self.devices.use_device(slot.device_index()).ok_or(DeviceError::OutOfRange)?;
        if !device.flags.contains(DeviceFlags::SYNCHRONOUS) {
            return Err(DeviceError::OutOfRange);
        }
        // SAFETY: the caller's promise.
        unsafe { self.devices.platform().fill_user(pfn, Order::ZERO) };
        let io = PageIo { direction: Direction::Read, slot: slot.number(), pfn, pages: 1 };
        self.count_io(io, device.backing().cached(self.devices.device_memory(), io));
        // SAFETY: the caller's frame, which it keeps until this returns, unless the device says that it is
        // not done.
        match unsafe { device.backing().submit(self.devices.device_memory(), io) } {
            Submitted::Done(result) => result,
            Submitted::QueueFull => Err(DeviceError::Io),
            Submitted::Begun => {
                keep_for_ever(self.devices.frames(), io);
                Err(DeviceError::Io)
            }
        }
    }

    /// Whether the device of `slot` is synchronous.
    pub fn is_synchronous(self, slot: SlotId) -> bool {
        self.has_flag(slot, DeviceFlags::SYNCHRONOUS)
    }

    /// Whether the device of `slot` is rotational, so that slots near each other should be read together.
    pub fn seeks(self, slot: SlotId) -> bool {
        self.has_flag(slot, DeviceFlags::SEEKS)
    }

    fn has_flag(self, slot: SlotId, flag: DeviceFlags) -> bool {
        let pin = self.devices.platform().pin();
        let _epoch = self.devices.frames().epoch().enter(&pin);
        self.devices.device(slot.device_index()).is_some_and(|device| device.flags.contains(flag))
    }

    /// Submits a request for a folio of the cache, to which the caller has a reference until this returns.
    /// `marks` are set with the mark that it is under way.
    fn submit(self, head: Pfn, direction: Direction, marks: FrameFlags) -> IoState {
        let frame = self.devices.frames().known(head);
        let (class, under_way) = match direction {
            Direction::Read => (FailClass::DeviceRead, FrameFlags::READING),
            Direction::Write => (FailClass::DeviceWrite, FrameFlags::WRITEBACK),
        };
        if self.devices.frames().fail_points().strikes(class, SITE) {
            return self.failed(head, direction, DeviceError::Io);
        }
        let slot = SlotId::from_raw(frame.as_folio().slot());
        let Some(device) = self.devices.use_device(slot.device_index()) else {
            return self.failed(head, direction, DeviceError::OutOfRange);
        };
        let pages = frame.word().order().pages() as u32;
        let io = PageIo { direction, slot: slot.number(), pfn: head, pages };
        let at_once = device.flags.contains(DeviceFlags::SYNCHRONOUS);
        let count = || self.count_io(io, device.backing().cached(self.devices.device_memory(), io));
        if direction == Direction::Read {
            // Before it is read: then the folio may be gone.
            count();
        }
        if !at_once {
            // The completion may be reaped elsewhere before this call is back.
            frame.io().begin(under_way | marks);
        }
        let mut drained = false;
        let state = loop {
            // First: what ends the request after the check below counts a reap after this.
            let (reaps, progress) = (device.reaps.load(Ordering::Acquire), device.backing().progress());
            if !at_once && !frame.word().flags().contains(under_way) {
                // Reported though it was not taken: another thread has dealt with it.
                break IoState::Begun;
            }
            // SAFETY: the folio is in RAM, and stays: by the caller's reference until this returns, and
            // later, as long as it is marked as under way, by the cache's. The caller has its lock, so that
            // nothing else is read to it.
            match unsafe { device.backing().submit(self.devices.device_memory(), io) } {
                Submitted::Done(Err(DeviceError::NoSpace)) if at_once && !drained => {
                    // A device in RAM takes what is free, and some of that may be on lists of CPUs.
                    drained = true;
                    self.devices.frames().pcp().drain_all_in_portions();
                }
                // The same: it was reported, too.
                Submitted::Done(result) if !at_once && self.complete(&device, io, result).is_none() => {
                    break IoState::Begun;
                }
                Submitted::Done(result) => {
                    if !at_once {
                        // A thread that saw it under way sleeps until the device has completed it, and no reap
                        // tells of this.
                        self.devices.platform().unpark(device.backing().wait_key());
                    }
                    break match result {
                        Ok(()) => IoState::Done(Ok(())),
                        Err(error) => self.failed(head, direction, error),
                    };
                }
                Submitted::Begun if at_once => {
                    keep_for_ever(self.devices.frames(), io);
                    break self.failed(head, direction, DeviceError::Io);
                }
                Submitted::Begun => break IoState::Begun,
                Submitted::QueueFull => {
                    self.reap_of(&device);
                    let backing = device.backing();
                    // If another thread made room since, there may be nothing left that would wake this.
                    self.devices.platform().park(backing.wait_key(), &mut || {
                        device.reaps.load(Ordering::Acquire) == reaps
                            && backing.progress() == progress
                            && !backing.has_done()
                    });
                }
            }
        };
        if direction == Direction::Write && !matches!(state, IoState::Done(Err(_))) {
            // Only now it is known which device accepted it.
            count();
        }
        state
    }

    /// Notes that a folio could not be read or written.
    fn failed(self, head: Pfn, direction: Direction, error: DeviceError) -> IoState {
        let flag = match direction {
            Direction::Read => FrameFlags::READ_FAILED,
            Direction::Write => FrameFlags::DIRTY,
        };
        self.devices.frames().known(head).set_flags(flag);
        IoState::Done(Err(error))
    }

    /// An asynchronous device has completed a folio. Returns the marks that it had until then, or `None` if
    /// that is none that the device was working on, or was completed before.
    fn complete(self, device: &Device<P>, io: PageIo, result: Result<(), DeviceError>) -> Option<FrameFlags> {
        let pin = self.devices.platform().pin();
        let frame = self.devices.frames().known(io.pfn);
        let (failed, under_way) = match io.direction {
            Direction::Read => (FrameFlags::READ_FAILED, FrameFlags::READING),
            Direction::Write => (FrameFlags::DIRTY, FrameFlags::WRITEBACK),
        };
        if !frame.io().claim::<P>(u64::from(io.pages), under_way) {
            return None;
        }
        // From here on the folio has one request under way, and this is its end, if it is this device's.
        if !device.has(SlotId::from_raw(frame.as_folio().slot()), io.slot) {
            frame.io().unclaim();
            return None;
        }
        // The folio may change after this; its address is only a key.
        let key = ptr::from_ref(frame).addr();
        let before = match (io.direction, result) {
            (Direction::Read, _) => {
                let failed = if result.is_err() { failed } else { FrameFlags::empty() };
                frame.io().end(failed, under_way | FrameFlags::UNATTENDED, FrameFlags::empty())
            }
            (Direction::Write, Err(_)) => {
                frame.io().end(failed, under_way | FrameFlags::RECLAIM, FrameFlags::empty())
            }
            (Direction::Write, Ok(())) => loop {
                // Whether it is to be freed is looked at in the step that ends the write: none asks for that
                // afterwards.
                let before = frame.io().end(FrameFlags::empty(), under_way, FrameFlags::RECLAIM);
                if before.is_some() || frame.clear_flags(FrameFlags::RECLAIM).is_none() {
                    break before;
                }
                // If it is still listed, it is the next to be reclaimed. As long as it is being written the
                // cache keeps it.
                self.devices.memcgs().folios().move_to_back(&pin, io.pfn);
            },
        };
        self.devices.platform().unpark(key);
        before
    }

    /// Reaps the completions of a device, and wakes all threads that wait for one.
    fn reap_of(self, device: &Device<P>) {
        let mut any = false;
        device.backing().reap(self.devices.device_memory(), &mut |io, result| {
            // The device may have room for a request again, whatever this one was.
            any = true;
            let Some(marks) = self.complete(device, io, result) else { return };
            // Its lock was left for the one that completes it. Of one that a thread waits for nothing is
            // known once it is completed.
            if io.direction == Direction::Read && marks.contains(FrameFlags::UNATTENDED) {
                self.end_unattended(io.pfn);
            }
        });
        if any {
            // Release: pairs with the loads of the threads that wait for a full queue.
            device.reaps.fetch_add(1, Ordering::Release);
            self.devices.platform().unpark(device.backing().wait_key());
        }
    }

    /// Reaps the completions of all devices. Not pinned.
    pub fn reap(self) {
        for index in 0..crate::MAX_DEVICES {
            if let Some(device) = self.devices.use_device(index) {
                self.reap_of(&device);
            }
        }
    }

    /// Sleeps until no device is writing the folio, to which the caller has a reference.
    pub fn wait_writeback(self, head: Pfn) {
        self.wait(head, FrameFlags::WRITEBACK);
    }

    /// Sleeps until the folio is read. The caller has begun the read and holds the folio lock.
    ///
    /// # Errors
    ///
    /// It could not be read; what exactly was wrong is not known any more.
    pub fn wait_read(self, head: Pfn) -> Result<(), DeviceError> {
        self.wait(head, FrameFlags::READING);
        let failed = self.devices.frames().known(head).word().flags().contains(FrameFlags::READ_FAILED);
        if failed { Err(DeviceError::Io) } else { Ok(()) }
    }

    fn wait(self, head: Pfn, under_way: FrameFlags) {
        let frame = self.devices.frames().known(head);
        let busy = || frame.word().flags().contains(under_way);
        while busy() {
            let slot = SlotId::from_raw(frame.as_folio().slot());
            // None if the completion has come and the slots and their device have gone since.
            let Some(device) = self.devices.use_device(slot.device_index()) else { continue };
            let backing: &dyn SwapDevice<P> = device.backing();
            let progress = backing.progress();
            self.reap_of(&device);
            // A device that was full, or the one behind it, may have made room since: a part of the request that
            // it had no room for is asked for by the next reap.
            self.devices.platform().park(backing.wait_key(), &mut || {
                busy() && backing.progress() == progress && !backing.has_done()
            });
        }
    }
}
