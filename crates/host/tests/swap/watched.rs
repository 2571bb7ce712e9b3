//! A device that calls the test where the memory manager calls it, so that other threads come just then.

use crate::common::*;
use quire_host::swap::HostRam;
use std::sync::{Arc, OnceLock};

pub(crate) type DeviceOf<'f> = DeviceMemory<'f, HostPlatform>;
pub(crate) type Report<'r> = &'r mut dyn FnMut(PageIo, Result<(), DeviceError>);

/// What a test does in the calls of a device that keeps its pages in a `D`.
pub(crate) trait Calls<D = HostRam>: Send + Sync + 'static {
    /// Before a request is carried out, if that is still to be done.
    fn before(&self, _: DeviceOf<'_>, _: PageIo) -> Option<Submitted> {
        None
    }

    /// A request was carried out, with this result.
    fn after(&self, _: PageIo, result: Submitted) -> Submitted {
        result
    }

    /// Before what is done is looked for. Waiters sleep by `key`.
    fn reap(&self, _: &D, _: DeviceOf<'_>, _key: usize, _: Report<'_>) {}

    /// A thread is about to sleep until something is done.
    fn before_sleep(&self) {}

    fn progress(&self) -> u32 {
        0
    }

    fn compact(&self) -> u64 {
        0
    }

    /// A slot is freed.
    fn freed(&self) {}
}

impl<D> Calls<D> for () {}

/// Such a device. It does not ask the one behind it whose RAM that is in.
pub(crate) struct Watched<C, D = HostRam> {
    pages: D,
    flags: DeviceFlags,
    /// By what waiters sleep, if not by the key of `pages`.
    key: Option<usize>,
    calls: Arc<C>,
}

impl<C: Calls + Default> Watched<C> {
    pub(crate) fn new(slots: u64, flags: DeviceFlags) -> (Self, Arc<C>) {
        let calls = Arc::<C>::default();
        let pages = HostRam::new(slots as usize).unwrap();
        let (flags, key) = (flags | DeviceFlags::NOTES_FREED, Some(key_of(&calls)));
        (Self { pages, flags, key, calls: Arc::clone(&calls) }, calls)
    }
}

impl<C, D: SwapDevice<HostPlatform>> Watched<C, D> {
    /// In front of `pages`, which does all the work.
    pub(crate) fn in_front_of(pages: D, calls: C) -> Self {
        Self { flags: pages.flags(), key: None, pages, calls: Arc::new(calls) }
    }
}

pub(crate) fn key_of<C>(calls: &Arc<C>) -> usize {
    Arc::as_ptr(calls).addr()
}

impl<C: Calls<D>, D: SwapDevice<HostPlatform>> SwapDevice<HostPlatform> for Watched<C, D> {
    fn kind(&self) -> &'static str {
        "watched"
    }

    fn slots(&self) -> u64 {
        self.pages.slots()
    }

    fn flags(&self) -> DeviceFlags {
        self.flags
    }

    unsafe fn submit(&self, memory: DeviceOf<'_>, io: PageIo) -> Submitted {
        if let Some(result) = self.calls.before(memory, io) {
            return result;
        }
        // SAFETY: the caller's promise.
        self.calls.after(io, unsafe { self.pages.submit(memory, io) })
    }

    fn reap(&self, memory: DeviceOf<'_>, done: Report<'_>) {
        self.calls.reap(&self.pages, memory, self.wait_key(), done);
        self.pages.reap(memory, done);
    }

    fn has_done(&self) -> bool {
        self.calls.before_sleep();
        self.pages.has_done()
    }

    fn wait_key(&self) -> usize {
        self.key.unwrap_or_else(|| self.pages.wait_key())
    }

    fn progress(&self) -> u32 {
        self.calls.progress()
    }

    fn freed(&self, memory: DeviceOf<'_>, slot: u64, count: u64) {
        self.calls.freed();
        self.pages.freed(memory, slot, count);
    }

    fn compact(&self, _: DeviceOf<'_>, _: u64) -> u64 {
        self.calls.compact()
    }

    fn close(&self, memory: DeviceOf<'_>) {
        self.pages.close(memory);
    }
}

/// What a test does before a device carries a request out.
type Before = Box<dyn Fn(PageIo) + Send + Sync>;

/// Stops where a test says.
#[derive(Default)]
pub(crate) struct Stopping(OnceLock<Before>);

impl Stopping {
    pub(crate) fn before_each(&self, action: impl Fn(PageIo) + Send + Sync + 'static) {
        assert!(self.0.set(Box::new(action)).is_ok());
    }
}

impl Calls for Stopping {
    fn before(&self, _: DeviceOf<'_>, io: PageIo) -> Option<Submitted> {
        self.0.get().inspect(|action| action(io));
        None
    }
}
