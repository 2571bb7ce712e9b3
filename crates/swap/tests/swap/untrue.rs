//! Devices that report what did not happen. Safe code can implement a device, so an error is the worst that
//! may come of it.

mod behind;
mod boasts;
mod in_hand;
mod marks;

use crate::common::machine::{after_all_holds, at_the_next_wait, run_on};
use crate::common::*;
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_frame::{FrameChain, FrameFlags};
use quire_memcg::LruList;
use quire_swap::{
    DeviceError, DeviceFlags, DeviceMemory, Direction, Inserted, IoState, PageIo, SlotId, Submitted, Swap,
    SwapDevice, SwapOnOptions, SwapTechnique,
};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

/// What a device does when it is asked.
#[derive(Clone, Copy, Default)]
enum Asked {
    /// It begins.
    #[default]
    Begins,
    /// It reports at once that it is done, as from another CPU, and then again.
    ReportsAndIsDone,
    /// The same, and then it says that its queue is full, the first time.
    ReportsAndIsFull,
    /// It says that its queue is full.
    IsFull,
}

/// The test's part of a [`Told`].
#[derive(Default)]
struct Script {
    asked: Mutex<Asked>,
    reports: Mutex<Vec<(PageIo, Result<(), DeviceError>)>>,
    requests: Mutex<Vec<PageIo>>,
    swap: OnceLock<&'static Swap<Machine>>,
}

/// A device that keeps nothing, and reports as done what the test says.
struct Told(Arc<Script>, DeviceFlags);

impl SwapDevice<Machine> for Told {
    fn kind(&self) -> &'static str {
        "told"
    }

    fn slots(&self) -> u64 {
        512
    }

    fn flags(&self) -> DeviceFlags {
        self.1
    }

    unsafe fn submit(&self, _: DeviceMemory<'_, Machine>, io: PageIo) -> Submitted {
        self.0.requests.lock().unwrap().push(io);
        let asked = *self.0.asked.lock().unwrap();
        if matches!(asked, Asked::ReportsAndIsDone | Asked::ReportsAndIsFull) {
            self.0.report(io, Ok(()));
        }
        match asked {
            Asked::ReportsAndIsDone => Submitted::Done(Ok(())),
            Asked::ReportsAndIsFull if self.0.requests.lock().unwrap().len() == 1 => Submitted::QueueFull,
            Asked::IsFull => Submitted::QueueFull,
            Asked::Begins | Asked::ReportsAndIsFull => Submitted::Begun,
        }
    }

    fn reap(&self, _: DeviceMemory<'_, Machine>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let reports = std::mem::take(&mut *self.0.reports.lock().unwrap());
        reports.into_iter().for_each(|(io, result)| done(io, result));
    }

    fn has_done(&self) -> bool {
        !self.0.reports.lock().unwrap().is_empty()
    }
}

impl Script {
    /// The device reports this, and the core hears of it.
    fn report(&self, io: PageIo, result: Result<(), DeviceError>) {
        self.reports.lock().unwrap().push((io, result));
        self.swap.get().unwrap().io().reap();
    }

    fn last(&self) -> PageIo {
        *self.requests.lock().unwrap().last().unwrap()
    }
}

const UNDER_WAY: FrameFlags = FrameFlags::READING.union(FrameFlags::UNATTENDED);

/// Two such devices, of which the first is the one that is filled.
fn two_devices(flags: DeviceFlags) -> (&'static Swap<Machine>, [Arc<Script>; 2]) {
    let swap: &'static Swap<Machine> = Box::leak(Box::new(swap(8192, 2, SwapTechnique::All)));
    let scripts = [0, 1].map(|_| {
        let script = Arc::<Script>::default();
        assert!(script.swap.set(swap).is_ok());
        swap.devices().swapon(Told(Arc::clone(&script), flags), SwapOnOptions::default()).unwrap();
        script
    });
    (swap, scripts)
}

fn flags(swap: &Swap<Machine>, head: Pfn) -> FrameFlags {
    swap.frames().known(head).word().flags()
}

/// Pages out a folio of the test. Returns its first slot.
fn page_out(swap: &Swap<Machine>, script: &Script, head: Pfn) -> SlotId {
    let slot = swap.allocator().add_folio(head, 0).unwrap();
    assert!(swap.counts().add_counts(slot, swap.frames().folio(head).order().pages() as u32));
    if swap.io().write_folio(head) == IoState::Begun {
        script.report(script.last(), Ok(()));
    }
    assert!(swap.cache().evict(head, 2, None));
    let mut chain = FrameChain::new();
    swap.memcgs().folios().free_frozen(head, &mut chain);
    swap.frames().free_chain(&swap.platform().pin(), chain);
    slot
}

/// A slot with a page on the device, and an empty folio that came into the cache for it.
fn inserted(swap: &Swap<Machine>, script: &Script) -> (SlotId, Pfn) {
    let slot = page_out(swap, script, folio(swap, Order::ZERO));
    let back = folio(swap, Order::ZERO);
    swap.frames().known(back).set_flags(FrameFlags::READING);
    assert!(matches!(swap.cache().insert(slot, back), Inserted::Won { .. }));
    (slot, back)
}

/// Begins to read the folio, which no thread waits for.
fn read(swap: &Swap<Machine>, back: Pfn) {
    swap.io().read_unattended(swap.frames().folios().try_lock_folio(back).unwrap(), back);
}

/// The folio was read: the cache alone has it.
#[track_caller]
fn assert_read(swap: &Swap<Machine>, slot: SlotId, back: Pfn) {
    assert!(!flags(swap, back).intersects(UNDER_WAY | FrameFlags::READ_FAILED));
    assert!(swap.frames().folios().try_lock_folio(back).is_some(), "its lock was released");
    assert_eq!(swap.frames().known(back).refs(), 1);
    assert!(swap.counts().drop_counts(slot, 1).cached_only);
    swap.cache().drop_unnamed(slot, 1, |_| {});
    assert_sound(swap);
}

/// Hazard: a page is taken for read, and its frame is freed, while the device that reads it still writes
/// there.
#[test]
fn a_device_ends_no_request_of_another_one() {
    let (swap, [own, other]) = two_devices(DeviceFlags::empty());
    let (slot, back) = inserted(swap, &own);
    read(swap, back);
    assert!(flags(swap, back).contains(UNDER_WAY));
    let io = own.last();
    other.report(io, Ok(()));
    other.report(io, Err(DeviceError::Io));
    assert!(flags(swap, back).contains(UNDER_WAY), "it is still being read");
    assert!(swap.frames().folios().try_lock_folio(back).is_none());
    own.report(io, Ok(()));
    assert_read(swap, slot, back);
}

/// Hazard: a report of what was never asked for is taken for one that was.
#[test]
fn what_a_device_invents_changes_nothing() {
    let (swap, [own, _]) = two_devices(DeviceFlags::empty());
    let (slot, back) = inserted(swap, &own);
    read(swap, back);
    let io = own.last();
    for invented in [
        PageIo { slot: io.slot + 1, ..io },
        PageIo { slot: u64::MAX, ..io },
        PageIo { pages: 2, ..io },
        PageIo { direction: Direction::Write, ..io },
        PageIo { pfn: Pfn(io.pfn.0 + 1), ..io },
        PageIo { pfn: Pfn(u64::MAX), ..io },
    ] {
        own.report(invented, Err(DeviceError::Io));
        assert!(flags(swap, back).contains(UNDER_WAY), "{invented:?}");
    }
    own.report(io, Ok(()));
    assert_read(swap, slot, back);
}

/// Hazard: a report of what no device was asked for yet is taken for the end of the read. A folio that is
/// read ahead is marked as under way before it comes into the cache.
#[test]
fn what_is_reported_before_it_is_asked_for_ends_nothing() {
    let (swap, [own, other]) = two_devices(DeviceFlags::empty());
    let (slot, back) = inserted(swap, &own);
    let io = PageIo { direction: Direction::Read, slot: slot.number(), pfn: back, pages: 1 };
    for device in [&own, &other] {
        device.report(io, Err(DeviceError::Io));
        let now = flags(swap, back) & (FrameFlags::READING | FrameFlags::READ_FAILED);
        assert_eq!(now, FrameFlags::READING, "nothing was read");
    }
    read(swap, back);
    assert!(flags(swap, back).contains(UNDER_WAY));
    own.report(own.last(), Ok(()));
    assert_read(swap, slot, back);
}

/// Hazard: the second report of one request gives up references and the lock of the folio once more.
#[test]
fn a_request_ends_once() {
    let (swap, [own, _]) = two_devices(DeviceFlags::empty());
    let (slot, back) = inserted(swap, &own);
    read(swap, back);
    own.report(own.last(), Ok(()));
    own.report(own.last(), Err(DeviceError::Io));
    assert_read(swap, slot, back);
    for asked in [Asked::ReportsAndIsDone, Asked::ReportsAndIsFull] {
        let (slot, back) = inserted(swap, &own);
        own.requests.lock().unwrap().clear();
        *own.asked.lock().unwrap() = asked;
        read(swap, back);
        *own.asked.lock().unwrap() = Asked::Begins;
        assert_read(swap, slot, back);
        assert_eq!(own.requests.lock().unwrap().len(), 1, "what is done is not asked for again");
    }
}

/// Hazard: two CPUs are told of the end of one request at once, and both believe that it is under way. The
/// second one notes an error of a page that may be another owner's by then.
#[test]
fn two_reports_at_once_end_a_request_once() {
    let (swap, [own, _]) = two_devices(DeviceFlags::empty());
    let head = folio(swap, Order::ZERO);
    swap.memcgs().folios().list_folio(&swap.platform().pin(), head, LruList::InactiveFile);
    swap.allocator().add_folio(head, 0).unwrap();
    assert_eq!(swap.io().write_folio(head), IoState::Begun);
    // Then its end takes the lock of a list: there the first thread is stopped.
    swap.frames().known(head).set_flags(FrameFlags::RECLAIM);
    let io = own.last();
    let (go, goes) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let other = thread::spawn({
        let own = Arc::clone(&own);
        move || {
            run_on(1);
            goes.recv().unwrap();
            let waits = tell.clone();
            at_the_next_wait(move || waits.send("waits").unwrap());
            own.report(io, Err(DeviceError::Io));
            let _ = tell.send("is done");
        }
    });
    let mut go = Some(go);
    let stopped = move |dropped| {
        if matches!(dropped, LockClass::Lru | LockClass::LruIncoming)
            && let Some(go) = go.take()
        {
            go.send(()).unwrap();
            assert_eq!(told.recv(), Ok("waits"));
        }
    };
    after_all_holds(stopped, || own.report(io, Ok(())));
    other.join().unwrap();
    assert!(
        !flags(swap, head).intersects(FrameFlags::WRITEBACK | FrameFlags::DIRTY | FrameFlags::COMPLETING)
    );
}

/// Hazard: a device begins what it should have done at once, and the frame is freed before it is done.
#[test]
fn a_frame_that_a_synchronous_device_may_still_use_is_never_freed() {
    let (swap, [own, _]) = two_devices(DeviceFlags::SYNCHRONOUS);
    let head = folio(swap, Order::ZERO);
    swap.allocator().add_folio(head, 0).unwrap();
    let refs = swap.frames().known(head).refs();
    assert_eq!(swap.io().write_folio(head), IoState::Done(Err(DeviceError::Io)));
    assert_eq!(swap.frames().known(head).refs(), refs + 1);
    own.report(own.last(), Ok(()));
    assert!(flags(swap, head).contains(FrameFlags::DIRTY), "nothing was written");
}
